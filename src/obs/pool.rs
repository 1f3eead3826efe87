//! Metrics of the pool. Their series begin when a pool is asked.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, gauge, histogram};

use super::handle_cache::HandleCache;
use super::{LastValue, Meters, TimedValue, names};

/// Handles for the pool.
#[derive(Debug)]
pub(super) struct PoolMeter {
    seconds: Histogram,
    wait_seconds: Histogram,
    /// Look-ups by pool and verdict.
    lookups: HandleCache<(&'static str, &'static str), Counter>,
    /// The pool's last answer, and how long it took.
    last: LastValue<(&'static str, Duration)>,
}

impl PoolMeter {
    fn new() -> PoolMeter {
        PoolMeter {
            seconds: histogram!(names::POOL_SECONDS),
            wait_seconds: histogram!(names::POOL_WAIT_SECONDS),
            lookups: HandleCache::default(),
            last: LastValue::default(),
        }
    }
}

impl Meters {
    fn pool_meter(&self) -> &PoolMeter {
        self.pool.get_or_init(|| self.label.with(PoolMeter::new))
    }

    /// The pool was asked and gave `verdict` after `took`.
    pub fn pool(&self, pool: &'static str, verdict: &'static str, took: Duration) {
        let meter = self.pool_meter();
        meter.seconds.record(took);
        meter.last.set((verdict, took));
        let begin =
            || self.label.with(|| counter!(names::POOL_LOOKUPS, "pool" => pool, "verdict" => verdict));
        meter.lookups.get(&(pool, verdict), begin).increment(1);
    }

    /// The pool's last answer, and how long it took.
    pub fn last_lookup(&self) -> Option<TimedValue<(&'static str, Duration)>> {
        self.pool.get()?.last.get()
    }

    /// A decoder was kept waiting until the pool had a prompt; it ended in `outcome` after `took`.
    pub fn pool_waited(&self, outcome: &'static str, took: Duration) {
        self.pool_meter().wait_seconds.record(took);
        self.label.with(|| counter!(names::POOL_WAITS, "outcome" => outcome).increment(1));
    }

    /// Begins the series of these outcomes.
    pub fn pool_waits_start(&self, outcomes: &[&'static str]) {
        for outcome in outcomes {
            self.label.with(|| counter!(names::POOL_WAITS, "outcome" => *outcome).increment(0));
        }
    }

    /// Shows if nothing that own prefills stored is found in a source (`pool`, `events`).
    pub fn names_unfound(&self, source: &'static str, unfound: bool) {
        self.label.with(|| gauge!(names::UNFOUND, "source" => source).set(f64::from(u8::from(unfound))));
    }

    /// A prompt's blocks have no names, so the pool was not asked.
    pub fn pool_unasked(&self, reason: &'static str) {
        self.label.with(|| counter!(names::POOL_UNASKED, "reason" => reason).increment(1));
    }

    /// Begins the series of a pool, so that a rate sees the first of each.
    pub fn pool_starts(&self, pool: &'static str, verdicts: &[&'static str]) {
        self.pool_meter();
        for verdict in verdicts {
            self.label
                .with(|| counter!(names::POOL_LOOKUPS, "pool" => pool, "verdict" => *verdict).increment(0));
        }
        self.label.with(|| counter!(names::POOL_UNASKED, "reason" => "unnamed").increment(0));
    }
}
