//! Metrics by key, and of requests that are turned away. The label `key` is the name of an entry in
//! the file of keys, never a key, or `anyone`: there are no more of them than the file may have
//! entries.

use std::sync::Arc;

use metrics::{Counter, counter};

use super::{Meters, begun, names};

/// Reason why a request may be turned away for want of room.
pub const TURNED_AWAY: [&str; 10] = [
    "queue_full",
    "queue_share",
    "queue_wait",
    "key_inflight",
    "key_tokens",
    "slo",
    "prefill_inflight",
    "decode_inflight",
    "body_memory",
    "body_unread",
];

/// Reason why a key may be refused.
pub const REFUSED: [&str; 3] = ["missing", "unknown", "grant"];

/// Begins the series whose labels are known, so that a rate sees the first of each.
pub(super) fn start() {
    for reason in TURNED_AWAY {
        counter!(names::TURNED_AWAY, "reason" => reason).increment(0);
    }
    for reason in REFUSED {
        counter!(names::KEY_REFUSALS, "reason" => reason).increment(0);
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
    /// A request that came with the key of `name` ended with `status`, after so many tokens.
    pub fn of_key(&self, name: &str, (status, reason): (u16, &'static str), prompt: u64, output: u64) {
        let meter = self.keys.get(name, || Arc::new(KeyMeter::new(name)));
        let outcome = match (status, reason) {
            (_, "client_gone") => &meter.gone,
            (_, "ok") => &meter.ok,
            (400..=499, _) | (_, "overloaded") => &meter.refused,
            _ => &meter.failed,
        };
        outcome.increment(1);
        meter.prompt_tokens.increment(prompt);
        meter.output_tokens.increment(output);
    }

    /// A request had no key that is known, or one that may not do this.
    pub fn key_refused(&self, reason: &'static str) {
        counter!(names::KEY_REFUSALS, "reason" => reason).increment(1);
    }

    /// A changed file of keys was read.
    pub fn keys_read(&self, outcome: &'static str) {
        counter!(names::KEY_READINGS, "outcome" => outcome).increment(1);
    }

    /// A request was turned away for want of room.
    pub fn turned_away(&self, reason: &'static str) {
        counter!(names::TURNED_AWAY, "reason" => reason).increment(1);
    }
}
