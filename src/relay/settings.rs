//! The relay's limits and deadlines, as it uses them.

use std::time::Duration;

use crate::relay::bypass::BypassRules;
use crate::route::AppendRules;

/// Longest time that things may take and how large they may be. Filled from the configuration by
/// `app.rs`.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Rules by which prefillers are left out.
    pub skip: BypassRules,
    /// Rules by which decoders compute the rest of prompts that they remember; none do with a gap
    /// of 0.
    pub append: AppendRules,
    /// Time within which first tokens are due where neither the client nor its key says so. A
    /// request whose first token would come later is refused; zero = none is.
    pub ttft_objective: Duration,
    /// Attempts per leg.
    pub attempts: u32,
    /// First pause between attempts; doubles each time, with jitter.
    pub delay: Duration,
    /// The longest pause.
    pub delay_max: Duration,
    /// True if engines are sent a prompt's tokens in place of its text.
    pub send_ids: bool,
    /// True if streams that break are continued.
    pub resume: bool,
    /// Longest time that a pool that carries the KV may take to have a prompt before a decoder is
    /// asked; zero = it is not asked.
    pub pool_wait: Duration,
    /// For how long KV that decoders offer back is given to prefillers; zero = it is not.
    pub kept_back: Duration,
    /// Longest time that a request may wait where every decoder is busy.
    pub queue: Duration,
    /// Longest time that a request may wait for a member of a role that has just lost its last one;
    /// zero = not at all.
    pub empty_wait: Duration,
    /// Time for which a prefiller keeps KV for a decoder.
    pub lease: Duration,
    /// Longest time that a prefill whose client left may go on, so that its KV can be released
    /// properly.
    pub abandon_grace: Duration,
    /// The whole prefill leg, of a prompt of no length.
    pub prefill: Duration,
    /// Time that each 1 000 tokens of a prompt add to the leg that computes it.
    pub prefill_per_1k_tokens: Duration,
    /// One item at an encoder.
    pub encode: Duration,
    /// The decode leg of a streamed request until the first byte of its body.
    pub first_byte: Duration,
    /// The decode leg of any other request until the last byte of its answer; a request that one
    /// engine answers alone until the head of it.
    pub answer: Duration,
    /// Between two pieces of a body.
    pub gap: Duration,
    /// From the error event of a stream that broke until its connection is cut.
    pub tell: Duration,
    /// The whole request.
    pub total: Duration,
    /// Items of one request that are encoded apart.
    pub encode_items: usize,
    /// Prompts of one request that are asked one by one.
    pub prompts: usize,
    /// A prefiller's answer.
    pub prefill_reply_bytes: usize,
    /// An answer that is not streamed; it is held back until it is complete.
    pub answer_bytes: usize,
    /// One event of a stream; larger ones are passed on in pieces.
    pub frame_bytes: usize,
}

impl Settings {
    /// Time within which first tokens are due, if there is an objective.
    pub fn ttft_slo(&self) -> Option<Duration> {
        (!self.ttft_objective.is_zero()).then_some(self.ttft_objective)
    }

    /// The time of a leg that computes a prompt of so many tokens, and has `base` for all else.
    /// Never more than the whole request has.
    pub fn computing(&self, base: Duration, prompt_tokens: u64) -> Duration {
        let per_1k_ns = self.prefill_per_1k_tokens.as_nanos();
        let more_ns = per_1k_ns.saturating_mul(u128::from(prompt_tokens)) / 1_000;
        let more = Duration::from_nanos(u64::try_from(more_ns).unwrap_or(u64::MAX));
        base.saturating_add(more).min(self.total)
    }
}
