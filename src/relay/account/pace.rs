//! Tokens of the answer, as far as they are known, and the times of a stream.

use std::time::Duration;

use super::Ledger;
use crate::obs::Sample;

/// Shorter answers tell little about a decoder's pace.
const PACE_TOKENS: u64 = 8;
/// The same of answers that come as a whole, whose time contains the transfer of the prompt's KV.
const WHOLE_TOKENS: u64 = 64;

impl Ledger {
    /// Generated tokens: as reported, or told from the number of events.
    pub(super) fn tokens(&self) -> Option<u64> {
        self.output.or_else(|| Some(self.expected.in_events(self.api.tokens_in(self.stream?.events)?)))
    }

    /// The same, if that is exact enough to divide by.
    pub(super) fn counted(&self) -> Option<u64> {
        self.tokens().filter(|_| self.output.is_some() || !self.expected.packs())
    }

    /// Mean time per token of a stream that is long enough to tell.
    pub fn pace(&self) -> Option<Duration> {
        // Of a stream that several decoders wrote none has this pace.
        let tokens = self.counted().filter(|tokens| *tokens >= PACE_TOKENS && self.resumed == 0);
        tokens.and(self.sample().tpot)
    }

    /// Mean time per token of an answer that came as a whole so long after its hand-off, if it is
    /// long enough for the transfer not to count.
    pub fn pace_of_whole(&self, took: Duration) -> Option<Duration> {
        let tells = |tokens: &u64| *tokens >= WHOLE_TOKENS && self.resumed == 0 && !self.is_side_by_side();
        let tokens = self.output.filter(tells)?;
        took.checked_div(u32::try_from(tokens).ok()?)
    }

    /// True if tokens of several prompts or answers come side by side.
    fn is_side_by_side(&self) -> bool {
        self.request_scope.is_whole() || self.expected.has_several_answers()
    }

    pub(super) fn sample(&self) -> Sample {
        let total = self.arrived.elapsed();
        let Some(pace) = self.stream else {
            return Sample { total, ..Sample::default() };
        };
        let tokens = self.counted().unwrap_or(0);
        let after_first = u32::try_from(tokens.saturating_sub(1)).unwrap_or(u32::MAX);
        Sample {
            ttft: Some(pace.first - self.arrived),
            tpot: (pace.last - pace.first).checked_div(after_first).filter(|_| !self.is_side_by_side()),
            gap_max: (pace.events > 1).then_some(pace.gap_max),
            total,
        }
    }
}
