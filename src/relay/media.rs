//! Lengths of images, sounds, films and files in prompts, as prefillers count them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::dialect::Shape;
use crate::relay::ask::Ask;
use crate::route::estimate::MediaEstimator;

/// Learned lengths of media. One for the whole fleet: its engines serve one model, or models whose
/// media are about as long.
#[derive(Debug, Default)]
pub struct MediaLengths(Mutex<MediaEstimator>);

impl MediaLengths {
    /// Estimates the length of a prompt with media anew, by what is known now.
    pub fn estimate(&self, shape: &mut Shape) {
        if !shape.media.is_empty() {
            let each = self.lock().each();
            shape.estimate_media(each);
        }
    }

    /// A prefiller counted so many tokens in a prompt. Returns the prompt's length in the measure
    /// of estimates, where the estimate was of media and is corrected by that.
    pub(super) fn learn(&self, ask: &Ask, counted: Option<u64>) -> Option<u32> {
        let counted = counted.filter(|_| !ask.job.exact)?;
        let Shape { text_tokens, media, .. } = &ask.shape;
        // What was counted here is in the engines' measure already.
        let known = u64::from(ask.job.prefix_tokens);
        let rest = text_tokens.saturating_sub(known);
        let corrected = self.lock().learn(rest, media, counted.saturating_sub(known))?;
        Some(u32::try_from(known.saturating_add(corrected)).unwrap_or(u32::MAX))
    }

    /// A panic elsewhere leaves the means usable.
    fn lock(&self) -> MutexGuard<'_, MediaEstimator> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
