//! Engines that refuse the key that the gateway sends them.

use http::StatusCode;

use crate::fleet::{Fleet, Instance};

impl Fleet {
    /// Notes that `instance` refused, for the key, to list its models. It is down where requests
    /// come with the same key, and degraded where clients may bring another one.
    pub fn refuses_key(&self, instance: &Instance, status: StatusCode) {
        let health = instance.health();
        let refused_before = health.key_word().refuses();
        if !health.key_word().refused(status) {
            return;
        }
        // Another failure may have been noted since.
        health.note_cause(&health.key_source().cause(status));
        if !refused_before {
            self.key_news(instance);
        }
    }

    /// Notes that `instance` refused a request for the key, as its whole role does. It says
    /// something of the engine where no client brings a key of its own, and before its first good
    /// answer.
    pub fn refuses_key_of_request(&self, instance: &Instance, status: StatusCode) {
        let health = instance.health();
        let has_listed = !instance.models().is_empty();
        if health.key_source().is_ours() && health.served_ms() == 0 && !has_listed {
            self.refuses_key(instance, status);
        }
    }

    /// Notes that `instance` listed its models with the key that it got.
    pub fn takes_key(&self, instance: &Instance) {
        if instance.health().key_word().listed() {
            self.answered_well(instance);
            self.key_news(instance);
        }
    }

    /// Notes that a leg on `instance` went well, whatever it says of its list.
    pub(super) fn served_with_key(&self, instance: &Instance) {
        if instance.health().key_word().served() {
            self.key_news(instance);
        }
    }

    fn key_news(&self, instance: &Instance) {
        self.note_state(instance);
        self.count(instance.role());
        self.tell_desk(instance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::fleet::health::{KeySource, State};
    use crate::fleet::{FleetSettings, Outcome, ProbeAnswer, Role};

    const NO: StatusCode = StatusCode::UNAUTHORIZED;

    fn fleet(key_source: KeySource) -> Fleet {
        let settings = FleetSettings { probed: true, key_source, ..FleetSettings::default() };
        let fleet = Fleet::with(settings);
        fleet.add(Role::Decode, Endpoint::new("d", 1));
        fleet
    }

    fn state(fleet: &Fleet) -> (&'static str, bool) {
        let now_ms = fleet.now_ms();
        (fleet.members(Role::Decode)[0].state(now_ms).name(), fleet.may_serve(Role::Decode))
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_refuses_our_key_is_down_until_it_takes_it() {
        for source in [KeySource::Configuration, KeySource::Nobody] {
            let fleet = fleet(source);
            let engine = fleet.members(Role::Decode)[0].clone();
            fleet.refuses_key(&engine, NO);
            fleet.probed(&engine, ProbeAnswer::Good);
            assert_eq!(state(&fleet), ("down", false));
            assert!(engine.health().cause().is_some_and(|cause| cause.contains("engine.api_key")));
            fleet.takes_key(&engine);
            assert_eq!((state(&fleet), engine.health().cause()), (("up", true), None));
            fleet.refuses_key(&engine, NO);
            fleet.report(&engine, Outcome::Served);
            assert_eq!(state(&fleet), ("up", true), "it serves");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_wants_clients_keys_is_degraded_until_it_serves() {
        let fleet = fleet(KeySource::Client);
        let engine = fleet.members(Role::Decode)[0].clone();
        fleet.refuses_key(&engine, NO);
        (0..3).for_each(|_| fleet.probed(&engine, ProbeAnswer::Good));
        assert_eq!(
            (state(&fleet), engine.health().state(fleet.now_ms())),
            (("degraded", true), State::Closed)
        );
        assert!(engine.health().cause().is_some_and(|cause| cause.starts_with("it wants a key (401)")));
        fleet.refuses_key_of_request(&engine, NO);
        fleet.report(&engine, Outcome::Served);
        assert_eq!((state(&fleet), engine.health().cause()), (("up", true), None));
        fleet.refuses_key(&engine, NO);
        assert_eq!(state(&fleet), ("up", true), "it does not list, and serves");
    }

    #[test]
    fn a_refused_request_tells_of_our_key_before_the_first_good_answer() {
        let fleet = fleet(KeySource::Configuration);
        let engine = fleet.members(Role::Decode)[0].clone();
        fleet.record_models(&engine, vec!["m".to_owned()]);
        fleet.refuses_key_of_request(&engine, NO);
        assert!(!engine.health().refuses_our_key(), "it listed its models with that key");
        fleet.record_models(&engine, Vec::new());
        fleet.refuses_key_of_request(&engine, NO);
        assert!(engine.health().refuses_our_key());
    }
}
