//! Metric handles for KV events of prefillers.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::instances::Series;
use super::{begun, names, series};

/// Handles for the events of one data-parallel rank of one instance.
#[derive(Debug)]
pub struct RankMeter {
    _series: Series,
    connected: Gauge,
    complete: Gauge,
    /// Blocks in the engine's own memory, and blocks it put into a pool.
    blocks: [Gauge; 2],
    counts: Vec<Counter>,
    /// Counters at the last look at the rank: another watch of the same rank begins at 0.
    seen: Vec<u64>,
}

/// State of a rank's events.
#[derive(Clone, Copy, Debug, Default)]
pub struct RankState {
    /// True if the subscription is connected.
    pub connected: bool,
    /// True if the events cover all blocks of the rank.
    pub complete: bool,
    /// Blocks in the engine's own memory, and blocks it put into a pool.
    pub blocks: (usize, usize),
}

/// Metric handles for look-ups in the index of KV events.
#[derive(Debug)]
pub struct HeldMeter {
    seconds: Histogram,
    held_tokens: Counter,
    hit: Counter,
    told: Counter,
    miss: Counter,
}

impl RankMeter {
    /// Creates the handles of a rank; `whats` are the names of its counters.
    pub fn new(instance: &str, rank: u32, whats: &[&'static str]) -> RankMeter {
        let series = series(instance, None);
        let handles = series.clone();
        handles.with(|| RankMeter::within(series, instance, rank, whats))
    }

    fn within(series: Series, instance: &str, rank: u32, whats: &[&'static str]) -> RankMeter {
        let labels = || [("engine", instance.to_owned()), ("rank", rank.to_string())];
        let blocks = |place: &'static str| {
            let [instance, rank] = labels();
            gauge!(names::EVENTS_BLOCKS, "engine" => instance.1, "rank" => rank.1, "place" => place)
        };
        let count = |what: &&'static str| {
            let [instance, rank] = labels();
            begun(counter!(names::EVENTS, "engine" => instance.1, "rank" => rank.1, "what" => *what))
        };
        RankMeter {
            _series: series,
            connected: gauge!(names::EVENTS_CONNECTED, &labels()),
            complete: gauge!(names::EVENTS_COMPLETE, &labels()),
            blocks: ["own", "pool"].map(blocks),
            counts: whats.iter().map(count).collect(),
            seen: vec![0; whats.len()],
        }
    }

    /// Sets the gauges and advances the counters. `counts` are since the watch began, in the order
    /// of `whats`.
    pub fn show(&mut self, state: RankState, counts: impl Iterator<Item = u64>) {
        let flag = |on: bool| f64::from(u8::from(on));
        self.connected.set(flag(state.connected));
        self.complete.set(flag(state.complete));
        let (own, pool) = state.blocks;
        for (gauge, blocks) in self.blocks.iter().zip([own, pool]) {
            gauge.set(blocks as f64);
        }
        for ((counter, seen), count) in self.counts.iter().zip(&mut self.seen).zip(counts) {
            counter.increment(count.saturating_sub(*seen));
            *seen = count;
        }
    }
}

impl Drop for RankMeter {
    /// Sets its gauges to zero: nobody listens to the rank any more. Its counters stay for a while.
    fn drop(&mut self) {
        self.show(RankState::default(), std::iter::empty());
    }
}

impl HeldMeter {
    /// Makes all handles.
    pub fn new() -> HeldMeter {
        let outcome = |outcome: &'static str| begun(counter!(names::EVENTS_LOOKUPS, "outcome" => outcome));
        HeldMeter {
            seconds: histogram!(names::EVENTS_SECONDS),
            held_tokens: counter!(names::EVENTS_HELD_TOKENS),
            hit: outcome("hit"),
            told: outcome("told"),
            miss: outcome("miss"),
        }
    }

    /// Records a look-up of a prompt that took `took`: tokens held by the best prefiller, and
    /// tokens that a pool was given.
    pub fn looked_up(&self, held_tokens: u32, told_tokens: u32, took: Duration) {
        self.seconds.record(took);
        self.held_tokens.increment(u64::from(held_tokens));
        match (held_tokens, told_tokens) {
            (0, 0) => self.miss.increment(1),
            (0, _) => self.told.increment(1),
            _ => self.hit.increment(1),
        }
    }
}

impl Default for HeldMeter {
    fn default() -> HeldMeter {
        HeldMeter::new()
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn rank_that_nobody_listens_to_shows_nothing() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let make = || RankMeter::within(Series::none(), "a:1", 0, &["batches"]);
        let mut meter = metrics::with_local_recorder(&recorder, make);
        meter.show(RankState { connected: true, complete: true, blocks: (7, 8) }, std::iter::once(9));
        let values = || {
            let text = recorder.handle().render();
            let samples = text.lines().filter(|line| line.starts_with("pd_proxy_"));
            samples.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect::<Vec<u32>>()
        };
        let sum = || values().into_iter().sum::<u32>();
        assert_eq!(sum(), 1 + 1 + 7 + 8 + 9, "{:?}", values());
        drop(meter);
        assert_eq!((values().len(), sum()), (5, 9), "its counter stays");
    }
}
