//! `[retry]`: how often a failed leg is tried again.

use serde::{Deserialize, Serialize};

/// `[retry]`: how often a failed leg is tried again, and after which pause.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retry {
    /// Attempts per leg, the first one included.
    pub attempts: u32,
    /// Pause before the second attempt, ms; doubles with each further one.
    pub delay_ms: f64,
    /// The pause never grows beyond this, ms; a value below `delay_ms` counts as `delay_ms`.
    pub delay_max_ms: f64,
    /// Further attempts and continuations within 10 s, per request of that time or under way; there
    /// are no more.
    pub budget: f64,
    /// But so many in each of these seconds at any rate.
    pub budget_floor_per_s: u32,
    /// True if a stream that breaks is continued by another pair, where that is exact. Decoders are
    /// then asked for token ids.
    pub resume: bool,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 3,
            delay_ms: 1.0,
            delay_max_ms: 1000.0,
            budget: 1.0,
            budget_floor_per_s: 3,
            resume: false,
        }
    }
}
