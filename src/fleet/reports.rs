//! Reports of legs, probes and hand-offs about an instance, and their consequences.

use std::time::Duration;

use crate::fleet::health::capacity::BusyAnswer;
use crate::fleet::health::{Cause, Change, EngineState, State, StateCounts};
use crate::fleet::scheduler_handle::Recovery;
use crate::fleet::{Fleet, Instance, Role};
use crate::obs::Meters;
use tokio::sync::watch;

/// At most this share of a role rests for what its members refuse: the others must be able to carry
/// the load.
const MOST_EJECTED_PERCENT: usize = 50;

/// Outcomes of a leg, as far as the instance is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It answered, be it with a refusal of the client's request.
    Served,
    /// It answered that it has too much to do.
    Busy(BusyAnswer),
    /// It refused the request, perhaps for a reason of its own: others are preferred until that is
    /// known.
    Refused,
    /// It refused the request, and is believed.
    Declined,
    /// The leg failed.
    Failed,
    /// It does nothing with what it is sent, while others work.
    Stuck,
    /// It could not be connected to.
    Unreachable,
}

/// Outcomes of a probe, with the text of what failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeAnswer<'a> {
    /// It answered, and not with a 5xx.
    Good,
    /// It answered that it is not well, or did not answer.
    Bad(&'a str),
    /// Nobody listens there.
    Refused(&'a str),
}

/// Signs by which one process at an address is told from the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sign {
    /// The engine's id in a hand-off, as a hash.
    Engine(u64),
    /// Start time of its process, in Unix seconds; `None` = it does not say.
    Start(Option<f64>),
}

impl Fleet {
    /// Tells how a leg on `instance` ended.
    pub fn report(&self, instance: &Instance, outcome: Outcome) {
        self.report_because(instance, outcome, "");
    }

    /// The same, with the text of what failed.
    pub fn report_because(&self, instance: &Instance, outcome: Outcome, detail: &str) {
        let (now_ms, health) = (self.now_ms(), instance.health());
        let change = match outcome {
            Outcome::Served => {
                health.capacity().took(now_ms, instance.load().requests());
                health.succeeded(now_ms)
            }
            Outcome::Busy(answer) => {
                health.busy(now_ms, answer.spare);
                self.refused(instance, now_ms);
                health.capacity().answered(now_ms, answer);
                match health.busy_without_end(now_ms) {
                    Some(since_ms) if self.peers_serve_since(instance, since_ms) => {
                        health.contradicted(now_ms, true)
                    }
                    _ => Change::None,
                }
            }
            Outcome::Refused => {
                health.refused(now_ms);
                Change::None
            }
            Outcome::Declined => health.declined(now_ms),
            Outcome::Failed => health.failed(now_ms, Cause::Failing),
            Outcome::Stuck => health.contradicted(now_ms, true),
            Outcome::Unreachable => health.failed(now_ms, Cause::Unreachable),
        };
        match outcome {
            Outcome::Served | Outcome::Declined => {
                self.served_with_key(instance);
                self.answered_well(instance);
            }
            _ if change == Change::None => {}
            _ => health.note_cause(&cause(outcome, detail)),
        }
        self.changed(instance, change);
        if !matches!(outcome, Outcome::Served | Outcome::Declined) || change != Change::None {
            self.tell_desk(instance);
        }
    }

    /// Tells that `instance` refused what another engine of its role served. It rests, `at_once` or
    /// when that goes on, unless so many of its role rest already that the others would have to
    /// carry too much.
    pub fn contradicted(&self, instance: &Instance, at_once: bool) {
        let now_ms = self.now_ms();
        let members = self.members(instance.role());
        let resting = members.iter().filter(|it| it.health().state(now_ms) != State::Closed).count();
        let may_rest = instance.health().state(now_ms) != State::Closed
            || (resting + 1) * 100 <= members.len() * MOST_EJECTED_PERCENT;
        if may_rest {
            let change = instance.health().contradicted(now_ms, at_once);
            if change != Change::None {
                instance.health().note_cause("it refuses what others serve");
            }
            self.changed(instance, change);
        }
        self.tell_desk(instance);
    }

    /// Tells that the refusal of `instance` was the word of its role.
    pub fn acquit(&self, instance: &Instance) {
        instance.health().acquitted(self.now_ms());
        self.tell_desk(instance);
    }

    /// Tells how `instance` answered a probe.
    pub fn probed(&self, instance: &Instance, answer: ProbeAnswer<'_>) {
        let (now_ms, health) = (self.now_ms(), instance.health());
        let change = match answer {
            ProbeAnswer::Good => health.probed(now_ms, true),
            ProbeAnswer::Bad(_) => health.probed(now_ms, false),
            ProbeAnswer::Refused(_) => health.probe_refused(now_ms),
        };
        match answer {
            // What fails requests and answers probes is down for what its requests said.
            ProbeAnswer::Good if health.state(now_ms) == State::Closed => self.answered_well(instance),
            ProbeAnswer::Good => {}
            ProbeAnswer::Bad(text) | ProbeAnswer::Refused(text) => health.note_cause(text),
        }
        self.changed(instance, change);
        if change != Change::None {
            self.tell_desk(instance);
        }
    }

    /// Tells who answered as `instance`. True when it is another process than before: what was
    /// believed of its cache is forgotten. Events need no such word, since their sequence begins
    /// anew.
    pub fn seen(&self, instance: &Instance, sign: Sign) -> bool {
        let restarted = match sign {
            Sign::Engine(id) => instance.health().identity().answered(id),
            Sign::Start(started_s) => instance.health().identity().began(started_s),
        };
        if restarted {
            instance.health().key_word().doubt();
            instance.forget_peer();
            self.handoffs.forget(instance.id());
            self.links.forget(instance.id());
            self.forget_cache(instance);
            instance.note_restart();
            self.restarts.send_modify(|all| *all += 1);
            instance.meter().restarted();
            let (engine, role) = (instance.endpoint(), instance.role().name());
            tracing::warn!(%engine, role, "engine {engine} ({role}) has restarted: its cache is taken as empty");
        }
        restarted
    }

    /// The caches of an engine's process are empty.
    pub fn emptied(&self, instance: &Instance) {
        self.roles_of(instance).iter().for_each(|twin| self.forget_cache(twin));
    }

    fn forget_cache(&self, instance: &Instance) {
        match instance.role() {
            Role::Prefill => self.scheduler.emptied(instance.id()),
            Role::Decode => self.decoder_memory.emptied(instance, self.settings.cache_tokens),
            Role::Encode => {}
        }
    }

    /// Number of restarts of engines, which changes with each.
    pub fn watch_restarts(&self) -> watch::Receiver<u64> {
        self.restarts.subscribe()
    }

    /// Takes over what an instance's breaker did: the log, the counts of its role.
    pub(super) fn changed(&self, instance: &Instance, change: Change) {
        match change {
            Change::Opened(_) => instance.meter().tripped(),
            Change::MayTry => {
                let (engine, role) = (instance.endpoint(), instance.role().name());
                tracing::debug!(%engine, role, "engine {engine} ({role}) answers probes again: it is tried");
            }
            Change::Closed => {}
            Change::Calmed | Change::None => return,
        }
        self.note_state(instance);
        self.count(instance.role());
    }

    /// Notes a good answer of `instance`. The first one tells that it is up.
    pub(super) fn answered_well(&self, instance: &Instance) {
        if instance.health().answered_well() {
            self.note_state(instance);
            self.count(instance.role());
        }
    }

    pub(super) fn tell_desk(&self, instance: &Instance) {
        if instance.role() != Role::Prefill {
            return;
        }
        let (now_ms, health) = (self.now_ms(), instance.health());
        let how = Recovery {
            rest: Duration::from_millis(health.rest_ms(now_ms)),
            on_trial: health.state(now_ms) != State::Closed,
            warm: Duration::from_millis(health.warm_ms(now_ms)),
            share: health.share(now_ms),
        };
        self.scheduler.health(instance.id(), &how);
    }

    /// Updates the gauges of members, of their breakers and loads, and of the line for prefillers.
    pub fn show(&self, meters: &Meters) {
        self.show_health();
        self.show_loads(meters);
        meters.waiting.set(self.waiting(Role::Prefill) as f64);
        self.scheduler.show(meters);
        let is_shown = |role: &Role| *role != Role::Prefill || !self.settings.is_remote;
        for role in Role::ALL.into_iter().filter(is_shown) {
            meters.instances(role.name(), self.serving(role));
            self.show_role(role, meters);
        }
    }

    /// Shows the state of a role. Encoders have none where there are none.
    fn show_role(&self, role: Role, meters: &Meters) {
        let counts = self.state_counts(role);
        if role != Role::Encode || counts != StateCounts::default() {
            let names = EngineState::ALL.map(EngineState::name);
            meters.role_state(role.name(), &names, counts.role().name());
        }
    }

    /// Shows the state of every breaker in the metrics. Who has left shows none, as
    /// [`Fleet::sweep`] has left it.
    fn show_health(&self) {
        let now_ms = self.now_ms();
        for role in Role::ALL {
            // Nobody leaves meanwhile: what is shown of those who left would stay for ever.
            let _turn = self.role_members(role).lock();
            // Those that another member has taken the place of come last in the list.
            for instance in self.members(role).iter().rev() {
                let state = match instance.health().state(now_ms) {
                    State::Closed => 0.0,
                    State::HalfOpen => 1.0,
                    State::Open => 2.0,
                };
                instance.meter().breaker(state);
                instance.meter().state(instance.state(now_ms).name());
            }
        }
    }
}

/// Cause for the log and for people: what the outcome means, and the text of the last failure.
fn cause(outcome: Outcome, detail: &str) -> String {
    let means = match outcome {
        // In the words of a probe that finds the same.
        Outcome::Unreachable if !detail.is_empty() => {
            return detail.trim_start_matches("tcp connect error: ").to_owned();
        }
        Outcome::Unreachable => "it can't be connected to",
        Outcome::Stuck => "it does nothing with what it is sent",
        Outcome::Busy(_) => "it is busy without end, while others serve",
        _ => "its requests fail",
    };
    if detail.is_empty() { means.to_owned() } else { format!("{means}, the last with: {detail}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::fleet::{Need, Removal};
    use crate::obs::Exposition;
    use crate::route::Policy;

    fn both_roles() -> Fleet {
        let fleet = Fleet::new(Policy::LeastWork);
        for role in [Role::Prefill, Role::Decode] {
            for port in [1, 2] {
                fleet.add(role, Endpoint::new("e", port));
            }
        }
        fleet
    }

    #[test]
    fn a_decoder_that_fails_says_nothing_of_the_prefiller_at_its_address() {
        let fleet = both_roles();
        let [prefiller, decoder] = [Role::Prefill, Role::Decode].map(|role| fleet.members(role)[0].clone());
        fleet.report(&decoder, Outcome::Unreachable);
        let state = |it: &Instance| it.health().state(fleet.now_ms());
        assert_eq!((state(&decoder), state(&prefiller)), (State::Open, State::Closed));
        let taken = (0..8).filter_map(|_| fleet.pick(Role::Decode, Need::default()));
        assert!(taken.into_iter().all(|reservation| reservation.instance().id() != decoder.id()));
    }

    #[test]
    fn departed_engine_does_not_rest() {
        let metrics = Exposition::install();
        let fleet = Fleet::new(Policy::LeastWork);
        let endpoint = Endpoint::new("left", 1);
        let shown = || {
            fleet.show_health();
            let text = metrics.render();
            let of = "pd_proxy_breaker_state{role=\"decode\",engine=\"left:1\"} ";
            text.lines().find_map(|line| line.strip_prefix(of)).map(str::to_owned)
        };
        assert_eq!(shown(), None);
        fleet.add(Role::Decode, endpoint.clone());
        fleet.report(&fleet.members(Role::Decode)[0].clone(), Outcome::Unreachable);
        assert_eq!(shown().as_deref(), Some("2"));
        assert_eq!(fleet.remove(Role::Decode, &endpoint), Removal::Gone);
        assert_eq!(shown().as_deref(), Some("0"));
    }

    #[test]
    fn a_process_that_changed_is_noticed_by_either_sign() {
        let fleet = both_roles();
        let prefiller = fleet.members(Role::Prefill)[0].clone();
        assert!(!fleet.seen(&prefiller, Sign::Engine(1)));
        fleet.report(&prefiller, Outcome::Unreachable);
        assert!(fleet.seen(&prefiller, Sign::Engine(2)) && !fleet.seen(&prefiller, Sign::Engine(2)));
        assert!(!fleet.seen(&prefiller, Sign::Start(Some(100.0))));
        assert!(fleet.seen(&prefiller, Sign::Start(Some(200.0))));
    }
}
