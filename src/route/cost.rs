//! Seconds that work takes: `base + per token + per pair of tokens` for what is computed, and per
//! token for what is fetched. Policies compare instances in these, and nothing but these.

use super::job::{Hit, Seconds};

/// Costs of prefills on instances of one class. All are learned from observations
/// ([`super::learn`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillCosts {
    /// A prompt of nothing: HTTP, scheduling, one step.
    pub base_s: Seconds,
    /// Each computed token: weights, mostly.
    pub per_token_s: Seconds,
    /// Each computed token times each token before it, twice: attention. Multiplied by n² − h².
    pub per_square_s: Seconds,
    /// Each token fetched from the pool's part on the same host.
    pub near_token_s: Seconds,
    /// Each token fetched from another host.
    pub far_token_s: Seconds,
}

/// Costs of one decode step, which gives each of a decoder's requests a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeCosts {
    /// A step with nobody in it.
    pub base_s: Seconds,
    /// Each request in it.
    pub per_request_s: Seconds,
    /// Each token of context of all of them.
    pub per_token_s: Seconds,
}

/// Predicted seconds of one prefill.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Service {
    /// To compute what is nowhere.
    pub prefill_s: Seconds,
    /// To fetch what is in the pool but not in the instance's own memory.
    pub restore_s: Seconds,
}

impl Default for PrefillCosts {
    /// A 70B model on eight accelerators of the 2024 class, chunked: 8 k tokens in about a second.
    /// Learning leaves them behind within a few requests; until then the order of instances is
    /// right where they are alike.
    fn default() -> Self {
        Self {
            base_s: 0.02,
            per_token_s: 1.0e-4,
            per_square_s: 6.0e-10,
            near_token_s: 8.0e-6,
            far_token_s: 1.6e-5,
        }
    }
}

impl Default for DecodeCosts {
    /// The same class: 20 ms a token alone, 40 ms among 64 requests of 4 k tokens.
    fn default() -> Self {
        Self { base_s: 0.02, per_request_s: 1.0e-4, per_token_s: 5.0e-8 }
    }
}

impl PrefillCosts {
    /// Seconds for a prompt of `prompt_tokens` of which `hit` need not be computed.
    pub fn service(&self, prompt_tokens: u32, hit: Hit) -> Service {
        let near = f64::from(hit.near_tokens - hit.hbm_tokens.min(hit.near_tokens));
        let far = f64::from(hit.any_tokens - hit.near_tokens.min(hit.any_tokens));
        Service {
            prefill_s: self.base_s + self.span(hit.any_tokens, prompt_tokens),
            restore_s: near * self.near_token_s + far * self.far_token_s,
        }
    }

    /// Seconds to compute the tokens from `start` up to `end`, without the base.
    pub fn span(&self, start: u32, end: u32) -> Seconds {
        let (start, end) = (f64::from(start.min(end)), f64::from(end));
        self.per_token_s * (end - start) + self.per_square_s * (end * end - start * start)
    }
}

impl DecodeCosts {
    /// Seconds of one step, which is the time per output token, with so many requests and tokens of
    /// context in it.
    pub fn step(&self, requests: f64, context_tokens: f64) -> Seconds {
        self.base_s + self.per_request_s * requests + self.per_token_s * context_tokens
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hit(hbm_tokens: u32, near_tokens: u32, any_tokens: u32) -> Hit {
        Hit { hbm_tokens, near_tokens, any_tokens }
    }

    #[test]
    fn a_span_is_the_sum_of_its_parts() {
        let costs = PrefillCosts::default();
        let whole = costs.span(0, 10_000);
        assert!((whole - costs.span(0, 3_000) - costs.span(3_000, 10_000)).abs() < 1e-12);
    }

    #[test]
    fn each_token_is_paid_for_once() {
        let costs = PrefillCosts {
            base_s: 0.0,
            per_token_s: 1.0,
            per_square_s: 0.0,
            near_token_s: 0.1,
            far_token_s: 0.2,
        };
        let service = costs.service(100, hit(10, 30, 60));
        assert!((service.prefill_s - 40.0).abs() < 1e-9);
        assert!((service.restore_s - (20.0 * 0.1 + 30.0 * 0.2)).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn more_prompt_never_costs_less_and_more_hits_never_more(
            n in 1u32..200_000, more in 0u32..10_000, h in 0u32..200_000, more_h in 0u32..10_000,
        ) {
            let costs = PrefillCosts::default();
            let (h, more_h) = (h.min(n - 1), more_h.min(n - 1 - h.min(n - 1)));
            let at = |n, h| costs.service(n, hit(h, h, h)).prefill_s;
            prop_assert!(at(n + more, h) >= at(n, h));
            prop_assert!(at(n, h + more_h) <= at(n, h));
        }
    }
}
