//! Rules by which a breaker opens, rests and closes again.

/// The numbers of `[health]` that breakers follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Failures in a row that open it.
    pub failures: u32,
    /// So does this share of failures among its last legs, in percent.
    pub failure_percent: u32,
    /// The first rest, in ms; it doubles.
    pub rest_ms: u64,
    /// The longest rest, in ms.
    pub rest_max_ms: u64,
    /// The time in which its share grows after an outage, in ms; 0 = at once.
    pub slow_start_ms: u64,
    /// Probes in a row that must fail to open it.
    pub probe_failures: u32,
    /// Probes in a row that must succeed to end a rest.
    pub probe_successes: u32,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            failures: 3,
            failure_percent: 50,
            rest_ms: 500,
            rest_max_ms: 15_000,
            slow_start_ms: 10_000,
            probe_failures: 3,
            probe_successes: 1,
        }
    }
}
