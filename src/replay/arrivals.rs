//! Arrival times of a trace's requests in a run: as in the trace, spread within its bins, at the
//! rate that makes the load. In a closed loop only conversations begin so; their later turns come
//! when their users have read and thought.

use std::sync::Arc;

use super::costs::Costs;
use super::random::Random;
use super::trace::{BLOCK_TOKENS, TraceRequest};
use super::turns::earlier_turns;
use super::{Cluster, Seconds};

/// Requests with the same time stamp are spread until the next stamp, but over no more than this:
/// the conversation trace's stamps are multiples of about 3 s.
const BIN_S_MAX: Seconds = 3.0;

/// The first 1/`WARM_UP_ONE_IN` of the requests fills the caches and is not counted: 16 prefix
/// caches of 1 M tokens are full after 2 000 of the conversation trace's 12 031 requests.
const WARM_UP_ONE_IN: usize = 5;

/// Ways in which later turns of conversations come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Pace {
    /// Open loop: at their time, however long the answer before takes.
    #[default]
    Open,
    /// Closed loop: a think time after the answer before has ended. Without a mean it is the
    /// trace's own gap, less what the answer takes on idle engines that know nothing of it; with
    /// one it is drawn from the exponential distribution of this mean.
    Closed {
        /// Mean think time, seconds.
        think_s: Option<Seconds>,
    },
}

/// The turn before one of a closed loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Follow {
    /// Index of the request that it continues.
    pub request: u32,
    /// Time from the end of that one's answer until this one comes.
    pub think_s: Seconds,
}

/// A request of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// Time at which it comes, or would in an open loop.
    pub at_s: Seconds,
    /// The turn after which it comes instead, in a closed loop.
    pub after: Option<Follow>,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens of its answer, which no policy knows beforehand.
    pub output_tokens: u32,
    /// Hashes of its prompt's full blocks.
    pub blocks: Arc<[u64]>,
    /// The same of its prompt and its answer, as the next turn has them.
    pub answered_blocks: Arc<[u64]>,
    /// True if it continues another request.
    pub is_later_turn: bool,
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
    /// keep up if they knew no prompt. `seed` spreads requests with the same time stamp, and draws
    /// think times.
    ///
    /// In a closed loop conversations begin at this pace, and think times are not scaled: nobody
    /// thinks faster since others come more often.
    #[must_use]
    pub fn new(trace: &[TraceRequest], cluster: &Cluster, pace: Pace, load: f64, seed: u64) -> Workload {
        let mut random = Random::new(seed);
        let times = spread(trace, &mut random);
        let turns = earlier_turns(trace);
        let follows =
            follows(trace, &turns, pace, Gaps { times: &times, costs: &cluster.costs }, &mut random);
        let answered = answered_blocks(trace, &turns);
        let (first, last) = (times.first().copied().unwrap_or(0.0), times.last().copied().unwrap_or(0.0));
        let span_s = saturated_s(trace, &cluster.costs) / (f64::from(cluster.prefillers.max(1)) * load);
        let scale = if last > first { span_s / (last - first) } else { 0.0 };
        let each = trace.iter().zip(times).zip(follows.into_iter().zip(answered)).zip(&turns);
        let arrivals = each.map(|(((request, time), (after, answered_blocks)), before)| Arrival {
            at_s: (time - first) * scale,
            after,
            answered_blocks,
            is_later_turn: before.is_some(),
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

/// Times of the requests, and the costs of their answers: the trace's own think times are what is
/// left between.
#[derive(Clone, Copy, Debug)]
struct Gaps<'a> {
    times: &'a [Seconds],
    costs: &'a Costs,
}

/// The turn that each request follows in a closed loop.
fn follows(
    trace: &[TraceRequest],
    turns: &[Option<u32>],
    pace: Pace,
    gaps: Gaps<'_>,
    random: &mut Random,
) -> Vec<Option<Follow>> {
    let Pace::Closed { think_s } = pace else { return vec![None; trace.len()] };
    let time = |at: usize| gaps.times.get(at).copied().unwrap_or(0.0);
    let follow = |(at, before): (usize, &Option<u32>)| {
        let request = (*before)?;
        let think_s = match think_s {
            Some(mean_s) => -mean_s * (1.0 - random.unit()).ln(),
            None => {
                let answer_s = trace.get(request as usize).map_or(0.0, |before| alone_s(before, gaps.costs));
                (time(at) - time(request as usize) - answer_s).max(0.0)
            }
        };
        Some(Follow { request, think_s })
    };
    turns.iter().enumerate().map(follow).collect()
}

/// The full blocks of each request's prompt and answer. A trace has them in the first request that
/// continues it; of others the answers are of no use to anybody.
fn answered_blocks(trace: &[TraceRequest], turns: &[Option<u32>]) -> Vec<Arc<[u64]>> {
    let mut answered: Vec<Arc<[u64]>> = trace.iter().map(|request| request.blocks.clone()).collect();
    let later = turns.iter().enumerate().rev();
    for (at, before) in later.filter_map(|(at, before)| Some((at, (*before)? as usize))) {
        let (Some(next), Some(request)) = (trace.get(at), trace.get(before)) else { continue };
        let tokens = request.prompt_tokens.saturating_add(request.output_tokens);
        let known = next.blocks.get(..(tokens / BLOCK_TOKENS) as usize);
        if let (Some(blocks), Some(place)) = (known, answered.get_mut(before)) {
            *place = blocks.into();
        }
    }
    answered
}

/// Seconds from a request's arrival to the end of its answer on idle engines that know nothing.
fn alone_s(request: &TraceRequest, costs: &Costs) -> Seconds {
    let tokens = request.prompt_tokens;
    let handoff_s = costs.handoff_s + f64::from(tokens) * costs.handoff_token_s;
    let step_s = costs.decode(1, u64::from(tokens));
    costs.prefill(tokens, 0) + handoff_s + f64::from(request.output_tokens) * step_s
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
        let at = |load| Workload::new(&trace, &cluster, Pace::Open, load, 1);
        assert!((at(1.0).rate_per_s - 4.0 / service).abs() < 1e-6);
        assert!((at(0.5).arrivals[99].at_s - 2.0 * 25.0 * service).abs() < 1e-6);
        assert_eq!(at(0.5).arrivals[0].at_s, 0.0);
        assert_eq!(at(0.5).mean_output_tokens, 9);
    }

    /// Three turns of one conversation and one of another, `ms` being their stamps.
    fn conversation(ms: [u32; 4]) -> Vec<TraceRequest> {
        let line = |(ms, (tokens, ids)): (u32, (u32, &str))| {
            format!(
                r#"{{"timestamp": {ms}, "input_length": {tokens}, "output_length": 10, "hash_ids": [{ids}]}}"#
            )
        };
        let prompts =
            [(1_100, "0, 1, 2"), (1_600, "0, 1, 3, 4"), (2_100, "0, 1, 3, 5, 6"), (1_100, "0, 7, 8")];
        parse(&ms.into_iter().zip(prompts).map(line).collect::<Vec<_>>().join("\n"), usize::MAX).unwrap()
    }

    #[test]
    fn a_closed_loop_keeps_the_trace_s_own_gaps_at_every_load() {
        let trace = conversation([0, 60_000, 60_010, 60_020]);
        let cluster = Cluster::default();
        let at = |load| Workload::new(&trace, &cluster, Pace::Closed { think_s: None }, load, 1).arrivals;
        let (slow, fast) = (at(0.5), at(1.0));
        let follow = |n: usize| fast[n].after.unwrap();
        assert_eq!(
            fast.iter().map(|it| it.after.map(|it| it.request)).collect::<Vec<_>>(),
            [None, Some(0), Some(1), None]
        );
        let times = spread(&trace, &mut Random::new(1));
        let think_s = times[1] - times[0] - alone_s(&trace[0], &cluster.costs);
        assert!((follow(1).think_s - think_s).abs() < 1e-9, "{:?}", follow(1));
        assert_eq!(follow(2).think_s, 0.0, "the answer takes longer than this gap");
        assert_eq!(slow[1].after, fast[1].after);
        assert!(slow[3].at_s > fast[3].at_s);
    }

    #[test]
    fn think_times_are_drawn_from_the_seed() {
        let trace: Vec<TraceRequest> = (0..500).flat_map(|_| conversation([0; 4])).collect();
        let follows = |seed| {
            let pace = Pace::Closed { think_s: Some(5.0) };
            let arrivals = Workload::new(&trace, &Cluster::default(), pace, 1.0, seed).arrivals;
            arrivals.into_iter().filter_map(|arrival| arrival.after).collect::<Vec<_>>()
        };
        let drawn = follows(1);
        assert_eq!(drawn, follows(1));
        assert_ne!(drawn, follows(2));
        let mean_s = drawn.iter().map(|follow| follow.think_s).sum::<f64>() / drawn.len() as f64;
        assert!((mean_s - 5.0).abs() < 0.5, "{mean_s} of {}", drawn.len());
    }
}
