//! Passive health: an engine that failed is left alone for a moment, longer each time it fails again.
//!
//! Without it the least loaded instance would be the dead one. When every instance rests they are all tried: nobody is
//! refused on the strength of a guess.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The first rest.
const REST_MS: u64 = 500;
/// The longest one: a restarted engine is found again within this time.
const REST_MAX_MS: u64 = 15_000;

/// The rest of an engine that is alive and says that it is busy.
const BUSY_REST_MS: u64 = 100;

/// When an engine may be chosen again.
#[derive(Debug, Default)]
pub struct Health {
    failures: AtomicU32,
    rests_until_ms: AtomicU64,
}

impl Health {
    /// Whether it should be left alone at `now_ms`.
    pub fn resting(&self, now_ms: u64) -> bool {
        now_ms < self.rests_until_ms.load(Ordering::Relaxed)
    }

    /// How long it should still be left alone.
    pub fn rest_ms(&self, now_ms: u64) -> u64 {
        self.rests_until_ms.load(Ordering::Relaxed).saturating_sub(now_ms)
    }

    /// Failures since it last worked.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    /// A leg on it failed by its own fault.
    pub fn failed(&self, now_ms: u64) {
        // Failures that come while it rests belong to requests that were sent before; they don't prolong the rest.
        if self.resting(now_ms) {
            return;
        }
        let before = self.failures.fetch_add(1, Ordering::Relaxed).min(16);
        let rest = (REST_MS << before).min(REST_MAX_MS);
        self.rests_until_ms.store(now_ms.saturating_add(rest), Ordering::Relaxed);
    }

    /// It has too much to do: others are preferred for a moment, which does not grow.
    pub fn busy(&self, now_ms: u64) {
        self.rests_until_ms.fetch_max(now_ms.saturating_add(BUSY_REST_MS), Ordering::Relaxed);
    }

    /// A leg on it went well.
    pub fn succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
            self.rests_until_ms.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_up_to_a_limit_and_end_with_a_success() {
        let h = Health::default();
        let mut now = 0;
        let mut rests = Vec::new();
        for _ in 0..8 {
            h.failed(now);
            let start = now;
            while h.resting(now) {
                now += 100;
            }
            rests.push(now - start);
        }
        assert_eq!(rests, [500, 1000, 2000, 4000, 8000, 15_000, 15_000, 15_000]);
        h.failed(now);
        h.succeeded();
        assert!(!h.resting(now));
        h.failed(now);
        assert!(h.resting(now + 499) && !h.resting(now + 500), "counting starts again");
    }

    #[test]
    fn a_busy_engine_rests_briefly_and_is_not_held_to_have_failed() {
        let h = Health::default();
        for now in [0, 10, 20] {
            h.busy(now);
        }
        assert!(h.resting(119) && !h.resting(120));
        assert_eq!(h.failures(), 0);
    }

    #[test]
    fn a_burst_of_failures_is_one_failure() {
        let h = Health::default();
        for _ in 0..100 {
            h.failed(10);
        }
        assert_eq!(h.failures(), 1);
    }
}
