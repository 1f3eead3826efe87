//! Wiring: from a configuration to a running gateway. The one place that names the concrete types
//! of every layer.

pub mod fleet;
pub mod limits;
mod loops;
pub mod pool;
mod readiness;
pub mod settings;
mod signals;
pub mod trace_export;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{HeaderMap, Version, header};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::loops::{detect_dialect, start_engine_loops, start_housekeeping, start_prompt_loops};
use self::pool::PoolsError;
use self::settings::KeyError;
pub use self::signals::{Signals, serve_until_signal};
use self::trace_export::Traces;
use crate::auth::Callers;
use crate::auth::watch::{KeysError, Watch};
use crate::config::{self, Config, DialectName, Events, Loaded, Tokens};
use crate::control::FleetHandles;
use crate::control::kv_events;
use crate::control::parity::ParityHandles;
use crate::control::reload::{Reloader, Source as ConfigSource, Target};
use crate::fleet::LiveProtocol;
use crate::naming_config::{self, FilesError, LocalPrompter, Trouble};
use crate::obs::events::HeldMeter;
use crate::obs::{Exposition, Meters};
use crate::pool::Verdict;
use crate::relay::Relay;
use crate::relay::admit::Gate;
use crate::relay::affinity::Affinity;
use crate::relay::budget::Retries;
use crate::relay::decision_log::DecisionLog;
use crate::relay::forced_tool_calls::Forced;
use crate::relay::lookup::{self, HitSource};
use crate::relay::media::MediaLengths;
use crate::relay::name_check::NameCheck;
use crate::relay::pool_wait::{StoreWaitPolicy, Stored};
use crate::relay::release::ReleaseQueue;
use crate::relay::rendezvous::Rendezvous;
use crate::relay::request_ids::Names;
use crate::relay::response_owners::Kept;
use crate::relay::resume::Room;
use crate::relay::reusable_kv::Offers;
use crate::server::{self, Bound, Edge, Gateway, ListenError, Via};
use crate::tls::{ClientError, EngineTls, ListenerTls, TlsError};
use crate::tokenization::{Asker, EngineLimits, EngineTokenizer, Prompts, Source, exchange};
use crate::upstream::{self, Connector, Dial, Upstream};
use crate::util::rng;
use crate::util::swap::Live;

const _: () =
    assert!(crate::pool::events::index::MAX_HOLDERS == crate::route::MAX_LANES, "who is routed to is heard");

/// The longest that an engine may take over a control call: resetting a cache, listing models.
const CONTROL_TIME: Duration = Duration::from_secs(30);

/// Time that a shutdown adds to `server.drain_ms` for hand-offs that are still to be released.
const RELEASE_GRACE: Duration = Duration::from_secs(5);

/// A gateway that listens and does not serve yet.
#[derive(Debug)]
pub struct App {
    gateway: Arc<Gateway>,
    bound: Bound,
    /// The operators' own listener, if there is one.
    admin: Option<Bound>,
    tls: Option<Arc<ListenerTls>>,
    lame_duck: Duration,
    drain: Duration,
    tasks: JoinSet<()>,
    releasing: JoinSet<()>,
    traces: Traces,
    /// `timeout.models_ms`, for loops that ask engines.
    control_time: Arc<Live<Duration>>,
}

/// Reasons for which a gateway can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is in use, or belongs to another host.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A secret that can't be sent in a header.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The file of clients' keys can't be used.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The model's files can't be used.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// Configuration and engines contradict each other about block names.
    #[error(transparent)]
    Names(#[from] Trouble),
    /// The pool's client can't be made.
    #[error(transparent)]
    Pool(#[from] PoolsError),
    /// The HTTP client for control calls can't be made.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Certificates or private keys can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Sockets of clients and, where these are others, of operators.
struct Listeners {
    bound: Bound,
    admin: Option<Bound>,
}

async fn listen(config: &config::Server) -> Result<Listeners, StartError> {
    let bound = server::bind(config.bind_host(), config.port).await?;
    let admin = server::bind_admin(config.admin_bind_host(), config.admin_port).await?;
    Ok(Listeners { bound, admin })
}

impl App {
    /// Builds a gateway and binds its address.
    ///
    /// # Errors
    /// [`StartError`] names the setting at fault.
    pub async fn build(config: &Config) -> Result<App, StartError> {
        App::build_over(config, None).await
    }

    /// Builds a gateway whose legs go over `dial` in place of sockets, for tests in virtual time.
    /// Control calls still use sockets.
    ///
    /// # Errors
    /// As [`App::build`].
    pub async fn build_over(config: &Config, dial: Option<Arc<dyn Dial>>) -> Result<App, StartError> {
        // Meters that are made before the recorder is installed would count nothing.
        let (via, exposition) = (Via::new(rng::random()), Exposition::install());
        let meters = Arc::new(meters(config));
        let (keys, fleet) = (limits::open_keys(&config.auth, &meters)?, Arc::new(fleet::fleet(config).await));
        let (engine_tls, tls) = load_tls(config)?;
        let (control, edge) = (control(config, &engine_tls, &via)?, settings::edge(config)?);
        let (asker, traces) = (asker(&control, &edge), Traces::start(config)?);
        let prompts = prompts(config, &asker)?;
        let finder = finder(config, prompts.as_ref(), &control, &meters)?;
        let told = finder.as_ref().and_then(|finder| finder.events.clone());
        let (releases, orphans) = ReleaseQueue::new(config.limit.releases, &meters, fleet.pending_decodes());
        let (name_check, stored) = NameCheck::new();
        told.iter().for_each(|told| fleet.scheduler().set_cache_reports(told.clone()));
        let relay = Arc::new(Relay {
            fleet: fleet.clone(),
            upstream: Upstream::new(Connector::new(ms(config.timeout.connect_ms), engine_tls, dial)),
            speech: Arc::new(LiveProtocol::new(settings::protocol(config))),
            settings: Live::new(settings::settings(config)),
            role_limits: limits::role_limits(&config.limit),
            meters: meters.clone(),
            releases,
            prompts: prompts.clone(),
            finder,
            name_check,
            affinity: Affinity::new(fleet.scheduler().clone(), meters.clone(), ms(config.pool.fresh_ms)),
            media: MediaLengths::default(),
            decision_log: DecisionLog::default(),
            budget: Retries::new(config.retry.budget, config.retry.budget_floor_per_s),
            room: Arc::new(Room::new(config.limit.resume_tokens)),
            offers: Offers::new(meters.clone()),
            rendezvous: Rendezvous::default(),
            names: Names::default(),
            kept: Kept::default(),
            forced: Forced::default(),
            probe: settings::probe_settings(config),
        });
        let mut tasks = JoinSet::from_iter([relay.clone().check_names(stored)]);
        let control_time = Arc::new(Live::new(ms(config.timeout.models_ms)));
        if let Some(prompts) = prompts {
            let (time, meters) = (control_time.clone(), meters.clone());
            let needs_names = relay.finder.is_some();
            let handles = ParityHandles { fleet, prompts, asker, time, meters, needs_names };
            start_prompt_loops(config, handles, told.as_deref(), &mut tasks).await?;
        }
        let gateway = Arc::new(Gateway {
            relay: relay.clone(),
            gate: Gate::new(limits::gate_limits(config), meters),
            bodies: server::BodyMemory::default(),
            callers: keys.as_ref().map_or_else(|| Arc::new(Callers::open()), Watch::callers),
            exposition,
            control,
            via,
            edge: Live::new(edge),
            waiting: server::Waiting::default(),
            tracer: traces.tracer(),
            served: server::Served::default(),
            files: OnceLock::new(),
            clients_port: OnceLock::new(),
            tasks: TaskTracker::new(),
            ending: CancellationToken::new(),
            stop: CancellationToken::new(),
        });
        let Listeners { bound, admin } = listen(&config.server).await?;
        start_housekeeping(&gateway, tls.as_ref(), keys, &mut tasks);
        start_engine_loops(config, &gateway, &control_time, &mut tasks).await;
        detect_dialect(config, &gateway, &mut tasks).await;
        let releasing = JoinSet::from_iter([relay.release_orphans(orphans)]);
        let (lame_duck, drain) = (ms(config.server.lame_duck_ms), ms(config.server.drain_ms));
        Ok(App { gateway, bound, admin, tls, lame_duck, drain, tasks, releasing, traces, control_time })
    }

    /// Addresses of clients' listener.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.bound.addresses()
    }

    /// Addresses of the operators' listener, if it is not the one of [`App::addresses`].
    pub fn admin_addresses(&self) -> Vec<SocketAddr> {
        self.admin.iter().flat_map(Bound::addresses).collect()
    }

    /// Warnings about operators' routes that are open to all clients, or to none, on addresses that
    /// other machines reach.
    pub fn open_routes(&self) -> Vec<String> {
        server::open_routes(&self.gateway, &self.addresses(), &self.admin_addresses())
    }

    /// `http` or `https`, as clients have to say it.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// The gateway, for tests and for embedding.
    pub fn gateway(&self) -> Arc<Gateway> {
        self.gateway.clone()
    }

    /// Follows a configuration that changes while the gateway runs. `running` is the one that it
    /// was built from.
    pub fn follow(&mut self, source: ConfigSource, running: Loaded) {
        let files = source.files.iter().map(|file| file.display().to_string()).collect();
        // The value of the first call is kept.
        let _ = self.gateway.files.set(files);
        let (gateway, control_time) = (self.gateway.clone(), self.control_time.clone());
        let apply = Box::new(move |config: &Config| {
            gateway.edge.set(settings::edge(config).map_err(|error| error.to_string())?);
            gateway.relay.settings.set(settings::settings(config));
            control_time.set(ms(config.timeout.models_ms));
            Ok(())
        });
        let target = Target { handles: self.fleet_handles(), apply };
        self.tasks.spawn(Reloader::new(source, running, target).run());
    }

    /// Logs when the gateway is ready, and until then what it waits for.
    pub fn announce_readiness(&mut self, policy: &'static str) {
        self.tasks.spawn(readiness::announce(self.gateway.clone(), policy));
    }

    /// Parts by which engines come into the fleet and leave it.
    pub fn fleet_handles(&self) -> FleetHandles {
        loops::fleet_handles(&self.gateway)
    }

    /// Token that shuts the gateway down when it is cancelled.
    pub fn stop(&self) -> CancellationToken {
        self.gateway.stop.clone()
    }

    /// Serves until [`App::stop`] is cancelled and open requests are finished; returns how many
    /// connections were cut.
    pub async fn serve(self) -> usize {
        let App { gateway, bound, admin, tls, drain, tasks, mut releasing, traces, .. } = self;
        if let Some(at) = bound.addresses().first() {
            gateway.clients_port.get_or_init(|| at.port());
        }
        let cut = server::serve(&gateway, bound, admin, tls, drain).await;
        gateway.tasks.close();
        let _ = tokio::time::timeout(RELEASE_GRACE, gateway.tasks.wait()).await;
        drop(tasks);
        // The releasing task holds the relay, and the relay holds the sender of its queue: it never
        // ends by itself.
        let _ = tokio::time::timeout(RELEASE_GRACE, async {
            while gateway.relay.releases.pending() && gateway.relay.may_release() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        releasing.shutdown().await;
        // The flush comes last, since requests may end until here.
        traces.flush().await;
        cut
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The client for control calls. Engines are on the cluster's own network: `HTTP_PROXY` is for what
/// leaves it, and the legs ignore it too.
fn control(config: &Config, tls: &EngineTls, via: &Via) -> Result<reqwest::Client, ClientError> {
    let via = (header::VIA, via.line(Version::HTTP_11).clone());
    let client = tls
        .http()
        .default_headers(HeaderMap::from_iter([via]))
        .pool_idle_timeout(upstream::POOL_IDLE)
        .connect_timeout(ms(config.timeout.connect_ms))
        .timeout(CONTROL_TIME)
        .build()?;
    Ok(client)
}

/// TLS towards engines and for clients, as configured.
///
/// # Errors
/// [`TlsError`] names the setting at fault.
pub fn load_tls(config: &Config) -> Result<(EngineTls, Option<Arc<ListenerTls>>), TlsError> {
    let engines = EngineTls::new(&config.engine_tls())?;
    let all = [config.prefill_endpoints(), config.decode_endpoints(), config.encode_endpoints()];
    if all.iter().flatten().any(|engine| engine.tls) {
        engines.check()?;
    }
    let listener = config.listener_tls().map(ListenerTls::load).transpose()?;
    Ok((engines, listener.map(Arc::new)))
}

/// The client for control calls to engines, with its limits.
fn asker(control: &reqwest::Client, edge: &Edge) -> Asker {
    Asker {
        client: control.clone(),
        authorization: edge.engine_authorization.clone(),
        time: exchange::ASK_TIME,
        answer_bytes: exchange::ANSWER_BYTES,
    }
}

/// The reader of prompts; `None` with `prompt.tokens = "off"`.
fn prompts(config: &Config, asker: &Asker) -> Result<Option<Arc<Prompts>>, StartError> {
    naming_config::refuse_early(config)?;
    let engine = || {
        let limits = EngineLimits {
            budget: ms(config.prompt.budget_ms),
            in_flight: config.limit.tokenize_inflight,
            cache_tokens: config.limit.prompt_cache_tokens,
            ..EngineLimits::default()
        };
        EngineTokenizer::new(asker.clone(), limits, rng::random())
    };
    let source = match config.tokens() {
        Tokens::Off => return Ok(None),
        Tokens::Engine => Source::Engine(engine()),
        Tokens::Local => {
            let LocalPrompter { prompter, without, .. } = naming_config::prompter(config, rng::random())?;
            if let Some(why) = without {
                tracing::warn!("chats are routed by load: {why}");
            }
            Source::Local(Arc::new(prompter))
        }
        Tokens::Auto => match naming_config::prompter(config, rng::random()) {
            Ok(LocalPrompter { prompter, without, form }) => {
                tracing::info!(tokenizer = form.name(), "prompts are tokenised here once that is proven");
                if let Some(why) = without {
                    tracing::warn!("chats are tokenised by engines, a round trip each: {why}");
                }
                Source::Either { local: Arc::new(prompter), engine: engine() }
            }
            Err(why) => {
                tracing::warn!("prompts are tokenised by engines, a round trip each: {why}");
                Source::Engine(engine())
            }
        },
    };
    let prompts = Prompts::new(source, config.prompt.utc_offset_s()).with_efforts(config.prompt.efforts());
    Ok(Some(Arc::new(prompts)))
}

/// An empty index of KV events, and its metrics; `None` if `events.listen` is off.
fn event_view(events: &Events) -> Option<Arc<lookup::KvEventView>> {
    let view = || lookup::KvEventView { index: kv_events::index(events), meter: HeldMeter::new() };
    events.listen.then(|| Arc::new(view()))
}

/// Metrics of the parts that this configuration switches on.
fn meters(config: &Config) -> Meters {
    let meters = Meters::new();
    if config.dialect.name == DialectName::Layerwise {
        meters.callbacks_start();
    }
    if config.tokens() != Tokens::Off {
        meters.prompts_start();
    }
    meters
}

/// The lookup of prompts' blocks in pool and KV events; `None` when neither is configured, or
/// prompts are not read.
fn finder(
    config: &Config,
    prompts: Option<&Arc<Prompts>>,
    control: &reqwest::Client,
    meters: &Arc<Meters>,
) -> Result<Option<lookup::Finder>, StartError> {
    let (pool, events) = (pool::gate(config, control)?, event_view(&config.events));
    let Some(prompts) = prompts.filter(|_| pool.is_some() || events.is_some()) else { return Ok(None) };
    meters.source_trusted("names", true);
    if let Some(gate) = &pool {
        meters.pool_starts(gate.name(), &Verdict::ALL.map(Verdict::name));
        meters.pool_waits_start(&Stored::ALL.map(Stored::name));
        meters.names_unfound(HitSource::Pool.name(), false);
    }
    if events.is_some() {
        meters.names_unfound(HitSource::Events.name(), false);
    }
    let listing = pool::listing(config, control);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (prompts, meters, aside) = (prompts.clone(), meters.clone(), Arc::new(Semaphore::new(cores)));
    let store_wait = StoreWaitPolicy::default();
    Ok(Some(lookup::Finder { prompts, pool, events, meters, aside, listing, store_wait }))
}
