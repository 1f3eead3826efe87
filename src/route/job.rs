//! Facts of a request that routing uses, and the work that an instance could spare it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::scheduler::Reported;

/// Seconds; of a moment: since whenever the caller began to count.
pub type Seconds = f64;

/// Most lanes of a scheduler: prefillers, or their ranks where the gateway chooses among these.
/// Others than these are not routed to.
pub const MAX_LANES: usize = 4096;

/// A prefiller's place on the scheduler, free for another one after it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u16);

/// One request, as far as routing wants to know it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    /// Tokens of the prompt: counted, or estimated from its bytes.
    pub prompt_tokens: u32,
    /// Tokens that the answer is expected to have.
    pub output_tokens: u32,
    /// 64-bit hashes of the prompt's full blocks, each chained to those before it. Empty when they
    /// are unknown.
    pub blocks: Arc<[u64]>,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Chain by which the prompt's way is remembered, where it is not `blocks`: the one that
    /// gateways tell each other.
    pub history: Option<History>,
    /// The hashes are the engines' own, so that others can tell of them.
    pub named: bool,
    /// The prompt's tokens were counted, not estimated.
    pub exact: bool,
    /// Leading tokens that were counted where not all were.
    pub prefix_tokens: u32,
    /// The pool's answer when the request came.
    pub pool: PoolHits,
    /// Hash of the caller's session: the same for all requests that belong together. For policies
    /// that hash it.
    pub session: Option<u64>,
    /// Time from its arrival within which its first token is due.
    pub ttft_slo_s: Option<Seconds>,
}

/// Hashes of a prompt's beginning in blocks larger than the engines'.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// One hash for each block, chained to those before it.
    pub blocks: Arc<[u64]>,
    /// Tokens of a block.
    pub block_tokens: u32,
}

/// Leading tokens of a prompt that a pool holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolHits {
    /// The pool was asked and has answered.
    pub asked: bool,
    /// That every prefiller can load, wherever they lie.
    pub anywhere_tokens: u32,
    /// On a prefiller's own host, by lane; some of these may be for nobody else.
    pub near: SmallVec<[(LaneId, u32); 4]>,
}

/// Leading tokens of one prompt that one prefiller need not compute. Each counts from the prompt's
/// start, so each is at most the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hit {
    /// In its accelerator's memory.
    pub hbm_tokens: u32,
    /// There, or in the part of the pool on its host.
    pub near_tokens: u32,
    /// There, or anywhere in the pool.
    pub any_tokens: u32,
}

impl Job {
    /// True if another gateway has the request: its blocks are not known here, only their chain.
    pub fn is_elsewhere(&self) -> bool {
        self.history.is_some() && self.blocks.is_empty()
    }

    /// Chain by which schedulers remember where its prompt went.
    pub fn chain(&self) -> &Arc<[u64]> {
        self.history.as_ref().map_or(&self.blocks, |history| &history.blocks)
    }

    /// Tokens of a block of that chain.
    pub fn chain_tokens(&self) -> u32 {
        self.history.as_ref().map_or(self.block_tokens, |history| history.block_tokens)
    }

    /// The most of its tokens that an engine need not compute. The last one always is: its logits
    /// are needed. And engines use whole blocks, so that a prompt of whole blocks has its last one
    /// computed. The size of blocks is known where tokens are.
    pub(super) fn most_spared_tokens(&self) -> u32 {
        let most = self.prompt_tokens.saturating_sub(1);
        let beyond_blocks = if self.exact { most.checked_rem(self.block_tokens).unwrap_or(0) } else { 0 };
        most - beyond_blocks
    }

    /// Leading tokens that were counted: all, some, or none of an estimated prompt.
    pub fn counted_tokens(&self) -> u32 {
        if self.exact { self.prompt_tokens } else { self.prefix_tokens }
    }

    /// Tokens of an estimated prompt in the engine's own measure, once it has counted the prompt.
    /// Those that were counted are in that measure already.
    pub fn in_engine_tokens(&self, tokens: u64, reported: Reported) -> u64 {
        let prefix = u64::from(self.prefix_tokens);
        let estimated = u64::from(reported.estimate_tokens.unwrap_or(self.prompt_tokens));
        match (reported.prompt_tokens, estimated.saturating_sub(prefix)) {
            (Some(counted), rest) if !self.exact && rest > 0 && tokens > prefix => {
                let counted_rest = counted.saturating_sub(prefix);
                prefix + (tokens - prefix).saturating_mul(counted_rest) / rest
            }
            _ => tokens,
        }
    }
}

impl PoolHits {
    /// Tokens of it that this prefiller can load.
    pub fn of(&self, lane: LaneId) -> u32 {
        self.anywhere_tokens.max(self.near(lane))
    }

    /// The most that some prefiller can load of it.
    pub fn most(&self) -> u32 {
        self.near.iter().map(|(_, tokens)| *tokens).fold(self.anywhere_tokens, u32::max)
    }

    fn near(&self, lane: LaneId) -> u32 {
        let found = self.near.binary_search_by_key(&lane, |(whose, _)| *whose);
        found.ok().and_then(|at| self.near.get(at)).map_or(0, |(_, tokens)| *tokens)
    }
}

impl Hit {
    /// Work that `lane` can spare a job of which it has `hbm_tokens` in its own memory; the pool
    /// counts if `pooled`.
    pub fn of(job: &Job, lane: LaneId, hbm_tokens: u32, pooled: bool) -> Hit {
        let most = job.most_spared_tokens();
        let hbm_tokens = hbm_tokens.min(most);
        if !pooled {
            return Hit { hbm_tokens, near_tokens: hbm_tokens, any_tokens: hbm_tokens };
        }
        let near_tokens = job.pool.near(lane).min(most).max(hbm_tokens);
        let any_tokens = job.pool.of(lane).min(most).max(near_tokens);
        Hit { hbm_tokens, near_tokens, any_tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_nest_and_leave_a_token_to_compute() {
        let pool =
            PoolHits { asked: true, anywhere_tokens: 80, near: SmallVec::from_slice(&[(LaneId(1), 48)]) };
        let job = Job { prompt_tokens: 80, pool, ..Job::default() };
        assert_eq!(
            Hit::of(&job, LaneId(0), 16, true),
            Hit { hbm_tokens: 16, near_tokens: 16, any_tokens: 79 }
        );
        assert_eq!(
            Hit::of(&job, LaneId(1), 16, true),
            Hit { hbm_tokens: 16, near_tokens: 48, any_tokens: 79 }
        );
        assert_eq!(
            Hit::of(&job, LaneId(1), 96, true),
            Hit { hbm_tokens: 79, near_tokens: 79, any_tokens: 79 }
        );
        assert_eq!(
            Hit::of(&job, LaneId(1), 16, false),
            Hit { hbm_tokens: 16, near_tokens: 16, any_tokens: 16 }
        );
    }

    /// As vLLM 0.32 counts with blocks of 32 tokens.
    #[test]
    fn the_last_block_of_a_prompt_of_whole_blocks_is_computed() {
        let hit = |prompt_tokens, hbm_tokens| {
            let job = Job { prompt_tokens, block_tokens: 32, exact: true, ..Job::default() };
            Hit::of(&job, LaneId(0), hbm_tokens, true).any_tokens
        };
        assert_eq!([hit(96, 96), hit(32, 32), hit(97, 96), hit(97, 64)], [64, 0, 96, 64]);
    }

    #[test]
    fn tokens_that_were_counted_are_in_the_engines_measure() {
        let job = Job { prompt_tokens: 300, prefix_tokens: 100, ..Job::default() };
        let reported =
            |prompt_tokens, estimate_tokens| Reported { prompt_tokens, cached_tokens: None, estimate_tokens };
        let measured = |tokens, reported| job.in_engine_tokens(tokens, reported);
        assert_eq!(measured(96, reported(Some(500), None)), 96);
        // The engine counts 400 tokens where 200 were estimated.
        assert_eq!(measured(150, reported(Some(500), None)), 100 + 2 * 50);
        assert_eq!(measured(150, reported(Some(500), Some(500))), 150, "corrected by what it counted");
        assert_eq!(measured(150, reported(None, None)), 150);
        assert_eq!(
            measured(150, reported(Some(50), None)),
            100,
            "a prompt that is shorter than what is known"
        );
        assert_eq!([job.counted_tokens(), Job { exact: true, ..job }.counted_tokens()], [100, 300]);
    }
}
