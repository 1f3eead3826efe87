//! A commitment of the scheduler, as the reservation that stands for it reports on it.

use std::sync::Arc;

use tokio::time::Instant;

use crate::fleet::scheduler_handle::SchedulerHandle;
use crate::route::{Booking, Done, LaneId, Reported};

/// A commitment on the scheduler, for the reservation that stands for it.
#[derive(Debug)]
pub(super) struct Commitment {
    pub(super) scheduler: Arc<SchedulerHandle>,
    pub(super) booking: Booking,
    pub(super) lane: LaneId,
    /// Tokens of the prompt.
    pub(super) tokens: i64,
}

impl Commitment {
    /// The prompt was computed then, its KV is held for a decoder.
    pub(super) fn computed(&self, at: Instant, reported: Reported) {
        self.scheduler.lock().board.board_mut().hold(self.lane, self.tokens);
        self.scheduler.done(self.booking, Done::Computed(reported), at);
    }

    /// The prompt is computed, nobody knows since when, and nothing is held.
    pub(super) fn computed_unseen(&self) {
        self.scheduler.done(self.booking, Done::Unseen, Instant::now());
    }

    /// The prefill ended without an answer.
    pub(super) fn failed(&self) {
        self.scheduler.done(self.booking, Done::Failed, Instant::now());
    }

    /// Records that the KV was given back.
    pub(super) fn let_go(&self) {
        self.scheduler.lock().board.board_mut().hold(self.lane, -self.tokens);
    }
}
