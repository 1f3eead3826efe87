//! llm-d's precise prefix scorer with load: three scores from 0 to 1, weighed 3 : 2 : 2.
//!
//! Scorers and weights are those of the guide to precise prefix routing: `precise-prefix-cache`
//! (3) is the share of the prompt that is held, `kv-cache-utilization` (2) the share of the KV
//! memory that is free, `queue` (2) the place between the longest and the shortest queue. The
//! highest sum wins and ties are drawn (`max-score-picker`). Sources:
//! `pkg/epp/framework/plugins/scheduling` of `llm-d/llm-d-router`.

use super::least;
use crate::route::{Candidate, RequestFacts, TieBreak};

const PREFIX_WEIGHT: f64 = 3.0;
const KV_WEIGHT: f64 = 2.0;
const QUEUE_WEIGHT: f64 = 2.0;
/// KV memory of the simulated prefillers, tokens: what engines report is a share of it.
const KV_TOKENS: f64 = 1_000_000.0;

/// Chooses the prefiller of the highest score.
pub fn choose(candidates: &[Candidate], asked: RequestFacts, tie_break: TieBreak) -> Option<usize> {
    let queues = || candidates.iter().map(queue);
    let (shortest, longest) = (queues().min()?, queues().max()?);
    least(candidates, tie_break.random, |candidate| -score(candidate, asked.prompt_tokens, shortest, longest))
}

/// Requests that wait: one is being computed.
fn queue(candidate: &Candidate) -> u32 {
    candidate.requests.saturating_sub(1)
}

fn score(candidate: &Candidate, prompt_tokens: u32, shortest: u32, longest: u32) -> f64 {
    let prefix = f64::from(candidate.hit_tokens) / f64::from(prompt_tokens.max(1));
    let used = (candidate.work_tokens + candidate.held_tokens) as f64 / KV_TOKENS;
    let queue = if longest == shortest {
        1.0
    } else {
        f64::from(longest - queue(candidate)) / f64::from(longest - shortest)
    };
    PREFIX_WEIGHT * prefix + KV_WEIGHT * (1.0 - used.min(1.0)) + QUEUE_WEIGHT * queue
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_scores_are_weighed() {
        let candidate =
            Candidate { requests: 3, hit_tokens: 500, work_tokens: 250_000, ..Candidate::default() };
        // 3 · 0.5 + 2 · 0.75 + 2 · (4 − 2) / 4.
        assert_eq!(score(&candidate, 1_000, 0, 4), 4.0);
        assert_eq!(score(&candidate, 1_000, 2, 2), 5.0, "equal queues all have the full score");
    }

    #[test]
    fn two_thirds_of_a_prompt_outweigh_the_longest_queue() {
        let asked = RequestFacts { prompt_tokens: 900, session: None };
        let holder = |hit_tokens| Candidate { requests: 9, hit_tokens, ..Candidate::default() };
        let pick = |hit| choose(&[holder(hit), Candidate::default()], asked, TieBreak::default());
        assert_eq!((pick(601), pick(599)), (Some(0), Some(1)));
        assert_eq!(choose(&[], asked, TieBreak::default()), None);
    }
}
