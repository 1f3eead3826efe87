//! Arrival times of a trace's requests in a run: as in the trace, spread within its bins, at the
//! rate that makes the load.

use std::sync::Arc;

use super::costs::Costs;
use super::random::Random;
use super::trace::TraceRequest;
use super::{Cluster, Seconds};

/// Requests with the same time stamp are spread until the next stamp, but over no more than this:
/// the conversation trace's stamps are multiples of about 3 s.
const BIN_S_MAX: Seconds = 3.0;

/// The first 1/`WARM_UP_ONE_IN` of the requests fills the caches and is not counted: 16 prefix
/// caches of 1 M tokens are full after 2 000 of the conversation trace's 12 031 requests.
const WARM_UP_ONE_IN: usize = 5;

/// A request of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// Time at which it comes.
    pub at_s: Seconds,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens of its answer, which no policy knows beforehand.
    pub output_tokens: u32,
    /// Hashes of its prompt's full blocks.
    pub blocks: Arc<[u64]>,
    /// Key of requests that belong together. Where a trace does not say, the second block tells:
    /// the first is often a system prompt that all share.
    pub session: Option<u64>,
}

/// A run's requests, in the order in which they come.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Arrivals of the requests.
    pub arrivals: Vec<Arrival>,
    /// Mean length of the answers: what a gateway that knows its users expects.
    pub mean_output_tokens: u32,
    /// Requests per second.
    pub rate_per_s: f64,
    /// Number of first requests that fill the caches and are not counted.
    pub warm_up: usize,
}

impl Workload {
    /// Lets a trace come at `load`: 1.0 is the rate at which the cluster's prefillers would just
    /// keep up if they knew no prompt. `seed` spreads requests with the same time stamp.
    #[must_use]
    pub fn new(trace: &[TraceRequest], cluster: &Cluster, load: f64, seed: u64) -> Workload {
        let times = spread(trace, &mut Random::new(seed));
        let (first, last) = (times.first().copied().unwrap_or(0.0), times.last().copied().unwrap_or(0.0));
        let span_s = saturated_s(trace, &cluster.costs) / (f64::from(cluster.prefillers.max(1)) * load);
        let scale = if last > first { span_s / (last - first) } else { 0.0 };
        let arrivals = trace.iter().zip(times).map(|(request, time)| Arrival {
            at_s: (time - first) * scale,
            prompt_tokens: request.prompt_tokens,
            output_tokens: request.output_tokens,
            blocks: request.blocks.clone(),
            session: request.session.or_else(|| request.blocks.get(1).copied()),
        });
        let outputs: u64 = trace.iter().map(|request| u64::from(request.output_tokens)).sum();
        let mean = outputs / (trace.len() as u64).max(1);
        Workload {
            arrivals: arrivals.collect(),
            mean_output_tokens: u32::try_from(mean).unwrap_or(u32::MAX),
            rate_per_s: if span_s > 0.0 { trace.len() as f64 / span_s } else { 0.0 },
            warm_up: trace.len() / WARM_UP_ONE_IN,
        }
    }
}

/// Seconds that one prefiller would need for all prompts of a trace if it knew none of them.
#[must_use]
pub fn saturated_s(trace: &[TraceRequest], costs: &Costs) -> Seconds {
    trace.iter().map(|request| costs.prefill(request.prompt_tokens, 0)).sum()
}

/// The times of a trace's requests, spread uniformly within their bins, in the trace's order.
fn spread(trace: &[TraceRequest], random: &mut Random) -> Vec<Seconds> {
    let mut times = Vec::with_capacity(trace.len());
    let mut width_s = 0.0;
    for bin in trace.chunk_by(|a, b| a.timestamp_ms == b.timestamp_ms) {
        let start_s = bin[0].timestamp_ms / 1e3;
        // The last bin has no next one; it is as wide as the one before.
        if let Some(next) = trace.get(times.len() + bin.len()) {
            width_s = (next.timestamp_ms / 1e3 - start_s).min(BIN_S_MAX);
        }
        let mut offsets: Vec<f64> = bin.iter().map(|_| random.unit() * width_s).collect();
        offsets.sort_by(f64::total_cmp);
        times.extend(offsets.into_iter().map(|offset| start_s + offset));
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::trace::parse;

    fn trace(stamps: &[u32]) -> Vec<TraceRequest> {
        let line = |ms: &u32| {
            format!(r#"{{"timestamp": {ms}, "input_length": 1000, "output_length": 9, "hash_ids": [0, 1]}}"#)
        };
        parse(&stamps.iter().map(line).collect::<Vec<_>>().join("\n"), usize::MAX).unwrap()
    }

    #[test]
    fn bins_are_spread_in_order_and_only_so_far() {
        let trace = trace(&[0, 0, 0, 3000, 3000, 90_000, 90_000]);
        let times = spread(&trace, &mut Random::new(1));
        assert!(times.is_sorted());
        assert!(times[2] < 3.0 && times[0] > 0.0);
        assert!(times[3] >= 3.0 && times[4] < 6.0, "a gap is no bin");
        assert!(times[5] >= 90.0 && times[6] < 93.0);
        assert_ne!(times, spread(&trace, &mut Random::new(2)));
        assert_eq!(times, spread(&trace, &mut Random::new(1)));
    }

    #[test]
    fn load_one_is_what_prefillers_just_bear() {
        let trace = trace(&(0..100).map(|n| n * 1000).collect::<Vec<_>>());
        let cluster = Cluster { prefillers: 4, ..Cluster::default() };
        let service = cluster.costs.prefill(1000, 0);
        let at = |load| Workload::new(&trace, &cluster, load, 1);
        assert!((at(1.0).rate_per_s - 4.0 / service).abs() < 1e-6);
        assert!((at(0.5).arrivals[99].at_s - 2.0 * 25.0 * service).abs() < 1e-6);
        assert_eq!(at(0.5).arrivals[0].at_s, 0.0);
        assert_eq!(at(0.5).mean_output_tokens, 9);
    }
}
