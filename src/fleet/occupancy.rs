//! Load of a decoder as the mean over time. Between the first and the last token of a stream others
//! come and go; what there was at either end says little of the steps in between.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// Requests of a decoder and their tokens, added up over time.
#[derive(Debug, Default)]
pub(super) struct Occupancy(Mutex<Sums>);

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    requests: f64,
    tokens: f64,
    total: Total,
}

/// Sums up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Total {
    /// None before the first request.
    at: Option<Instant>,
    request_s: f64,
    token_s: f64,
}

/// Mean load over a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct MeanLoad {
    /// Requests in its batch.
    pub(super) requests: f64,
    /// Their tokens of context.
    pub(super) context_tokens: f64,
}

impl Occupancy {
    fn sums(&self, now: Instant) -> MutexGuard<'_, Sums> {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Sums { requests, tokens, total } = &mut *sums;
        let passed_s = total.at.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        total.request_s += *requests * passed_s;
        total.token_s += *tokens * passed_s;
        total.at = total.at.max(Some(now));
        sums
    }

    /// A request with so many tokens comes.
    pub(super) fn enter(&self, now: Instant, tokens: u64) {
        let mut sums = self.sums(now);
        sums.requests += 1.0;
        sums.tokens += tokens as f64;
    }

    /// A request with so many tokens leaves.
    pub(super) fn leave(&self, now: Instant, tokens: u64) {
        let mut sums = self.sums(now);
        sums.requests -= 1.0;
        sums.tokens -= tokens as f64;
    }

    /// The sums until now.
    pub(super) fn total(&self, now: Instant) -> Total {
        self.sums(now).total
    }
}

impl Total {
    /// The mean load from `before` until this; None if no time has passed.
    pub(super) fn mean_since(self, before: Total) -> Option<MeanLoad> {
        let passed_s = self.at?.saturating_duration_since(before.at?).as_secs_f64();
        let mean = |sum_s: f64| (sum_s / passed_s).max(0.0);
        (passed_s > 0.0).then(|| MeanLoad {
            requests: mean(self.request_s - before.request_s),
            context_tokens: mean(self.token_s - before.token_s),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn mean_is_over_time_and_not_of_the_two_ends() {
        let (occupancy, begin) = (Occupancy::default(), Instant::now());
        let at = |s| begin + Duration::from_secs(s);
        assert_eq!(occupancy.total(at(0)).mean_since(Total::default()), None);
        occupancy.enter(at(0), 100);
        let before = occupancy.total(at(0));
        assert_eq!(occupancy.total(at(0)).mean_since(before), None);
        (0..19).for_each(|_| occupancy.enter(at(1), 200));
        (0..19).for_each(|_| occupancy.leave(at(9), 200));
        let mean = occupancy.total(at(10)).mean_since(before).unwrap();
        assert!((mean.requests - 16.2).abs() < 1e-9, "{mean:?}");
        assert!((mean.context_tokens - (100.0 + 0.8 * 3_800.0)).abs() < 1e-9, "{mean:?}");
        // A moment before the last one changes nothing.
        assert_eq!(occupancy.total(at(3)), occupancy.total(at(10)));
    }
}
