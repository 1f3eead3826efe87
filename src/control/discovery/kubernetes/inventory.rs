//! State of one role's pods, from lists and events. The module is pure.

use std::collections::{BTreeMap, BTreeSet};

use super::MAX_ENGINES;
use crate::endpoint::Endpoint;

/// Most listed engines that are kept: each may be listed once for each family of addresses.
const MAX_LISTED: usize = 2 * MAX_ENGINES;

/// One engine, as an object lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedEngine {
    /// Address at which it listens.
    pub(super) engine: Endpoint,
    /// Name of its pod, if several objects may list the same engine.
    pub(super) pod: Option<String>,
}

/// The parts of a pod or an endpoint slice that are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ObjectEngines {
    /// Engines that may serve.
    pub(super) places: Vec<ListedEngine>,
    /// Reason why others in it can't be spoken to; empty when all can.
    pub(super) lacks: Vec<String>,
}

/// All objects of one role, by name.
#[derive(Debug, Default)]
pub(super) struct RoleInventory {
    now: Objects,
    /// A list that is not complete yet: half of it would drain the other half.
    next: Objects,
}

#[derive(Debug, Default)]
struct Objects {
    found: BTreeMap<String, ObjectEngines>,
    places: usize,
    /// Number of objects beyond the limit.
    left_out: usize,
}

/// The engines of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Engines {
    /// Each engine once, in the order of the objects' names.
    pub(super) all: Vec<Endpoint>,
    /// Reasons for which others are not among them.
    pub(super) lacks: Vec<String>,
}

impl RoleInventory {
    /// Begins a list, and drops an unfinished one.
    pub(super) fn begin(&mut self) {
        self.next = Objects::default();
    }

    /// Adds an object to the list.
    pub(super) fn listed(&mut self, name: String, found: ObjectEngines) {
        self.next.insert(name, found);
    }

    /// Replaces the state by the complete list.
    pub(super) fn complete(&mut self) {
        self.now = std::mem::take(&mut self.next);
    }

    /// Adds or replaces an object. True if that changes anything.
    pub(super) fn insert(&mut self, name: String, found: ObjectEngines) -> bool {
        self.now.insert(name, found)
    }

    /// Removes an object. True if that changes anything.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        self.now.remove(name).is_some()
    }

    /// The engines of all objects.
    pub(super) fn engines(&self) -> Engines {
        let places = || self.now.found.values().flat_map(|found| &found.places);
        // Of a pod with addresses of both families one is taken, the same in every gateway.
        let v4 = |place: &ListedEngine| !place.engine.host.contains(':');
        let with_v4: BTreeSet<&str> =
            places().filter(|place| v4(place)).filter_map(|place| place.pod.as_deref()).collect();
        let doubled = |place: &&ListedEngine| {
            !v4(place) && place.pod.as_deref().is_some_and(|pod| with_v4.contains(pod))
        };
        let mut seen = BTreeSet::new();
        let mut all: Vec<Endpoint> = places()
            .filter(|place| !doubled(place))
            .map(|place| &place.engine)
            .filter(|engine| seen.insert(*engine))
            .cloned()
            .collect();
        let lacks: BTreeSet<&String> = self.now.found.values().flat_map(|found| &found.lacks).collect();
        let mut lacks: Vec<String> = lacks.into_iter().cloned().collect();
        if all.len() > MAX_ENGINES || self.now.left_out > 0 {
            lacks.push(format!("there are more than {MAX_ENGINES} engines: the others are left out"));
            all.truncate(MAX_ENGINES);
        }
        Engines { all, lacks }
    }
}

impl Objects {
    /// Adds or replaces an object. True if that changes anything. An object without engines and
    /// faults is not kept.
    fn insert(&mut self, name: String, found: ObjectEngines) -> bool {
        if self.found.get(&name) == Some(&found) {
            return false;
        }
        let before = self.remove(&name);
        if found == ObjectEngines::default() {
            return before.is_some();
        }
        let size = found.places.len().max(1);
        if self.places + size > MAX_LISTED {
            self.left_out += 1;
            return true;
        }
        self.places += size;
        self.found.insert(name, found);
        true
    }

    fn remove(&mut self, name: &str) -> Option<ObjectEngines> {
        let found = self.found.remove(name)?;
        self.places -= found.places.len().max(1);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(engines: &[(&str, Option<&str>)]) -> ObjectEngines {
        let place = |(engine, pod): &(&str, Option<&str>)| ListedEngine {
            engine: Endpoint::parse(engine).unwrap(),
            pod: pod.map(str::to_owned),
        };
        ObjectEngines { places: engines.iter().map(place).collect(), lacks: vec![] }
    }

    fn texts(inventory: &RoleInventory) -> Vec<String> {
        inventory.engines().all.iter().map(Endpoint::to_string).collect()
    }

    #[test]
    fn a_list_counts_when_it_is_complete() {
        let mut inventory = RoleInventory::default();
        inventory.begin();
        inventory.listed("a".into(), found(&[("10.0.0.1:1", None)]));
        inventory.listed("b".into(), found(&[("10.0.0.2:1", None)]));
        assert_eq!(texts(&inventory), [""; 0]);
        inventory.complete();
        assert_eq!(texts(&inventory), ["10.0.0.1:1", "10.0.0.2:1"]);
        inventory.begin();
        inventory.listed("b".into(), found(&[("10.0.0.2:1", None)]));
        inventory.begin();
        inventory.listed("a".into(), found(&[("10.0.0.1:1", None)]));
        assert_eq!(texts(&inventory).len(), 2, "a list that broke off is not taken");
        inventory.complete();
        assert_eq!(texts(&inventory), ["10.0.0.1:1"], "nothing of the broken one is left");
    }

    #[test]
    fn only_what_differs_is_a_change() {
        let mut inventory = RoleInventory::default();
        assert!(!inventory.insert("a".into(), ObjectEngines::default()), "a pod that is not ready");
        assert!(inventory.insert("a".into(), found(&[("10.0.0.1:1", None)])));
        assert!(!inventory.insert("a".into(), found(&[("10.0.0.1:1", None)])));
        assert!(inventory.insert("a".into(), ObjectEngines::default()));
        assert!(!inventory.remove("a"));
        assert_eq!(texts(&inventory), [""; 0]);
    }

    #[test]
    fn an_engine_counts_once() {
        let mut inventory = RoleInventory::default();
        inventory.insert("v6".into(), found(&[("[fd00::1]:1", Some("p")), ("[fd00::2]:1", Some("q"))]));
        inventory.insert("a".into(), found(&[("10.0.0.1:1", Some("p")), ("10.0.0.1:2", Some("p"))]));
        inventory.insert("b".into(), found(&[("10.0.0.1:1", Some("p"))]));
        assert_eq!(texts(&inventory), ["10.0.0.1:1", "10.0.0.1:2", "[fd00::2]:1"]);
        inventory.remove("a");
        inventory.remove("b");
        assert_eq!(texts(&inventory), ["[fd00::1]:1", "[fd00::2]:1"]);
    }

    #[test]
    fn there_is_an_end_to_engines_and_to_what_is_kept() {
        let mut inventory = RoleInventory::default();
        let one = |n: usize| found(&[(format!("10.1.{}.{}:1", n / 250, n % 250).as_str(), None)]);
        for n in 0..=MAX_ENGINES {
            inventory.insert(format!("{n:05}"), one(n));
        }
        let engines = inventory.engines();
        assert_eq!((engines.all.len(), engines.lacks.len()), (MAX_ENGINES, 1), "{:?}", engines.lacks);
        for n in MAX_ENGINES..3 * MAX_ENGINES {
            inventory.insert(format!("{n:05}"), one(n));
        }
        assert_eq!(inventory.now.found.len(), MAX_LISTED);
        for n in 0..3 * MAX_ENGINES {
            inventory.remove(&format!("{n:05}"));
        }
        assert_eq!(inventory.now.places, 0);
    }
}
