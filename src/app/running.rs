//! A fleet that runs: its relay, made from its configuration, and the loops that look at its
//! engines.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::loops::{detect_dialect, fleet_handles, start_engine_loops, start_prompt_loops};
use super::parts::{FleetParts, asker_with};
use super::{StartError, fleet, limits, ms, pool, settings, share};
use crate::config::{Config, DialectName, Events, Tokens};
use crate::control::kv_events;
use crate::control::parity::ParityHandles;
use crate::control::reload::NamedHandles;
use crate::fleet::LiveProtocol;
use crate::obs::Meters;
use crate::obs::events::HeldMeter;
use crate::pool::listing::KeyListing;
use crate::pool::{Gate, Verdict};
use crate::relay::Relay;
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
use crate::server::fleets::{EngineAccess, RemoteApi, ServedFleet};
use crate::server::{Asleep, Moves, Via, Waiting};
use crate::tokenization::{Asker, Prompts};
use crate::upstream::{Connector, Dial, Upstream};
use crate::util::swap::Live;

/// Time that a shutdown adds to `server.drain_ms` for hand-offs that are still to be released.
const RELEASE_GRACE: Duration = Duration::from_secs(5);

/// Time between looks at whether all hand-offs are released.
const RELEASE_LOOK: Duration = Duration::from_millis(20);

/// Parts that fleets have in common.
pub(super) struct SharedParts<'a> {
    /// Metrics of the gateway.
    pub(super) meters: &'a Arc<Meters>,
    /// Name by which requests to engines are known again.
    pub(super) via: &'a Via,
    /// Room for the token ids of streams that could be continued.
    pub(super) room: Arc<Room>,
    /// In place of sockets, for tests in virtual time.
    pub(super) dial: Option<Arc<dyn Dial>>,
    /// True if fleets have names, which their metrics tell.
    pub(super) several: bool,
}

/// A fleet with its loops. They end when it is dropped.
#[derive(Debug)]
pub(super) struct RunningFleet {
    pub(super) served: Arc<ServedFleet>,
    loops: JoinSet<()>,
    releasing: JoinSet<()>,
    /// `timeout.models_ms`, for loops that ask engines.
    control_time: Arc<Live<Duration>>,
}

/// The parts of a running fleet that another configuration changes.
pub(super) struct LiveFleet {
    pub(super) served: Arc<ServedFleet>,
    control_time: Arc<Live<Duration>>,
}

impl LiveFleet {
    /// Takes over the settings that are read anew for each request.
    pub(super) fn apply(&self, config: &Config, access: EngineAccess) {
        self.served.access.set(access);
        self.served.relay.settings.set(settings::settings(config));
        self.control_time.set(ms(config.timeout.models_ms));
    }

    /// Parts by which its engines come and leave.
    pub(super) fn handles(&self) -> NamedHandles {
        NamedHandles { name: self.served.name.clone(), handles: fleet_handles(&self.served) }
    }
}

impl RunningFleet {
    /// Builds a fleet, and starts the loops that compare prompts with its engines. An error says
    /// which fleet has it, where there are several.
    pub(super) async fn build(
        name: &str,
        config: &Config,
        shared: &SharedParts<'_>,
    ) -> Result<RunningFleet, StartError> {
        let built = RunningFleet::build_one(name, config, shared).await;
        built.map_err(|error| error.in_fleet(name, shared.several))
    }

    async fn build_one(
        name: &str,
        config: &Config,
        shared: &SharedParts<'_>,
    ) -> Result<RunningFleet, StartError> {
        let name: Arc<str> = name.into();
        let meters = match shared.several {
            true => Arc::new(shared.meters.of_fleet(&name)),
            false => shared.meters.clone(),
        };
        start_series(config, &meters);
        let FleetParts { engine_tls, control, access, prompts, pool, store } =
            FleetParts::make(config, shared.via)?;
        let fleet = Arc::new(fleet::fleet(config, meters.label()).await);
        let asker = asker_with(&control, &access);
        let listing = pool::listing(config, &control);
        let sources = HitSources { pool, events: event_view(&config.events, &meters), listing };
        let finder = finder(prompts.as_ref(), sources, &meters);
        let told = finder.as_ref().and_then(|finder| finder.events.clone());
        let (releases, orphans) = ReleaseQueue::new(config.limit.releases, &meters, fleet.pending_decodes());
        let (name_check, stored) = NameCheck::new();
        told.iter().for_each(|told| fleet.scheduler().set_cache_reports(told.clone()));
        let connect_time = ms(config.timeout.connect_ms);
        let relay = Arc::new(Relay {
            fleet: fleet.clone(),
            upstream: Upstream::new(Connector::new(connect_time, engine_tls, shared.dial.clone())),
            speech: Arc::new(LiveProtocol::new(settings::protocol(config))),
            settings: Live::new(settings::settings(config)),
            role_limits: limits::role_limits(&config.limit),
            share: limits::fleet_share(&config.limit, shared.several),
            meters: meters.clone(),
            releases,
            prompts: prompts.clone(),
            finder,
            name_check,
            affinity: Affinity::new(fleet.scheduler().clone(), meters.clone(), ms(config.pool.fresh_ms)),
            media: MediaLengths::default(),
            decision_log: DecisionLog::default(),
            budget: Retries::new(config.retry.budget, config.retry.budget_floor_per_s),
            room: shared.room.clone(),
            offers: Offers::new(meters.clone()),
            rendezvous: Rendezvous::default(),
            names: Names::default(),
            kept: Kept::default(),
            forced: Forced::default(),
            probe: settings::probe_settings(config),
            is_remote: config.fleet.remote.is_some(),
        });
        let mut loops = JoinSet::from_iter([relay.clone().check_names(stored)]);
        let control_time = Arc::new(Live::new(ms(config.timeout.models_ms)));
        if let Some(prompts) = prompts {
            let (time, needs_names) = (control_time.clone(), relay.finder.is_some());
            let handles = ParityHandles { fleet, prompts, asker, time, meters, needs_names };
            start_prompt_loops(config, handles, told.as_deref(), &mut loops).await?;
        }
        let releasing = JoinSet::from_iter([relay.clone().release_orphans(orphans)]);
        share::start(store, format!("{}:{name}", config.share.prefix_in_store()), &relay, &mut loops);
        let (access, waiting) = (Live::new(access), Waiting::default());
        let remote = config.remote().map(|remote| RemoteApi { path: remote.path.into() });
        let served = Arc::new(ServedFleet {
            name,
            relay,
            control,
            access,
            waiting,
            moves: Moves::default(),
            asleep: Asleep::default(),
            last_models: Live::new(None),
            remote,
        });
        Ok(RunningFleet { served, loops, releasing, control_time })
    }

    /// Starts the loops that look for engines and at them, and detects their dialect.
    pub(super) async fn start_engine_loops(&mut self, config: &Config) {
        start_engine_loops(config, &self.served, &self.control_time, &mut self.loops).await;
        detect_dialect(config, &self.served, &mut self.loops).await;
    }

    /// True if it is the fleet of this name.
    pub(super) fn is_named(&self, name: &str) -> bool {
        *self.served.name == *name
    }

    /// Ends the loops that look for engines and at them.
    pub(super) fn end_loops(&mut self) {
        self.loops = JoinSet::new();
    }

    /// The parts that another configuration changes.
    pub(super) fn live(&self) -> LiveFleet {
        LiveFleet { served: self.served.clone(), control_time: self.control_time.clone() }
    }

    /// Ends its loops, once hand-offs that still can be are released.
    pub(super) async fn stop(self) {
        let RunningFleet { served, loops, mut releasing, .. } = self;
        drop(loops);
        // The releasing task holds the relay, and the relay holds the sender of its queue: it never
        // ends by itself.
        let _ = tokio::time::timeout(RELEASE_GRACE, async {
            while served.relay.releases.pending() && served.relay.may_release() {
                tokio::time::sleep(RELEASE_LOOK).await;
            }
        })
        .await;
        releasing.shutdown().await;
    }
}

/// The client for questions to a fleet's engines, with its limits.
pub(super) fn asker(served: &ServedFleet) -> Asker {
    asker_with(&served.control, &served.access.now())
}

/// An empty index of KV events, and its metrics; `None` if `events.listen` is off.
fn event_view(events: &Events, meters: &Meters) -> Option<Arc<lookup::KvEventView>> {
    let meter = || meters.label().with(HeldMeter::new);
    let view = || lookup::KvEventView { index: kv_events::index(events), meter: meter() };
    events.listen.then(|| Arc::new(view()))
}

/// Begins the series of the parts that this configuration switches on.
fn start_series(config: &Config, meters: &Meters) {
    meters.decoder_predictions_start();
    if config.dialect.name == DialectName::Layerwise {
        meters.callbacks_start();
    }
    if config.tokens() != Tokens::Off {
        meters.prompts_start();
    }
}

/// Sources that tell where a prompt's blocks are.
struct HitSources {
    pool: Option<Gate>,
    events: Option<Arc<lookup::KvEventView>>,
    listing: Option<KeyListing>,
}

/// The lookup of prompts' blocks in pool and KV events; `None` when neither is configured, or
/// prompts are not read.
fn finder(
    prompts: Option<&Arc<Prompts>>,
    sources: HitSources,
    meters: &Arc<Meters>,
) -> Option<lookup::Finder> {
    let HitSources { pool, events, listing } = sources;
    let prompts = prompts.filter(|_| pool.is_some() || events.is_some())?;
    meters.source_trusted("names", true);
    if let Some(gate) = &pool {
        meters.pool_starts(gate.name(), &Verdict::ALL.map(Verdict::name));
        meters.pool_waits_start(&Stored::ALL.map(Stored::name));
        meters.names_unfound(HitSource::Pool.name(), false);
    }
    if events.is_some() {
        meters.names_unfound(HitSource::Events.name(), false);
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (prompts, meters, aside) = (prompts.clone(), meters.clone(), Arc::new(Semaphore::new(cores)));
    let store_wait = StoreWaitPolicy::default();
    Some(lookup::Finder { prompts, pool, events, meters, aside, listing, store_wait })
}
