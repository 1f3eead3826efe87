//! Choice of the decoder: the one where a request does the least harm to all its requests, itself
//! included.

use super::choose::{Candidate, Policy, RequestFacts, Standing, TieBreak, choose};
use super::cost::DecodeCosts;
use super::job::{Job, Seconds};

/// A decoder, or one data-parallel rank of one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DecodeCandidate {
    /// Requests on it.
    pub running: u32,
    /// Tokens of context that they have and will have.
    pub kv_tokens: u64,
    /// Tokens that fit; 0 = unknown.
    pub kv_capacity_tokens: u64,
    /// Leading tokens of the prompt that it is believed to hold, which need not be transferred.
    pub held_tokens: u32,
    /// Seconds for which it has prompts to compute, between the steps of its requests.
    pub appends_s: Seconds,
    /// Seconds by which the prompt's KV comes later than from the same prefiller to others.
    pub late_s: Seconds,
    /// Something that stays its own when others come and go.
    pub identity: u64,
    /// Standing of the decoder.
    pub standing: Standing,
}

/// Beyond this share of the KV memory, requests begin to wait or to push each other out.
pub(super) const FULL: f64 = 0.9;
/// Seconds of harm for each share of the KV memory beyond that, for each token: prohibitive, but in
/// order.
const FULL_HARM_S: Seconds = 100.0;
/// Set-up of a transfer from prefiller to decoder.
pub(super) const HANDOFF_S: Seconds = 0.005;
/// Each token of it: 320 KiB, as of a 70B model, at 80 GB/s.
pub(super) const HANDOFF_TOKEN_S: Seconds = 4.0e-6;

/// Seconds until a prompt's KV is on a decoder that holds so many of its tokens.
#[must_use]
pub fn handoff_s(prompt_tokens: u32, held_tokens: u32) -> Seconds {
    HANDOFF_S + HANDOFF_TOKEN_S * f64::from(prompt_tokens.saturating_sub(held_tokens))
}

/// Predicted harm in seconds per token of everybody's answer: what the others lose with each step,
/// and what the request's own steps take.
pub fn harm(costs: &DecodeCosts, candidate: &DecodeCandidate, job: &Job) -> Seconds {
    let others = f64::from(candidate.running);
    let context = candidate.kv_tokens as f64;
    let own = f64::from(job.prompt_tokens) + f64::from(job.output_tokens);
    let to_others = (costs.per_request_s + costs.per_token_s * own) * others;
    let to_itself = costs.per_request_s * (others + 1.0) + costs.per_token_s * (context + own);
    let over = match candidate.kv_capacity_tokens {
        0 => 0.0,
        capacity => ((context + own) / capacity as f64 - FULL).max(0.0),
    };
    to_others + to_itself + FULL_HARM_S * over
}

/// The harm over the whole answer, less what is spared the request as it is there already. Prompts
/// that are computed there delay it, and so does a slow link.
fn total_harm_s(costs: &DecodeCosts, candidate: &DecodeCandidate, job: &Job) -> Seconds {
    let spared_s = HANDOFF_TOKEN_S * f64::from(candidate.held_tokens.min(job.prompt_tokens));
    let delay_s = candidate.appends_s + candidate.late_s;
    harm(costs, candidate, job) * f64::from(job.output_tokens.max(1)) + delay_s - spared_s
}

/// The position of the chosen decoder, `None` when there is none. Those of a worse standing are
/// chosen only when there are no others.
pub fn choose_decoder(
    policy: Policy,
    costs: &DecodeCosts,
    candidates: &[DecodeCandidate],
    job: &Job,
    tie_break: TieBreak,
) -> Option<usize> {
    if policy == Policy::Predicted {
        let best = candidates.iter().map(|c| c.standing).min()?;
        let usable = || candidates.iter().enumerate().filter(|(_, c)| c.standing == best);
        let harms = || usable().map(|(at, c)| (at, total_harm_s(costs, c, job)));
        let least = harms().map(|(_, harm)| harm).fold(f64::INFINITY, f64::min);
        let tied = || harms().filter(|(_, harm)| *harm <= least);
        let turn = usize::try_from(tie_break.turn % tied().count().max(1) as u64).unwrap_or(0);
        return tied().nth(turn).map(|(at, _)| at);
    }
    // Prefixes say nothing about decoders.
    let policy = match policy {
        Policy::CacheAware => Policy::LeastRequests,
        other => other,
    };
    let loads: smallvec::SmallVec<[Candidate; 32]> = candidates.iter().map(DecodeCandidate::load).collect();
    choose(policy, &loads, RequestFacts { prompt_tokens: job.prompt_tokens, session: job.session }, tie_break)
}

impl DecodeCandidate {
    fn load(&self) -> Candidate {
        Candidate {
            work_tokens: self.kv_tokens,
            requests: self.running,
            identity: self.identity,
            standing: self.standing,
            ..Candidate::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidate(running: u32, kv_tokens: u64, kv_capacity_tokens: u64) -> DecodeCandidate {
        DecodeCandidate { running, kv_tokens, kv_capacity_tokens, ..DecodeCandidate::default() }
    }

    fn job(prompt_tokens: u32, output_tokens: u32) -> Job {
        Job { prompt_tokens, output_tokens, ..Job::default() }
    }

    fn pick(candidates: &[DecodeCandidate], job: &Job, turn: u64) -> Option<usize> {
        choose_decoder(
            Policy::Predicted,
            &DecodeCosts::default(),
            candidates,
            job,
            TieBreak { turn, random: 0 },
        )
    }

    #[test]
    fn a_long_context_goes_where_few_suffer_and_equals_rotate() {
        let few = candidate(2, 200_000, 0);
        let many = candidate(50, 100_000, 0);
        assert_eq!(pick(&[many, few], &job(100_000, 100), 0), Some(1));
        let same = candidate(3, 3_000, 0);
        assert_eq!(pick(&[same, same], &job(10, 10), 0), Some(0));
        assert_eq!(pick(&[same, same], &job(10, 10), 1), Some(1));
        assert_eq!(pick(&[], &job(10, 10), 1), None);
    }

    #[test]
    fn full_ones_are_avoided_and_the_emptiest_of_full_ones_is_taken() {
        let full = candidate(1, 95_000, 100_000);
        let crowded = candidate(100, 50_000, 100_000);
        assert_eq!(pick(&[full, crowded], &job(1_000, 100), 0), Some(1));
        let fuller = candidate(1, 99_000, 100_000);
        assert_eq!(pick(&[fuller, full], &job(1_000, 100), 0), Some(1));
    }

    #[test]
    fn slow_link_counts_as_the_seconds_that_it_takes_longer() {
        let far = DecodeCandidate { late_s: 0.3, ..candidate(0, 0, 0) };
        assert_eq!(pick(&[far, candidate(1, 9_000, 0)], &job(8_000, 100), 0), Some(1));
        assert_eq!(pick(&[far, candidate(30, 270_000, 0)], &job(8_000, 100), 0), Some(0), "the load decides");
    }

    #[test]
    fn failed_decoder_is_chosen_last() {
        let idle = DecodeCandidate { standing: Standing::Tried, ..candidate(0, 0, 0) };
        assert_eq!(pick(&[idle, candidate(9, 9_000, 0)], &job(1, 1), 0), Some(1));
        assert_eq!(pick(&[idle], &job(1, 1), 0), Some(0));
    }

    proptest! {
        #[test]
        fn harm_grows_with_everything(
            running in 0u32..500, kv in 0u64..2_000_000, n in 1u32..100_000, more in 1u32..1_000,
        ) {
            let costs = DecodeCosts::default();
            let at = |running, kv, n| harm(&costs, &candidate(running, kv, 1_000_000), &job(n, 100));
            let here = at(running, kv, n);
            prop_assert!(at(running + more, kv, n) > here);
            prop_assert!(at(running, kv + u64::from(more), n) >= here);
            prop_assert!(at(running, kv, n + more) >= here);
        }
    }
}
