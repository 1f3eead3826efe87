//! Work in tokens, estimated from bytes until the tokenizer tells exactly.
//!
//! Media are no text: an image of a megabyte has a thousand tokens, not a quarter of a million. So
//! their bytes are left out, and each counts as many tokens as others of its kind were counted to
//! have by the engines ([`MediaEstimator`]).

/// Bytes of a request's text per token: the rule of thumb that the reference proxies use as well.
const BYTES_PER_TOKEN: u64 = 4;

/// Assumed output of a request that sets no limit: longer than a tool call, shorter than an essay.
const UNKNOWN_OUTPUT_TOKENS: u64 = 256;

/// A request that asks for more is not taken at its word: clients set generous caps and stop early.
pub const BELIEVED_OUTPUT_TOKENS: u64 = 1024;

/// Images whose size in pixels is not known, sounds, films and files.
const MAIN_KINDS: usize = 4;
/// Sizes of images whose pixels are known: each is of twice as many as the one before it.
const IMAGE_SIZES: usize = 11;
/// Kinds of media that are counted apart: the main ones, and images by their size.
pub const KINDS: usize = MAIN_KINDS + IMAGE_SIZES;
/// Binary logarithm of the pixels of the smallest size: 128 by 128. The largest has 16 megapixels.
const LEAST_SIZE: u32 = 14;
/// Tokens of each kind until engines have counted some: an image of a megapixel in patches of 28
/// pixels, half a minute of sound, some dozens of frames, a few pages; and images by their patches.
const MEDIUM_TOKENS: [u32; KINDS] =
    [1024, 768, 4096, 4096, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 16_384];
/// The most tokens that are believed of one medium: a context window's worth.
const MOST_MEDIUM_TOKENS: f64 = 1_048_576.0;
/// Least weight of one observation in a mean.
const LEAST_STEP: f64 = 0.1;
/// Text that is shorter tells nothing about tokens per byte: most of its bytes are JSON.
const LEAST_TEXT_TOKENS: u64 = 64;
/// Range of the engines' tokens per estimated token, either way: scripts with one token per byte,
/// and long runs of equal characters.
const TEXT_RATIO_RANGE: f64 = 64.0;

/// Media of one prompt, and their assumed lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaEstimate {
    /// Number of each kind.
    pub counts: [u16; KINDS],
    /// Tokens of one of each kind.
    pub each: [u32; KINDS],
}

/// Learned lengths of media, in the measure of estimates: tokens of text that are as much work.
#[derive(Clone, Debug)]
pub struct MediaEstimator {
    each: [f64; KINDS],
    /// Observations of each, up to the number from which the least step counts.
    seen: [f64; KINDS],
    /// Tokens that engines count for each estimated token of text.
    text_ratio: f64,
    texts: f64,
}

/// Kind of an image of so many pixels.
pub fn image_kind(pixels: u64) -> usize {
    let size = pixels.max(1).ilog2().saturating_sub(LEAST_SIZE) as usize;
    MAIN_KINDS + size.min(IMAGE_SIZES - 1)
}

/// Prompt tokens of `body_bytes` of text.
pub fn prompt_tokens(body_bytes: usize) -> u64 {
    (body_bytes as u64 / BYTES_PER_TOKEN).max(1)
}

/// Tokens that the answer is expected to have, given the client's `max_tokens`.
pub fn output_tokens(max_tokens: Option<u64>) -> u64 {
    max_tokens.map_or(UNKNOWN_OUTPUT_TOKENS, |m| m.clamp(1, BELIEVED_OUTPUT_TOKENS))
}

impl Default for MediaEstimate {
    /// There are none.
    fn default() -> Self {
        MediaEstimate { counts: [0; KINDS], each: MEDIUM_TOKENS }
    }
}

impl MediaEstimate {
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.counts == [0; KINDS]
    }

    /// Tokens of all of them.
    pub fn tokens(&self) -> u64 {
        let each = self.counts.iter().zip(self.each);
        each.map(|(count, tokens)| u64::from(*count) * u64::from(tokens)).sum()
    }
}

impl Default for MediaEstimator {
    fn default() -> Self {
        MediaEstimator { each: MEDIUM_TOKENS.map(f64::from), seen: [0.0; KINDS], text_ratio: 1.0, texts: 0.0 }
    }
}

impl MediaEstimator {
    /// Tokens of one of each kind, as known now.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded when it is learned")]
    pub fn each(&self) -> [u32; KINDS] {
        self.each.map(|tokens| tokens.round() as u32)
    }

    /// An engine counted `counted` tokens in a prompt whose text was estimated to have
    /// `text_tokens`, and that has these media. Returns the prompt's length in the measure of
    /// estimates, where it has some.
    pub fn learn(&mut self, text_tokens: u64, media: &MediaEstimate, counted: u64) -> Option<u64> {
        if counted == 0 {
            return None;
        }
        if media.is_empty() {
            self.learn_text(text_tokens, counted);
            return None;
        }
        let measured = counted as f64 / self.text_ratio;
        let of_media = (measured - text_tokens as f64).max(1.0);
        let expected: f64 =
            self.each.iter().zip(media.counts).map(|(each, count)| each * f64::from(count)).sum();
        for (at, each) in self.each.iter_mut().enumerate().filter(|(at, _)| media.counts[*at] > 0) {
            // Of several kinds in one prompt each is taken to be wrong by the same factor.
            let seen = *each * of_media / expected.max(1.0);
            self.seen[at] += 1.0;
            *each += step(self.seen[at]) * (seen - *each);
            *each = each.clamp(1.0, MOST_MEDIUM_TOKENS);
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and saturates"
        )]
        Some(measured.round().max(1.0) as u64)
    }

    fn learn_text(&mut self, text_tokens: u64, counted: u64) {
        if text_tokens < LEAST_TEXT_TOKENS {
            return;
        }
        let seen = (counted as f64 / text_tokens as f64).clamp(1.0 / TEXT_RATIO_RANGE, TEXT_RATIO_RANGE);
        self.texts += 1.0;
        self.text_ratio *= (seen / self.text_ratio).powf(step(self.texts));
    }
}

/// Weight of one more observation in the mean of so many, the oldest of which are forgotten.
fn step(seen: f64) -> f64 {
    (1.0 / seen).max(LEAST_STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_never_zero_and_never_absurd() {
        assert_eq!(prompt_tokens(0), 1);
        assert_eq!(prompt_tokens(400), 100);
        assert_eq!(output_tokens(None), 256);
        assert_eq!(output_tokens(Some(0)), 1);
        assert_eq!(output_tokens(Some(1_000_000)), 1024);
    }

    fn media(main: [u16; MAIN_KINDS], estimator: &MediaEstimator) -> MediaEstimate {
        let mut counts = [0; KINDS];
        counts[..MAIN_KINDS].copy_from_slice(&main);
        MediaEstimate { counts, each: estimator.each() }
    }

    #[test]
    fn images_are_learned_by_their_size() {
        let square = |side: u64| image_kind(side * side);
        assert_eq!([0, 1, 127, 128, 181, 182, 1_024, 100_000].map(square), [4, 4, 4, 4, 4, 5, 10, 14]);
        assert!((MAIN_KINDS..KINDS).contains(&image_kind(u64::MAX)));
        let mut estimator = MediaEstimator::default();
        let mut one = MediaEstimate::default();
        one.counts[square(1_024)] = 1;
        estimator.learn(100, &one, 500);
        let mut expected = MEDIUM_TOKENS;
        expected[square(1_024)] = 400;
        assert_eq!(estimator.each(), expected);
    }

    #[test]
    fn engines_counts_correct_the_length_of_media() {
        let mut estimator = MediaEstimator::default();
        let image = |estimator: &MediaEstimator| media([1, 0, 0, 0], estimator);
        assert_eq!(image(&estimator).tokens(), 1024);
        let now = image(&estimator);
        assert_eq!(estimator.learn(100, &now, 2_600), Some(2_600));
        assert_eq!(image(&estimator).tokens(), 2_500, "the first one counts in whole");
        for _ in 0..60 {
            let now = image(&estimator);
            estimator.learn(100, &now, 600);
        }
        assert!(image(&estimator).tokens().abs_diff(500) < 10, "{:?}", estimator.each());
        // Another kind is another matter.
        assert_eq!(estimator.each()[1..], MEDIUM_TOKENS[1..]);
        let mixed = media([2, 1, 0, 0], &estimator);
        estimator.learn(1, &mixed, 2 * mixed.tokens());
        assert!(estimator.each()[1] > MEDIUM_TOKENS[1]);
        // An engine that counts nothing, or less than the text, leaves something to count.
        assert_eq!(estimator.learn(100, &mixed, 0), None);
        for _ in 0..99 {
            assert!(estimator.learn(1_000, &mixed, 3).is_some());
        }
        assert!(estimator.each().iter().all(|each| *each >= 1));
    }

    #[test]
    fn media_count_in_the_measure_of_text() {
        // A script of which four bytes are two tokens: an image of 1 000 tokens is as much work as
        // 2 000 bytes of it, which are estimated to have 500.
        let mut estimator = MediaEstimator::default();
        let none = MediaEstimate::default();
        for _ in 0..50 {
            assert_eq!(estimator.learn(1_000, &none, 2_000), None);
        }
        estimator.learn(10, &none, 900);
        let now = media([1, 0, 0, 0], &estimator);
        assert_eq!(estimator.learn(100, &now, 1_200), Some(600));
        assert_eq!(estimator.each()[0], 500);
    }
}
