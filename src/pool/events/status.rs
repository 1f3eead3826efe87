//! How a watch goes, readable by anyone at any time.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Where a watch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not connected.
    Lost,
    /// What was missed is being asked for.
    Replaying,
    /// Batches are taken as they come.
    Live,
}

/// What a watch counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Connections made.
    Connections,
    /// Batches taken, live or replayed.
    Batches,
    /// Messages that were not understood, and skipped.
    Malformed,
    /// Times that live batches were missing.
    Gaps,
    /// Times that the engine was another than before.
    Restarts,
    /// Replays asked for.
    Replays,
    /// Replays that came to no end.
    ReplayFailures,
    /// Times that all was forgotten.
    Emptied,
    /// Batches of ranks for which the index had no place.
    Unplaced,
}

const COUNTS: usize = Count::ALL.len();

/// The status of a watch.
#[derive(Debug, Default)]
pub struct Status {
    state: AtomicU8,
    complete: AtomicBool,
    counts: [AtomicU64; COUNTS],
}

impl Count {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Connections,
        Self::Batches,
        Self::Malformed,
        Self::Gaps,
        Self::Restarts,
        Self::Replays,
        Self::ReplayFailures,
        Self::Emptied,
        Self::Unplaced,
    ];
}

impl Status {
    /// Where the watch is.
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            2 => State::Live,
            1 => State::Replaying,
            _ => State::Lost,
        }
    }

    /// Whether the index knows all that the engine holds: it heard everything since the engine's start, or since its
    /// cache was last emptied.
    pub fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// How often, since the watch began.
    pub fn count(&self, what: Count) -> u64 {
        self.counts[what as usize].load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    pub(super) fn set_complete(&self, complete: bool) {
        self.complete.store(complete, Ordering::Release);
    }

    pub(super) fn add(&self, what: Count) {
        self.counts[what as usize].fetch_add(1, Ordering::Relaxed);
    }
}
