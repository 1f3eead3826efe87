//! Names of models, and the fleet that each leads to.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::{ModelAlias, ModelRoute, ModelRule, ServedFleet};
use crate::fleet::Role;

/// A name that differs by more letters than this, or by a third of its own, is not offered.
const MAX_DISTANCE: usize = 4;
/// Names longer than this are not compared, bytes.
const MAX_COMPARED_BYTES: usize = 128;

/// Target of a name.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) fleet: Arc<ServedFleet>,
    /// The name, where engines know the model by another.
    pub(super) alias: Option<ModelAlias>,
}

/// Names of models. Those that the configuration gives go before those that engines list; of two
/// fleets that list one, the first has it.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    names: HashMap<Box<str>, Named>,
    /// The same by the last part of a path; `None` where two fleets have one that ends alike.
    last_parts: HashMap<Box<str>, Option<Named>>,
    /// Rules for models that several fleets serve, by the model's name.
    routes: HashMap<Box<str>, Arc<ModelRoute>>,
    /// A fleet has neither a configured model nor an engine that has listed one.
    has_silent_fleet: bool,
}

/// A name that engines of two fleets list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    model: Box<str>,
    fleet: Arc<str>,
    other: Arc<str>,
}

impl Conflict {
    /// Name of the model.
    pub(super) fn model(&self) -> &str {
        &self.model
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conflict { model, fleet, other } = self;
        write!(
            f,
            "engines of the fleets {fleet} and {other} list the model {model:?}: requests for it go to {fleet}; set \
             fleets.{other}.fleet.model to have them there"
        )
    }
}

impl NameTable {
    /// The names of these fleets, and those that two list.
    pub(super) fn of(fleets: &[Arc<ServedFleet>]) -> (NameTable, Vec<Conflict>) {
        let mut table = NameTable::default();
        let mut conflicts = Vec::new();
        for fleet in fleets {
            let access = fleet.access.now();
            if let Some(model) = &access.model {
                table.insert(model, Named { fleet: fleet.clone(), alias: None });
            }
            for alias in &access.aliases {
                table.insert(&alias.name, Named { fleet: fleet.clone(), alias: Some(alias.clone()) });
            }
        }
        let claimed: Vec<Box<str>> = table.names.keys().cloned().collect();
        for fleet in fleets {
            let listed = listed_models(fleet);
            table.has_silent_fleet |= listed.is_empty() && fleet.access.now().model.is_none();
            for model in listed {
                let other = table.insert(&model, Named { fleet: fleet.clone(), alias: None });
                let is_claimed = claimed.iter().any(|name| **name == *model);
                if let Some(first) = other.filter(|_| !is_claimed) {
                    conflicts.push(Conflict { model: model.into(), fleet: first, other: fleet.name.clone() });
                }
            }
        }
        (table, conflicts)
    }

    /// Adds the rule for a model that several fleets serve.
    pub(super) fn add_route(&mut self, rule: &ModelRule, route: ModelRoute) {
        self.routes.insert(rule.name.clone(), Arc::new(route));
    }

    /// The rule for a model.
    pub(super) fn route(&self, model: &str) -> Option<&Arc<ModelRoute>> {
        self.routes.get(model)
    }

    /// True if requests for a model are shared out among fleets.
    pub(super) fn is_shared_out(&self, model: &str) -> bool {
        self.route(model).is_some_and(|route| route.has_targets())
    }

    /// Adds a name, unless it is there; returns the other fleet that has it.
    fn insert(&mut self, name: &str, named: Named) -> Option<Arc<str>> {
        if let Some(known) = self.names.get(name) {
            let is_own = Arc::ptr_eq(&known.fleet, &named.fleet);
            return (!is_own).then(|| known.fleet.name.clone());
        }
        match self.last_parts.get_mut(last_part(name)) {
            Some(known) => {
                let same = known.as_ref().is_some_and(|known| Arc::ptr_eq(&known.fleet, &named.fleet));
                if !same {
                    *known = None;
                }
            }
            None => drop(self.last_parts.insert(last_part(name).into(), Some(named.clone()))),
        }
        self.names.insert(name.into(), named);
        None
    }

    /// The target of a name as it stands, or of one that ends in the same part of a path.
    pub(super) fn find(&self, name: &str) -> Option<&Named> {
        let whole = self.names.get(name);
        // A part of a path is no alias: engines would not know it.
        let part = || self.last_parts.get(last_part(name))?.as_ref().filter(|named| named.alias.is_none());
        whole.or_else(part)
    }

    /// True if each fleet has told its models.
    pub(super) fn is_complete(&self) -> bool {
        !self.has_silent_fleet
    }

    /// The name that is nearest to an unknown one, of those that `may_use` allows.
    pub(super) fn nearest(&self, unknown: &str, may_use: impl Fn(&str) -> bool) -> Option<Box<str>> {
        if unknown.len() > MAX_COMPARED_BYTES {
            return None;
        }
        let unknown = unknown.to_lowercase();
        let far = (unknown.len() / 3).clamp(1, MAX_DISTANCE);
        let near = |name: &str| {
            let distance = strsim::osa_distance(&unknown, &name.to_lowercase());
            (name.len() <= MAX_COMPARED_BYTES && distance <= far && may_use(name)).then_some(distance)
        };
        let near = self.names.keys().filter_map(|name| Some((near(name)?, name)));
        near.min().map(|(_, name)| name.clone())
    }
}

/// Names that engines of a fleet list, each once.
pub(super) fn listed_models(fleet: &ServedFleet) -> Vec<String> {
    let members = Role::ALL.iter().flat_map(|role| fleet.relay.fleet.members(*role).to_vec());
    let mut names: Vec<String> = members.flat_map(|member| member.models().to_vec()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn last_part(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}
