//! Models that engines say they serve, and engines that serve another model than the fleet.
//!
//! A process that comes back at the same address may have been started with another model. It
//! refuses the fleet's requests with 404, and answers those that name no model with the wrong one.

use std::collections::HashMap;
use std::sync::Arc;

use crate::fleet::{Fleet, Instance, Role};

/// Names that are kept of one engine. vLLM lists the names of its model before those of adapters,
/// and people give a model one or two.
const MOST_NAMES: usize = 8;

impl Fleet {
    /// Records the list of models that `instance` gave, and takes engines out, or back in, whose
    /// models are not, or are again, those of the fleet. An empty list says nothing: the engine
    /// stays in.
    pub fn record_models(&self, instance: &Instance, mut names: Vec<String>) {
        names.truncate(MOST_NAMES);
        let differs = *instance.models() != names;
        instance.set_models(names);
        // The others may have left, or changed their model, since it was compared.
        if differs || instance.health().serves_other_model() {
            self.compare_models();
        }
    }

    /// Compares the models of all engines that do not drain.
    fn compare_models(&self) {
        let all = Role::ALL.iter().flat_map(|role| self.members(*role).to_vec());
        let members: Vec<_> = all.filter(|it| !it.draining()).collect();
        let lists: Vec<Arc<Vec<String>>> = members.iter().map(|it| it.models()).collect();
        for (instance, serves_other) in members.iter().zip(find_others(&lists)) {
            if !instance.health().set_serves_other_model(serves_other) {
                continue;
            }
            if serves_other {
                let models = instance.models().join(", ");
                instance.health().note_cause(&format!("it serves another model than the fleet: {models}"));
            }
            self.note_state(instance);
            self.count(instance.role());
            self.tell_desk(instance);
        }
    }
}

/// Finds the engines that serve another model: those without the name that most engines list, if
/// that is listed by more engines than any of their own names. Of two models with as many engines
/// each neither is the fleet's.
fn find_others(lists: &[Arc<Vec<String>>]) -> Vec<bool> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for list in lists {
        for (at, name) in list.iter().enumerate() {
            if !list[..at].contains(name) {
                *counts.entry(name).or_default() += 1;
            }
        }
    }
    let most = counts.values().copied().max().unwrap_or_default();
    let count = |name: &String| counts.get(name.as_str()).copied().unwrap_or_default();
    let is_other = |list: &Arc<Vec<String>>| list.iter().map(count).max().is_some_and(|own| own < most);
    lists.iter().map(is_other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::fleet::Removal;
    use crate::fleet::health::State;
    use crate::route::Policy;

    fn lists(lists: &[&[&str]]) -> Vec<Arc<Vec<String>>> {
        lists.iter().map(|list| Arc::new(list.iter().map(|name| (*name).to_owned()).collect())).collect()
    }

    #[test]
    fn the_model_of_most_engines_is_the_fleets() {
        let others = |given: &[&[&str]]| find_others(&lists(given));
        assert_eq!(others(&[&["m"], &["m"], &["x"]]), [false, false, true]);
        assert_eq!(others(&[&["m"], &["x"]]), [false, false], "neither is the fleet's");
        assert_eq!(others(&[&["m", "a1"], &["m"], &["m", "a2"]]), [false; 3], "adapters differ");
        assert_eq!(others(&[&["m"], &["alias", "m"], &[]]), [false; 3], "no list says nothing");
        assert_eq!(others(&[&["m"], &["m"], &["x", "x", "x"]]), [false, false, true]);
        assert_eq!(others(&[&["m"], &["m"], &["x"], &["x"]]), [false; 4]);
        assert!(others(&[]).is_empty());
    }

    #[test]
    fn an_engine_with_another_model_is_out_until_it_serves_the_fleets() {
        let fleet = Fleet::new(Policy::LeastWork);
        for port in [1, 2, 3] {
            fleet.add(Role::Decode, Endpoint::new("e", port));
        }
        let members = fleet.members(Role::Decode);
        let names = |name: &str| vec![name.to_owned()];
        for member in members.iter() {
            fleet.record_models(member, names("m"));
        }
        let states = || members.iter().map(|it| it.health().state(fleet.now_ms())).collect::<Vec<_>>();
        assert_eq!(states(), [State::Closed; 3]);
        fleet.record_models(&members[1], names("x"));
        assert_eq!(states(), [State::Closed, State::Open, State::Closed]);
        let seats: Vec<_> =
            (0..6).filter_map(|_| fleet.pick(Role::Decode, crate::fleet::Need::default())).collect();
        assert!(seats.iter().all(|reservation| reservation.instance().id() != members[1].id()));
        fleet.record_models(&members[1], names("m"));
        assert_eq!(states(), [State::Closed; 3]);
    }

    #[test]
    fn an_engine_that_is_out_is_in_again_when_its_model_is_the_fleets() {
        let fleet = Fleet::new(Policy::LeastWork);
        let at = [1, 2, 3].map(|port| Endpoint::new("e", port));
        at.iter().for_each(|endpoint| assert!(fleet.add(Role::Decode, endpoint.clone())));
        let members = fleet.members(Role::Decode).to_vec();
        for (member, name) in members.iter().zip(["old", "old", "new"]) {
            fleet.record_models(member, vec![name.to_owned()]);
        }
        assert!(members[2].health().serves_other_model());
        at[..2]
            .iter()
            .for_each(|endpoint| assert_ne!(fleet.remove(Role::Decode, endpoint), Removal::Unknown));
        fleet.record_models(&members[2], vec!["new".to_owned()]);
        assert!(!members[2].health().serves_other_model(), "the others have left");
    }
}
