//! An engine's health: what its legs and its probes tell, and what follows from it.
//!
//! Without it the least loaded instance would be the dead one. When every instance rests they are
//! all tried: nobody is refused on the strength of a guess.

pub mod breaker;
pub mod capacity;
pub mod handoffs;
pub mod identity;
pub mod key;
pub mod rules;
pub mod state;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::route::Standing;
pub use breaker::{Breaker, Cause, Change, State};
pub use capacity::Capacity;
pub use identity::Identity;
pub use key::{KeySource, KeyWord};
pub use rules::Rules;
pub use state::{EngineState, News, StateCounts, StateRecord};

/// Rest of an engine that serves another model, refuses our key or lacks a partner, in ms. It ends
/// by what this or another engine tells of itself next.
const OUT_REST_MS: u64 = 3_600_000;

/// Rest of an engine whose process may be another one, in ms. It ends by its next list of models,
/// which takes milliseconds.
const DOUBTED_REST_MS: u64 = 1_000;

/// The health of one engine in one role. Times are milliseconds of the fleet's clock.
#[derive(Debug)]
pub struct Health {
    rules: Rules,
    /// Source of the key that it gets.
    key_source: KeySource,
    /// Its word about that key.
    key_word: KeyWord,
    breakers: Mutex<Breakers>,
    identity: Mutex<Identity>,
    /// Time at which a leg on it last went well; 0 = never.
    served_ms: AtomicU64,
    /// Refusals since then that may be its own trouble.
    refusals: AtomicU32,
    /// True if its next refusal is believed: since the last one it has served a request, or
    /// another engine has refused the same.
    credit: AtomicBool,
    /// True if it broke a stream off, and has completed no answer since.
    breaks_streams: AtomicBool,
    /// Hand-offs that failed in which it had a part.
    handoff_failures: AtomicU64,
    /// True while its list of models is not the fleet's.
    serves_other_model: AtomicBool,
    /// True while no engine that serves can read its KV, for its release.
    lacks_partner: AtomicBool,
    /// True if it has closed the connections that waited, and nobody has looked into that yet.
    lost_connections: AtomicBool,
    /// True while its process may be another one than that which listed its models.
    is_doubted: AtomicBool,
    /// True once it has answered a probe or a request well.
    answered: AtomicBool,
    /// True while [`Health::record`] has a cause, so that a request that went well need not lock.
    has_cause: AtomicBool,
    record: Mutex<StateRecord>,
    capacity: Capacity,
}

/// An engine is left alone as long as either is not closed.
#[derive(Debug, Default)]
struct Breakers {
    /// Breaker of its own legs and probes.
    legs: Breaker,
    /// Breaker of its hand-offs: partners tell if its KV can be read, or if it can read theirs.
    handoffs: Breaker,
}

impl Breakers {
    fn rest_ms(&self, now_ms: u64) -> u64 {
        self.legs.rest_ms(now_ms).max(self.handoffs.rest_ms(now_ms))
    }

    fn state(&self, now_ms: u64) -> State {
        self.legs.state(now_ms).max(self.handoffs.state(now_ms))
    }
}

impl Health {
    /// Of an engine of which nothing is known.
    pub fn new(rules: Rules, key_source: KeySource) -> Health {
        Health {
            rules,
            key_source,
            key_word: KeyWord::default(),
            breakers: Mutex::default(),
            identity: Mutex::default(),
            served_ms: AtomicU64::new(0),
            refusals: AtomicU32::new(0),
            credit: AtomicBool::new(false),
            breaks_streams: AtomicBool::new(false),
            handoff_failures: AtomicU64::new(0),
            serves_other_model: AtomicBool::new(false),
            lacks_partner: AtomicBool::new(false),
            lost_connections: AtomicBool::new(false),
            is_doubted: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            has_cause: AtomicBool::new(false),
            record: Mutex::default(),
            capacity: Capacity::default(),
        }
    }

    /// True if it should be left alone.
    pub fn resting(&self, now_ms: u64) -> bool {
        self.rest_ms(now_ms) > 0
    }

    /// Time for which it should still be left alone.
    pub fn rest_ms(&self, now_ms: u64) -> u64 {
        if self.is_out() {
            return OUT_REST_MS;
        }
        let least_ms = if self.is_doubted() { DOUBTED_REST_MS } else { 0 };
        self.lock().rest_ms(now_ms).max(least_ms)
    }

    /// Standing of the engine for a request with this random number.
    pub fn standing(&self, now_ms: u64, dice: u64) -> Standing {
        if self.is_out() || self.is_doubted() {
            return Standing::Resting;
        }
        let breakers = self.lock();
        let legs = breakers.legs.standing(now_ms, dice, &self.rules);
        legs.max(breakers.handoffs.standing(now_ms, dice, &self.rules))
    }

    /// The state of its breakers, the graver one. An engine that is out counts as open.
    pub fn state(&self, now_ms: u64) -> State {
        if self.is_out() { State::Open } else { self.lock().state(now_ms) }
    }

    /// The same, whether or not it has a partner.
    pub fn state_of_itself(&self, now_ms: u64) -> State {
        if self.is_out_by_itself() { State::Open } else { self.lock().state(now_ms) }
    }

    /// True while it is left alone for what it is, and not for what it does.
    pub fn is_out(&self) -> bool {
        self.is_out_by_itself() || self.lacks_partner()
    }

    fn is_out_by_itself(&self) -> bool {
        self.serves_other_model() || self.refuses_our_key()
    }

    /// True while it refuses the key that all requests come with.
    pub fn refuses_our_key(&self) -> bool {
        self.key_word.refuses() && self.key_source.is_ours()
    }

    /// Source of the key that it gets.
    pub fn key_source(&self) -> KeySource {
        self.key_source
    }

    /// Its word about that key.
    pub fn key_word(&self) -> &KeyWord {
        &self.key_word
    }

    /// True while no engine that serves can read its KV, for its release.
    pub fn lacks_partner(&self) -> bool {
        self.lacks_partner.load(Ordering::Relaxed)
    }

    /// Records that no engine can read its KV, or that one can again. True if that is news.
    pub fn set_lacks_partner(&self, lacks: bool) -> bool {
        self.lacks_partner.swap(lacks, Ordering::Relaxed) != lacks
    }

    /// State of an engine that does not drain.
    pub fn engine_state(&self, now_ms: u64) -> EngineState {
        match self.state(now_ms) {
            State::Open | State::HalfOpen => EngineState::Down,
            State::Closed if self.has_answered() && self.key_word.refuses() => EngineState::Degraded,
            State::Closed if self.has_answered() => EngineState::Up,
            State::Closed => EngineState::Unknown,
        }
    }

    /// True once it has answered a probe or a request well.
    pub fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// Notes that it answered well. True for the first time. What it says of keys stays the cause
    /// until it takes one.
    pub fn answered_well(&self) -> bool {
        if self.has_cause.load(Ordering::Relaxed) && !self.key_word.refuses() {
            self.record().forget_cause();
            self.has_cause.store(false, Ordering::Relaxed);
        }
        !self.has_answered() && !self.answered.swap(true, Ordering::Relaxed)
    }

    /// Notes why a leg or a probe failed.
    pub fn note_cause(&self, text: &str) {
        self.record().note_cause(text);
        self.has_cause.store(true, Ordering::Relaxed);
    }

    /// Cause of its last failure, if it has not answered well since.
    pub fn cause(&self) -> Option<String> {
        self.record().cause().map(str::to_owned)
    }

    /// Record of the state that was last told.
    pub fn record(&self) -> MutexGuard<'_, StateRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True while its list of models is not the fleet's.
    pub fn serves_other_model(&self) -> bool {
        self.serves_other_model.load(Ordering::Relaxed)
    }

    /// Notes that it has closed the connections that waited for requests.
    pub fn note_lost_connections(&self) {
        self.lost_connections.store(true, Ordering::Relaxed);
    }

    /// True once after it has closed them.
    pub fn take_lost_connections(&self) -> bool {
        self.lost_connections.load(Ordering::Relaxed) && self.lost_connections.swap(false, Ordering::Relaxed)
    }

    /// True while its process may be another one than that which listed its models.
    pub fn is_doubted(&self) -> bool {
        self.is_doubted.load(Ordering::Relaxed)
    }

    /// Begins or ends that doubt. True if that is news.
    pub fn set_doubted(&self, is_doubted: bool) -> bool {
        self.is_doubted.swap(is_doubted, Ordering::Relaxed) != is_doubted
    }

    /// Records whether it serves another model than the fleet. True if that is news.
    pub fn set_serves_other_model(&self, serves_other: bool) -> bool {
        self.serves_other_model.swap(serves_other, Ordering::Relaxed) != serves_other
    }

    /// True if it rests, or is on trial, for hand-offs that fail.
    pub fn rests_for_handoffs(&self, now_ms: u64) -> bool {
        self.lock().handoffs.state(now_ms) != State::Closed
    }

    /// The share of what it would be given that it is given, 0.1 to 1.
    pub fn share(&self, now_ms: u64) -> f64 {
        let breakers = self.lock();
        breakers.legs.share(now_ms, &self.rules).min(breakers.handoffs.share(now_ms, &self.rules))
    }

    /// Rest of the time in which its share grows, in ms; 0 = it has all of it.
    pub fn warm_ms(&self, now_ms: u64) -> u64 {
        let breakers = self.lock();
        breakers.legs.warm_ms(now_ms, &self.rules).max(breakers.handoffs.warm_ms(now_ms, &self.rules))
    }

    /// Failures since it last worked.
    pub fn failures(&self) -> u32 {
        self.lock().legs.failures()
    }

    /// True if a leg on it went well in the last `within_ms`, and none failed since.
    pub fn served_within(&self, now_ms: u64, within_ms: u64) -> bool {
        let served_ms = self.served_ms.load(Ordering::Relaxed);
        served_ms > 0
            && now_ms.saturating_sub(served_ms) < within_ms
            && self.failures() == 0
            && self.state(now_ms) == State::Closed
    }

    /// Time at which a leg on it last went well; 0 = never.
    pub fn served_ms(&self) -> u64 {
        self.served_ms.load(Ordering::Relaxed)
    }

    /// True if it has not answered probes, often enough to be given up.
    pub fn is_silent(&self) -> bool {
        self.lock().legs.is_silent(&self.rules)
    }

    /// A request is sent to it.
    pub fn taken(&self, now_ms: u64) {
        let mut breakers = self.lock();
        breakers.legs.taken(now_ms);
        breakers.handoffs.taken(now_ms);
    }

    /// A leg on it failed by its own fault.
    pub fn failed(&self, now_ms: u64, cause: Cause) -> Change {
        if cause == Cause::Unreachable {
            self.identity().away();
        }
        self.lock().legs.failed(now_ms, cause, &self.rules)
    }

    /// A leg on it failed, by whose fault is not known. `nobody_serves`: no engine of its role has
    /// served anybody since its first failure.
    pub fn suspected(&self, now_ms: u64, nobody_serves: bool) -> Change {
        self.lock().legs.suspected(now_ms, nobody_serves, &self.rules)
    }

    /// Since when its legs fail, in ms; `None` if the last one went well.
    pub fn down_since_ms(&self) -> Option<u64> {
        self.lock().legs.down_since_ms()
    }

    /// It is at fault for a hand-off that failed on another engine.
    pub fn handoff_failed(&self, now_ms: u64) -> Change {
        self.lock().handoffs.contradicted(now_ms, true, &self.rules)
    }

    /// A hand-off failed in which it had a part, by whose fault is not known. True if it was on
    /// trial, and rests again.
    pub fn handoff_trial_failed(&self, now_ms: u64) -> bool {
        let handoffs = &mut self.lock().handoffs;
        let on_trial = handoffs.state(now_ms) == State::HalfOpen;
        on_trial && handoffs.contradicted(now_ms, true, &self.rules) != Change::None
    }

    /// A hand-off in which it had a part went well.
    pub fn handoff_served(&self, now_ms: u64) -> Change {
        let handoffs = &mut self.lock().handoffs;
        match handoffs.state(now_ms) {
            State::Closed => Change::None,
            State::HalfOpen | State::Open => handoffs.succeeded(now_ms, &self.rules),
        }
    }

    /// Counts a hand-off that failed in which it had a part.
    pub fn count_handoff_failure(&self) {
        self.handoff_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Hand-offs that failed in which it had a part.
    pub fn handoff_failures(&self) -> u64 {
        self.handoff_failures.load(Ordering::Relaxed)
    }

    /// It has too much to do, and asks to be spared for so long.
    pub fn busy(&self, now_ms: u64, spare: Option<Duration>) {
        let spare_ms = spare.map(|spare| u64::try_from(spare.as_millis()).unwrap_or(u64::MAX));
        self.lock().legs.busy(now_ms, spare_ms);
    }

    /// Since when it has only been busy; `None` if a leg on it went well since.
    pub fn busy_since_ms(&self) -> Option<u64> {
        self.lock().legs.busy_since_ms()
    }

    /// Since when it has been busy, if an end is not to be expected.
    pub fn busy_without_end(&self, now_ms: u64) -> Option<u64> {
        let breakers = self.lock();
        breakers.legs.busy_since_ms().filter(|_| breakers.legs.is_busy_without_end(now_ms))
    }

    /// It broke a stream off. From now on a stream that begins is no success before its end.
    pub fn broke_off(&self) {
        self.breaks_streams.store(true, Ordering::Relaxed);
    }

    /// True if it broke a stream off, and has completed no answer since.
    pub fn breaks_streams(&self) -> bool {
        self.breaks_streams.load(Ordering::Relaxed)
    }

    /// It refused a request, perhaps for a reason of its own.
    pub fn refused(&self, now_ms: u64) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
        self.lock().legs.refused(now_ms, &self.rules);
    }

    /// Takes the credit that one refusal has which speaks of the request's content. False if there
    /// is none: an engine that refuses without end, since its settings or a proxy before it differ
    /// from its peers', fails one request at most.
    pub fn take_credit(&self) -> bool {
        self.credit.swap(false, Ordering::Relaxed)
    }

    /// It refused a request, and is believed: it is well.
    pub fn declined(&self, now_ms: u64) -> Change {
        self.lock().legs.succeeded(now_ms, &self.rules)
    }

    /// It refused what another engine served.
    pub fn contradicted(&self, now_ms: u64, at_once: bool) -> Change {
        self.lock().legs.contradicted(now_ms, at_once, &self.rules)
    }

    /// Another engine refused the same: it was right.
    pub fn acquitted(&self, now_ms: u64) {
        self.credit.store(true, Ordering::Relaxed);
        self.lock().legs.acquitted(now_ms);
    }

    /// Refusals since a leg on it last went well.
    pub fn refusals(&self) -> u32 {
        self.refusals.load(Ordering::Relaxed)
    }

    /// True if it has served somebody, and refused at most one request since: its refusals can be
    /// believed.
    pub fn serves_between_refusals(&self) -> bool {
        self.served_ms.load(Ordering::Relaxed) > 0 && self.refusals() <= 1
    }

    /// A leg on it went well.
    pub fn succeeded(&self, now_ms: u64) -> Change {
        if self.refusals() > 0 {
            self.refusals.store(0, Ordering::Relaxed);
        }
        if !self.credit.load(Ordering::Relaxed) {
            self.credit.store(true, Ordering::Relaxed);
        }
        if self.breaks_streams() {
            self.breaks_streams.store(false, Ordering::Relaxed);
        }
        self.served_ms.store(now_ms.max(1), Ordering::Relaxed);
        self.lock().legs.succeeded(now_ms, &self.rules)
    }

    /// A probe was answered, or not.
    pub fn probed(&self, now_ms: u64, alive: bool) -> Change {
        if !alive {
            self.identity().away();
        }
        self.lock().legs.probed(now_ms, alive, &self.rules)
    }

    /// The connection for a probe was refused.
    pub fn probe_refused(&self, now_ms: u64) -> Change {
        self.identity().away();
        self.lock().legs.probe_refused(now_ms, &self.rules)
    }

    /// Number of requests that it takes, learned from its saying that it is busy.
    pub fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// True if it was out of reach and nobody has reached it since: a request would most likely not
    /// either.
    pub fn is_out_of_reach(&self) -> bool {
        let breakers = self.lock();
        breakers.legs.is_open() && breakers.legs.cause() == Cause::Unreachable
    }

    /// Identity of its process.
    pub fn identity(&self) -> MutexGuard<'_, Identity> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A poisoned lock is taken all the same: what it guards is plain numbers.
    fn lock(&self) -> MutexGuard<'_, Breakers> {
        self.breakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
