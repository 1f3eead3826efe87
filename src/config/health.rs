//! `[health]`: when an engine is left alone, and how it is found again.

use super::Problem;
use super::bounds::{attempts, ms, percent};
use super::table::{Rule, section};

section! {
    /// `[health]`: breakers and probes, per engine and role.
    Health = "health" {
        /// Failures in a row after which an engine rests; one that can't be connected to rests at
        /// once.
        failures: u32 = 3, AfterRestart, attempts(1);
        /// So does one of whose last 20 legs this share failed, percent.
        failure_percent: u32 = 50, AfterRestart, percent();
        /// The first rest, ms; doubles with each trial that fails, and when it fails again soon
        /// after it came back.
        rest_ms: u64 = 500, AfterRestart, ms(1);
        /// The longest rest, ms.
        rest_max_ms: u64 = 15_000, AfterRestart, ms(1);
        /// The time in which an engine's share grows after an outage, ms; 0 = it has all of it at
        /// once.
        slow_start_ms: u64 = 10_000, AfterRestart, ms(0);
        /// Between probes of an engine that serves nothing at the moment, ms; 0 = none is probed.
        probe_ms: u64 = 5_000, AfterRestart, ms(0);
        /// Path that probes ask for. Bad answers are 5xx, and 404, 405, 410 or a redirect of an
        /// engine that has served nothing yet.
        probe_path: String = "/health".to_owned(), AfterRestart, Rule::Judged(path_fault);
        /// Longest time that a probe may take, ms.
        probe_timeout_ms: u64 = 2_000, AfterRestart, ms(1);
        /// Probes in a row that must fail for a rest.
        probe_failures: u32 = 3, AfterRestart, attempts(1);
        /// Probes in a row that must succeed to end one.
        probe_successes: u32 = 1, AfterRestart, attempts(1);
    }
}

fn path_fault(_: &'static str, text: &str) -> Option<Problem> {
    (!text.starts_with('/')).then(|| Problem::NotAPath { text: text.to_owned() })
}
