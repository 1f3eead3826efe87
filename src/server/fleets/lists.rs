//! Readings of engines' lists for a model that none is known to serve: an adapter may have been
//! loaded at an engine a moment ago, and a refusal would be wrong.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};

use super::{ChosenFleet, Fleets, RequestTies};
use crate::auth::Caller;
use crate::error::{Error, Kind};
use crate::server::{Gateway, auth, printable};

/// Least time between the beginnings of two readings: anybody can make a name up.
const PAUSE: Duration = Duration::from_secs(1);
/// Time for which engines that do not answer are waited for.
const LIMIT: Duration = Duration::from_secs(2);
/// Requests that wait for readings at a time; further ones are refused by what is known.
const WAITING: usize = 64;

/// Readings of the lists of all engines, one at a time.
#[derive(Debug)]
pub(super) struct ListReadings {
    /// Places of requests that wait.
    places: Semaphore,
    /// Held by the request that has the lists read.
    turn: Semaphore,
    times: Mutex<Times>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// Beginning of the last reading.
    begun: Option<Instant>,
    /// Beginning of the last one that came to its end.
    ended: Option<Instant>,
}

impl ListReadings {
    pub(super) fn new() -> ListReadings {
        let (places, turn) = (Semaphore::new(WAITING), Semaphore::new(1));
        ListReadings { places, turn, times: Mutex::default() }
    }

    fn times(&self) -> Times {
        *self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, change: impl FnOnce(&mut Times)) {
        change(&mut self.times.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Fleets {
    /// Waits for a reading of all engines' lists that begins now or later, and has it made if
    /// nobody else does.
    async fn read_lists(&self) {
        let readings = &self.readings;
        let Ok(_place) = readings.places.try_acquire() else { return };
        let arrived = Instant::now();
        let Ok(_turn) = readings.turn.acquire().await else { return };
        let Times { begun, ended } = readings.times();
        if ended.is_some_and(|begun| begun >= arrived) {
            return;
        }
        if let Some(begun) = begun {
            sleep_until(begun + PAUSE).await;
        }
        let begun = Instant::now();
        readings.set(|times| times.begun = Some(begun));
        self.iter().for_each(|fleet| fleet.relay.fleet.ask_for_lists(0));
        let read = join_all(self.iter().map(|fleet| fleet.relay.fleet.lists_read()));
        // One that does not answer in time is left out: what it lists is found out later.
        let _ = timeout(LIMIT, read).await;
        self.refresh_names();
        readings.set(|times| times.ended = Some(begun));
    }
}

/// Fleet that a request names, and model.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::server) struct NamedTarget<'a> {
    /// The model in its body.
    pub(in crate::server) model: Option<&'a str>,
    /// The fleet in its query, where there are several.
    pub(in crate::server) fleet: Option<&'a str>,
}

impl Gateway {
    /// Finds the fleet for a request of `caller`. Before a model is refused that the caller may
    /// use, engines are asked whether they have it.
    ///
    /// # Errors
    /// Those of [`Gateway::choose_fleet`]; `InvalidField` where the query names no fleet, or one
    /// that does not serve the model.
    pub(in crate::server) async fn find_fleet<'a>(
        &self,
        caller: &Caller,
        named: NamedTarget<'_>,
        ties: impl Fn() -> RequestTies<'a>,
    ) -> Result<ChosenFleet, Error> {
        match self.choose_named(caller, named, &ties) {
            Err(error) if self.may_be_new(caller, named.model, &error) => {
                let fleets = self.fleets();
                Box::pin(fleets.read_lists()).await;
                self.choose_named(caller, named, &ties)
            }
            chosen => chosen,
        }
    }

    fn choose_named<'a>(
        &self,
        caller: &Caller,
        NamedTarget { model, fleet }: NamedTarget<'_>,
        ties: impl Fn() -> RequestTies<'a>,
    ) -> Result<ChosenFleet, Error> {
        let Some(fleet) = fleet else { return self.choose_fleet(caller, model, ties) };
        let named = self.fleet_for_operator(Some(fleet))?;
        let Some(model) = model else {
            auth::check_model(caller, None)?;
            return Ok(ChosenFleet::known(named));
        };
        let fleets = self.fleets();
        let target = fleets.route(model).and_then(|route| route.target_at(&named));
        if let Some(target) = target.or_else(|| fleets.find_at(model, &named)) {
            auth::check_model(caller, Some(model))?;
            return Ok(target);
        }
        let chosen = self.choose_fleet(caller, Some(model), ties)?;
        if Arc::ptr_eq(&chosen.fleet, &named) {
            return Ok(chosen);
        }
        let (model, fleet, other) = (printable(model), &named.name, &chosen.fleet.name);
        let message = format!(
            "the fleet `{fleet}` does not serve the model `{model}`, which `{other}` does: leave ?fleet= out"
        );
        Err(Error::new(Kind::InvalidField, message).param("fleet"))
    }

    fn may_be_new(&self, caller: &Caller, model: Option<&str>, error: &Error) -> bool {
        error.kind() == Kind::ModelNotFound && caller.may_use(model) && self.fleets().single().is_none()
    }
}
