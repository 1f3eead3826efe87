//! `pd-proxy demo` and `pd-proxy sim`: simulated engines and pools, to try the gateway out without
//! any.

mod embedded;
mod master;
mod traffic;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::net::lookup_host;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use crate::app::{self, App, Signals, StartError};
use crate::cli::{DemoArgs, SimArgs, SimConnector, SimEngineRelease, SimOther, SimRole};
use crate::config::Config;
use crate::obs::log;
use crate::sim::{Connector, Engine, EngineSpec, Pool, Role};
use crate::tls::ClientError;

pub use embedded::{Embedded, EmbeddedError};

/// Engines of each role in the demo.
const EACH: u16 = 2;

/// Blocks that the demo's embedded pool holds: eight prompts of 8 000 tokens.
const POOL_BLOCKS: usize = 4096;

/// Prompt tokens that a demo engine computes per second: slow enough to see that a cache helps.
const PREFILL_TOKENS_PER_S: f64 = 4_000.0;

/// Reasons for which the demo or a simulated engine can't run.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// An engine's address is taken.
    #[error("cannot start the simulated engine on {address}: {source}; choose another port")]
    Engine {
        /// Address on which it was to listen.
        address: SocketAddr,
        /// Cause of the error.
        source: io::Error,
    },
    /// The pool of the demo can't start.
    #[error(transparent)]
    Pool(#[from] EmbeddedError),
    /// A simulated master's address is taken.
    #[error(
        "cannot start the simulated master on {address}: {source}; choose another --port or --admin-port"
    )]
    Master {
        /// Address on which it was to listen.
        address: SocketAddr,
        /// Cause of the error.
        source: io::Error,
    },
    /// A file of keys that can't be read.
    #[error("--keys {path}: {source}")]
    Keys {
        /// Path of the file.
        path: String,
        /// Cause of the error.
        source: io::Error,
    },
    /// The gateway can't start.
    #[error(transparent)]
    Gateway(#[from] StartError),
    /// The host is no address.
    #[error("--host {0}: no such address")]
    Host(String),
    /// A key is asked for that is not there.
    #[error("--api-key-env {0}: there is no such environment variable")]
    Key(String),
    /// There can be no client for the load.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The runtime or the signals.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Runs two prefillers, two decoders, a block pool and the gateway in this process, until a signal.
///
/// # Errors
/// [`DemoError`] says what is in the way.
pub fn run(args: &DemoArgs) -> Result<(), DemoError> {
    let _log = log::init(args.log_level.filter().parse().unwrap_or(tracing::Level::INFO), false);
    Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let embedded = Embedded::start(&EngineSpec::default()).await?;
        let pool = Arc::new(Pool::new(POOL_BLOCKS).mirrored(embedded.clone()));
        let (mut prefill, mut decode) = (Vec::new(), Vec::new());
        for n in 0..2 * EACH {
            let role = if n < EACH { Role::Prefill } else { Role::Decode };
            let port = if args.engine_base_port == 0 { 0 } else { args.engine_base_port + n };
            let engine = start(demo_engine(role, args, &pool), ([127, 0, 0, 1], port).into()).await?;
            if role == Role::Prefill { prefill.push(engine) } else { decode.push(engine) }
        }
        let mut config = demo_config(args, &prefill, &decode);
        embedded.configure(&mut config);
        let app = App::build(&config).await?;
        let signals = Signals::install()?;
        introduce(&app, &config);
        let clients = traffic(&app, args)?;
        app::serve_until_signal(app, signals).await;
        drop(clients);
        for engine in prefill.into_iter().chain(decode) {
            engine.stop().await;
        }
        Ok(())
    })
}

/// Runs one simulated engine, or what else the arguments name, until a signal.
///
/// # Errors
/// [`DemoError`] says what is in the way.
pub fn run_simulator(args: &SimArgs) -> Result<(), DemoError> {
    if let Some(SimOther::Mooncake(args)) = &args.other {
        return master::run(args);
    }
    let spec = engine_spec(args)?;
    Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let address = resolve(&args.host, args.port).await?;
        let engine = start(spec, address).await?;
        let mut signals = Signals::install()?;
        println!("simulated engine on {}, role {}, model {}", engine.url(), args.role.name(), args.model);
        signals.next().await;
        engine.stop().await;
        Ok(())
    })
}

/// Starts the load, if one is asked for.
fn traffic(app: &App, args: &DemoArgs) -> Result<Option<JoinSet<()>>, ClientError> {
    let address = app.addresses().first().copied().filter(|_| args.traffic);
    let Some(address) = address else { return Ok(None) };
    println!("A load of a few conversations is played, as --traffic says: look at the page.");
    traffic::start(&format!("http://{address}")).map(Some)
}

async fn start(spec: EngineSpec, address: SocketAddr) -> Result<Engine, DemoError> {
    Engine::start(spec, address).await.map_err(|source| DemoError::Engine { address, source })
}

async fn resolve(host: &str, port: u16) -> Result<SocketAddr, DemoError> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok((ip, port).into());
    }
    let found = lookup_host((host, port)).await.ok().and_then(|mut all| all.next());
    found.ok_or_else(|| DemoError::Host(host.to_owned()))
}

fn demo_engine(role: Role, args: &DemoArgs, pool: &Arc<Pool>) -> EngineSpec {
    EngineSpec {
        role,
        prefill_tokens_per_s: PREFILL_TOKENS_PER_S,
        tpot_ms: 1e3 / args.tokens_per_s,
        slope_ms: 0.05,
        pool: Some(pool.clone()),
        kv_blocks: 32_768,
        ..EngineSpec::default()
    }
}

fn demo_config(args: &DemoArgs, prefill: &[Engine], decode: &[Engine]) -> Config {
    let addresses = |engines: &[Engine]| engines.iter().map(|e| e.addr().to_string()).collect();
    let mut config = Config::default();
    config.server.host.clone_from(&args.host);
    config.server.port = args.port;
    config.fleet.prefill = addresses(prefill);
    config.fleet.decode = addresses(decode);
    config
}

fn engine_spec(args: &SimArgs) -> Result<EngineSpec, DemoError> {
    let key = |name: &String| std::env::var(name).map_err(|_| DemoError::Key(name.clone()));
    Ok(EngineSpec {
        role: match args.role {
            SimRole::Prefill => Role::Prefill,
            SimRole::Decode => Role::Decode,
            SimRole::Both => Role::Both,
        },
        model: args.model.clone(),
        block_tokens: args.block_tokens as usize,
        kv_blocks: args.kv_blocks as usize,
        prefill_tokens_per_s: args.prefill_tokens_per_s,
        tpot_ms: args.tpot_ms,
        slope_ms: args.slope_ms,
        lease_ms: args.lease_ms,
        answer_tokens: args.answer_tokens,
        version: args.release.version().to_owned(),
        streams_handoff: args.release == SimEngineRelease::V0_33,
        connector: match args.connector {
            SimConnector::Handoff => Connector::Handoff,
            SimConnector::Mooncake => Connector::Mooncake,
            SimConnector::Push => Connector::Push,
            SimConnector::Sglang => Connector::Sglang,
            SimConnector::Pool => Connector::Pool,
            SimConnector::Layerwise => Connector::Layerwise,
            SimConnector::Moriio => Connector::Moriio,
        },
        api_key: args.api_key_env.as_ref().map(key).transpose()?,
        ..EngineSpec::default()
    })
}

/// The first turn of a conversation: some blocks long, so that the second has something to find.
const QUESTION: &str = "What does the key-value cache of a language model hold, and why do engines share it?";
/// The second turn of the demo's conversation: the assumed answer, and the next question.
const TURN: [&str; 2] = ["Keys and values of every token.", "How does a gateway know which engine has it?"];

/// Prints what runs, and lines to paste.
fn introduce(app: &App, config: &Config) {
    let Some(address) = app.addresses().first().copied() else {
        return;
    };
    let (prefill, decode) = (config.fleet.prefill.join(", "), config.fleet.decode.join(", "));
    let (rpc, admin) = (config.pool.addresses.join(", "), config.pool.admins.join(", "));
    println!(
        "pd-proxy on http://{address}, in front of simulated engines (model `sim`): prefillers {prefill}; decoders {decode};"
    );
    println!(
        "one pool shared by all four, a simulated Mooncake master on {rpc} (admin http://{admin}). Stop with Ctrl-C."
    );
    println!("In a browser: http://{address}/. Metrics: http://{address}/metrics. Try:\n");
    println!("{}\n", curl(address, &[Turn { role: "user", text: QUESTION }]));
    let [answer, next] = TURN;
    println!(
        "and its next turn, of which the pool has the beginning by then: pooled_tokens in the log line.\n"
    );
    let turns = [("user", QUESTION), ("assistant", answer), ("user", next)];
    println!("{}\n", curl(address, &turns.map(|(role, text)| Turn { role, text })));
}

/// A message of a chat, as the request has it.
struct Turn<'a> {
    role: &'a str,
    text: &'a str,
}

/// A request for a shell; the texts have no quotes.
fn curl(address: SocketAddr, turns: &[Turn<'_>]) -> String {
    let message = |Turn { role, text }: &Turn<'_>| format!("{{\"role\":\"{role}\",\"content\":\"{text}\"}}");
    let messages = turns.iter().map(message).collect::<Vec<_>>().join(",");
    format!(
        "curl -N http://{address}/v1/chat/completions -H 'content-type: application/json' \
         -d '{{\"model\":\"sim\",\"messages\":[{messages}],\"max_tokens\":24,\"stream\":true}}'"
    )
}
