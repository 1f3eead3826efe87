//! The fleets that are served, and the choice of one for a request. From there on nothing of a
//! request knows of others.

mod lists;
mod model_routes;
mod names;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http::uri::PathAndQuery;
use tokio::time::Instant;

use crate::auth::Caller;
use crate::dialect::Api;
use crate::endpoint::same_model;
use crate::error::{Error, Kind};
use crate::fleet::{Instance, Role};
use crate::relay::Relay;
use crate::server::asleep::Asleep;
use crate::server::instances::Waiting;
use crate::server::moves::Moves;
use crate::server::{Gateway, auth, printable};
use crate::util::swap::Live;
use lists::ListReadings;
pub(super) use lists::NamedTarget;
pub use model_routes::ModelRule;
pub(super) use model_routes::{ModelRoute, RequestTies};
use names::{Conflict, NameTable, Named};

/// Least time between two times that names are gathered for one that is not known: anybody can make
/// one up.
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
    /// Engines on their way from one role to the other.
    pub moves: Moves,
    /// Engines that sleep, out of the choice.
    pub asleep: Asleep,
    /// The list of models that its engines gave last; for a time when none answers.
    pub last_models: Live<Option<Bytes>>,
    /// Routes of somebody else's API, if the fleet is one; it is asked as a fall-back alone.
    pub remote: Option<RemoteApi>,
}

/// Routes of somebody else's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteApi {
    /// Path in place of `/v1`.
    pub path: Box<str>,
}

/// The fleets of a gateway.
#[derive(Debug)]
pub struct FleetSet {
    /// The first fleet with engines.
    pub first: Arc<ServedFleet>,
    /// The other fleets with engines.
    pub others: Vec<Arc<ServedFleet>>,
    /// Fleets that are APIs elsewhere.
    pub remotes: Vec<Arc<ServedFleet>>,
    /// Rules for models that several of them serve.
    pub rules: Vec<ModelRule>,
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
    /// True if engines schedule by priority, and are told that of a request's key.
    pub priority_scheduling: bool,
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
    /// Fleets that are APIs elsewhere. Only a rule for a model leads to one of them.
    remotes: Vec<Arc<ServedFleet>>,
    rules: Vec<ModelRule>,
    names: Live<NameTable>,
    /// Time at which the names were read last for one that was not known.
    refreshed: Mutex<Option<Instant>>,
    /// Readings of engines' lists for names that are still not known then.
    readings: ListReadings,
    /// Names that two fleets list, as they were logged last.
    told: Mutex<Vec<Conflict>>,
}

/// Fleet of a request, and the model's name where the client said an alias.
#[derive(Debug)]
pub(super) struct ChosenFleet {
    pub(super) fleet: Arc<ServedFleet>,
    pub(super) alias: Option<ModelAlias>,
    /// The rule for its model, if there is one.
    pub(super) route: Option<Arc<ModelRoute>>,
    /// It is a fall-back, since no fleet serves the model.
    pub(super) unserved: bool,
}

impl ChosenFleet {
    /// A fleet that is known without a choice.
    pub(super) fn known(fleet: Arc<ServedFleet>) -> ChosenFleet {
        ChosenFleet { fleet, alias: None, route: None, unserved: false }
    }

    fn of(named: &Named) -> ChosenFleet {
        ChosenFleet { alias: named.alias.clone(), ..ChosenFleet::known(named.fleet.clone()) }
    }
}

impl Fleets {
    /// Makes the fleets of a gateway, and reads the names of their models.
    pub fn new(set: FleetSet) -> Fleets {
        let FleetSet { first, others, remotes, rules } = set;
        let fleets = Fleets {
            first,
            others,
            remotes,
            rules,
            names: Live::new(NameTable::default()),
            refreshed: Mutex::default(),
            readings: ListReadings::new(),
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

    /// All fleets, and APIs elsewhere.
    pub fn iter_with_remotes(&self) -> impl Iterator<Item = &Arc<ServedFleet>> + Clone {
        self.iter().chain(&self.remotes)
    }

    /// The fleet, or API elsewhere, of this name.
    fn any_named(&self, name: &str) -> Option<&Arc<ServedFleet>> {
        self.iter_with_remotes().find(|fleet| &*fleet.name == name)
    }

    /// Reads the names of models anew, where several fleets or rules need them.
    pub fn refresh_names(&self) {
        if self.single().is_some() && self.rules.is_empty() {
            return;
        }
        let (mut names, mut conflicts) = NameTable::of(&self.iter().cloned().collect::<Vec<_>>());
        self.rules.iter().for_each(|rule| names.add_route(rule, ModelRoute::of(rule, self)));
        conflicts.retain(|conflict| !names.is_shared_out(conflict.model()));
        self.names.set(names);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for conflict in conflicts.iter().filter(|conflict| !told.contains(conflict)) {
            tracing::warn!("{conflict}");
        }
        *told = conflicts;
    }

    /// The same for a name that is not known, though not for each.
    fn refresh_for_unknown(&self) {
        if is_due(&self.refreshed, REFRESH) {
            self.refresh_names();
        }
    }

    /// True if requests for this model go to this fleet, or to none that is known.
    pub(super) fn leads_to(&self, model: &str, fleet: &Arc<ServedFleet>) -> bool {
        self.find(model).is_none_or(|chosen| Arc::ptr_eq(&chosen.fleet, fleet))
    }

    fn find(&self, model: &str) -> Option<ChosenFleet> {
        self.names.now().find(model).map(ChosenFleet::of)
    }

    /// This fleet for a model that it serves, be it that others do as well.
    fn find_at(&self, model: &str, fleet: &Arc<ServedFleet>) -> Option<ChosenFleet> {
        let access = fleet.access.now();
        let alias = access.alias(model).cloned();
        let is_own = || {
            access.model.as_deref() == Some(model) || names::listed_models(fleet).iter().any(|it| it == model)
        };
        if alias.is_none() && !is_own() {
            return None;
        }
        let route = self.route(model).or_else(|| self.route(&alias.as_ref()?.model));
        Some(ChosenFleet { alias, route, ..ChosenFleet::known(fleet.clone()) })
    }

    /// Names under which models of a fleet are listed beside their own: its aliases, and names that
    /// several fleets serve, at the first of them.
    pub(super) fn listed_aliases(&self, fleet: &Arc<ServedFleet>) -> Vec<ModelAlias> {
        let is_first =
            |rule: &&ModelRule| rule.targets.first().is_some_and(|(name, _)| **name == *fleet.name);
        let shared = self.rules.iter().filter(is_first);
        let shared = shared.filter_map(|rule| model_routes::alias_in(fleet, &rule.name));
        let mut aliases = fleet.access.now().aliases.clone();
        aliases.extend(shared.filter(|alias| !aliases.contains(alias)).collect::<Vec<_>>());
        aliases
    }

    /// The rule for a model of this name.
    fn route(&self, model: &str) -> Option<Arc<ModelRoute>> {
        if self.rules.is_empty() {
            return None;
        }
        self.names.now().route(model).cloned()
    }
}

/// True if `pause` is over since it was true last.
fn is_due(last: &Mutex<Option<Instant>>, pause: Duration) -> bool {
    let now = Instant::now();
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    let due = last.is_none_or(|last| now.saturating_duration_since(last) >= pause);
    if due {
        *last = Some(now);
    }
    due
}

impl EngineAccess {
    /// The alias of this name.
    fn alias(&self, name: &str) -> Option<&ModelAlias> {
        self.aliases.iter().find(|alias| &*alias.name == name)
    }
}

impl RemoteApi {
    /// Path of an API's route there; `None` where only engines have it.
    pub(super) fn target(&self, api: Api) -> Option<PathAndQuery> {
        let route = match api {
            Api::Chat => "chat/completions",
            Api::Completions => "completions",
            Api::Responses => "responses",
            Api::Messages => "messages",
            Api::Generate => return None,
        };
        format!("{}/{route}", self.path).parse().ok()
    }

    /// Path there of a route that one engine answers; `None` where only engines have it.
    pub(super) fn target_of(&self, path: &str) -> Option<PathAndQuery> {
        let route = path.strip_prefix("/v1/").filter(|route| *route == "embeddings")?;
        format!("{}/{route}", self.path).parse().ok()
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
                Some(name) if fleets.any_named(name).is_some() => {
                    format!("the fleet `{}` is an API elsewhere and has no engines", printable(name))
                }
                Some(name) => format!("there is no fleet `{}`", printable(name)),
                None => "several fleets are served: name one".to_owned(),
            };
            let known: Vec<&str> = fleets.iter().map(|fleet| &*fleet.name).collect();
            let message = format!("{said}; those with engines are {}", known.join(", "));
            Error::new(Kind::InvalidField, message).param("fleet")
        })
    }

    /// Chooses the fleet for a request of `caller` for this model.
    ///
    /// # Errors
    /// `ModelNotFound` where no fleet serves it or the caller may not use it. `NoPrefiller` while a
    /// fleet has not told its models. `InvalidField` for no model where there are several fleets.
    pub(super) fn choose_fleet<'a>(
        &self,
        caller: &Caller,
        model: Option<&str>,
        ties: impl FnOnce() -> RequestTies<'a>,
    ) -> Result<ChosenFleet, Error> {
        let fleets = self.fleets();
        let route = model.and_then(|model| fleets.route(model));
        if let Some(route) = &route
            && let Some(named) = route.choose(ties())
        {
            auth::check_model(caller, model)?;
            return Ok(ChosenFleet { route: Some(route.clone()), ..ChosenFleet::of(named) });
        }
        let chosen = match (self.choose_by_name(&fleets, caller, model), &route) {
            (Err(error), Some(route)) if matches!(error.kind(), Kind::ModelNotFound | Kind::NoPrefiller) => {
                auth::check_model(caller, model)?;
                let next = route.fallback.first().ok_or(error)?;
                ChosenFleet { unserved: true, ..ChosenFleet::of(next) }
            }
            (chosen, _) => chosen?,
        };
        let route = route.or_else(|| fleets.route(&chosen.alias.as_ref()?.model));
        Ok(ChosenFleet { route, ..chosen })
    }

    fn choose_by_name(
        &self,
        fleets: &Fleets,
        caller: &Caller,
        model: Option<&str>,
    ) -> Result<ChosenFleet, Error> {
        if let Some(only) = fleets.single() {
            let alias = check_single(only, model)?;
            auth::check_model(caller, model)?;
            return Ok(ChosenFleet { alias, ..ChosenFleet::known(only.clone()) });
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
        fleets.find(model).ok_or_else(|| unknown_model(fleets, caller, model))
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
