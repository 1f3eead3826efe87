//! Adapters, and other models that only some engines of a fleet have.
//!
//! An engine without an adapter refuses requests for it with 404, which a client would take for the
//! last word. So engines are chosen by what they list, a change is known as soon as it is made
//! through the gateway, and lists are read again when a request shows that they may be old.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::models::MOST_NAMES;
use crate::fleet::health::State;
use crate::fleet::{Fleet, Instance, InstanceId, Role};

impl Fleet {
    /// Members of a role that list models, but not this one, while another member lists it: an
    /// adapter that is not loaded everywhere.
    pub fn lacking_model(&self, role: Role, model: Option<&str>) -> SmallVec<[InstanceId; 4]> {
        let mut lacking = SmallVec::new();
        let Some(model) = model.filter(|_| self.lists_differ.load(Ordering::Relaxed)) else {
            return lacking;
        };
        let mut has_holder = false;
        for member in self.members(role).iter() {
            let models = member.models();
            match models.iter().any(|name| name == model) {
                true => has_holder |= !member.draining(),
                false if !models.is_empty() => lacking.push(member.id()),
                false => {}
            }
        }
        if !has_holder {
            lacking.clear();
        }
        lacking
    }

    /// False if all members of `role` list models, and this one is not among them.
    pub fn may_have_model(&self, role: Role, model: Option<&str>) -> bool {
        let Some(model) = model.filter(|_| self.lists_differ.load(Ordering::Relaxed)) else { return true };
        self.members(role).iter().any(|member| {
            let models = member.models();
            models.is_empty() || models.iter().any(|name| name == model)
        })
    }

    /// Members that are chosen last: those in `tried`, among them those that lack the request's
    /// model. Where all others were tried, they are tried again: who lacks it could only refuse.
    pub fn chosen_last<'a>(
        &self,
        role: Role,
        tried: &'a [InstanceId],
        lacking: &'a [InstanceId],
    ) -> &'a [InstanceId] {
        match lacking.is_empty() || self.has_untried(role, tried) {
            true => tried,
            false => lacking,
        }
    }

    /// True if a member of `role` serves that was not tried.
    pub fn has_untried(&self, role: Role, tried: &[InstanceId]) -> bool {
        self.members(role).iter().any(|it| !it.draining() && !tried.contains(&it.id()))
    }

    /// Records that the engine of `instance` has loaded the adapter `name`, or unloaded it: the
    /// next request goes by that, and its list is read again at once.
    pub fn record_adapter(&self, instance: &Instance, name: &str, is_loaded: bool) {
        for twin in self.roles_of(instance) {
            twin.health().identity().models_changed();
            let mut names = twin.models().to_vec();
            // One that has listed nothing says nothing of what it lacks.
            if names.is_empty() || name.is_empty() {
                continue;
            }
            names.retain(|known| known != name);
            if is_loaded && names.len() < MOST_NAMES {
                names.push(name.to_owned());
            }
            twin.set_models(names);
        }
        self.compare_models();
    }

    /// Has the lists of all engines read again at once, unless that was done less than `pause_ms`
    /// ago. Engines that never list their models are not asked for ever.
    pub fn ask_for_lists(&self, pause_ms: u64) {
        let now_ms = self.now_ms();
        let last_ms = self.lists_asked_ms.load(Ordering::Relaxed);
        if last_ms > 0 && now_ms < last_ms.saturating_add(pause_ms) {
            return;
        }
        self.lists_asked_ms.store(now_ms.max(1), Ordering::Relaxed);
        for member in Role::ALL.iter().flat_map(|role| self.members(*role).to_vec()) {
            member.health().identity().models_may_differ(true);
        }
    }

    /// Waits until each engine that is not down has given the list that it is asked for, or has
    /// failed to. Returns at once where engines are not probed: nobody asks them.
    pub async fn lists_read(&self) {
        loop {
            let mut read = std::pin::pin!(self.list_read.notified());
            read.as_mut().enable();
            if !self.settings.probed || !self.is_reading_lists() {
                return;
            }
            read.await;
        }
    }

    fn is_reading_lists(&self) -> bool {
        let now_ms = self.now_ms();
        let is_reading = |it: &Instance| {
            let is_up = !it.draining() && it.health().state(now_ms) != State::Open;
            is_up && it.health().identity().is_read()
        };
        Role::ALL.iter().any(|role| self.members(*role).iter().any(|it| is_reading(it)))
    }

    /// Tells those that wait for lists that one was read, or could not be.
    pub(super) fn notify_list_read(&self) {
        self.list_read.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::fleet::{FleetSettings, Need};
    use crate::route::Policy;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn engines_without_an_adapter_lack_it_while_another_has_it() {
        let fleet = Fleet::new(Policy::LeastWork);
        for port in [1, 2, 3] {
            fleet.add(Role::Prefill, Endpoint::new("e", port));
        }
        let members = fleet.members(Role::Prefill);
        let tell = |at: usize, listed: &[&str]| fleet.record_models(&members[at], names(listed));
        let lacking = |model| fleet.lacking_model(Role::Prefill, model).to_vec();
        tell(0, &["m"]);
        tell(1, &["m", "sql"]);
        assert_eq!(lacking(Some("sql")), [members[0].id()], "the third has said nothing");
        assert_eq!(lacking(Some("m")), []);
        assert_eq!(lacking(Some("other")), [], "nobody has it");
        assert_eq!(lacking(None), []);
        fleet.remove(Role::Prefill, members[1].endpoint());
        assert_eq!(lacking(Some("sql")), [], "who had it has left");
    }

    #[test]
    fn the_only_engine_with_an_adapter_is_tried_again_before_those_without_it() {
        let fleet = Fleet::new(Policy::LeastWork);
        [1, 2, 3].iter().for_each(|port| assert!(fleet.add(Role::Decode, Endpoint::new("e", *port))));
        let [with, one, other] = [0, 1, 2].map(|at| fleet.members(Role::Decode)[at].clone());
        fleet.record_models(&with, names(&["m", "sql"]));
        [&one, &other].into_iter().for_each(|it| fleet.record_models(it, names(&["m"])));
        let lacking = fleet.lacking_model(Role::Decode, Some("sql"));
        assert_eq!(fleet.chosen_last(Role::Decode, &lacking, &lacking), &lacking[..]);
        let tried = [&lacking[..], &[with.id()]].concat();
        for _ in 0..6 {
            let tried = fleet.chosen_last(Role::Decode, &tried, &lacking);
            let chosen = fleet.pick(Role::Decode, Need { tried, ..Need::default() }).unwrap();
            assert_eq!(chosen.instance().id(), with.id());
        }
        let tried = [one.id()];
        assert_eq!(fleet.chosen_last(Role::Decode, &tried, &[]), tried, "of a model that all have");
    }

    #[test]
    fn an_adapter_is_known_from_the_order_on_and_an_older_list_does_not_undo_it() {
        let fleet = Fleet::new(Policy::LeastWork);
        for role in [Role::Prefill, Role::Decode] {
            [1, 2].iter().for_each(|port| assert!(fleet.add(role, Endpoint::new("e", *port))));
        }
        let all = [Role::Prefill, Role::Decode].map(|role| fleet.members(role).to_vec()).concat();
        all.iter().for_each(|it| fleet.record_models(it, names(&["m"])));
        let [without, with] = [all[0].clone(), all[1].clone()];
        with.health().identity().models_asked();
        fleet.record_adapter(&with, "sql", true);
        for role in [Role::Prefill, Role::Decode] {
            let lacking = fleet.lacking_model(role, Some("sql"));
            assert_eq!((lacking.len(), fleet.members(role)[0].endpoint()), (1, without.endpoint()));
        }
        fleet.record_models(&with, names(&["m"]));
        assert!(with.models().contains(&"sql".to_owned()), "the list was asked for before");
        with.health().identity().models_asked();
        fleet.record_models(&with, names(&["m"]));
        assert_eq!(*with.models(), names(&["m"]));
        fleet.record_adapter(&with, "sql", true);
        fleet.record_adapter(&with, "sql", false);
        assert_eq!(*with.models(), names(&["m"]));
    }

    #[tokio::test(start_paused = true)]
    async fn lists_are_read_when_all_that_are_up_have_answered() {
        let fleet = Fleet::with(FleetSettings { probed: true, ..FleetSettings::default() });
        [1, 2].iter().for_each(|port| assert!(fleet.add(Role::Decode, Endpoint::new("e", *port))));
        let members = fleet.members(Role::Decode);
        let ask = || members.iter().for_each(|it| it.health().identity().models_asked());
        ask();
        fleet.ask_for_lists(0);
        let mut wait = Box::pin(fleet.lists_read());
        assert!(futures_util::poll!(&mut wait).is_pending());
        members.iter().for_each(|it| fleet.record_models(it, names(&["m"])));
        assert!(futures_util::poll!(&mut wait).is_pending(), "they were asked before");
        ask();
        fleet.record_models(&members[0], names(&["m"]));
        assert!(futures_util::poll!(&mut wait).is_pending());
        fleet.models_unanswered(&members[1]);
        assert!(futures_util::poll!(&mut wait).is_pending(), "it is asked again");
        ask();
        members.iter().for_each(|it| fleet.record_models(it, names(&["m"])));
        assert!(futures_util::poll!(&mut wait).is_ready());
        fleet.ask_for_lists(1_000);
        assert!(futures_util::poll!(Box::pin(fleet.lists_read())).is_ready(), "it was a moment ago");
    }
}
