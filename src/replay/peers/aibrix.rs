//! AIBrix' policy `prefix-cache`: the longest prefix on a pod that is not too busy.
//!
//! If the busiest pod has more than twice (the mean + 1) requests, and at least 8 more than the
//! idlest, only the idlest are matched. Of those that hold a part of the prompt the one with the
//! largest share is taken, ties by requests, whose requests are at most the mean and one standard
//! deviation; if there is none, the pod with the fewest requests. Source:
//! `pkg/plugins/gateway/algorithms/prefix_cache.go` of `vllm-project/aibrix`.

use std::cmp::Reverse;

use super::least;
use crate::route::{Candidate, RequestFacts, TieBreak};

const IMBALANCE_FACTOR: f64 = 2.0;
const IMBALANCE_MIN_GAP: u32 = 8;
const STANDARD_DEVIATION_FACTOR: f64 = 1.0;

/// Chooses the pod.
pub fn choose(candidates: &[Candidate], asked: RequestFacts, tie_break: TieBreak) -> Option<usize> {
    let requests = || candidates.iter().map(|candidate| candidate.requests);
    let (fewest, most) = (requests().min()?, requests().max()?);
    let count = candidates.len() as f64;
    let mean = requests().map(f64::from).sum::<f64>() / count;
    let variance = requests().map(|n| (f64::from(n) - mean).powi(2)).sum::<f64>() / count;
    let imbalanced = f64::from(most) > IMBALANCE_FACTOR * (mean + 1.0) && most - fewest >= IMBALANCE_MIN_GAP;
    let bound = mean + STANDARD_DEVIATION_FACTOR * variance.sqrt();
    let percent =
        |candidate: &Candidate| u64::from(candidate.hit_tokens) * 100 / u64::from(asked.prompt_tokens.max(1));
    let matches = |candidate: &Candidate| {
        let matched = candidate.hit_tokens > 0 && (!imbalanced || candidate.requests == fewest);
        matched && f64::from(candidate.requests) <= bound
    };
    let rank = |candidate: &Candidate| (percent(candidate), Reverse(candidate.requests));
    match candidates.iter().filter(|candidate| matches(candidate)).map(rank).max() {
        Some(best) => {
            let taken = |candidate: &Candidate| matches(candidate) && rank(candidate) == best;
            least(candidates, tie_break.random, |candidate| if taken(candidate) { 0.0 } else { 1.0 })
        }
        None => least(candidates, tie_break.random, |candidate| f64::from(candidate.requests)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(pods: &[(u32, u32)]) -> Option<usize> {
        let pod = |(requests, hit_tokens): &(u32, u32)| Candidate {
            requests: *requests,
            hit_tokens: *hit_tokens,
            ..Candidate::default()
        };
        let pods: Vec<Candidate> = pods.iter().map(pod).collect();
        choose(&pods, RequestFacts { prompt_tokens: 1_000, session: None }, TieBreak::default())
    }

    #[test]
    fn the_longest_prefix_wins_and_requests_decide_among_equals() {
        assert_eq!(pick(&[(1, 200), (1, 700), (1, 0)]), Some(1));
        assert_eq!(pick(&[(2, 703), (1, 709), (3, 0)]), Some(1), "70 % both");
        assert_eq!(pick(&[(2, 0), (1, 0)]), Some(1));
        assert_eq!(pick(&[]), None);
    }

    #[test]
    fn a_pod_beyond_a_standard_deviation_is_passed_over() {
        // Mean 2, standard deviation 2: up to 4 requests.
        assert_eq!(pick(&[(5, 900), (0, 0), (0, 0), (3, 100)]), Some(3));
        assert_eq!(pick(&[(4, 900), (0, 0), (0, 0), (4, 100)]), Some(0));
    }

    #[test]
    fn imbalance_restricts_to_the_idlest() {
        // Mean 3.5, so that more than 9 requests are too many, and 12 is 8 above the fewest.
        assert_eq!(pick(&[(12, 0), (0, 0), (1, 900), (1, 0)]), Some(1));
        // Mean 2.75: 7 is no more than 7.5.
        assert_eq!(pick(&[(7, 0), (1, 0), (2, 900), (1, 0)]), Some(2));
    }
}
