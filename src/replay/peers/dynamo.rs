//! NVIDIA Dynamo's KV router: the fewest blocks to compute.
//!
//! The formula is that of `lib/kv-router/src/scheduling/selector/default.rs` of `ai-dynamo/dynamo`:
//! `prefill_load_scale · max(active prompt blocks + own blocks − credit · known blocks, 0)` and the
//! blocks that decode, of which a prefiller has none. Defaults: scale 1, credit 1 without decay,
//! temperature 0, so that the least cost wins and ties are drawn.

use super::least;
use crate::route::{Candidate, RequestFacts, TieBreak};

/// Factor of the work to be computed.
const PREFILL_LOAD_SCALE: f64 = 1.0;
/// Credit for each known token.
const OVERLAP_SCORE_CREDIT: f64 = 1.0;
/// Tokens of a block: the router's default. It scales all costs alike.
const BLOCK_TOKENS: f64 = 16.0;

/// Chooses the prefiller of the least cost.
pub fn choose(candidates: &[Candidate], asked: RequestFacts, tie_break: TieBreak) -> Option<usize> {
    least(candidates, tie_break.random, |candidate| cost(candidate, asked.prompt_tokens))
}

/// Cost in blocks.
pub(super) fn cost(candidate: &Candidate, prompt_tokens: u32) -> f64 {
    let raw_blocks = (candidate.work_tokens as f64 + f64::from(prompt_tokens)) / BLOCK_TOKENS;
    let known_blocks = f64::from(candidate.hit_tokens) / BLOCK_TOKENS;
    PREFILL_LOAD_SCALE * (raw_blocks - OVERLAP_SCORE_CREDIT * known_blocks).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three workers as on the page "Routing Concepts" of Dynamo's documentation, prefill alone:
    /// 2, 5 and 8 of 10 blocks are cached, so that 8, 5 and 2 are to be computed.
    #[test]
    fn cached_blocks_need_no_prefill() {
        let worker = |blocks: u32| Candidate { hit_tokens: 16 * blocks, ..Candidate::default() };
        let costs = [2, 5, 8].map(|blocks| cost(&worker(blocks), 160));
        assert_eq!(costs, [8.0, 5.0, 2.0]);
    }

    #[test]
    fn work_under_way_outweighs_what_is_cached() {
        let busy = Candidate { work_tokens: 1_600, hit_tokens: 800, ..Candidate::default() };
        let idle = Candidate::default();
        let asked = RequestFacts { prompt_tokens: 960, session: None };
        assert_eq!((cost(&busy, 960), cost(&idle, 960)), (110.0, 60.0));
        assert_eq!(choose(&[busy, idle], asked, TieBreak::default()), Some(1));
    }
}
