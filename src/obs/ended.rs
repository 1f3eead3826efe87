//! Counts of requests that ended, of one fleet or of all.

use std::sync::atomic::{AtomicU64, Ordering};

/// Requests that ended: all, and those that failed.
#[derive(Debug, Default)]
pub(super) struct EndedCounts([AtomicU64; 2]);

impl EndedCounts {
    /// Counts one more.
    pub(super) fn count(&self, failed: bool) {
        let [all, of_these] = &self.0;
        all.fetch_add(1, Ordering::Relaxed);
        if failed {
            of_these.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Both numbers at this moment.
    pub(super) fn now(&self) -> (u64, u64) {
        let [all, failed] = &self.0;
        (all.load(Ordering::Relaxed), failed.load(Ordering::Relaxed))
    }
}
