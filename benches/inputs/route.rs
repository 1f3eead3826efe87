//! Prompts of 1 000 blocks, and prefillers that have some of them.

use std::sync::Arc;

use pd_proxy::route::{Done, Job, LaneSpec, PrefillScheduler, Reported, SchedulerSettings};

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
