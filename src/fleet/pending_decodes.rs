//! Counts work under way that will want a decoder.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Requests that were let in and have no decoder yet, and hand-offs that are still to be fetched.
/// As long as there are any, the last decoders stay, though they drain.
#[derive(Clone, Debug, Default)]
pub struct PendingDecodes(Arc<AtomicUsize>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub struct PendingDecode(Arc<AtomicUsize>);

impl PendingDecodes {
    /// Counts one more, until the value is dropped.
    pub fn one(&self) -> PendingDecode {
        self.0.fetch_add(1, Ordering::Relaxed);
        PendingDecode(self.0.clone())
    }

    /// True if there are any.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for PendingDecode {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
