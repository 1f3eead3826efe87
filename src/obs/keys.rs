//! Metrics by key, and of refused requests. The label `key` is the name of an entry in the file of
//! keys, or `anyone`, never a key. Its values are bounded by the entries that the file may have.

use std::sync::Arc;

use metrics::{Counter, counter};

use super::{Meters, begun, names, words};
use crate::dialect::usage::TokenCounts;

/// Begins the series of refusals for overload, so that a rate sees the first of each.
pub(super) fn start_turned_away() {
    for reason in words::TURNED_AWAY {
        counter!(names::TURNED_AWAY, "reason" => reason.name).increment(0);
    }
}

/// Begins the series of keys whose labels are known.
pub(super) fn start() {
    for reason in words::KEY_REFUSED {
        counter!(names::KEY_REFUSALS, "reason" => reason.name).increment(0);
    }
    for outcome in ["loaded", "broken"] {
        counter!(names::KEY_READINGS, "outcome" => outcome).increment(0);
    }
}

/// Handles for one key.
#[derive(Debug)]
pub(super) struct KeyMeter {
    gone: Counter,
    ok: Counter,
    refused: Counter,
    failed: Counter,
    prompt_tokens: Counter,
    output_tokens: Counter,
}

impl KeyMeter {
    fn new(name: &str) -> KeyMeter {
        let requests = |outcome: &'static str| {
            begun(counter!(names::KEY_REQUESTS, "key" => name.to_owned(), "outcome" => outcome))
        };
        let tokens =
            |kind: &'static str| begun(counter!(names::KEY_TOKENS, "key" => name.to_owned(), "kind" => kind));
        KeyMeter {
            gone: requests("client_gone"),
            ok: requests("ok"),
            refused: requests("refused"),
            failed: requests("failed"),
            prompt_tokens: tokens("prompt"),
            output_tokens: tokens("output"),
        }
    }
}

impl Meters {
    /// Records the end of a request with the key of `name`: its `status` and its tokens.
    pub fn of_key(&self, name: &str, status: u16, reason: &'static str, taken: TokenCounts) {
        let meter = self.keys.get(name, || Arc::new(self.label.with(|| KeyMeter::new(name))));
        let outcome = match (status, reason) {
            (_, "client_gone") => &meter.gone,
            (_, "ok") => &meter.ok,
            (400..=499, _) | (_, "overloaded") => &meter.refused,
            _ => &meter.failed,
        };
        outcome.increment(1);
        meter.prompt_tokens.increment(taken.prompt);
        meter.output_tokens.increment(taken.output);
    }

    /// Counts a request without a known key, or with a key that lacks the right.
    pub fn key_refused(&self, reason: &'static str) {
        debug_assert!(words::KEY_REFUSED.iter().any(|word| word.name == reason), "{reason} is in no table");
        self.label.with(|| counter!(names::KEY_REFUSALS, "reason" => reason).increment(1));
    }

    /// Counts a reading of a changed key file.
    pub fn keys_read(&self, outcome: &'static str) {
        self.label.with(|| counter!(names::KEY_READINGS, "outcome" => outcome).increment(1));
    }

    /// Counts a request refused for overload.
    pub fn turned_away(&self, reason: &'static str) {
        debug_assert!(words::TURNED_AWAY.iter().any(|word| word.name == reason), "{reason} is in no table");
        self.label.with(|| counter!(names::TURNED_AWAY, "reason" => reason).increment(1));
    }
}
