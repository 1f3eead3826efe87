//! Load of the last minutes for the status page, where nobody has a Prometheus at hand: counts that
//! only grow, and a few copies of them from before. What lies between two copies is what happened.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The time that is looked back on.
const SPAN: Duration = Duration::from_secs(300);
/// Least time between two copies: 60 of them reach back over [`SPAN`].
const APART: Duration = Duration::from_secs(5);
/// Buckets of the time to the first token, each 19 % wider than the one before: 1 ms to 17 minutes.
const BUCKETS: usize = 81;
/// Buckets in which the time doubles.
const PER_DOUBLING: f64 = 4.0;

/// Counts since the start, and copies of the last minutes: 60 of 84 numbers, 40 KB.
#[derive(Debug)]
pub(super) struct RecentLoad {
    first_tokens: [AtomicU64; BUCKETS],
    output_tokens: AtomicU64,
    copies: Mutex<VecDeque<Copied>>,
}

/// The counts at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Copied {
    at: Duration,
    first_tokens: [u64; BUCKETS],
    output_tokens: u64,
    ended: u64,
    failed: u64,
}

/// Requests that ended, and of these the ones that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// All of them.
    pub all: u64,
    /// Those with a 5xx, or whose stream broke.
    pub failed: u64,
}

/// The load between then and now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Recently {
    /// The time that was looked back on: less than its whole span soon after the start.
    pub over: Duration,
    /// Half of the streams had their first token within this time; None without streams.
    pub ttft_p50: Option<Duration>,
    /// So had 95 of 100.
    pub ttft_p95: Option<Duration>,
    /// Output tokens of answers that ended.
    pub output_tokens: u64,
    /// Requests that ended.
    pub ended: Ended,
}

impl Default for RecentLoad {
    fn default() -> RecentLoad {
        RecentLoad {
            first_tokens: std::array::from_fn(|_| AtomicU64::new(0)),
            output_tokens: AtomicU64::new(0),
            copies: Mutex::default(),
        }
    }
}

impl RecentLoad {
    /// Counts a stream whose first token came after `took`.
    pub(super) fn first_token(&self, took: Duration) {
        if let Some(bucket) = self.first_tokens.get(bucket_of(took)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds the output tokens of an answer.
    pub(super) fn output(&self, tokens: u64) {
        self.output_tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Copies the counts, if the last copy is old enough. `at` is a time since the start.
    pub(super) fn note(&self, at: Duration, ended: Ended) {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        if copies.back().is_some_and(|last| at < last.at + APART) {
            return;
        }
        // The oldest one is the last of those that are too old: what is between is all of SPAN.
        while copies.get(1).is_some_and(|second| second.at + SPAN <= at) {
            copies.pop_front();
        }
        copies.push_back(self.copied(at, ended));
    }

    /// The load of the last [`SPAN`], at a time since the start.
    pub(super) fn until(&self, at: Duration, ended: Ended) -> Recently {
        let copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let in_span = |it: &&Copied| it.at + SPAN >= at && it.at < at;
        let Some(then) = copies.iter().find(in_span) else { return Recently::default() };
        let now = self.copied(at, ended);
        let first_tokens = std::array::from_fn(|i| now.first_tokens[i].saturating_sub(then.first_tokens[i]));
        Recently {
            over: at.saturating_sub(then.at),
            ttft_p50: quantile(&first_tokens, 0.5),
            ttft_p95: quantile(&first_tokens, 0.95),
            output_tokens: now.output_tokens.saturating_sub(then.output_tokens),
            ended: Ended {
                all: ended.all.saturating_sub(then.ended),
                failed: ended.failed.saturating_sub(then.failed),
            },
        }
    }

    fn copied(&self, at: Duration, ended: Ended) -> Copied {
        Copied {
            at,
            first_tokens: std::array::from_fn(|i| self.first_tokens[i].load(Ordering::Relaxed)),
            output_tokens: self.output_tokens.load(Ordering::Relaxed),
            ended: ended.all,
            failed: ended.failed,
        }
    }
}

/// The bucket of a time; the last one has all that is longer, the first one what is below 1 ms.
fn bucket_of(took: Duration) -> usize {
    let ms = took.as_secs_f64() * 1e3;
    if ms <= 1.0 { 0 } else { ((ms.log2() * PER_DOUBLING) as usize + 1).min(BUCKETS - 1) }
}

/// The time within which this share of the counted ones lies, between the bounds of its bucket.
fn quantile(counts: &[u64; BUCKETS], share: f64) -> Option<Duration> {
    let all: u64 = counts.iter().sum();
    let rank = all as f64 * share;
    let mut below = 0;
    for (bucket, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let within = (rank - below as f64) / *count as f64;
        below += count;
        if below as f64 >= rank {
            let doublings = (bucket as f64 - 1.0 + within.clamp(0.0, 1.0)) / PER_DOUBLING;
            return Some(Duration::from_secs_f64(doublings.exp2() / 1e3));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn ended(all: u64, failed: u64) -> Ended {
        Ended { all, failed }
    }

    #[test]
    fn quantiles_are_near_those_of_the_times() {
        let load = RecentLoad::default();
        load.note(s(0), ended(0, 0));
        for ms in 1..=1_000 {
            load.first_token(Duration::from_millis(ms));
        }
        let found = load.until(s(10), ended(0, 0));
        let near = |found: Option<Duration>, ms: f64| {
            let found_ms = found.unwrap().as_secs_f64() * 1e3;
            assert!((found_ms / ms - 1.0).abs() < 0.05, "{found_ms} for {ms}");
        };
        near(found.ttft_p50, 500.0);
        near(found.ttft_p95, 950.0);
    }

    #[test]
    fn times_that_are_very_short_or_long_are_counted() {
        let load = RecentLoad::default();
        load.note(s(0), ended(0, 0));
        load.first_token(Duration::ZERO);
        assert!(load.until(s(1), ended(0, 0)).ttft_p95.unwrap() <= Duration::from_millis(1));
        load.first_token(s(1 << 40));
        assert!(load.until(s(1), ended(0, 0)).ttft_p95.unwrap() > s(800));
    }

    #[test]
    fn load_older_than_the_span_does_not_count() {
        let load = RecentLoad::default();
        load.note(s(0), ended(0, 0));
        load.first_token(s(9));
        load.output(1_000);
        for at in (5..=400).step_by(5) {
            load.note(s(at), ended(100, 7));
        }
        load.output(30);
        let found = load.until(s(402), ended(140, 8));
        assert_eq!((found.ttft_p50, found.output_tokens, found.ended), (None, 30, ended(40, 1)));
        assert!(found.over <= SPAN && found.over > SPAN - APART, "{:?}", found.over);
        assert!(load.copies.lock().unwrap().len() <= 62);
    }

    #[test]
    fn load_soon_after_the_start_counts_whole() {
        let load = RecentLoad::default();
        assert_eq!(load.until(s(3), ended(1, 1)), Recently::default(), "nothing was copied yet");
        load.note(s(0), ended(0, 0));
        load.note(s(2), ended(5, 5));
        load.output(12);
        let found = load.until(s(4), ended(6, 1));
        assert_eq!((found.over, found.output_tokens, found.ended), (s(4), 12, ended(6, 1)));
        assert_eq!(found.ttft_p50, None);
    }
}
