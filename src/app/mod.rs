//! Wiring: from a configuration to a running gateway. The one place that names the concrete types
//! of every layer.

pub mod fleet;
mod follow;
pub mod limits;
mod loops;
mod notify;
mod parts;
pub mod pool;
mod readiness;
mod running;
pub mod settings;
mod share;
mod signals;
pub mod trace_export;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::follow::{FleetChanger, RunningFleets};
use self::loops::start_housekeeping;
pub use self::notify::{Notice, notify};
pub use self::parts::check_start;
use self::pool::PoolsError;
use self::running::{RunningFleet, SharedParts};
use self::settings::KeyError;
pub use self::signals::{Signals, serve_until_signal};
use self::trace_export::Traces;
use crate::auth::Callers;
use crate::auth::watch::{KeysError, Watch};
use crate::config::{self, Config, Loaded};
use crate::control::FleetHandles;
use crate::control::reload::{Apply, Reloader, Source as ConfigSource, Target};
use crate::naming_config::{FilesError, Trouble};
use crate::obs::{Exposition, Meters};
use crate::relay::admit::Gate;
use crate::relay::resume::Room;
pub use crate::server::PassedSockets;
use crate::server::fleets::Fleets;
use crate::server::{self, Bound, Gateway, ListenError, PassedError, Place, Via};
use crate::tls::{ClientError, EngineTls, ListenerTls, TlsError};
use crate::upstream::Dial;
use crate::util::rng;
use crate::util::swap::Live;

const _: () =
    assert!(crate::pool::events::index::MAX_HOLDERS == crate::route::MAX_LANES, "who is routed to is heard");

/// Time that a shutdown adds to `server.drain_ms` for work that handlers began, and for telling
/// clients that their requests are cut.
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
    running: RunningFleets,
    room: Arc<Room>,
    dial: Option<Arc<dyn Dial>>,
    traces: Traces,
}

/// Reasons for which a gateway can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is in use, or belongs to another host.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A socket that was passed can't be served.
    #[error(transparent)]
    Passed(#[from] PassedError),
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
    /// An error of one fleet of several.
    #[error("in [fleets.{fleet}]: {error}")]
    InFleet {
        /// Name of the fleet.
        fleet: Box<str>,
        /// Reason why it can't start.
        error: Box<StartError>,
    },
    /// No fleet at all, which a configuration can't have.
    #[error("there is no fleet to serve")]
    NoFleet,
    /// Certificates or private keys can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The store of what gateways share can't be used.
    #[error("share.url: {0}")]
    Share(String),
}

impl StartError {
    /// The error with the name of the fleet that has it, if there are several.
    fn in_fleet(self, fleet: &str, several: bool) -> StartError {
        match several {
            true => StartError::InFleet { fleet: fleet.into(), error: Box::new(self) },
            false => self,
        }
    }
}

/// Sockets of clients and, where these are others, of operators.
struct Listeners {
    bound: Bound,
    admin: Option<Bound>,
}

/// Parts that come from outside of the configuration.
#[derive(Debug, Default)]
struct Given {
    /// Carries the legs in place of sockets.
    dial: Option<Arc<dyn Dial>>,
    sockets: PassedSockets,
}

/// Binds the configured addresses, but for those whose sockets were passed.
async fn listen(config: &config::Server, given: PassedSockets) -> Result<Listeners, StartError> {
    let PassedSockets { clients, operators } = given;
    let shares = config.reuse_port;
    let bound = match clients.is_empty() {
        true => server::bind(Place { host: config.bind_host(), port: config.port, shares }).await?,
        false => Bound::passed(clients).map_err(PassedError::from)?,
    };
    let admin = match (config.admin_bind_host(), operators.is_empty()) {
        (Some(host), true) => {
            Some(server::bind_admin(Place { host, port: config.admin_port, shares }).await?)
        }
        (Some(_), false) => Some(Bound::passed(operators).map_err(PassedError::from)?),
        (None, true) => None,
        (None, false) => return Err(PassedError::NoOperators.into()),
    };
    Ok(Listeners { bound, admin })
}

impl App {
    /// Builds a gateway and binds its address.
    ///
    /// # Errors
    /// [`StartError`] names the setting at fault.
    pub async fn build(config: &Config) -> Result<App, StartError> {
        App::build_with(config, Given::default()).await
    }

    /// Builds a gateway that listens on sockets which were passed to it, and binds the addresses of
    /// which there are none.
    ///
    /// # Errors
    /// As [`App::build`].
    pub async fn build_on(config: &Config, sockets: PassedSockets) -> Result<App, StartError> {
        App::build_with(config, Given { sockets, ..Given::default() }).await
    }

    /// Builds a gateway whose legs go over `dial` in place of sockets, for tests in virtual time.
    /// Control calls still use sockets.
    ///
    /// # Errors
    /// As [`App::build`].
    pub async fn build_over(config: &Config, dial: Option<Arc<dyn Dial>>) -> Result<App, StartError> {
        App::build_with(config, Given { dial, ..Given::default() }).await
    }

    async fn build_with(config: &Config, given: Given) -> Result<App, StartError> {
        let Given { dial, sockets } = given;
        // Meters that are made before the recorder is installed would count nothing.
        let (via, exposition) = (Via::new(rng::random()), Exposition::install());
        let meters = Arc::new(Meters::new());
        let keys = limits::open_keys(&config.auth, &meters)?;
        let (tls, traces) = (load_listener_tls(config)?, Traces::start(config)?);
        let room = Arc::new(Room::new(config.limit.resume_tokens));
        let shared = SharedParts {
            meters: &meters,
            via: &via,
            room: room.clone(),
            dial: dial.clone(),
            several: !config.fleets.is_empty(),
        };
        let configured = config.served_fleets();
        let built = configured.iter().map(|(name, config)| RunningFleet::build(name, config, &shared));
        let mut running = try_join_all(built).await?;
        let served = running.iter().map(|fleet| fleet.served.clone());
        let fleets = settings::fleet_set(config, served.collect()).ok_or(StartError::NoFleet)?;
        let gateway = Arc::new(Gateway {
            fleets: Live::new(Fleets::new(fleets)),
            gate: Gate::new(limits::gate_limits(config), meters.clone()),
            meters,
            bodies: server::BodyMemory::default(),
            callers: keys.as_ref().map_or_else(|| Arc::new(Callers::open()), Watch::callers),
            exposition,
            via,
            edge: Live::new(settings::edge(config)),
            tracer: traces.tracer(),
            served: server::Served::default(),
            files: OnceLock::new(),
            clients_port: OnceLock::new(),
            tasks: TaskTracker::new(),
            ending: CancellationToken::new(),
            stop: CancellationToken::new(),
            cut: CancellationToken::new(),
        });
        let Listeners { bound, admin } = listen(&config.server, sockets).await?;
        let mut tasks = JoinSet::new();
        start_housekeeping(&gateway, tls.as_ref(), keys, &mut tasks);
        share::start_budgets(config, &gateway, &mut tasks).map_err(StartError::Share)?;
        let started = running.iter_mut().zip(&configured);
        join_all(started.map(|(fleet, (_, config))| fleet.start_engine_loops(config))).await;
        gateway.fleets().refresh_names();
        let (lame_duck, drain) = (ms(config.server.lame_duck_ms), ms(config.server.drain_ms));
        let running = RunningFleets::new(running);
        Ok(App { gateway, bound, admin, tls, lame_duck, drain, tasks, running, room, dial, traces })
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
        let changer = Arc::new(FleetChanger {
            gateway: self.gateway.clone(),
            running: self.running.clone(),
            room: self.room.clone(),
            dial: self.dial.clone(),
        });
        let apply: Apply = Box::new(move |config: Config| {
            let changer = changer.clone();
            Box::pin(async move { changer.take(&config).await })
        });
        let handles = self.running.handles();
        let target = Target { fleets: handles, meters: self.gateway.meters.clone(), apply };
        self.tasks.spawn(Reloader::new(source, running, target).run());
    }

    /// Logs when the gateway is ready, and until then what it waits for.
    pub fn announce_readiness(&mut self, policy: &'static str) {
        self.tasks.spawn(readiness::announce(self.gateway.clone(), policy));
    }

    /// Parts by which engines come into the first fleet and leave it.
    pub fn fleet_handles(&self) -> FleetHandles {
        loops::fleet_handles(self.gateway.fleets().first())
    }

    /// Token that shuts the gateway down when it is cancelled.
    pub fn stop(&self) -> CancellationToken {
        self.gateway.stop.clone()
    }

    /// Serves until [`App::stop`] is cancelled and open requests are finished; returns how many
    /// connections were cut.
    pub async fn serve(self) -> usize {
        let App { gateway, bound, admin, tls, drain, tasks, running, traces, .. } = self;
        if let Some(at) = bound.addresses().first() {
            gateway.clients_port.get_or_init(|| at.port());
        }
        let cut = server::serve(&gateway, bound, admin, tls, drain).await;
        gateway.tasks.close();
        let _ = tokio::time::timeout(RELEASE_GRACE.saturating_sub(server::CUT_NOTICE), gateway.tasks.wait())
            .await;
        drop(tasks);
        running.stop().await;
        // The flush comes last, since requests may end until here.
        traces.flush().await;
        cut
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// TLS towards the engines of a fleet, as configured.
///
/// # Errors
/// [`TlsError`] names the setting at fault.
pub fn load_engine_tls(config: &Config) -> Result<EngineTls, TlsError> {
    let engines = EngineTls::new(&config.engine_tls())?;
    let all = [config.prefill_endpoints(), config.decode_endpoints(), config.encode_endpoints()];
    if all.iter().flatten().any(|engine| engine.tls) {
        engines.check()?;
    }
    Ok(engines)
}

/// TLS for clients, as configured.
///
/// # Errors
/// [`TlsError`] names the setting at fault.
pub fn load_listener_tls(config: &Config) -> Result<Option<Arc<ListenerTls>>, TlsError> {
    Ok(config.listener_tls().map(ListenerTls::load).transpose()?.map(Arc::new))
}
