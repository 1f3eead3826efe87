//! State of one role's pods, from lists and events. The module is pure.

use std::collections::{BTreeMap, BTreeSet};

use super::MOST;
use crate::endpoint::Endpoint;

/// Most places kept: each engine may be listed once for each family of addresses.
const MOST_PLACES: usize = 2 * MOST;

/// One engine, as an object lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Place where it listens.
    pub(super) engine: Endpoint,
    /// Its pod, where several objects may list the same.
    pub(super) pod: Option<String>,
}

/// The parts of a pod or an endpoint slice that are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Engines that may serve.
    pub(super) places: Vec<Place>,
    /// Reason why others in it can't be spoken to; empty when all can.
    pub(super) lacks: Vec<String>,
}

/// All of one role, by the objects' names.
#[derive(Debug, Default)]
pub(super) struct Known {
    now: Objects,
    /// A list that is not complete yet: half of it would drain the other half.
    next: Objects,
}

#[derive(Debug, Default)]
struct Objects {
    found: BTreeMap<String, Found>,
    places: usize,
    /// Objects that there was no room for.
    left_out: usize,
}

/// The engines of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Engines {
    /// Each once, in the order of their objects' names.
    pub(super) all: Vec<Endpoint>,
    /// Reasons for which others are not among them.
    pub(super) lacks: Vec<String>,
}

impl Known {
    /// A list begins; what was said of an unfinished one is void.
    pub(super) fn begin(&mut self) {
        self.next = Objects::default();
    }

    /// One object of the list.
    pub(super) fn listed(&mut self, name: String, found: Found) {
        self.next.put(name, found);
    }

    /// The list is complete, and counts.
    pub(super) fn complete(&mut self) {
        self.now = std::mem::take(&mut self.next);
    }

    /// An object came or changed; whether that changes anything.
    pub(super) fn put(&mut self, name: String, found: Found) -> bool {
        self.now.put(name, found)
    }

    /// An object is gone; whether that changes anything.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        self.now.remove(name).is_some()
    }

    /// The engines that are there.
    pub(super) fn engines(&self) -> Engines {
        let places = || self.now.found.values().flat_map(|found| &found.places);
        // Of a pod with addresses of both families one is taken, the same in every gateway.
        let v4 = |place: &Place| !place.engine.host.contains(':');
        let with_v4: BTreeSet<&str> =
            places().filter(|place| v4(place)).filter_map(|place| place.pod.as_deref()).collect();
        let doubled =
            |place: &&Place| !v4(place) && place.pod.as_deref().is_some_and(|pod| with_v4.contains(pod));
        let mut seen = BTreeSet::new();
        let mut all: Vec<Endpoint> = places()
            .filter(|place| !doubled(place))
            .map(|place| &place.engine)
            .filter(|engine| seen.insert(*engine))
            .cloned()
            .collect();
        let lacks: BTreeSet<&String> = self.now.found.values().flat_map(|found| &found.lacks).collect();
        let mut lacks: Vec<String> = lacks.into_iter().cloned().collect();
        if all.len() > MOST || self.now.left_out > 0 {
            lacks.push(format!("there are more than {MOST} engines: the others are left out"));
            all.truncate(MOST);
        }
        Engines { all, lacks }
    }
}

impl Objects {
    /// True if it changes anything. What has nothing to tell is not kept.
    fn put(&mut self, name: String, found: Found) -> bool {
        if self.found.get(&name) == Some(&found) {
            return false;
        }
        let before = self.remove(&name);
        if found == Found::default() {
            return before.is_some();
        }
        let size = found.places.len().max(1);
        if self.places + size > MOST_PLACES {
            self.left_out += 1;
            return true;
        }
        self.places += size;
        self.found.insert(name, found);
        true
    }

    fn remove(&mut self, name: &str) -> Option<Found> {
        let found = self.found.remove(name)?;
        self.places -= found.places.len().max(1);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(engines: &[(&str, Option<&str>)]) -> Found {
        let place = |(engine, pod): &(&str, Option<&str>)| Place {
            engine: Endpoint::parse(engine).unwrap(),
            pod: pod.map(str::to_owned),
        };
        Found { places: engines.iter().map(place).collect(), lacks: vec![] }
    }

    fn texts(known: &Known) -> Vec<String> {
        known.engines().all.iter().map(Endpoint::to_string).collect()
    }

    #[test]
    fn a_list_counts_when_it_is_complete() {
        let mut known = Known::default();
        known.begin();
        known.listed("a".into(), found(&[("10.0.0.1:1", None)]));
        known.listed("b".into(), found(&[("10.0.0.2:1", None)]));
        assert_eq!(texts(&known), [""; 0]);
        known.complete();
        assert_eq!(texts(&known), ["10.0.0.1:1", "10.0.0.2:1"]);
        known.begin();
        known.listed("b".into(), found(&[("10.0.0.2:1", None)]));
        known.begin();
        known.listed("a".into(), found(&[("10.0.0.1:1", None)]));
        assert_eq!(texts(&known).len(), 2, "a list that broke off is not taken");
        known.complete();
        assert_eq!(texts(&known), ["10.0.0.1:1"], "nothing of the broken one is left");
    }

    #[test]
    fn only_what_differs_is_a_change() {
        let mut known = Known::default();
        assert!(!known.put("a".into(), Found::default()), "a pod that is not ready");
        assert!(known.put("a".into(), found(&[("10.0.0.1:1", None)])));
        assert!(!known.put("a".into(), found(&[("10.0.0.1:1", None)])));
        assert!(known.put("a".into(), Found::default()));
        assert!(!known.remove("a"));
        assert_eq!(texts(&known), [""; 0]);
    }

    #[test]
    fn an_engine_counts_once() {
        let mut known = Known::default();
        known.put("v6".into(), found(&[("[fd00::1]:1", Some("p")), ("[fd00::2]:1", Some("q"))]));
        known.put("a".into(), found(&[("10.0.0.1:1", Some("p")), ("10.0.0.1:2", Some("p"))]));
        known.put("b".into(), found(&[("10.0.0.1:1", Some("p"))]));
        assert_eq!(texts(&known), ["10.0.0.1:1", "10.0.0.1:2", "[fd00::2]:1"]);
        known.remove("a");
        known.remove("b");
        assert_eq!(texts(&known), ["[fd00::1]:1", "[fd00::2]:1"]);
    }

    #[test]
    fn there_is_an_end_to_engines_and_to_what_is_kept() {
        let mut known = Known::default();
        let one = |n: usize| found(&[(format!("10.1.{}.{}:1", n / 250, n % 250).as_str(), None)]);
        for n in 0..=MOST {
            known.put(format!("{n:05}"), one(n));
        }
        let engines = known.engines();
        assert_eq!((engines.all.len(), engines.lacks.len()), (MOST, 1), "{:?}", engines.lacks);
        for n in MOST..3 * MOST {
            known.put(format!("{n:05}"), one(n));
        }
        assert_eq!(known.now.found.len(), MOST_PLACES);
        for n in 0..3 * MOST {
            known.remove(&format!("{n:05}"));
        }
        assert_eq!(known.now.places, 0);
    }
}
