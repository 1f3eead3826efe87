//! Fleets that come, change and go while the gateway runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::running::{RunningFleet, SharedParts};
use super::settings::{self, KeyError};
use crate::config::Config;
use crate::control::reload::{NamedHandles, Refusal};
use crate::fleet::Role;
use crate::relay::Relay;
use crate::relay::idle_timeout::AWAY;
use crate::relay::resume::Room;
use crate::server::Gateway;
use crate::server::fleets::Fleets;
use crate::upstream::Dial;

/// Time in which a stream that is cut notices: a look at its limits, and room for a slow client to
/// be told.
const CUT_TIME: Duration = AWAY.saturating_mul(2);

/// Pause between looks at whether a fleet that goes has work left.
const LOOK: Duration = Duration::from_millis(50);

/// The fleets that run, in the order of their names.
#[derive(Clone, Debug, Default)]
pub(super) struct RunningFleets(Arc<Mutex<Vec<RunningFleet>>>);

impl RunningFleets {
    /// Makes the list of these fleets.
    pub(super) fn new(fleets: Vec<RunningFleet>) -> RunningFleets {
        RunningFleets(Arc::new(Mutex::new(fleets)))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RunningFleet>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parts by which engines come and leave, fleet by fleet.
    pub(super) fn handles(&self) -> Vec<NamedHandles> {
        self.lock().iter().map(|fleet| fleet.live().handles()).collect()
    }

    /// Ends all of them, as [`RunningFleet::stop`] does.
    pub(super) async fn stop(self) {
        let fleets = std::mem::take(&mut *self.lock());
        join_all(fleets.into_iter().map(RunningFleet::stop)).await;
    }
}

/// Takes over configurations that name other fleets, or other settings of them.
#[derive(Debug)]
pub(super) struct FleetChanger {
    pub(super) gateway: Arc<Gateway>,
    pub(super) running: RunningFleets,
    /// Room for the token ids of streams that could be continued.
    pub(super) room: Arc<Room>,
    /// In place of sockets, for tests in virtual time.
    pub(super) dial: Option<Arc<dyn Dial>>,
}

impl FleetChanger {
    /// Takes over a configuration: starts the fleets that are new in it, and lets those end that
    /// are not in it any more. Returns the parts of the fleets that run then.
    ///
    /// # Errors
    /// The setting that can't be used: nothing has changed then.
    pub(super) async fn take(&self, config: &Config) -> Result<Vec<NamedHandles>, Refusal> {
        let configured = config.served_fleets();
        // All or none: a secret that can't be sent is found before anything changes.
        let access: Result<Vec<_>, KeyError> =
            configured.iter().map(|(_, config)| settings::engine_access(config)).collect();
        let access = access.map_err(|error| error.to_string())?;
        let come = self.start_new(config).await?;
        let is_configured = |fleet: &RunningFleet| configured.iter().any(|(name, _)| fleet.is_named(name));
        let (gone, served) = {
            let mut running = self.running.lock();
            running.extend(come);
            let (mut stay, gone): (Vec<_>, Vec<_>) =
                std::mem::take(&mut *running).into_iter().partition(is_configured);
            stay.sort_by(|one, other| one.served.name.cmp(&other.served.name));
            for ((name, config), access) in configured.iter().zip(access) {
                let found = stay.iter().find(|fleet| fleet.is_named(name));
                found.into_iter().for_each(|fleet| fleet.live().apply(config, access.clone()));
            }
            let served: Vec<_> = stay.iter().map(|fleet| fleet.served.clone()).collect();
            *running = stay;
            (gone, served)
        };
        self.gateway.edge.set(settings::edge(config));
        if let Some(fleets) = settings::fleet_set(config, served) {
            self.gateway.fleets.set(Fleets::new(fleets));
        }
        for fleet in gone {
            let limit = Duration::from_millis(config.server.drain_ms);
            self.gateway.tasks.spawn(drain(fleet, limit, self.gateway.stop.clone()));
        }
        Ok(self.running.handles())
    }

    /// Starts the fleets that do not run yet.
    async fn start_new(&self, config: &Config) -> Result<Vec<RunningFleet>, Refusal> {
        let (configured, several) = (config.served_fleets(), !config.fleets.is_empty());
        let new: Vec<_> = {
            let running = self.running.lock();
            let runs = |name: &str| running.iter().any(|fleet| fleet.is_named(name));
            configured.iter().filter(|(name, _)| !runs(name)).collect()
        };
        let (meters, via) = (&self.gateway.meters, &self.gateway.via);
        let shared = SharedParts { meters, via, room: self.room.clone(), dial: self.dial.clone(), several };
        let built = new.iter().map(|(name, config)| RunningFleet::build(name, config, &shared));
        let mut built = try_join_all(built).await.map_err(|error| error.to_string())?;
        let loops = built.iter_mut().zip(&new);
        join_all(loops.map(|(fleet, (_, config))| fleet.start_engine_loops(config))).await;
        Ok(built)
    }
}

/// Lets a fleet end that no request is for any more: requests under way have `limit` to finish, as
/// at the gateway's own end. What is open then is cut.
async fn drain(mut fleet: RunningFleet, limit: Duration, stop: CancellationToken) {
    let (name, relay) = (fleet.served.name.clone(), fleet.served.relay.clone());
    tracing::info!(fleet = &*name, "the fleet leaves: its requests are finished");
    // Discovery would bring engines back.
    fleet.end_loops();
    for role in Role::ALL {
        let members = relay.fleet.members(role);
        for member in members.iter() {
            let _ = relay.fleet.remove(role, member.endpoint());
        }
    }
    if !finishes(&relay, limit, &stop).await {
        tracing::warn!(fleet = &*name, "requests of the fleet that leaves are cut: its time is over");
        relay.fleet.cut();
        finishes(&relay, CUT_TIME, &stop).await;
    }
    relay.meters.end_gauges();
    drop(relay);
    fleet.stop().await;
    tracing::info!(fleet = &*name, "the fleet has left");
}

/// True if a fleet's requests end within `limit`, before the gateway does.
async fn finishes(relay: &Relay, limit: Duration, stop: &CancellationToken) -> bool {
    let end = Instant::now() + limit;
    let has_work = || {
        // Nothing else looks at a fleet that goes.
        relay.fleet.show(&relay.meters);
        Role::ALL.iter().map(|role| relay.fleet.sweep(*role)).sum::<usize>() > 0
    };
    while has_work() {
        if Instant::now() >= end || stop.is_cancelled() {
            return false;
        }
        sleep(LOOK).await;
    }
    true
}
