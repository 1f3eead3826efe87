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
        let corrected = self.lock().learn(*text_tokens, media, counted)?;
        Some(u32::try_from(corrected).unwrap_or(u32::MAX))
    }

    /// A panic elsewhere leaves the means usable.
    fn lock(&self) -> MutexGuard<'_, MediaEstimator> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
