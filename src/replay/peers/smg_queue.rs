//! smg's prefill queue: requests wait in the gateway, first come first served, until a prefiller
//! has fewer than so many; the policy chooses among those that have room.
//!
//! Source: the admission of prefills of smg 1.13 (`--prefill-max-inflight-requests-per-worker`,
//! `--prefill-queue-size`), a strict line whose head alone chooses, here with the policy
//! `cache_aware` as the default is. The limit is off by default; [`IN_FLIGHT`] is ours.

use crate::route::{Candidate, Policy, RequestFacts, Standing, TieBreak, choose as choose_by};

/// Requests that a prefiller has at most: one that is computed, and the next.
pub const IN_FLIGHT: u32 = 2;

/// Chooses by `cache_aware` among those with room.
pub fn choose(candidates: &[Candidate], asked: RequestFacts, tie_break: TieBreak) -> Option<usize> {
    let with_room = |candidate: &Candidate| Candidate {
        standing: if candidate.requests < IN_FLIGHT { Standing::Good } else { Standing::Full },
        ..*candidate
    };
    let candidates: Vec<Candidate> = candidates.iter().map(with_room).collect();
    choose_by(Policy::CacheAware, &candidates, asked, tie_break)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_without_room_are_passed_over() {
        let asked = RequestFacts { prompt_tokens: 1_000, session: None };
        let at = |requests, hit_tokens| Candidate { requests, hit_tokens, ..Candidate::default() };
        let pick = |candidates: &[Candidate]| choose(candidates, asked, TieBreak::default());
        assert_eq!(pick(&[at(1, 900), at(0, 0)]), Some(0));
        assert_eq!(pick(&[at(2, 900), at(0, 0)]), Some(1));
    }
}
