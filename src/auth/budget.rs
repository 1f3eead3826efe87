//! Tokens per minute, as a bucket that fills steadily. Time is an argument.
//!
//! A request is admitted if the bucket holds its reservation, or is full if the reservation is
//! larger. The tokens that it really took are settled when it ends. They may leave the level
//! negative: later requests then wait for longer.

use std::time::Duration;

use tokio::time::Instant;

use super::Level;

const MINUTE_S: f64 = 60.0;
/// With each request those before count for so much less in the mean of tokens per byte.
const FADING: f64 = 0.75;

/// The token bucket, which is full at the start.
#[derive(Debug)]
pub struct Budget {
    per_minute: f64,
    tokens: f64,
    /// Time at which `tokens` was right.
    as_of: Option<Instant>,
    prompts: Prompts,
}

/// Sizes of the last prompts, the older the less.
#[derive(Debug, Default)]
struct Prompts {
    bytes: f64,
    tokens: f64,
}

impl Budget {
    /// A full one; `per_minute` is at least 1.
    pub fn full(per_minute: u64) -> Budget {
        let per_minute = per_minute.max(1) as f64;
        Budget { per_minute, tokens: per_minute, as_of: None, prompts: Prompts::default() }
    }

    /// Another size from now on; what is in it stays, as far as it fits.
    pub fn set_per_minute(&mut self, per_minute: u64) {
        self.per_minute = per_minute.max(1) as f64;
        self.tokens = self.tokens.min(self.per_minute);
    }

    /// Takes `tokens` out.
    ///
    /// # Errors
    /// The time until they will be there, if they are not; nothing is taken then.
    pub fn take(&mut self, tokens: u64, now: Instant) -> Result<(), Duration> {
        self.fill(now);
        let lacking = (tokens as f64).min(self.per_minute) - self.tokens;
        if lacking > 0.0 {
            return Err(self.time_for(lacking));
        }
        self.tokens -= tokens as f64;
        Ok(())
    }

    /// Corrects the level: `reserved` tokens were taken, and `used` were needed.
    pub fn settle(&mut self, reserved: u64, used: u64, now: Instant) {
        self.fill(now);
        self.tokens = (self.tokens + reserved as f64 - used as f64).min(self.per_minute);
    }

    /// A prompt in a body of so many bytes had so many tokens.
    pub fn learn(&mut self, bytes: usize, tokens: u64) {
        self.prompts.bytes = self.prompts.bytes * FADING + bytes as f64;
        self.prompts.tokens = self.prompts.tokens * FADING + tokens as f64;
    }

    /// Tokens of the prompt in a body of so many bytes, by those before: a key that sends images
    /// has few tokens in many bytes. `None` where there were none.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and saturates")]
    pub fn expected(&self, bytes: u64) -> Option<u64> {
        let Prompts { bytes: known, tokens } = self.prompts;
        (known > 0.0).then(|| (bytes as f64 * tokens / known).max(1.0) as u64)
    }

    /// Tokens in it at `now`; negative if more were used than it had.
    pub fn tokens(&mut self, now: Instant) -> f64 {
        self.fill(now);
        self.tokens
    }

    /// Another size and level from `now` on.
    pub fn reset(&mut self, per_minute: u64, tokens: f64, now: Instant) {
        self.per_minute = per_minute.max(1) as f64;
        self.tokens = tokens.min(self.per_minute);
        self.as_of = Some(now);
    }

    /// The bucket's level at `now`.
    pub fn level(&mut self, now: Instant) -> Level {
        self.fill(now);
        Level {
            // Both are whole numbers and not negative here.
            limit: self.per_minute as u64,
            remaining: self.tokens.max(0.0) as u64,
            full_in: self.time_for(self.per_minute - self.tokens),
        }
    }

    fn fill(&mut self, now: Instant) {
        let since = self.as_of.map_or(Duration::ZERO, |as_of| now.saturating_duration_since(as_of));
        self.as_of = self.as_of.max(Some(now));
        let gained = since.as_secs_f64() * self.per_minute / MINUTE_S;
        self.tokens = (self.tokens + gained).min(self.per_minute);
    }

    /// Time in which so many tokens come.
    pub fn time_for(&self, tokens: f64) -> Duration {
        Duration::try_from_secs_f64(tokens.max(0.0) * MINUTE_S / self.per_minute).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_empty_bucket_says_when_to_come_back() {
        let (mut budget, start) = (Budget::full(600), Instant::now());
        assert_eq!(budget.take(600, start), Ok(()));
        assert_eq!(budget.take(50, start), Err(5 * SECOND));
        assert_eq!(budget.take(50, start + 4 * SECOND), Err(SECOND));
        assert_eq!(budget.take(50, start + 5 * SECOND), Ok(()));
        assert_eq!(budget.level(start + 3600 * SECOND).remaining, 600, "never more than a minute's");
    }

    #[test]
    fn settlement_charges_the_tokens_used() {
        let (mut budget, now) = (Budget::full(1_000), Instant::now());
        assert_eq!(budget.take(700, now), Ok(()));
        budget.settle(700, 100, now);
        assert_eq!(budget.level(now).remaining, 900);
        assert_eq!(budget.take(100, now), Ok(()));
        budget.settle(100, 2_000, now);
        let level = budget.level(now);
        assert_eq!((level.remaining, level.limit), (0, 1_000));
        assert_eq!(budget.take(1, now), Err(Duration::from_secs_f64(1_101.0 * 0.06)), "a debt is waited for");
        budget.settle(2_000, 0, now);
        assert_eq!(budget.level(now).full_in, 6 * SECOND, "all but what was used before");
    }

    #[test]
    fn a_request_larger_than_the_bucket_waits_for_a_full_one() {
        let (mut budget, now) = (Budget::full(60), Instant::now());
        assert_eq!(budget.take(1, now), Ok(()));
        assert_eq!(budget.take(1_000, now), Err(SECOND));
        assert_eq!(budget.take(1_000, now + SECOND), Ok(()));
        assert_eq!(budget.take(1, now + SECOND), Err(941 * SECOND));
    }

    #[test]
    fn a_body_is_expected_to_have_as_many_tokens_for_its_bytes_as_those_before() {
        let mut budget = Budget::full(60);
        assert_eq!(budget.expected(4_000), None);
        budget.learn(4_000, 1_000);
        assert_eq!((budget.expected(400), budget.expected(0)), (Some(100), Some(1)));
        for _ in 0..20 {
            budget.learn(1_000_000, 1_000);
        }
        assert!(budget.expected(1_000_000).is_some_and(|tokens| (999..1_010).contains(&tokens)));
        for _ in 0..50 {
            budget.learn(4_000, 1_000);
        }
        assert!(budget.expected(4_000).is_some_and(|tokens| (990..=1_000).contains(&tokens)), "{budget:?}");
    }

    #[test]
    fn a_clock_that_steps_back_fills_nothing_twice() {
        let (mut budget, start) = (Budget::full(60), Instant::now());
        assert_eq!(budget.take(60, start + 10 * SECOND), Ok(()));
        assert_eq!(budget.level(start).remaining, 0);
        assert_eq!(budget.level(start + 11 * SECOND).remaining, 1);
    }
}
