//! The account of a request that a decoder answers alone.

use super::Ledger;
use crate::fleet::DecodeCounts;
use crate::relay::append::Alone;

/// Facts of a request without a prefill leg.
#[derive(Clone, Copy, Debug)]
pub(super) struct AloneFacts {
    /// Reason for which there is none.
    pub(super) reason: &'static str,
    /// Tokens of the prompt that its decoder is believed to hold, where it was chosen for them.
    pub(super) held_tokens: Option<u32>,
}

impl Ledger {
    /// The attempt that begins has no prefill leg, or has one with `None`.
    pub(in crate::relay) fn goes_alone(&mut self, alone: Option<&Alone>) {
        self.alone = alone.map(|alone| AloneFacts {
            reason: alone.reason,
            held_tokens: alone.seat.as_ref().map(|seat| seat.append.held_tokens),
        });
    }

    /// Counts of the decode leg, once its answer is complete. Of an answer that several decoders
    /// wrote none has them.
    pub(in crate::relay) fn decode_counts(&self) -> DecodeCounts {
        if self.resumed > 0 {
            return DecodeCounts::default();
        }
        let is_alone = self.alone.is_some();
        let cached_tokens = self.cached.filter(|_| is_alone && !self.prefilled);
        DecodeCounts { output_tokens: self.counted(), cached_tokens, is_alone }
    }

    /// Cached tokens that were predicted: of its prefiller, or of the decoder that it went to
    /// alone.
    pub(super) fn predicted_cached(&self) -> Option<u32> {
        match self.alone {
            Some(alone) => alone.held_tokens,
            None => self.chosen().map(|chosen| chosen.terms.hit.any_tokens),
        }
    }
}
