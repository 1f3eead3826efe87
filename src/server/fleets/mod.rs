//! The fleets that are served, and the choice of one for a request. From there on nothing of a
//! request knows of others.

mod names;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use tokio::time::Instant;

use crate::auth::Caller;
use crate::endpoint::same_model;
use crate::error::{Error, Kind};
use crate::fleet::{Instance, Role};
use crate::relay::Relay;
use crate::server::instances::Waiting;
use crate::server::{Gateway, auth, printable};
use crate::util::swap::Live;
use names::{Conflict, NameTable, Named};

/// Least time between two readings of the engines' lists for a name that is not known: anybody can
/// make one up.
const REFRESH: Duration = Duration::from_millis(100);

/// Engines that serve the same models, with all that a request needs on its way to them.
#[derive(Debug)]
pub struct ServedFleet {
    /// Name by which operators know it.
    pub name: Arc<str>,
    /// Drives requests for its models.
    pub relay: Arc<Relay>,
    /// Client for questions to its engines that are not legs of a request.
    pub control: reqwest::Client,
    /// Settings of questions to its engines, and names of its models.
    pub access: Live<EngineAccess>,
    /// Engines that are to be added once they answer.
    pub waiting: Waiting,
}

/// Settings of a fleet that handlers need beside the relay's.
#[derive(Clone, Debug)]
pub struct EngineAccess {
    /// `Authorization` towards the engines, in place of the client's.
    pub authorization: Option<HeaderValue>,
    /// Limit for `GET /v1/models` on one engine.
    pub models_time: Duration,
    /// Limit for one probe of an engine that is to be added.
    pub probe_time: Duration,
    /// Probes of an engine that is to be added, before it is given up.
    pub probe_attempts: u32,
    /// Pause between them.
    pub probe_interval: Duration,
    /// Interval of comments in a stream whose answer is not there yet; zero = none.
    pub keep_alive: Duration,
    /// The model that is served. Of a gateway with one fleet, the one that requests must name.
    pub model: Option<String>,
    /// Further names of models.
    pub aliases: Vec<ModelAlias>,
}

/// A name by which clients may ask for a model that engines know by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelAlias {
    /// Name in requests and answers.
    pub name: Arc<str>,
    /// Name that engines know.
    pub model: Arc<str>,
}

/// All fleets, in the order of their names.
#[derive(Debug)]
pub struct Fleets {
    first: Arc<ServedFleet>,
    others: Vec<Arc<ServedFleet>>,
    names: Live<NameTable>,
    /// Time at which the names were read last for one that was not known.
    refreshed: Mutex<Option<Instant>>,
    /// Names that two fleets list, as they were logged last.
    told: Mutex<Vec<Conflict>>,
}

/// Fleet of a request, and the model's name where the client said an alias.
#[derive(Debug)]
pub(super) struct ChosenFleet {
    pub(super) fleet: Arc<ServedFleet>,
    pub(super) alias: Option<ModelAlias>,
}

impl Fleets {
    /// These fleets, of which there is at least one.
    pub fn new(first: Arc<ServedFleet>, others: Vec<Arc<ServedFleet>>) -> Fleets {
        let fleets = Fleets {
            first,
            others,
            names: Live::new(NameTable::default()),
            refreshed: Mutex::default(),
            told: Mutex::default(),
        };
        fleets.refresh_names();
        fleets
    }

    /// The first fleet, which is the only one of most gateways.
    pub fn first(&self) -> &Arc<ServedFleet> {
        &self.first
    }

    /// The only fleet; `None` where there are several.
    pub fn single(&self) -> Option<&Arc<ServedFleet>> {
        self.others.is_empty().then_some(&self.first)
    }

    /// All fleets in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ServedFleet>> + Clone {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The fleet of this name.
    pub fn named(&self, name: &str) -> Option<&Arc<ServedFleet>> {
        self.iter().find(|fleet| &*fleet.name == name)
    }

    /// Reads the names of models anew, of several fleets.
    pub fn refresh_names(&self) {
        if self.single().is_some() {
            return;
        }
        let (names, conflicts) = NameTable::of(&self.iter().cloned().collect::<Vec<_>>());
        self.names.set(names);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for conflict in conflicts.iter().filter(|conflict| !told.contains(conflict)) {
            tracing::warn!("{conflict}");
        }
        *told = conflicts;
    }

    /// The same for a name that is not known, though not for each.
    fn refresh_for_unknown(&self) {
        let now = Instant::now();
        let due = {
            let mut refreshed = self.refreshed.lock().unwrap_or_else(PoisonError::into_inner);
            let due = refreshed.is_none_or(|last| now.saturating_duration_since(last) >= REFRESH);
            if due {
                *refreshed = Some(now);
            }
            due
        };
        if due {
            self.refresh_names();
        }
    }

    /// True if requests for this model go to this fleet, or to none that is known.
    pub(super) fn leads_to(&self, model: &str, fleet: &Arc<ServedFleet>) -> bool {
        self.find(model).is_none_or(|chosen| Arc::ptr_eq(&chosen.fleet, fleet))
    }

    fn find(&self, model: &str) -> Option<ChosenFleet> {
        let names = self.names.now();
        let Named { fleet, alias } = names.find(model)?;
        Some(ChosenFleet { fleet: fleet.clone(), alias: alias.clone() })
    }
}

impl EngineAccess {
    /// The alias of this name.
    fn alias(&self, name: &str) -> Option<&ModelAlias> {
        self.aliases.iter().find(|alias| &*alias.name == name)
    }
}

impl ServedFleet {
    /// Every member, prefillers first; an engine that is both is listed once.
    pub(super) fn everyone(&self) -> Vec<Arc<Instance>> {
        let mut all: Vec<Arc<Instance>> = Vec::new();
        for role in [Role::Prefill, Role::Decode] {
            for member in self.relay.fleet.members(role).iter() {
                if !all.iter().any(|known| known.endpoint() == member.endpoint()) {
                    all.push(member.clone());
                }
            }
        }
        all
    }

    /// `host:port` of those that serve in `role`.
    pub fn engine_names(&self, role: Role) -> Vec<String> {
        let members = self.relay.fleet.members(role);
        members.iter().filter(|it| !it.draining()).map(|it| it.endpoint().to_string()).collect()
    }

    /// `host:port` of those that leave `role` when their work is done.
    pub(super) fn draining_names(&self, role: Role) -> Vec<String> {
        let members = self.relay.fleet.members(role);
        members.iter().filter(|it| it.draining()).map(|it| it.endpoint().to_string()).collect()
    }
}

impl Gateway {
    /// The fleets at this moment.
    pub fn fleets(&self) -> Arc<Fleets> {
        self.fleets.now()
    }

    /// The fleet that operators mean by this name; without one, the only fleet.
    ///
    /// # Errors
    /// `InvalidField` where there is no such fleet, or several and none is named.
    pub(super) fn fleet_for_operator(&self, name: Option<&str>) -> Result<Arc<ServedFleet>, Error> {
        let fleets = self.fleets();
        let found = match name {
            Some(name) => fleets.named(name),
            None => fleets.single(),
        };
        found.cloned().ok_or_else(|| {
            let said = match name {
                Some(name) => format!("there is no fleet `{}`", printable(name)),
                None => "several fleets are served: name one".to_owned(),
            };
            let known: Vec<&str> = fleets.iter().map(|fleet| &*fleet.name).collect();
            let message = format!("{said}; they are {}", known.join(", "));
            Error::new(Kind::InvalidField, message).param("fleet")
        })
    }

    /// Chooses the fleet for a request of `caller` for this model.
    ///
    /// # Errors
    /// `ModelNotFound` where no fleet serves it or the caller may not use it. `NoPrefiller` while a
    /// fleet has not told its models. `InvalidField` for no model where there are several fleets.
    pub(super) fn choose_fleet(&self, caller: &Caller, model: Option<&str>) -> Result<ChosenFleet, Error> {
        let fleets = self.fleets();
        if let Some(only) = fleets.single() {
            let alias = check_single(only, model)?;
            auth::check_model(caller, model)?;
            return Ok(ChosenFleet { fleet: only.clone(), alias });
        }
        auth::check_model(caller, model)?;
        let Some(model) = model else {
            let message =
                "`model` is missing, and several models are served: name one that GET /v1/models lists";
            return Err(Error::new(Kind::InvalidField, message).param("model"));
        };
        if let Some(chosen) = fleets.find(model) {
            return Ok(chosen);
        }
        fleets.refresh_for_unknown();
        fleets.find(model).ok_or_else(|| unknown_model(&fleets, caller, model))
    }
}

/// Checks that the model is the one that the only fleet serves, as far as names tell: of paths the
/// last parts are compared, and engines judge the rest. Returns the alias that it is.
fn check_single(fleet: &ServedFleet, model: Option<&str>) -> Result<Option<ModelAlias>, Error> {
    let access = fleet.access.now();
    let Some(asked) = model else { return Ok(None) };
    if let Some(alias) = access.alias(asked) {
        return Ok(Some(alias.clone()));
    }
    match &access.model {
        Some(served) if !same_model(served, asked) => Err(Error::new(
            Kind::ModelNotFound,
            format!("The model `{}` does not exist. This gateway serves `{served}`.", printable(asked)),
        )
        .param("model")),
        _ => Ok(None),
    }
}

/// The refusal of a model that no fleet serves, with the nearest one that the caller may use.
fn unknown_model(fleets: &Fleets, caller: &Caller, model: &str) -> Error {
    let names = fleets.names.now();
    if !names.is_complete() {
        let message = format!(
            "The model `{}` is not known yet: not all engines have told which models they serve.",
            printable(model)
        );
        return Error::new(Kind::NoPrefiller, message).param("model");
    }
    let nearest = names.nearest(model, |name| caller.may_use(Some(name)));
    auth::no_such_model_but(model, nearest.as_deref())
}
