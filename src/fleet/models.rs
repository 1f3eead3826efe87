//! Models that engines say they serve, and engines that serve another model than the fleet.
//!
//! A process that comes back at the same address may have been started with another model. It
//! refuses the fleet's requests with 404, and answers those that name no model with the wrong one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::uri::Authority;
use smallvec::SmallVec;

use crate::fleet::{Fleet, Instance, Role};

/// Names that are kept of one engine. vLLM lists the names of its model, of which people give it
/// one or two, before those of adapters.
pub(super) const MOST_NAMES: usize = 256;

impl Fleet {
    /// Records the list of models that `instance` gave, and takes engines out, or back in, whose
    /// models are not, or are again, those of the fleet. An empty list says nothing: the engine
    /// stays in.
    pub fn record_models(&self, instance: &Instance, mut names: Vec<String>) {
        if instance.health().identity().models_listed() {
            // It was asked before an adapter came or went.
            self.notify_list_read();
            return;
        }
        names.truncate(MOST_NAMES);
        let differs = *instance.models() != names;
        instance.set_models(names);
        // The others may have left, or changed their model, since it was compared.
        if differs || instance.health().serves_other_model() {
            self.compare_models();
        }
        // Asked before the last connection broke, it may be the list of the process before.
        if !instance.health().identity().models_wanted() {
            self.trust_process(instance);
        }
        self.notify_list_read();
    }

    /// Notes that `instance` did not say which models it serves. It stays in the fleet, and the
    /// doubt about its process ends if that goes on.
    pub fn models_unanswered(&self, instance: &Instance) {
        let is_asked_again = instance.health().identity().models_unanswered();
        if !is_asked_again {
            self.trust_process(instance);
        }
        self.notify_list_read();
    }

    /// Notes that the process of `instance` may be another one: a connection to it broke, or
    /// nobody listens there. Others are preferred, in each of its roles, until it has listed its
    /// models; it is asked at once. Where engines are not probed nobody would ask.
    pub fn doubt_process(&self, instance: &Instance) {
        if !self.settings.probed {
            return;
        }
        for twin in self.roles_of(instance) {
            twin.health().identity().doubt();
            twin.health().key_word().doubt();
            twin.forget_chat_ids();
            if twin.health().set_doubted(true) {
                self.tell_desk(&twin);
            }
        }
    }

    /// The same for the engines at this address.
    pub fn doubt_processes_at(&self, authority: &Authority) {
        for role in Role::ALL {
            let members = self.members(role);
            let at = members.iter().filter(|it| it.authority() == Some(authority));
            at.for_each(|it| self.doubt_process(it));
        }
    }

    fn trust_process(&self, instance: &Instance) {
        if instance.health().set_doubted(false) {
            self.tell_desk(instance);
        }
    }

    /// The members that are the engine of `instance`, in whatever roles.
    pub fn roles_of(&self, instance: &Instance) -> SmallVec<[Arc<Instance>; 2]> {
        let members = Role::ALL.map(|role| self.members(role));
        let all = members.iter().flat_map(|members| members.iter());
        all.filter(|it| it.endpoint() == instance.endpoint()).cloned().collect()
    }

    /// Compares the models of all engines that do not drain.
    pub(super) fn compare_models(&self) {
        let all = Role::ALL.iter().flat_map(|role| self.members(*role).to_vec());
        let members: Vec<_> = all.filter(|it| !it.draining()).collect();
        let listed = |it: &Arc<Instance>| Listed { names: it.models(), former: it.former_models() };
        let lists: Vec<Listed> = members.iter().map(listed).collect();
        let mut known = lists.iter().map(|list| &list.names).filter(|names| !names.is_empty());
        let first = known.next();
        self.lists_differ.store(known.any(|names| Some(names) != first), Ordering::Relaxed);
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

/// Models of one engine.
struct Listed {
    /// As it listed them last.
    names: Arc<Vec<String>>,
    /// Those that it listed before, if it lists none of them any more.
    former: Arc<Vec<String>>,
}

/// Finds the engines that serve another model: those without the name that most engines list, if
/// that is listed by more engines than any of their own names. Of two models with as many engines
/// each neither is the fleet's, unless some of them served the other one before: these are out.
fn find_others(lists: &[Listed]) -> Vec<bool> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for Listed { names, .. } in lists {
        for (at, name) in names.iter().enumerate() {
            if !names[..at].contains(name) {
                *counts.entry(name).or_default() += 1;
            }
        }
    }
    let most = counts.values().copied().max().unwrap_or_default();
    let count = |name: &String| counts.get(name.as_str()).copied().unwrap_or_default();
    let is_other = |Listed { names, former }: &Listed| {
        let before = former.iter().map(count).max().unwrap_or_default();
        names.iter().map(count).max().is_some_and(|own| own < most || own == before)
    };
    lists.iter().map(is_other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::fleet::Removal;
    use crate::fleet::health::State;
    use crate::route::Policy;

    fn lists(lists: &[&[&str]]) -> Vec<Listed> {
        let owned = |list: &&[&str]| Arc::new(list.iter().map(|name| (*name).to_owned()).collect());
        lists.iter().map(|list| Listed { names: owned(list), former: Arc::default() }).collect()
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
    fn of_two_engines_the_one_that_changed_its_model_is_out() {
        let fleet = Fleet::new(Policy::LeastWork);
        fleet.add(Role::Prefill, Endpoint::new("p", 1));
        fleet.add(Role::Decode, Endpoint::new("d", 1));
        let [p, d] = [Role::Prefill, Role::Decode].map(|role| fleet.members(role)[0].clone());
        let tell = |it: &Instance, name: &str| fleet.record_models(it, vec![name.to_owned()]);
        let out = || [&p, &d].map(|it| it.health().serves_other_model());
        tell(&p, "m");
        tell(&d, "m");
        tell(&d, "x");
        assert_eq!(out(), [false, true]);
        tell(&d, "m");
        assert_eq!(out(), [false, false], "it is back");
        tell(&d, "x");
        tell(&p, "x");
        assert_eq!(out(), [false, false], "both were given another model");
    }

    #[test]
    fn a_doubt_ends_by_a_list_that_was_asked_for_after_it() {
        let settings = crate::fleet::FleetSettings { probed: true, ..Default::default() };
        let fleet = Fleet::with(settings);
        for role in [Role::Prefill, Role::Decode] {
            fleet.add(role, Endpoint::new("e", 1));
            fleet.add(role, Endpoint::new("e", 2));
        }
        let [p, d] = [Role::Prefill, Role::Decode].map(|role| fleet.members(role)[0].clone());
        let tell = |it: &Instance| fleet.record_models(it, vec!["m".to_owned()]);
        d.health().identity().models_asked();
        fleet.doubt_process(&d);
        assert!(d.health().is_doubted() && p.health().is_doubted(), "it is one engine");
        let chosen = fleet.pick(Role::Decode, crate::fleet::Need::default()).unwrap();
        assert_ne!(chosen.instance().id(), d.id(), "another one is preferred");
        tell(&d);
        assert!(d.health().is_doubted(), "the list is older than the doubt");
        d.health().identity().models_asked();
        tell(&d);
        assert!(!d.health().is_doubted() && p.health().is_doubted());
        (0..3).for_each(|_| fleet.models_unanswered(&p));
        assert!(!p.health().is_doubted(), "it never says");
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
