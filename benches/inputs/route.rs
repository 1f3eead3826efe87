//! Prompts of 1 000 blocks, and prefillers that have some of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use pd_proxy::route::{Booking, Commit, Done, Job, LaneSpec, PrefillScheduler, Reported, SchedulerSettings};

const BLOCKS: usize = 1_000;
const BLOCK_TOKENS: u32 = 16;

/// A prompt whose first `shared` blocks are those of everybody.
pub(crate) fn job(own: u64, shared: usize) -> Arc<Job> {
    let block = |at: usize| if at < shared { at as u64 } else { (own + 1) << 20 | at as u64 };
    Arc::new(Job {
        prompt_tokens: BLOCK_TOKENS * u32::try_from(BLOCKS).unwrap_or(0) + 5,
        output_tokens: 100,
        blocks: (0..BLOCKS).map(block).collect(),
        block_tokens: BLOCK_TOKENS,
        named: true,
        exact: true,
        ..Job::default()
    })
}

/// A scheduler whose prefillers have had four prompts each, all with 200 blocks in common.
pub(crate) fn board(lanes: u64) -> PrefillScheduler {
    let mut board = PrefillScheduler::new(SchedulerSettings::default());
    for identity in 0..lanes {
        board.join(LaneSpec { class: 0, cache_tokens: 128_000, identity });
    }
    let mut now = 0.0;
    for own in 0..4 * lanes {
        now += 10.0;
        board.arrive(now, job(own, 200));
        for commit in board.pump(now, &(), &mut || own) {
            board.done(now + 1.0, commit.booking, Done::Computed(Reported::default()));
        }
    }
    board
}

/// A scheduler whose lanes are all busy, and whose line is filled up again.
pub(crate) struct StandingLine {
    board: PrefillScheduler,
    now: f64,
    requests: u64,
    /// Ends of prefills, in nanoseconds, with their bookings.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
}

impl StandingLine {
    /// So many lanes, with so many requests that wait.
    pub(crate) fn new(lanes: u64, waiting: usize) -> StandingLine {
        let mut board = PrefillScheduler::new(SchedulerSettings::default());
        for identity in 0..lanes {
            board.join(LaneSpec { class: 0, cache_tokens: 128_000, identity });
        }
        let mut line = StandingLine { board, now: 0.0, requests: 0, ends: BinaryHeap::new() };
        while line.board.waiting() < waiting {
            line.arrive();
        }
        line
    }

    /// A prefill ends, its lane gets the next one, and another request comes.
    pub(crate) fn step(&mut self) {
        if let Some(Reverse((end_ns, booking))) = self.ends.pop() {
            self.now = self.now.max(end_ns as f64 / 1e9);
            self.board.done(self.now, Booking(booking), Done::Computed(Reported::default()));
            self.pump();
        }
        self.arrive();
    }

    /// A fifth of each prompt is that of everybody.
    fn arrive(&mut self) {
        self.requests += 1;
        self.board.arrive(self.now, job(self.requests, 200));
        self.pump();
    }

    fn pump(&mut self) {
        let turn = self.requests;
        let commits = self.board.pump(self.now, &(), &mut || turn);
        let end = |commit: &Commit| ((self.now + commit.terms.wait_s + commit.terms.prefill_s) * 1e9) as u64;
        self.ends.extend(commits.iter().map(|commit| Reverse((end(commit), commit.booking.0))));
    }
}
