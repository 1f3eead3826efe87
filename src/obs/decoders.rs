//! Predictions about decoders that compute prompts themselves.

use metrics::counter;

use super::{Meters, names};

impl Meters {
    /// Begins the series of decoders that compute prompts themselves.
    pub fn decoder_predictions_start(&self) {
        for verdict in ["hit", "partial", "miss", "silent"] {
            self.label.with(|| counter!(names::DECODER_PREDICTIONS, "verdict" => verdict).increment(0));
        }
    }

    /// Cached tokens of a decoder that computed a prompt itself, as predicted and as reported.
    pub fn decoder_predicted(&self, verdict: &'static str) {
        self.label.with(|| counter!(names::DECODER_PREDICTIONS, "verdict" => verdict).increment(1));
    }
}
