//! Wiring: from a configuration to a running gateway. The one place that names the concrete types of every layer.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission;
use crate::auth::Callers;
use crate::auth::watch::{KeysError, Watch};
use crate::config::{self, Config, Tokens};
use crate::endpoint::Endpoint;
use crate::fleet::{Fleet, FleetSettings, HostNames, Role};
use crate::intake::{Asker, EngineLimits, EngineTokenizer, Prompts, Source, exchange};
use crate::listeners::{self, Listeners};
use crate::obs::{Exposition, Meters};
use crate::pool::Verdict;
use crate::pools::{self, PoolsError};
use crate::profile::{self, FilesError, Trouble};
use crate::proof::Prover;
use crate::relay::Relay;
use crate::relay::admit::Gate;
use crate::relay::affinity::Affinity;
use crate::relay::lookup;
use crate::relay::pause;
use crate::relay::release::Releases;
use crate::relay::settings::Settings;
use crate::relay::skip::Skip;
use crate::relay::stories::Stories;
use crate::route::{Bind, BoardSettings, Policy};
use crate::scrape::Scraper;
use crate::server::{self, Bound, Edge, Gateway, ListenError};
use crate::upstream::{self, Connector, Dial, Upstream};

/// Samples are folded into buckets, and drained instances dropped, this often.
const HOUSEKEEPING: Duration = Duration::from_secs(2);

/// The longest that an engine may take over a control call: resetting a cache, listing models.
const CONTROL_TIME: Duration = Duration::from_secs(30);

/// The longest that one prefiller's name may take to be resolved.
const RESOLVE_TIME: Duration = Duration::from_secs(3);

/// What a shutdown adds to `server.drain_ms` for hand-offs that are still to be released.
const RELEASE_GRACE: Duration = Duration::from_secs(5);

/// A gateway that listens and does not serve yet.
#[derive(Debug)]
pub struct App {
    gateway: Arc<Gateway>,
    bound: Bound,
    drain: Duration,
    tasks: JoinSet<()>,
    releasing: JoinSet<()>,
}

/// SIGINT and SIGTERM.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

/// Why a gateway can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is taken, or is not ours.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A secret that can't be sent in a header.
    #[error("engine.api_key can't be sent in a header: it has a character that is not visible ASCII")]
    Key,
    /// The file of clients' keys.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The model's files.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The blocks' names, as configured and as the engines say.
    #[error(transparent)]
    Names(#[from] Trouble),
    /// The pool's client.
    #[error(transparent)]
    Pool(#[from] PoolsError),
    /// The HTTP client for control calls.
    #[error("cannot set up the HTTP client: {0}")]
    Client(#[from] reqwest::Error),
}

impl App {
    /// Builds a gateway and binds its address.
    ///
    /// # Errors
    /// [`StartError`] names the setting at fault.
    pub async fn build(config: &Config) -> Result<App, StartError> {
        App::build_over(config, None).await
    }

    /// The same, with legs that go over `dial` in place of sockets: for tests in virtual time. Control calls still use
    /// sockets.
    ///
    /// # Errors
    /// As [`App::build`].
    pub async fn build_over(config: &Config, dial: Option<Arc<dyn Dial>>) -> Result<App, StartError> {
        let exposition = Exposition::install();
        let meters = Arc::new(Meters::new());
        let keys = admission::keys(&config.auth, &meters)?;
        let fleet = fleet(config).await;
        let control = control(config)?;
        let edge = edge(config)?;
        let asker = Asker {
            client: control.clone(),
            authorization: edge.engine_authorization.clone(),
            time: exchange::ASK_TIME,
            answer_bytes: exchange::ANSWER_BYTES,
        };
        let prompts = prompts(config, &asker)?;
        let finder = finder(config, prompts.as_ref(), &control, &meters)?;
        let told = finder.as_ref().and_then(|finder| finder.events.clone());
        let (releases, orphans) = Releases::new(config.limit.releases, meters.clone());
        let affinity = Affinity::new(fleet.desk().clone(), meters.clone());
        if let Some(told) = &told {
            fleet.desk().hear(told.clone());
        }
        let relay = Arc::new(Relay {
            fleet,
            upstream: Upstream::new(Connector::new(ms(config.timeout.connect_ms), dial)),
            settings: settings(config),
            sides: admission::sides(&config.limit),
            meters: meters.clone(),
            releases,
            prompts: prompts.clone(),
            finder,
            affinity,
            stories: Stories::default(),
        });
        let mut tasks = JoinSet::new();
        if let Some(prompts) = prompts {
            let mut prover = Prover::new(config, relay.clone(), prompts, asker);
            prover.first().await?;
            tasks.spawn(prover.run());
        }
        if let Some(told) = told {
            tasks.spawn(Listeners::new(&config.events, relay.clone(), &told).run());
        }
        let gateway = Arc::new(Gateway {
            relay: relay.clone(),
            gate: Gate::new(admission::gate_limits(config), meters),
            callers: keys.as_ref().map_or_else(|| Arc::new(Callers::open()), Watch::callers),
            exposition,
            control,
            edge,
            waiting: server::Waiting::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        });
        let bound = server::bind(config.server.bind_host(), config.server.port).await?;
        tasks.spawn(housekeeping(gateway.clone()));
        if let Some(keys) = keys {
            tasks.spawn(keys.run());
        }
        tasks.spawn(relay.fleet.desk().clone().tick());
        if let Some(scraper) = scraper(config, &gateway) {
            tasks.spawn(scraper.run());
        }
        let mut releasing = JoinSet::new();
        releasing.spawn(relay.release_orphans(orphans));
        Ok(App { gateway, bound, drain: ms(config.server.drain_ms), tasks, releasing })
    }

    /// Where clients may connect.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.bound.addresses()
    }

    /// The gateway, for tests and for embedding.
    pub fn gateway(&self) -> Arc<Gateway> {
        self.gateway.clone()
    }

    /// Cancel it to shut the gateway down.
    pub fn stop(&self) -> CancellationToken {
        self.gateway.stop.clone()
    }

    /// Serves until [`App::stop`] is cancelled and open requests are finished; returns how many connections were cut.
    pub async fn serve(self) -> usize {
        let App { gateway, bound, drain, tasks, mut releasing } = self;
        let router = server::router(gateway.clone());
        let cut = server::serve(bound, router, gateway.clone(), drain).await;
        gateway.tasks.close();
        let _ = tokio::time::timeout(RELEASE_GRACE, gateway.tasks.wait()).await;
        drop(tasks);
        // The releasing task holds the relay, and the relay the way into its own queue: it never ends by itself.
        let _ = tokio::time::timeout(RELEASE_GRACE, async {
            while gateway.relay.releases.pending() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        releasing.shutdown().await;
        cut
    }
}

impl Signals {
    /// Takes SIGINT and SIGTERM over from the system, which would end the process at once. To be done before anything
    /// says that we are up: a supervisor may stop us right then.
    ///
    /// # Errors
    /// When signals can't be waited for.
    pub fn install() -> io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next of either.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Serves until a signal; a second one ends the drain.
pub async fn serve_until_signal(app: App, mut signals: Signals) {
    let stop = app.stop();
    let mut serving = std::pin::pin!(app.serve());
    tokio::select! {
        _ = &mut serving => return,
        () = signals.next() => {}
    }
    tracing::info!("shutting down: open requests may finish; a second signal cuts them");
    stop.cancel();
    tokio::select! {
        cut = &mut serving => tracing::info!(connections_cut = cut, "stopped"),
        () = signals.next() => tracing::warn!("cut by a second signal"),
    }
}

async fn housekeeping(gateway: Arc<Gateway>) {
    let mut tick = tokio::time::interval(HOUSEKEEPING);
    loop {
        tick.tick().await;
        gateway.exposition.upkeep();
        for role in [Role::Prefill, Role::Decode] {
            gateway.relay.fleet.sweep(role);
        }
        gateway.count_instances();
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The engines as configured.
async fn fleet(config: &Config) -> Fleet {
    let fleet = Fleet::with(fleet_settings(config));
    for endpoint in config.prefill_endpoints() {
        fleet.add(Role::Prefill, endpoint);
    }
    for endpoint in config.decode_endpoints() {
        fleet.add(Role::Decode, endpoint);
    }
    fleet.desk().name_hosts(host_names(config).await);
    fleet
}

/// The client for control calls. Engines are on the cluster's own network: `HTTP_PROXY` is for what leaves it, and the legs
/// ignore it too.
fn control(config: &Config) -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .pool_idle_timeout(upstream::POOL_IDLE)
        .connect_timeout(ms(config.timeout.connect_ms))
        .timeout(CONTROL_TIME)
        .build()
}

/// What reads prompts; None when nobody is to.
fn prompts(config: &Config, asker: &Asker) -> Result<Option<Arc<Prompts>>, StartError> {
    profile::refuse_early(config)?;
    let source = match config.prompt.tokens {
        Tokens::Off => return Ok(None),
        Tokens::Engine => {
            let limits = EngineLimits {
                budget: ms(config.prompt.budget_ms),
                in_flight: config.limit.tokenize_inflight,
                cache_tokens: config.limit.prompt_cache_tokens,
                ..EngineLimits::default()
            };
            Source::Engine(EngineTokenizer::new(asker.clone(), limits, pause::random()))
        }
        Tokens::Local => {
            let (prompter, without) = profile::prompter(config, pause::random())?;
            if let Some(why) = without {
                tracing::warn!("chats are routed by load: {why}");
            }
            Source::Local(Arc::new(prompter))
        }
    };
    Ok(Some(Arc::new(Prompts::new(source, config.prompt.utc_offset_s()))))
}

/// Who looks at the engines' own loads; None when nobody is to.
fn scraper(config: &Config, gateway: &Gateway) -> Option<Scraper> {
    (config.route.scrape_ms > 0).then(|| Scraper {
        relay: gateway.relay.clone(),
        client: gateway.control.clone(),
        authorization: gateway.edge.engine_authorization.clone(),
        pause: ms(config.route.scrape_ms),
        time: ms(config.timeout.models_ms),
    })
}

/// Names of hosts as a pool knows them: as configured, and the addresses of prefillers that are given by name.
async fn host_names(config: &Config) -> HostNames {
    let mut names = HostNames::new();
    if config.pool.kind == config::PoolKind::Off {
        return names;
    }
    for Endpoint { host, port } in config.prefill_endpoints() {
        let found = tokio::time::timeout(RESOLVE_TIME, tokio::net::lookup_host((host.as_str(), port))).await;
        for address in found.into_iter().flatten().flatten() {
            names.insert(address.ip().to_string(), host.clone());
        }
    }
    names.extend(config.pool.host_names().map(|(name, host)| (name.to_owned(), host.to_owned())));
    names
}

/// Where blocks are of a size that nobody said: the engines' default.
const BLOCK_TOKENS: u64 = 16;

fn fleet_settings(config: &Config) -> FleetSettings {
    let route = &config.route;
    let board = BoardSettings {
        policy: policy(route.policy),
        bind: match route.bind {
            config::Bind::Late => Bind::Late,
            config::Bind::Arrival => Bind::Arrival,
        },
        open_s: ms(route.open_ms).as_secs_f64(),
        batch_tokens: route.batch_tokens,
        ..BoardSettings::default()
    };
    let block_tokens = match config.hash.block_tokens {
        0 => BLOCK_TOKENS,
        tokens => u64::from(tokens),
    };
    let cache_blocks = usize::try_from(route.cache_tokens / block_tokens).unwrap_or(usize::MAX);
    let ranks = |ranks: u32| u16::try_from(ranks).unwrap_or(u16::MAX);
    FleetSettings {
        board,
        cache_blocks,
        prefill_ranks: ranks(config.fleet.prefill_ranks),
        decode_ranks: ranks(config.fleet.decode_ranks),
        seed: pause::random(),
        ..FleetSettings::default()
    }
}

/// Who is asked about prompts' blocks; None when nobody can be.
fn finder(
    config: &Config,
    prompts: Option<&Arc<Prompts>>,
    control: &reqwest::Client,
    meters: &Arc<Meters>,
) -> Result<Option<lookup::Finder>, StartError> {
    let (pool, events) = (pools::gate(config, control)?, listeners::told(&config.events));
    let Some(prompts) = prompts.filter(|_| pool.is_some() || events.is_some()) else { return Ok(None) };
    if let Some(gate) = &pool {
        meters.pool_starts(gate.name(), &Verdict::ALL.map(Verdict::name));
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (prompts, meters, aside) = (prompts.clone(), meters.clone(), Arc::new(Semaphore::new(cores)));
    Ok(Some(lookup::Finder { prompts, pool, events, meters, aside }))
}

fn policy(configured: config::Policy) -> Policy {
    match configured {
        config::Policy::Predicted => Policy::Predicted,
        config::Policy::LeastWork => Policy::LeastWork,
        config::Policy::LeastRequests => Policy::LeastRequests,
        config::Policy::RoundRobin => Policy::RoundRobin,
        config::Policy::Random => Policy::Random,
        config::Policy::PowerOfTwo => Policy::PowerOfTwo,
        config::Policy::Reference => Policy::Reference,
        config::Policy::CacheAware => Policy::CacheAware,
        config::Policy::Session => Policy::Session,
        config::Policy::PrefixFirst => Policy::PrefixFirst,
    }
}

fn settings(config: &Config) -> Settings {
    let (retry, timeout, limit) = (&config.retry, &config.timeout, &config.limit);
    Settings {
        skip: Skip {
            tokens: u32::try_from(config.route.bypass_tokens).unwrap_or(u32::MAX),
            wait: ms(config.route.bypass_wait_ms),
            without_prefiller: config.route.bypass_without_prefiller,
        },
        ttft_objective: ms(config.route.ttft_slo_ms),
        attempts: retry.attempts,
        delay: Duration::from_secs_f64(retry.delay_ms / 1e3),
        // A long first pause that somebody asks for is not cut by a shorter default.
        delay_max: Duration::from_secs_f64(retry.delay_max_ms.max(retry.delay_ms) / 1e3),
        lease: ms(config.engine.lease_ms),
        abandon_grace: ms(config.engine.abandon_grace_ms),
        prefill: ms(timeout.prefill_ms),
        first_byte: ms(timeout.first_byte_ms),
        answer: ms(timeout.answer_ms),
        gap: ms(timeout.gap_ms),
        total: ms(timeout.total_ms),
        prefill_reply_bytes: limit.prefill_reply_bytes,
        answer_bytes: limit.answer_bytes,
        frame_bytes: limit.frame_bytes,
    }
}

fn edge(config: &Config) -> Result<Edge, StartError> {
    let (limit, timeout, fleet) = (&config.limit, &config.timeout, &config.fleet);
    let bearer = |key: &config::Secret| {
        let mut value =
            HeaderValue::from_str(&format!("Bearer {}", key.expose())).map_err(|_| StartError::Key)?;
        value.set_sensitive(true);
        Ok::<_, StartError>(value)
    };
    Ok(Edge {
        body_bytes: limit.body_bytes,
        header_bytes: limit.header_bytes,
        headers: limit.headers,
        connections: limit.connections,
        body_time: ms(timeout.body_ms),
        header_time: ms(timeout.header_ms),
        write_time: ms(timeout.write_ms),
        models_time: ms(timeout.models_ms),
        probe_time: ms(fleet.probe_timeout_ms),
        probe_attempts: fleet.probe_attempts,
        probe_interval: ms(fleet.probe_interval_ms),
        json_depth: limit.json_depth,
        json_members: limit.json_members,
        model: fleet.model.clone(),
        overload_status: StatusCode::from_u16(limit.overload_status)
            .unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
        engine_authorization: config.engine.api_key.as_ref().map(bearer).transpose()?,
        admin_key: config.server.admin_key.as_ref().map(|k| k.expose().to_owned()),
    })
}
