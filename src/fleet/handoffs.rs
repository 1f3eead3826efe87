//! Counts a prefiller's prompts with and without a hand-off. A prefiller that was started without
//! its connector hands nothing over, and answers as any other: decoders compute its prompts a
//! second time, and nothing fails.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Answers without a hand-off, one after the other, that are no chance.
const STREAK: u32 = 3;
/// Between two warnings of one prefiller, in ms.
const WARN_EVERY_MS: u64 = 60_000;

/// Counts of one prefiller.
#[derive(Debug, Default)]
pub struct Handoffs {
    given: AtomicU64,
    missing: AtomicU64,
    streak: AtomicU32,
    /// Time at which it was warned of last, in ms; 0 = never.
    warned_ms: AtomicU64,
    /// A decoder has read one since one was refused.
    accepted: AtomicBool,
}

impl Handoffs {
    /// Counts a prompt that was handed over.
    pub fn give(&self) {
        self.given.fetch_add(1, Ordering::Relaxed);
        self.streak.store(0, Ordering::Relaxed);
    }

    /// Counts a prompt that was not, though it should have been. True if it is no chance, and some
    /// time since that was found last.
    pub fn miss(&self, now_ms: u64) -> bool {
        self.missing.fetch_add(1, Ordering::Relaxed);
        let streak = self.streak.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let warned_ms = self.warned_ms.load(Ordering::Relaxed);
        streak >= STREAK && (warned_ms == 0 || now_ms.saturating_sub(warned_ms) >= WARN_EVERY_MS)
    }

    /// Notes that it is being warned of.
    pub fn warned(&self, now_ms: u64) {
        self.warned_ms.store(now_ms.max(1), Ordering::Relaxed);
    }

    /// Notes that a decoder has read one.
    pub fn accept(&self) {
        if !self.accepted.load(Ordering::Relaxed) {
            self.accepted.store(true, Ordering::Relaxed);
        }
    }

    /// Takes the credit by which one refusal of a request with its KV is believed. False if no
    /// decoder has read any since the last one: it may be the KV that is refused.
    pub fn take_credit(&self) -> bool {
        self.accepted.swap(false, Ordering::Relaxed)
    }

    /// Prompts that it handed over.
    pub fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    /// Prompts that it should have handed over, and did not.
    pub fn missing(&self) -> u64 {
        self.missing.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_in_a_row_are_told_of_now_and_then() {
        let handoffs = Handoffs::default();
        assert!(!handoffs.miss(1) && !handoffs.miss(2));
        handoffs.give();
        assert!(!handoffs.miss(3) && !handoffs.miss(4) && handoffs.miss(5));
        handoffs.warned(5);
        assert!(!handoffs.miss(6) && handoffs.miss(5 + WARN_EVERY_MS));
        assert_eq!((handoffs.given(), handoffs.missing()), (1, 7));
    }
}
