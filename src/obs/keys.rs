//! What is counted by key, and who is turned away. The label `key` is the name of an entry in the file of keys, never a
//! key, or `anyone`: there are no more of them than the file may have entries.

use metrics::counter;

use super::{Meters, names};

/// Why a request may be turned away for want of room.
pub const TURNED_AWAY: [&str; 8] = [
    "queue_full",
    "queue_share",
    "queue_wait",
    "key_inflight",
    "key_tokens",
    "slo",
    "prefill_inflight",
    "decode_inflight",
];

/// Why a key may be refused.
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

impl Meters {
    /// A request that came with the key of `name` ended with `status`, after so many tokens.
    pub fn of_key(&self, name: &str, (status, reason): (u16, &'static str), prompt: u64, output: u64) {
        let outcome = match (status, reason) {
            (_, "client_gone") => "client_gone",
            (_, "ok") => "ok",
            (400..=499, _) | (_, "overloaded") => "refused",
            _ => "failed",
        };
        counter!(names::KEY_REQUESTS, "key" => name.to_owned(), "outcome" => outcome).increment(1);
        for (kind, tokens) in [("prompt", prompt), ("output", output)] {
            counter!(names::KEY_TOKENS, "key" => name.to_owned(), "kind" => kind).increment(tokens);
        }
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
