//! The policy `kv_aware` of vllm-router 0.1.17: the fewest tokens to prefill.
//!
//! The formula is that of `src/policies/kv_aware.rs` of `vllm-project/router`: tokens of prefills
//! that are active, and those of the request that no credit covers. A token in the accelerator's
//! memory has a credit of 1; the last token of a prompt has none. Ties take turns.

use crate::route::{Candidate, RequestFacts, TieBreak};

/// Chooses the prefiller with the least work.
pub fn choose(candidates: &[Candidate], asked: RequestFacts, tie_break: TieBreak) -> Option<usize> {
    super::least(candidates, tie_break.turn, |candidate| cost(candidate, asked.prompt_tokens))
}

fn cost(candidate: &Candidate, prompt_tokens: u32) -> f64 {
    let credits = candidate.hit_tokens.min(prompt_tokens.saturating_sub(1));
    candidate.work_tokens as f64 + f64::from(prompt_tokens - credits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_token_is_never_credited() {
        let knows_all = Candidate { hit_tokens: 1_000, ..Candidate::default() };
        assert_eq!(cost(&knows_all, 1_000), 1.0);
        assert_eq!(cost(&Candidate { work_tokens: 70, hit_tokens: 640, ..knows_all }, 1_000), 430.0);
    }

    #[test]
    fn the_least_work_wins_and_equals_take_turns() {
        let asked = RequestFacts { prompt_tokens: 1_000, session: None };
        let at = |work_tokens, hit_tokens| Candidate { work_tokens, hit_tokens, ..Candidate::default() };
        let pick =
            |turn| choose(&[at(900, 900), at(0, 0), at(500, 500)], asked, TieBreak { turn, random: 0 });
        assert_eq!([pick(0), pick(1), pick(2)], [Some(0), Some(1), Some(2)]);
        assert_eq!(choose(&[at(0, 0), at(100, 512)], asked, TieBreak::default()), Some(1));
    }
}
