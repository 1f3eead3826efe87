//! Decides when a decoder had better compute a prompt itself: it is short, or nearly all of it is
//! in the pool; or prefillers are not there, or far behind. Only by exact token counts: a guess
//! must not cost a decoder's users a long prefill.

use std::time::Duration;

use crate::fleet::{Fleet, Role};
use crate::relay::ask::Ask;

/// Rules by which prefillers are left out; none by default, since decoders need not be able to
/// prefill.
#[derive(Clone, Copy, Debug, Default)]
pub struct BypassRules {
    /// Of prompts of which no more tokens than this must be computed; 0 = of none.
    pub tokens: u32,
    /// Wait for a prefiller beyond which it is left out; zero = never.
    pub wait: Duration,
    /// While there is no prefiller.
    pub without_prefiller: bool,
}

/// Reasons why a request has no prefill leg though it could have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Little is to be computed.
    Short,
    /// There is no prefiller.
    NoPrefiller,
    /// All prefillers are far behind.
    Saturated,
    /// No prefiller and decoder of one release are left.
    OtherRelease,
}

impl Reason {
    /// The value of the metric label `reason`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::NoPrefiller => "no_prefiller",
            Self::Saturated => "saturated",
            Self::OtherRelease => "other_release",
        }
    }
}

impl BypassRules {
    /// Reason for leaving prefillers out, if there is one.
    pub fn reason(&self, ask: &Ask, fleet: &Fleet) -> Option<Reason> {
        if fleet.has_no_equal_pair() {
            return Some(Reason::OtherRelease);
        }
        if self.without_prefiller && fleet.serving(Role::Prefill) == 0 {
            return Some(Reason::NoPrefiller);
        }
        let job = &ask.job;
        if !job.exact {
            return None;
        }
        // A decoder fetches from the pool as a prefiller does, if the pool is believed; of what
        // prefillers, or their hosts, keep for themselves it has nothing.
        let pooled = || if fleet.scheduler().beliefs().named { job.pool.anywhere_tokens } else { 0 };
        if self.tokens > 0 && job.prompt_tokens.saturating_sub(pooled()) <= self.tokens {
            return Some(Reason::Short);
        }
        let wait_s = || fleet.scheduler().wait_s();
        let saturated = !self.wait.is_zero() && wait_s().is_some_and(|s| s > self.wait.as_secs_f64());
        saturated.then_some(Reason::Saturated)
    }
}
