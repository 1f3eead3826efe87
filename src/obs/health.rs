//! Metrics of instances' health, and of what changes the fleet and the configuration.

use metrics::{counter, gauge};

use super::{LegMeter, Meters, names};

/// Outcomes of probes.
const PROBED: [&str; 3] = ["alive", "dead", "silent"];
/// Outcomes of looks at a changed configuration.
const RELOADED: [&str; 3] = ["applied", "partial", "refused"];

/// Begins the series of an instance, so that a rate sees the first of each.
pub(super) fn begin(leg: &'static str, instance: &str) {
    for name in [names::TRIPS, names::RESTARTS] {
        counter!(name, "leg" => leg, "instance" => instance.to_owned()).increment(0);
    }
    for outcome in PROBED {
        counter!(names::PROBES, "leg" => leg, "instance" => instance.to_owned(), "outcome" => outcome)
            .increment(0);
    }
}

/// Begins what belongs to no instance.
pub(super) fn begin_fleet() {
    for outcome in RELOADED {
        counter!(names::RELOADS, "outcome" => outcome).increment(0);
    }
    for source in ["file", "dns", "kubernetes"] {
        for outcome in ["same", "changed", "failed"] {
            counter!(names::DISCOVERIES, "source" => source, "outcome" => outcome).increment(0);
        }
    }
    gauge!(names::PENDING).set(0.0);
}

impl LegMeter {
    /// Its breaker: 0 closed, 1 half-open, 2 open.
    pub fn breaker(&self, state: f64) {
        self.breaker.set(state);
    }

    /// A rest began.
    pub fn tripped(&self) {
        self.count(names::TRIPS);
    }

    /// It was restarted.
    pub fn restarted(&self) {
        self.count(names::RESTARTS);
    }

    /// A probe ended: `alive`, `dead` (an answer that says so) or `silent` (none).
    pub fn probed(&self, outcome: &'static str) {
        self.series.with(|| {
            counter!(names::PROBES, "leg" => self.leg, "instance" => self.instance.clone(), "outcome" => outcome)
                .increment(1);
        });
    }

    fn count(&self, name: &'static str) {
        self.series.with(|| {
            counter!(name, "leg" => self.leg, "instance" => self.instance.clone()).increment(1);
        });
    }
}

impl Meters {
    /// A changed configuration was looked at; so many keys wait for a restart.
    pub fn reloaded(&self, outcome: &'static str, pending: usize) {
        counter!(names::RELOADS, "outcome" => outcome).increment(1);
        gauge!(names::PENDING).set(pending as f64);
    }

    /// A changed configuration was refused.
    pub fn refused(&self) {
        counter!(names::RELOADS, "outcome" => "refused").increment(1);
    }

    /// A source of engines was looked at.
    pub fn discovered(&self, source: &'static str, outcome: &'static str) {
        counter!(names::DISCOVERIES, "source" => source, "outcome" => outcome).increment(1);
    }
}
