//! Shortest remaining work first, with ageing: the order of "residual-aware SJF".
//!
//! Requests that have waited 10 s go first, in the order in which they came; the others by the
//! blocks of their prompts that nobody has computed, ties in the order in which they came. It is
//! published for queues of engines (`vllm-project/vllm` #51375, `xLLM-AI/xllm` #2164, the default
//! of `residual_sjf_max_wait_ms`); here requests wait in the gateway. Where priorities weigh the
//! work, all weights are 1: traces have none. Of the prefillers with room the one of the least cost
//! by [`dynamo`] is taken.
//!
//! [`dynamo`]: super::dynamo

use std::cmp::Ordering;

use crate::replay::Seconds;
use crate::route::{Candidate, RequestFacts, TieBreak};

/// Requests that have waited so long go first.
const MAX_WAIT_S: Seconds = 10.0;
/// Tokens of a block, in which work is counted.
const BLOCK_TOKENS: u32 = 16;
/// Requests that a prefiller has at most: one that is computed, and the next. Engines have a
/// budget of tokens instead.
pub const IN_FLIGHT: u32 = 2;

/// Facts of a request that waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waiter {
    /// Time at which it came.
    pub since_s: Seconds,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Leading tokens that some prefiller holds.
    pub held_tokens: u32,
}

/// Chooses the prefiller of the least cost among those with room.
pub fn choose(candidates: &[Candidate], asked: RequestFacts, tie_break: TieBreak) -> Option<usize> {
    super::least(candidates, tie_break.random, |candidate| {
        let room = candidate.requests < IN_FLIGHT;
        if room { super::dynamo::cost(candidate, asked.prompt_tokens) } else { f64::INFINITY }
    })
}

/// Orders two that wait at `now`; the lesser goes first.
#[must_use]
pub fn order(now: Seconds, one: &Waiter, other: &Waiter) -> Ordering {
    let key = |waiter: &Waiter| {
        let aged = now - waiter.since_s >= MAX_WAIT_S;
        (!aged, if aged { 0 } else { blocks(waiter) })
    };
    key(one).cmp(&key(other)).then(one.since_s.total_cmp(&other.since_s))
}

fn blocks(waiter: &Waiter) -> u32 {
    (waiter.prompt_tokens / BLOCK_TOKENS).saturating_sub(waiter.held_tokens / BLOCK_TOKENS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn waiter(since_s: Seconds, prompt_tokens: u32, held_tokens: u32) -> Waiter {
        Waiter { since_s, prompt_tokens, held_tokens }
    }

    #[test]
    fn order_is_by_the_work_that_is_left_and_not_by_the_prompt() {
        let (short, long) = (waiter(1.0, 1_024, 0), waiter(0.0, 10_240, 9_600));
        assert_eq!(order(2.0, &long, &short), Ordering::Less, "40 blocks before 64");
        // The same number of whole blocks: who came first.
        assert_eq!(order(2.0, &waiter(0.5, 100, 0), &waiter(0.0, 111, 0)), Ordering::Greater);
    }

    #[test]
    fn those_who_waited_long_go_first_in_their_order() {
        let (large, larger, small) = (waiter(0.0, 9_000, 0), waiter(1.0, 99_000, 0), waiter(5.0, 100, 0));
        assert_eq!(order(9.9, &large, &small), Ordering::Greater);
        assert_eq!(order(10.0, &large, &small), Ordering::Less);
        assert_eq!(order(11.0, &large, &larger), Ordering::Less);
        assert_eq!(order(11.0, &larger, &small), Ordering::Less);
    }

    #[test]
    fn those_without_room_are_passed_over() {
        let asked = RequestFacts { prompt_tokens: 1_000, session: None };
        let at = |requests, hit_tokens| Candidate { requests, hit_tokens, ..Candidate::default() };
        let pick = |candidates: &[Candidate]| choose(candidates, asked, TieBreak::default());
        assert_eq!(pick(&[at(0, 0), at(1, 900)]), Some(1));
        assert_eq!(pick(&[at(0, 0), at(2, 900)]), Some(0));
    }

    proptest! {
        /// Nobody who comes after the 10 s goes before one that has waited them.
        #[test]
        fn nobody_starves(prompt in 1u32..1_000_000, other in 1u32..1_000_000, later in 0.001f64..100.0) {
            let (old, new) = (waiter(0.0, prompt, 0), waiter(later, other, 0));
            prop_assert_eq!(order(MAX_WAIT_S, &old, &new), Ordering::Less);
        }
    }
}
