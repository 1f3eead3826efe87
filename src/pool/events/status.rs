//! State and counters of a watch, readable by anyone at any time.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// States of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is not connected.
    Lost,
    /// Missed batches are being asked for.
    Replaying,
    /// Batches are taken as they come.
    Live,
}

/// Counters of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Number of connections made.
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
    /// Blocks in its own memory, and put into a pool.
    blocks: [AtomicUsize; 2],
    block_tokens: AtomicU32,
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

impl Count {
    /// A short stable name for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Batches => "batches",
            Self::Malformed => "malformed",
            Self::Gaps => "gaps",
            Self::Restarts => "restarts",
            Self::Replays => "replays",
            Self::ReplayFailures => "replay_failures",
            Self::Emptied => "emptied",
            Self::Unplaced => "unplaced",
        }
    }
}

impl Status {
    /// Place where the watch is.
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            2 => State::Live,
            1 => State::Replaying,
            _ => State::Lost,
        }
    }

    /// True if the index knows all that the engine holds: it heard everything since the engine's
    /// start, or since its cache was last emptied.
    pub fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// Blocks of the engine in the index: in its own memory, and those that it put into a pool.
    pub fn blocks(&self) -> (usize, usize) {
        let [own, pool] = &self.blocks;
        (own.load(Ordering::Relaxed), pool.load(Ordering::Relaxed))
    }

    /// Tokens per block, as the engine told last; 0 before it did.
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens.load(Ordering::Relaxed)
    }

    /// Count since the watch began.
    pub fn count(&self, what: Count) -> u64 {
        self.counts[what as usize].load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    pub(super) fn set_complete(&self, complete: bool) {
        self.complete.store(complete, Ordering::Release);
    }

    pub(super) fn set_block_tokens(&self, tokens: u32) {
        self.block_tokens.store(tokens, Ordering::Relaxed);
    }

    pub(super) fn set_blocks(&self, own: usize, pool: usize) {
        self.blocks[0].store(own, Ordering::Relaxed);
        self.blocks[1].store(pool, Ordering::Relaxed);
    }

    pub(super) fn add(&self, what: Count) {
        self.counts[what as usize].fetch_add(1, Ordering::Relaxed);
    }
}
