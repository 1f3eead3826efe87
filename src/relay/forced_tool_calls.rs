//! Answers that must be a call of a tool, and prefillers that can't end one after its first token.
//!
//! vLLM reads the call out of the answer. Up to 0.18 at least, its first token is none to it: it
//! answers 400 (what pydantic says of half a list), or 500 behind a reasoning parser, after it has
//! computed the prompt and set its KV aside for a decoder (vllm-project/vllm, issue 38911). Nobody
//! learns where that is, so it stays until its lease is over. A decoder alone answers such a
//! request; once that was seen, no prefiller is asked for a while.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::dialect::shape;
use crate::obs::Handoff;
use crate::relay::Relay;
use crate::relay::ask::Ask;
use crate::relay::concurrent_decode::Ended;
use crate::relay::failure::{Failure, FailureKind};
use crate::relay::legs::{DecodeEnd, PrefillEnd};
use crate::relay::refusals;

/// Engines may be newer by then.
pub const REMEMBERED: Duration = Duration::from_secs(600);

/// The metric label `reason`.
pub(super) const NAME: &str = "forced_call";

/// Until when no prefiller is asked for such an answer.
#[derive(Debug, Default)]
pub struct Forced {
    /// In the fleet's milliseconds.
    until_ms: AtomicU64,
    /// This gateway has seen it, and not told others.
    is_news: AtomicBool,
}

impl Forced {
    /// True if this gateway has seen prefillers fail, and not told others; asking makes it old.
    pub fn take_news(&self) -> bool {
        self.is_news.swap(false, Ordering::Relaxed)
    }
}

impl Relay {
    /// True if prefillers are known to fail with what this request asks for.
    pub(super) fn fails_forced(&self, ask: &Ask) -> bool {
        self.fleet.now_ms() < self.forced.until_ms.load(Ordering::Relaxed)
            && shape::forces_a_call(ask.api, &ask.body)
    }

    /// Another gateway has seen prefillers fail so: none is asked for so long.
    pub fn hear_forced(&self, time: Duration) {
        self.forced.until_ms.fetch_max(self.after(time), Ordering::Relaxed);
    }

    /// The fleet's milliseconds after this time.
    fn after(&self, time: Duration) -> u64 {
        self.fleet.now_ms() + u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    }

    /// True if a prefill that ended so may have done it for the call that its answer had to be: a
    /// decoder is to answer alone, and to refuse what is wrong with the request.
    pub(super) fn may_be_of_the_call(&self, ask: &Ask, ended: &Result<Ended, Failure>) -> bool {
        let failed = match ended {
            Ok((PrefillEnd::Refused(_), _)) => true,
            Ok(_) => false,
            Err(failure) => match failure.why {
                FailureKind::Status => true,
                FailureKind::Refused(status) => !refusals::is_of_the_engine(status),
                _ => false,
            },
        };
        failed && self.speech.now().dialect.decodes_alone() && shape::forces_a_call(ask.api, &ask.body)
    }

    /// A decoder has ended alone what a prefiller could not begin.
    pub(super) fn learn_forced(&self, end: &DecodeEnd) {
        let status = match end {
            DecodeEnd::Whole(whole) => whole.status(),
            DecodeEnd::Stream { head, .. } => head.status,
        };
        if !status.is_success() {
            return;
        }
        // What the prefiller computed nobody will fetch.
        self.meters.handoff(Handoff::Expired);
        self.forced.is_news.store(true, Ordering::Relaxed);
        if self.forced.until_ms.swap(self.after(REMEMBERED), Ordering::Relaxed) < self.fleet.now_ms() {
            tracing::warn!(
                remembered_s = REMEMBERED.as_secs(),
                "prefillers fail with answers that must call a tool, as vLLM does up to 0.18: decoders compute these prompts themselves"
            );
        }
    }
}
