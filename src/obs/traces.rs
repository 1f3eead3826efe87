//! Metrics of spans and their fate.

use metrics::{Counter, counter};

use super::{begun, names};

/// Outcomes of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The collector took it.
    Sent,
    /// It found no room among those that wait to be posted.
    Dropped,
    /// The collector could not be reached, or refused the post.
    Failed,
    /// The collector took the post, and said that it did not take it.
    Rejected,
}

/// Handles for spans.
#[derive(Clone, Debug)]
pub struct SpanMeter([Counter; 4]);

impl Outcome {
    /// All of them.
    pub const ALL: [Outcome; 4] = [Outcome::Sent, Outcome::Dropped, Outcome::Failed, Outcome::Rejected];

    /// The value of the label.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Sent => "sent",
            Outcome::Dropped => "dropped",
            Outcome::Failed => "failed",
            Outcome::Rejected => "rejected",
        }
    }
}

impl SpanMeter {
    /// Makes all handles.
    pub fn new() -> SpanMeter {
        SpanMeter(
            Outcome::ALL.map(|outcome| begun(counter!(names::TRACE_SPANS, "outcome" => outcome.name()))),
        )
    }

    /// This became of `spans` of them.
    pub fn count(&self, outcome: Outcome, spans: u64) {
        let [sent, dropped, failed, rejected] = &self.0;
        match outcome {
            Outcome::Sent => sent.increment(spans),
            Outcome::Dropped => dropped.increment(spans),
            Outcome::Failed => failed.increment(spans),
            Outcome::Rejected => rejected.increment(spans),
        }
    }
}

impl Default for SpanMeter {
    fn default() -> SpanMeter {
        SpanMeter::new()
    }
}
