//! `[retry]`: how often a failed leg is tried again.

use super::bounds::{attempts, count, ms};
use super::table::section;

section! {
    /// `[retry]`: how often a failed leg is tried again, and after which pause.
    Retry = "retry" {
        /// Attempts per leg, the first one included.
        attempts: u32 = 3, AtOnce, attempts(1);
        /// Pause before the second attempt, ms; doubles with each further one.
        delay_ms: f64 = 1.0, AtOnce, ms(0);
        /// The pause never grows beyond this, ms; a value below `delay_ms` counts as `delay_ms`.
        delay_max_ms: f64 = 1000.0, AtOnce, ms(0);
        /// Further attempts and continuations within 10 s, per request of that time or under way;
        /// there are no more.
        // The budget's window can't be replaced while it counts.
        budget: f64 = 1.0, AfterRestart, attempts(0);
        /// But so many in each of these seconds at any rate.
        budget_floor_per_s: u32 = 3, AfterRestart, count(0);
        /// True if a stream that breaks is continued by another pair, where that is exact. Decoders
        /// are then asked for token ids.
        resume: bool = false, AtOnce;
    }
}
