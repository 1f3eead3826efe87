//! Changes of engines' and roles' states: which are news, and the lines of the log that tell them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::fleet::health::{EngineState, News, StateCounts};
use crate::fleet::{Fleet, Instance, Role};

impl Instance {
    /// State of the engine in this role.
    pub fn state(&self, now_ms: u64) -> EngineState {
        if self.draining() { EngineState::Draining } else { self.health().engine_state(now_ms) }
    }
}

impl Fleet {
    /// Numbers of the members of `role` by their state.
    pub fn state_counts(&self, role: Role) -> StateCounts {
        let now_ms = self.now_ms();
        let mut counts = StateCounts::default();
        self.members(role).iter().for_each(|it| counts.add(it.state(now_ms)));
        counts
    }

    /// True if a request that needs a member of `role` has a chance. Before the first good answer
    /// of a role its members are only believed where they are not probed.
    /// Decoders compute prompts where no prefiller has a decoder of its release.
    pub fn may_serve(&self, role: Role) -> bool {
        if role == Role::Prefill && self.has_no_equal_pair() {
            return true;
        }
        match self.state_counts(role).role() {
            EngineState::Up | EngineState::Degraded => true,
            EngineState::Unknown => !self.settings.probed || self.has_answered(role),
            EngineState::Down | EngineState::Draining => false,
        }
    }

    /// True once some member of `role` has answered well.
    pub fn has_answered(&self, role: Role) -> bool {
        self.role_members(role).answered.load(Ordering::Relaxed)
    }

    /// Logs the state of `instance` if it is news.
    pub(super) fn note_state(&self, instance: &Instance) {
        let now_ms = self.now_ms();
        let state = instance.state(now_ms);
        if matches!(state, EngineState::Up | EngineState::Degraded) {
            self.role_members(instance.role()).answered.store(true, Ordering::Relaxed);
        }
        let (news, cause) = {
            let mut record = instance.health().record();
            (record.set(now_ms, state), record.cause().map(str::to_owned))
        };
        let (engine, role) = (instance.endpoint(), instance.role().name());
        let fleet = self.settings.label.name();
        let name = state.name();
        let next = || next_try(instance, now_ms);
        match (news, state) {
            (News::None, _) => {}
            (News::StillDown { since_ms }, _) => {
                let (cause, lasts) = (cause.unwrap_or_default(), words(since_ms));
                tracing::warn!(fleet, %engine, role, state = name, "engine {engine} ({role}) is still down after {lasts}: {cause}{}", next());
            }
            (News::Changed { .. }, EngineState::Down) => {
                let cause = cause.unwrap_or_default();
                tracing::warn!(fleet, %engine, role, state = name, "engine {engine} ({role}) is down: {cause}{}", next());
            }
            (News::Changed { .. }, EngineState::Degraded) => {
                let cause = cause.unwrap_or_default();
                tracing::warn!(fleet, %engine, role, state = name, "engine {engine} ({role}) is degraded: {cause}");
            }
            (News::Changed { from: EngineState::Down, lasted_ms }, EngineState::Up) => {
                let lasted = words(lasted_ms);
                tracing::info!(fleet, %engine, role, state = name, "engine {engine} ({role}) is up again after {lasted}");
            }
            (News::Changed { .. }, EngineState::Draining) => {
                let requests = instance.load().requests();
                tracing::info!(fleet, %engine, role, state = name, requests, "engine {engine} ({role}) is draining: it gets no new requests");
            }
            (News::Changed { .. }, _) => {
                tracing::info!(fleet, %engine, role, state = name, "engine {engine} ({role}) is {name}");
            }
        }
    }

    /// Effect of a role whose engines are all down.
    fn effect_of_down(&self, role: Role) -> &'static str {
        match self.is_without_partners(role) {
            true => "wait for one of their release; decoders serve alone",
            false => "are; new requests are refused until one is back",
        }
    }

    /// Logs the state of a role if it is another one than before. Its engines' own lines say why.
    pub(super) fn note_role(&self, role: Role, before: &mut EngineState, counts: StateCounts) {
        let state = counts.role();
        let from = std::mem::replace(before, state);
        // An API elsewhere answers alone.
        if from == state || role == Role::Prefill && self.settings.is_remote {
            return;
        }
        let (name, state, all) = (role.name(), state.name(), counts.serving());
        let fleet = self.settings.label.name();
        match counts.role() {
            EngineState::Down if all == 0 => {
                tracing::warn!(fleet, role = name, state, "role {name} is down: it has no engine");
            }
            EngineState::Down => {
                let effect = self.effect_of_down(role);
                tracing::warn!(fleet, role = name, state, "role {name} is down: all {all} engines {effect}");
            }
            EngineState::Degraded if from == EngineState::Down => {
                tracing::info!(
                    fleet,
                    role = name,
                    state,
                    "role {name} is degraded: {} of {all} engines are still down",
                    counts.down
                );
            }
            EngineState::Degraded if counts.down == 0 => {
                tracing::warn!(
                    fleet,
                    role = name,
                    state,
                    "role {name} is degraded: {} of {all} engines want a key",
                    counts.degraded
                );
            }
            EngineState::Degraded => {
                tracing::warn!(
                    fleet,
                    role = name,
                    state,
                    "role {name} is degraded: {} of {all} engines are down",
                    counts.down
                );
            }
            EngineState::Draining => {
                tracing::warn!(
                    fleet,
                    role = name,
                    state,
                    "role {name} is draining: no engine is left for new requests"
                );
            }
            EngineState::Up if from == EngineState::Unknown => {}
            EngineState::Up | EngineState::Unknown => {
                tracing::info!(fleet, role = name, state, "role {name} is {state}: {all} engines");
            }
        }
    }

    /// True if all engines of `role` are prefillers that wait for a decoder of their release.
    fn is_without_partners(&self, role: Role) -> bool {
        let members = self.members(role);
        let mut serving = members.iter().filter(|it| !it.draining());
        role == Role::Prefill && serving.all(|it| it.health().lacks_partner())
    }
}

/// The end of a line about an engine that is down: the time until it is tried again.
fn next_try(instance: &Instance, now_ms: u64) -> String {
    match instance.health().rest_ms(now_ms) {
        _ if instance.health().serves_other_model() || instance.health().refuses_our_key() => {
            "; it is asked again at each probe".to_owned()
        }
        _ if instance.health().lacks_partner() => "; it waits for one".to_owned(),
        0 => String::new(),
        rest_ms => format!("; next try in {}", words(rest_ms)),
    }
}

/// A time in words, as `500 ms`, `12 s` or `7 min`.
fn words(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..10_000 => format!("{:.1} s", Duration::from_millis(ms).as_secs_f64()),
        10_000..120_000 => format!("{} s", ms / 1_000),
        _ => format!("{} min", ms / 60_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::fleet::{FleetSettings, Outcome, ProbeAnswer, Removal};

    fn fleet(probed: bool) -> Fleet {
        let fleet = Fleet::with(FleetSettings { probed, ..FleetSettings::default() });
        for port in [1, 2] {
            assert!(fleet.add(Role::Decode, Endpoint::new("d", port)));
        }
        fleet
    }

    fn states(fleet: &Fleet) -> Vec<&'static str> {
        fleet.members(Role::Decode).iter().map(|it| it.state(fleet.now_ms()).name()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_is_unknown_until_its_first_good_answer() {
        let fleet = fleet(true);
        let all = fleet.members(Role::Decode).to_vec();
        assert_eq!((states(&fleet), fleet.may_serve(Role::Decode)), (vec!["unknown"; 2], false));
        fleet.probed(&all[0], ProbeAnswer::Refused("Connection refused (os error 111)"));
        assert_eq!((states(&fleet), fleet.may_serve(Role::Decode)), (vec!["down", "unknown"], false));
        assert_eq!(all[0].health().cause().as_deref(), Some("connection refused"));
        fleet.report(&all[1], Outcome::Served);
        assert_eq!((states(&fleet), fleet.may_serve(Role::Decode)), (vec!["down", "up"], true));
        assert_eq!(fleet.state_counts(Role::Decode).role(), EngineState::Degraded);
        fleet.report(&all[1], Outcome::Unreachable);
        assert_eq!((states(&fleet), fleet.may_serve(Role::Decode)), (vec!["down"; 2], false));
    }

    /// Of a rollout that replaces all engines of a role: the new ones have not been probed yet.
    #[tokio::test(start_paused = true)]
    async fn a_role_that_has_answered_goes_on_with_new_members() {
        let fleet = fleet(true);
        fleet.probed(&fleet.members(Role::Decode)[0].clone(), ProbeAnswer::Good);
        assert!(fleet.may_serve(Role::Decode));
        fleet.add(Role::Decode, Endpoint::new("d", 3));
        for port in [1, 2] {
            assert_eq!(fleet.remove(Role::Decode, &Endpoint::new("d", port)), Removal::Gone);
        }
        assert_eq!((states(&fleet), fleet.may_serve(Role::Decode)), (vec!["unknown"], true));
        fleet.remove(Role::Decode, &Endpoint::new("d", 3));
        assert!(!fleet.may_serve(Role::Decode), "none is left");
    }

    #[tokio::test(start_paused = true)]
    async fn without_probes_an_unknown_engine_may_serve() {
        let fleet = fleet(false);
        assert_eq!((states(&fleet), fleet.may_serve(Role::Decode)), (vec!["unknown"; 2], true));
    }

    #[test]
    fn times_are_short_words() {
        let said = [500, 1_500, 12_000, 119_000, 125_000, 7_200_000].map(words);
        assert_eq!(said, ["500 ms", "1.5 s", "12 s", "119 s", "2 min", "120 min"]);
    }
}
