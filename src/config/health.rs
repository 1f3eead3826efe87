//! `[health]`: when an engine is left alone, and how it is found again.

use serde::{Deserialize, Serialize};

/// `[health]`: breakers and probes, per engine and role.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Health {
    /// Failures in a row after which an engine rests; one that can't be connected to rests at once.
    pub failures: u32,
    /// So does one of whose last 20 legs this share failed, percent.
    pub failure_percent: u32,
    /// The first rest, ms; doubles with each trial that fails, and when it fails again soon after
    /// it came back.
    pub rest_ms: u64,
    /// The longest rest, ms.
    pub rest_max_ms: u64,
    /// The time in which an engine's share grows after an outage, ms; 0 = it has all of it at once.
    pub slow_start_ms: u64,
    /// Between probes of an engine that serves nothing at the moment, ms; 0 = none is probed.
    pub probe_ms: u64,
    /// Path that probes ask for; any answer but a 5xx is a good one.
    pub probe_path: String,
    /// Longest time that a probe may take, ms.
    pub probe_timeout_ms: u64,
    /// Probes in a row that must fail for a rest.
    pub probe_failures: u32,
    /// Probes in a row that must succeed to end one.
    pub probe_successes: u32,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            failures: 3,
            failure_percent: 50,
            rest_ms: 500,
            rest_max_ms: 15_000,
            slow_start_ms: 10_000,
            probe_ms: 5_000,
            probe_path: "/health".to_owned(),
            probe_timeout_ms: 2_000,
            probe_failures: 3,
            probe_successes: 1,
        }
    }
}
