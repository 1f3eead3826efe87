//! Formulas by which other gateways choose a prefiller, as their authors published them and with
//! their defaults: to be compared with, never to serve with.
//!
//! Each is a [`Rule`] over the loads and hits that all policies here see, so that formulas are
//! compared and not what their gateways know. Where a formula orders requests that wait, the
//! requests stand in a [`mod@line`].
//!
//! [`Rule`]: crate::route::Rule

pub mod aged_srpt;
pub mod aibrix;
pub mod dynamo;
pub mod kv_aware;
pub mod line;
pub mod llm_d_precise;
pub mod llm_d_sticky;
pub mod lmetric;
pub mod smg_queue;

use crate::route::Candidate;

/// The position of the least cost; among equals any, as `random` says.
fn least(candidates: &[Candidate], random: u64, cost: impl Fn(&Candidate) -> f64) -> Option<usize> {
    let least = candidates.iter().map(&cost).fold(f64::INFINITY, f64::min);
    let tied = || candidates.iter().enumerate().filter(|(_, candidate)| cost(candidate) <= least);
    let at = random % tied().count().max(1) as u64;
    tied().nth(at as usize).map(|(at, _)| at)
}

/// Tokens of a prompt that a candidate would have to compute.
fn new_tokens(candidate: &Candidate, prompt_tokens: u32) -> u32 {
    prompt_tokens.saturating_sub(candidate.hit_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_are_drawn_and_nobody_is_chosen_of_none() {
        let requests = |requests| Candidate { requests, ..Candidate::default() };
        let pick =
            |random| least(&[requests(2), requests(1), requests(1)], random, |c| f64::from(c.requests));
        assert_eq!([pick(0), pick(1), pick(2)], [Some(1), Some(2), Some(1)]);
        assert_eq!(least(&[], 0, |_| 0.0), None);
    }
}
