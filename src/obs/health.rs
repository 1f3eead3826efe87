//! Metrics of instances' health, and of what changes the fleet and the configuration.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use metrics::{Gauge, counter, gauge};

use super::{LegMeter, Meters, names};

/// Outcomes of probes.
const PROBED: [&str; 4] = ["alive", "dead", "refused", "silent"];
/// Refusals that have a label of their own.
const REFUSED: [(u16, &str); 11] = [
    (400, "400"),
    (401, "401"),
    (403, "403"),
    (404, "404"),
    (405, "405"),
    (407, "407"),
    (408, "408"),
    (413, "413"),
    (421, "421"),
    (422, "422"),
    (429, "429"),
];
/// Outcomes of looks at a changed configuration.
const RELOADED: [&str; 3] = ["applied", "partial", "refused"];

/// Begins the series of an instance, so that a rate sees the first of each.
pub(super) fn begin(leg: &'static str, instance: &str) {
    for name in [names::TRIPS, names::RESTARTS] {
        counter!(name, "role" => leg, "engine" => instance.to_owned()).increment(0);
    }
    for blamed in ["itself", "other", "pair", "unknown"] {
        counter!(names::HANDOFF_FAILURES, "role" => leg, "engine" => instance.to_owned(), "blamed" => blamed)
            .increment(0);
    }
    // The statuses that make an engine an outlier most often.
    for status in ["401", "404", "429"] {
        counter!(names::REFUSALS, "role" => leg, "engine" => instance.to_owned(), "status" => status)
            .increment(0);
    }
    if leg == "prefill" {
        counter!(names::WITHOUT_HANDOFF, "role" => leg, "engine" => instance.to_owned()).increment(0);
    }
    for outcome in PROBED {
        counter!(names::PROBES, "role" => leg, "engine" => instance.to_owned(), "outcome" => outcome)
            .increment(0);
    }
}

/// Begins the series of the configuration, which is one for all fleets.
pub(super) fn begin_reloads() {
    for outcome in RELOADED {
        counter!(names::RELOADS, "outcome" => outcome).increment(0);
    }
    gauge!(names::PENDING).set(0.0);
}

/// Begins the series of a fleet that belong to no instance.
pub(super) fn begin_fleet() {
    for source in ["file", "dns", "kubernetes"] {
        for outcome in ["same", "changed", "failed"] {
            counter!(names::DISCOVERIES, "source" => source, "outcome" => outcome).increment(0);
        }
    }
}

impl LegMeter {
    /// Sets the state of its breaker: 0 closed, 1 half-open, 2 open.
    pub fn breaker(&self, state: f64) {
        self.breaker.set(state);
    }

    /// Shows the word for its state: 1, and 0 for the word before.
    pub fn state(&self, word: &'static str) {
        if let Some(before) = self.shown_state(Some(word)) {
            self.state_gauge(before).set(0.0);
        }
        self.state_gauge(word).set(1.0);
    }

    /// Shows nothing of an engine that has left.
    pub fn left(&self) {
        self.breaker(0.0);
        if let Some(before) = self.shown_state(None) {
            self.state_gauge(before).set(0.0);
        }
    }

    /// Remembers the word that is shown, and returns the one before if it is another.
    fn shown_state(&self, word: Option<&'static str>) -> Option<&'static str> {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *shown, word).filter(|before| Some(*before) != word)
    }

    fn state_gauge(&self, word: &'static str) -> Gauge {
        self.series.with(|| {
            gauge!(names::ENGINE_STATE, "role" => self.leg, "engine" => self.instance.clone(), "state" => word)
        })
    }

    /// Counts an opening of its breaker.
    pub fn tripped(&self) {
        self.count(names::TRIPS);
    }

    /// Counts a prefill that it answered without a hand-off.
    pub fn handed_nothing(&self) {
        self.count(names::WITHOUT_HANDOFF);
    }

    /// Counts a restart of the engine.
    pub fn restarted(&self) {
        self.count(names::RESTARTS);
    }

    /// Counts a probe by its outcome: `alive`, `dead` (an answer that says so), `refused` (nobody
    /// listens there) or `silent` (no answer).
    pub fn probed(&self, outcome: &'static str) {
        self.series.with(|| {
            counter!(names::PROBES, "role" => self.leg, "engine" => self.instance.clone(), "outcome" => outcome)
                .increment(1);
        });
    }

    /// Counts a failed hand-off of this instance. `blamed` is one of a fixed set of words.
    pub fn handoff_failed(&self, blamed: &'static str) {
        self.series.with(|| {
            counter!(names::HANDOFF_FAILURES, "role" => self.leg, "engine" => self.instance.clone(), "blamed" => blamed)
                .increment(1);
        });
    }

    /// Counts an answer with this 4xx. All statuses that engines do not usually send share one
    /// label.
    pub fn refused(&self, status: u16) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
        let at = REFUSED.iter().position(|(known, _)| *known == status);
        let label = at.and_then(|at| REFUSED.get(at)).map_or("other", |(_, label)| *label);
        self.series.with(|| {
            counter!(names::REFUSALS, "role" => self.leg, "engine" => self.instance.clone(), "status" => label)
                .increment(1);
        });
    }

    /// Number of answers with a 4xx since it is a member.
    pub fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    fn count(&self, name: &'static str) {
        self.series.with(|| {
            counter!(name, "role" => self.leg, "engine" => self.instance.clone()).increment(1);
        });
    }
}

impl Meters {
    /// Shows the state of a role: 1 for the word that holds, 0 for the others.
    pub fn role_state(&self, role: &'static str, words: &[&'static str], holds: &'static str) {
        for word in words {
            self.label.with(|| {
                gauge!(names::ROLE_STATE, "role" => role, "state" => *word)
                    .set(f64::from(u8::from(*word == holds)))
            });
        }
    }

    /// Counts a reload by its outcome; `pending` keys wait for a restart.
    pub fn reloaded(&self, outcome: &'static str, pending: usize) {
        self.label.with(|| counter!(names::RELOADS, "outcome" => outcome).increment(1));
        self.label.with(|| gauge!(names::PENDING).set(pending as f64));
    }

    /// Counts a changed configuration that was refused.
    pub fn refused(&self) {
        self.label.with(|| counter!(names::RELOADS, "outcome" => "refused").increment(1));
    }

    /// Counts a query to a source of engines.
    pub fn discovered(&self, source: &'static str, outcome: &'static str) {
        self.label
            .with(|| counter!(names::DISCOVERIES, "source" => source, "outcome" => outcome).increment(1));
    }
}
