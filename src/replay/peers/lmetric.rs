//! LMetric (arXiv 2603.15202): tokens to be prefilled, times requests in the batch.
//!
//! Both numbers are those with the request on the instance: what waits there and what the request
//! lacks, and the requests there and itself. So reads it `vllm-project/router`, too; the
//! `lmetric-scorer` of `llm-d/llm-d-router` leaves out what waits. It has no parameters.

use super::{least, new_tokens};
use crate::route::{Candidate, RequestFacts, TieBreak};

/// Chooses the prefiller of the least product.
pub fn choose(candidates: &[Candidate], asked: RequestFacts, tie_break: TieBreak) -> Option<usize> {
    least(candidates, tie_break.random, |candidate| cost(candidate, asked.prompt_tokens))
}

fn cost(candidate: &Candidate, prompt_tokens: u32) -> f64 {
    let tokens = candidate.work_tokens as f64 + f64::from(new_tokens(candidate, prompt_tokens));
    tokens * (f64::from(candidate.requests) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_requests_multiply() {
        let busy = Candidate { work_tokens: 500, requests: 3, hit_tokens: 900, ..Candidate::default() };
        let idle = Candidate::default();
        // (500 + 100) · 4 against 1 000 · 1.
        assert_eq!((cost(&busy, 1_000), cost(&idle, 1_000)), (2_400.0, 1_000.0));
        let asked = RequestFacts { prompt_tokens: 1_000, session: None };
        assert_eq!(choose(&[busy, idle], asked, TieBreak::default()), Some(1));
        let knows = Candidate { hit_tokens: 900, requests: 2, ..Candidate::default() };
        assert_eq!(choose(&[idle, knows], asked, TieBreak::default()), Some(1), "300 against 1 000");
    }
}
