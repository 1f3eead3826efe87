//! llm-d's `prefix-cache-affinity-filter`: who holds a prompt gets it until that takes too long.
//!
//! Those that hold at least 80 % of the prompt are left over, unless the best of them would take
//! 18 s longer than the best of the others; times are tokens in flight over 15 928 tokens a second.
//! Of those left the one with the fewest tokens in flight is taken (`token-load-scorer`), ties are
//! drawn. Source: `pkg/epp/framework/plugins/scheduling/filter/prefixcacheaffinity` of
//! `llm-d/llm-d-router`; the numbers are its defaults, measured by its authors on other engines.

use super::least;
use crate::route::{Candidate, RequestFacts, TieBreak};

/// Share of the prompt that makes a holder.
const AFFINITY_THRESHOLD: f64 = 0.8;
/// Longest time that holders may take more, ms.
const MAX_TTFT_PENALTY_MS: f64 = 18_000.0;
/// Tokens that an engine computes in a second.
const PEAK_PREFILL_THROUGHPUT: f64 = 15_928.0;

/// Numbers of the filter.
#[derive(Clone, Copy, Debug)]
struct StickyLimits {
    max_ttft_penalty_ms: f64,
    peak_prefill_throughput: f64,
}

/// Chooses the least loaded of those that the filter leaves.
pub fn choose(candidates: &[Candidate], asked: RequestFacts, tie_break: TieBreak) -> Option<usize> {
    let limits = StickyLimits {
        max_ttft_penalty_ms: MAX_TTFT_PENALTY_MS,
        peak_prefill_throughput: PEAK_PREFILL_THROUGHPUT,
    };
    let sticks = sticks(candidates, asked.prompt_tokens, limits);
    let left = |candidate: &Candidate| !sticks || holds(candidate, asked.prompt_tokens);
    least(candidates, tie_break.random, |candidate| {
        if left(candidate) { candidate.work_tokens as f64 } else { f64::INFINITY }
    })
}

fn holds(candidate: &Candidate, prompt_tokens: u32) -> bool {
    f64::from(candidate.hit_tokens) >= AFFINITY_THRESHOLD * f64::from(prompt_tokens)
}

/// True if holders alone are left.
fn sticks(candidates: &[Candidate], prompt_tokens: u32, limits: StickyLimits) -> bool {
    let best_ms = |holding: bool| {
        let some = candidates.iter().filter(|candidate| holds(candidate, prompt_tokens) == holding);
        let ttft_ms = |c: &Candidate| c.work_tokens as f64 / limits.peak_prefill_throughput * 1e3;
        some.map(ttft_ms).min_by(f64::total_cmp)
    };
    match (best_ms(true), best_ms(false)) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(sticky), Some(other)) => {
            limits.max_ttft_penalty_ms == 0.0 || sticky - other <= limits.max_ttft_penalty_ms
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(percent: u32, work_tokens: u64) -> Candidate {
        Candidate { hit_tokens: percent * 16, work_tokens, ..Candidate::default() }
    }

    /// The cases of the filter's own tests: prompts of 100 blocks, 1 000 tokens a second.
    #[test]
    fn the_filter_decides_as_its_authors_tests_say() {
        let sticks = |endpoints: &[Candidate], max_ttft_penalty_ms| {
            sticks(endpoints, 1_600, StickyLimits { max_ttft_penalty_ms, peak_prefill_throughput: 1e3 })
        };
        let none = [endpoint(10, 0), endpoint(20, 0), endpoint(50, 0)];
        assert!(!sticks(&none, 5_000.0), "no sticky endpoints should return all");
        let narrow = [endpoint(90, 100), endpoint(85, 120), endpoint(10, 50)];
        assert!(sticks(&narrow, 5_000.0), "should narrow to sticky endpoints");
        let two = [endpoint(90, 500), endpoint(10, 50)];
        assert!(!sticks(&two, 100.0), "throughput-derived TTFT penalty should break stickiness");
        assert!(sticks(&two, 1_000.0), "within threshold should not break stickiness");
        assert!(sticks(&[endpoint(90, 5_000), endpoint(10, 50)], 0.0), "0 should not break stickiness");
    }

    #[test]
    fn the_least_loaded_of_those_left_is_taken() {
        let asked = RequestFacts { prompt_tokens: 1_600, session: None };
        let pick = |endpoints: &[Candidate]| choose(endpoints, asked, TieBreak::default());
        assert_eq!(pick(&[endpoint(90, 100), endpoint(85, 99), endpoint(10, 0)]), Some(1));
        // 18 s at 15 928 tokens a second are 286 704 tokens.
        assert_eq!(pick(&[endpoint(90, 286_704), endpoint(10, 0)]), Some(0));
        assert_eq!(pick(&[endpoint(90, 286_705), endpoint(10, 0)]), Some(1));
    }
}
