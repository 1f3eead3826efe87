//! An engine's health: what its legs and its probes tell, and what follows from it.
//!
//! Without it the least loaded instance would be the dead one. When every instance rests they are all tried: nobody is
//! refused on the strength of a guess.

pub mod breaker;
pub mod identity;
pub mod rules;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::route::Standing;
pub use breaker::{Breaker, Cause, Change, State};
pub use identity::Identity;
pub use rules::Rules;

/// The health of one engine in one role. Times are milliseconds of the fleet's clock.
#[derive(Debug)]
pub struct Health {
    rules: Rules,
    breaker: Mutex<Breaker>,
    identity: Mutex<Identity>,
    /// When a leg on it last went well; 0 = never.
    served_ms: AtomicU64,
}

impl Health {
    /// Of an engine of which nothing is known.
    pub fn new(rules: Rules) -> Health {
        Health { rules, breaker: Mutex::default(), identity: Mutex::default(), served_ms: AtomicU64::new(0) }
    }

    /// Whether it should be left alone.
    pub fn resting(&self, now_ms: u64) -> bool {
        self.rest_ms(now_ms) > 0
    }

    /// How long it should still be left alone.
    pub fn rest_ms(&self, now_ms: u64) -> u64 {
        self.lock().rest_ms(now_ms)
    }

    /// How willingly a request with this random number is given to it.
    pub fn standing(&self, now_ms: u64, dice: u64) -> Standing {
        self.lock().standing(now_ms, dice, &self.rules)
    }

    /// Its breaker's state.
    pub fn state(&self, now_ms: u64) -> State {
        self.lock().state(now_ms)
    }

    /// The share of what it would be given that it is given, 0.1 to 1.
    pub fn share(&self, now_ms: u64) -> f64 {
        self.lock().share(now_ms, &self.rules)
    }

    /// What is left of the time in which its share grows, in ms; 0 = it has all of it.
    pub fn warm_ms(&self, now_ms: u64) -> u64 {
        self.lock().warm_ms(now_ms, &self.rules)
    }

    /// Failures since it last worked.
    pub fn failures(&self) -> u32 {
        self.lock().failures()
    }

    /// Whether a leg on it went well in the last `within_ms`, and none failed since.
    pub fn served_within(&self, now_ms: u64, within_ms: u64) -> bool {
        let served_ms = self.served_ms.load(Ordering::Relaxed);
        served_ms > 0
            && now_ms.saturating_sub(served_ms) < within_ms
            && self.failures() == 0
            && self.state(now_ms) == State::Closed
    }

    /// A request is sent to it.
    pub fn taken(&self, now_ms: u64) {
        self.lock().taken(now_ms);
    }

    /// A leg on it failed by its own fault.
    pub fn failed(&self, now_ms: u64, cause: Cause) -> Change {
        if cause == Cause::Unreachable {
            self.identity().away();
        }
        self.lock().failed(now_ms, cause, &self.rules)
    }

    /// It has too much to do.
    pub fn busy(&self, now_ms: u64) {
        self.lock().busy(now_ms);
    }

    /// A leg on it went well.
    pub fn succeeded(&self, now_ms: u64) -> Change {
        self.served_ms.store(now_ms.max(1), Ordering::Relaxed);
        self.lock().succeeded(now_ms, &self.rules)
    }

    /// A probe was answered, or not.
    pub fn probed(&self, now_ms: u64, alive: bool) -> Change {
        if !alive {
            self.identity().away();
        }
        self.lock().probed(now_ms, alive, &self.rules)
    }

    /// Which process it is.
    pub fn identity(&self) -> MutexGuard<'_, Identity> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A poisoned lock is taken all the same: what it guards is plain numbers.
    fn lock(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
