//! Outcomes of KV transfers between engines, and their consequences for both: see
//! [`health::handoffs`].
//!
//! [`health::handoffs`]: crate::fleet::health::handoffs

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::fleet::health::handoffs::{Evidence, Pair, Partners, Verdict};
use crate::fleet::health::{Change, State};
use crate::fleet::{Fleet, Instance, InstanceId, Outcome, Role};

/// Evidence about pairs of a fleet. As long as nothing fails, successes are not even counted.
#[derive(Debug, Default)]
pub(super) struct Handoffs {
    evidence: Mutex<Evidence>,
    /// Until when successes count; 0 = nothing has failed yet.
    active_until_ms: AtomicU64,
}

/// A leg that was to use another engine's KV, and failed.
#[derive(Clone, Copy, Debug)]
pub struct FailedHandoff<'a> {
    /// The engine that made the KV.
    pub producer: &'a Instance,
    /// The engine that was to read it.
    pub consumer: &'a Instance,
    /// That of the two whose leg failed.
    pub reporter: &'a Instance,
    /// Outcome that is reported of it if it is at fault.
    pub outcome: Outcome,
    /// Since when it could have been served, in ms of the fleet's clock; `None` = it failed at
    /// once.
    pub since_ms: Option<u64>,
}

impl Handoffs {
    fn lock(&self) -> MutexGuard<'_, Evidence> {
        self.evidence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_active(&self, now_ms: u64) -> bool {
        now_ms < self.active_until_ms.load(Ordering::Relaxed)
    }

    /// The engine that a failure is held against. One that has begun nothing at all, while others
    /// read the same engine's KV, is not waiting for that; nor does a prefiller that waits for its
    /// decoder, while that one reads others' KV.
    fn judge(&self, pair: Pair, partners: Partners, leg: FailedLeg) -> Verdict {
        let FailedLeg { since_ms, now_ms, outcome, of_producer } = leg;
        let mut evidence = self.lock();
        let verdict = evidence.failed(pair, partners, since_ms, now_ms);
        if verdict != Verdict::Unknown || outcome != Outcome::Stuck {
            verdict
        } else if of_producer && evidence.is_idle_producer(pair) {
            Verdict::Producer(1)
        } else if !of_producer && evidence.is_read_elsewhere(pair, since_ms) {
            Verdict::Consumer(1)
        } else {
            verdict
        }
    }

    /// Forgets an engine whose process was restarted.
    pub(super) fn forget(&self, id: InstanceId) {
        self.lock().forget(id);
    }
}

/// A leg that failed: the time since when it could have been served, its end, the outcome, and
/// whether it is the producer's.
struct FailedLeg {
    of_producer: bool,
    since_ms: u64,
    now_ms: u64,
    outcome: Outcome,
}

impl Fleet {
    /// Tells that `consumer` has read the KV of `producer`.
    pub fn handoff_served(&self, producer: &Instance, consumer: &Instance) {
        if self.handoffs.active_until_ms.load(Ordering::Relaxed) == 0 {
            return;
        }
        let now_ms = self.now_ms();
        if self.handoffs.is_active(now_ms) {
            self.handoffs.lock().served(Pair { producer: producer.id(), consumer: consumer.id() }, now_ms);
        }
        for instance in [producer, consumer] {
            let change = instance.health().handoff_served(now_ms);
            if change != Change::None {
                self.changed(instance, change);
                self.tell_desk(instance);
            }
        }
    }

    /// Makes successes count from now on: a hand-off is late, and about to fail.
    pub fn watch_handoffs(&self) {
        let until_ms = Evidence::active_until_ms(self.now_ms());
        self.handoffs.active_until_ms.store(until_ms, Ordering::Relaxed);
    }

    /// Tells that a leg failed which may have failed for the KV that it was to use. The engine that
    /// the evidence speaks against rests; as long as there is none, others are preferred to the
    /// reporter for a moment.
    pub fn handoff_failed(&self, failed: FailedHandoff<'_>) -> Verdict {
        let FailedHandoff { producer, consumer, reporter, outcome, since_ms } = failed;
        let now_ms = self.now_ms();
        let partners =
            Partners { producers: self.partners(producer.role()), consumers: self.partners(consumer.role()) };
        let pair = Pair { producer: producer.id(), consumer: consumer.id() };
        self.watch_handoffs();
        let of_producer = reporter.id() == producer.id();
        let leg = FailedLeg { of_producer, since_ms: since_ms.unwrap_or(now_ms), now_ms, outcome };
        let verdict = self.handoffs.judge(pair, partners, leg);
        let blamed = match verdict {
            Verdict::Producer(_) => Some(producer),
            Verdict::Consumer(_) => Some(consumer),
            Verdict::Pair(_) | Verdict::Unknown => None,
        };
        for instance in [producer, consumer] {
            instance.health().count_handoff_failure();
            let label = match blamed {
                Some(blamed) if blamed.id() == instance.id() => "itself",
                Some(_) => "other",
                None if verdict == Verdict::Unknown => "unknown",
                None => "pair",
            };
            instance.meter().handoff_failed(label);
        }
        match (blamed, verdict) {
            (Some(blamed), _) if blamed.id() == reporter.id() => self.report(reporter, outcome),
            (Some(blamed), Verdict::Producer(partners) | Verdict::Consumer(partners)) => {
                self.rest_for_handoffs(blamed, partners, now_ms);
            }
            (_, Verdict::Pair(avoided_ms)) => tracing::warn!(
                producer = %producer.endpoint(),
                consumer = %consumer.endpoint(),
                avoided_ms,
                "hand-offs between these two fail, while both do well with others: the pair is avoided"
            ),
            _ => self.suspect(reporter, failed, now_ms),
        }
        verdict
    }

    /// Engines of `role` that the hand-offs of `producer` are better not given to.
    pub fn avoided_consumers(&self, producer: InstanceId) -> SmallVec<[InstanceId; 4]> {
        let mut avoided = self.of_other_release(Role::Decode, producer);
        avoided.extend(self.avoided(|pair| (pair.producer == producer).then_some(pair.consumer)));
        avoided
    }

    /// Engines whose hand-offs `consumer` had better not be given.
    pub fn avoided_producers(&self, consumer: InstanceId) -> SmallVec<[InstanceId; 4]> {
        let mut avoided = self.of_other_release(Role::Prefill, consumer);
        avoided.extend(self.avoided(|pair| (pair.consumer == consumer).then_some(pair.producer)));
        avoided
    }

    fn avoided(&self, partner: impl Fn(Pair) -> Option<InstanceId>) -> SmallVec<[InstanceId; 4]> {
        if self.handoffs.active_until_ms.load(Ordering::Relaxed) == 0 {
            return SmallVec::new();
        }
        let now_ms = self.now_ms();
        self.handoffs.lock().avoided(now_ms).filter_map(partner).collect()
    }

    /// Members of `role` that can be partners: those that drain or are known to be away are none.
    fn partners(&self, role: Role) -> usize {
        let now_ms = self.now_ms();
        let takes_part = |it: &Instance| !it.draining() && it.health().state(now_ms) != State::Open;
        self.members(role).iter().filter(|it| takes_part(it)).count()
    }

    /// An engine rests for what its partners report.
    fn rest_for_handoffs(&self, blamed: &Instance, partners: usize, now_ms: u64) {
        blamed.meter().failed("handoff");
        let change = blamed.health().handoff_failed(now_ms);
        if matches!(change, Change::Opened(_)) {
            let cause = format!("its hand-offs fail with {partners} partners, which do well with others");
            blamed.health().note_cause(&cause);
            self.changed(blamed, change);
            self.tell_desk(blamed);
        }
    }

    /// Nothing is known yet: others are preferred to the one that failed, and an engine on trial
    /// for its hand-offs has not passed.
    fn suspect(&self, reporter: &Instance, failed: FailedHandoff<'_>, now_ms: u64) {
        for instance in [failed.producer, failed.consumer] {
            if instance.health().handoff_trial_failed(now_ms) {
                self.tell_desk(instance);
            }
        }
        // Where nobody serves it is not one partner's fault, and each failure costs the other side
        // its part.
        let since_ms = reporter.health().down_since_ms().unwrap_or(now_ms);
        let serves = |role| self.members(role).iter().any(|it| it.health().served_ms() > since_ms);
        let nobody_serves = !serves(failed.consumer.role());
        let change = reporter.health().suspected(now_ms, nobody_serves);
        if change != Change::None {
            reporter.health().note_cause("its requests fail, perhaps for the KV of other engines");
        }
        self.changed(reporter, change);
        self.tell_desk(reporter);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::endpoint::Endpoint;
    use crate::fleet::Need;
    use crate::route::Policy;

    fn fleet() -> (Fleet, Vec<Arc<Instance>>, Vec<Arc<Instance>>) {
        let fleet = Fleet::new(Policy::LeastWork);
        for role in [Role::Prefill, Role::Decode] {
            for port in [1, 2, 3] {
                fleet.add(role, Endpoint::new("e", port));
            }
        }
        let members = |role| fleet.members(role).to_vec();
        let (prefillers, decoders) = (members(Role::Prefill), members(Role::Decode));
        (fleet, prefillers, decoders)
    }

    fn fail(fleet: &Fleet, producer: &Instance, consumer: &Instance) -> Verdict {
        let outcome = Outcome::Failed;
        fleet.handoff_failed(FailedHandoff {
            producer,
            consumer,
            reporter: consumer,
            outcome,
            since_ms: None,
        })
    }

    #[test]
    fn a_prefiller_whose_hand_offs_nobody_can_read_rests_and_no_decoder_does() {
        let (fleet, prefillers, decoders) = fleet();
        for round in 0..4 {
            for decoder in &decoders {
                if prefillers[0].health().state(fleet.now_ms()) == State::Closed {
                    fail(&fleet, &prefillers[0], decoder);
                }
                fleet.report(decoder, Outcome::Served);
                fleet.handoff_served(&prefillers[1 + round % 2], decoder);
            }
        }
        let state = |it: &Instance| it.health().state(fleet.now_ms());
        assert_eq!(state(&prefillers[0]), State::Open);
        assert!(decoders.iter().chain(&prefillers[1..]).all(|it| state(it) == State::Closed));
        fleet.report(&prefillers[0], Outcome::Served);
        assert_eq!(state(&prefillers[0]), State::Open, "a prefill that goes well is no hand-off that does");
        fleet.handoff_served(&prefillers[0], &decoders[0]);
        assert_eq!(state(&prefillers[0]), State::Closed);
    }

    #[test]
    fn a_decoder_that_does_nothing_is_at_fault_where_others_read_the_same_kv() {
        let (fleet, prefillers, decoders) = fleet();
        let stuck = || {
            fleet.handoff_failed(FailedHandoff {
                producer: &prefillers[0],
                consumer: &decoders[0],
                reporter: &decoders[0],
                outcome: Outcome::Stuck,
                since_ms: Some(0),
            })
        };
        fleet.watch_handoffs();
        assert_eq!(stuck(), Verdict::Unknown, "its KV may be read by nobody");
        assert_eq!(decoders[0].health().state(fleet.now_ms()), State::Closed);
        fleet.handoff_served(&prefillers[0], &decoders[1]);
        assert_eq!(stuck(), Verdict::Consumer(1));
        assert_eq!(decoders[0].health().state(fleet.now_ms()), State::Open);
    }

    #[test]
    fn a_pair_that_fails_alone_is_avoided_and_neither_rests() {
        let (fleet, prefillers, decoders) = fleet();
        assert!(fleet.avoided_consumers(prefillers[0].id()).is_empty());
        for _ in 0..4 {
            fail(&fleet, &prefillers[0], &decoders[0]);
            fleet.handoff_served(&prefillers[0], &decoders[1]);
            fleet.report(&decoders[0], Outcome::Served);
            fleet.handoff_served(&prefillers[1], &decoders[0]);
        }
        let ids = |it: &Instance| [it.id()];
        assert_eq!(fleet.avoided_consumers(prefillers[0].id())[..], ids(&decoders[0]));
        assert_eq!(fleet.avoided_producers(decoders[0].id())[..], ids(&prefillers[0]));
        let closed = |it: &Arc<Instance>| it.health().state(fleet.now_ms()) == State::Closed;
        assert!(prefillers.iter().chain(&decoders).all(closed));
        let tried = fleet.avoided_consumers(prefillers[0].id());
        let taken = fleet.pick(Role::Decode, Need { tried: &tried, ..Need::default() });
        assert_ne!(taken.unwrap().instance().id(), decoders[0].id());
    }
}
