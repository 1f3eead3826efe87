//! Tokens of the answer, as far as they are known, and the times of a stream.

use super::Ledger;
use crate::obs::Sample;

/// Shorter answers tell little about a decoder's pace.
const PACE_TOKENS: u64 = 8;

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
    pub fn pace(&self) -> Option<std::time::Duration> {
        // Of a stream that several decoders wrote none has this pace.
        let tokens = self.counted().filter(|tokens| *tokens >= PACE_TOKENS && self.resumed == 0);
        tokens.and(self.sample().tpot)
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
            // Of several prompts the tokens come side by side.
            tpot: (pace.last - pace.first)
                .checked_div(after_first)
                .filter(|_| !self.request_scope.is_whole()),
            gap_max: (pace.events > 1).then_some(pace.gap_max),
            total,
        }
    }
}
