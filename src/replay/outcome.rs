//! Measures by which a run is judged.

use super::arrivals::Workload;
use super::costs::Costs;
use super::stats::quantile;
use super::world::{Record, Run};
use super::{Cluster, Seconds};

/// Latencies that a request is promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// Its first token comes within this time,
    pub ttft_s: Seconds,
    /// and so many times what its own prefill takes on an idle engine that knows nothing of it.
    pub ttft_prefills: f64,
    /// The longest time between two of its tokens.
    pub gap_s: Seconds,
}

/// The measures of a run; requests of the warm-up count in none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measures {
    /// Time to first token, median.
    pub ttft_p50_s: Seconds,
    /// Time to first token, 90 % quantile.
    pub ttft_p90_s: Seconds,
    /// Time to first token, 99 % quantile.
    pub ttft_p99_s: Seconds,
    /// The same of requests that continue others.
    pub later_ttft_p50_s: Seconds,
    /// Share of requests whose prompts decoders computed.
    pub append_share: f64,
    /// A request's mean time per output token after the first, median over requests.
    pub tpot_p50_s: Seconds,
    /// A request's longest time between two tokens, 90 % quantile over requests.
    pub gap_p90_s: Seconds,
    /// Share of requests that got what they were promised.
    pub slo_share: f64,
    /// Such requests per second.
    pub goodput_per_s: f64,
    /// Share of prompt tokens that were not computed.
    pub hit_share: f64,
    /// Seconds of computing of the busiest prefiller, in those of the mean one.
    pub imbalance: f64,
    /// Share of the prefillers' time in which they had no request while some waited for one.
    pub idle_share: f64,
}

impl Default for Slo {
    /// Promises that the literature calls loose: a few times the unavoidable, and faster than
    /// people read.
    fn default() -> Slo {
        Slo { ttft_s: 0.5, ttft_prefills: 3.0, gap_s: 0.1 }
    }
}

impl Slo {
    fn kept(&self, costs: &Costs, prompt_tokens: u32, ttft_s: Seconds, gap_s: Seconds) -> bool {
        ttft_s <= self.ttft_s + self.ttft_prefills * costs.prefill(prompt_tokens, 0) && gap_s <= self.gap_s
    }
}

impl Measures {
    /// The measures of a run of `workload` on `cluster`.
    #[must_use]
    pub fn of(run: &Run, workload: &Workload, cluster: &Cluster, slo: &Slo) -> Measures {
        let counted = || workload.arrivals.iter().zip(&run.records).skip(workload.warm_up);
        let count = counted().count().max(1) as f64;
        let sorted = |measure: &dyn Fn(&Record) -> f64| {
            let mut values: Vec<f64> = counted().map(|(_, record)| measure(record)).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let ttft = sorted(&|record| record.first_s - record.came_s);
        let later = counted().filter(|(arrival, _)| arrival.is_later_turn);
        let mut later: Vec<f64> = later.map(|(_, record)| record.first_s - record.came_s).collect();
        later.sort_by(f64::total_cmp);
        let appended = counted().filter(|(_, record)| record.is_appended).count() as f64;
        let gaps = sorted(&|record| record.worst_gap_s);
        let mut tpot: Vec<f64> = counted()
            .filter(|(arrival, _)| arrival.output_tokens > 1)
            .map(|(arrival, record)| (record.last_s - record.first_s) / f64::from(arrival.output_tokens - 1))
            .collect();
        tpot.sort_by(f64::total_cmp);
        let kept = counted().filter(|(arrival, record)| {
            slo.kept(
                &cluster.costs,
                arrival.prompt_tokens,
                record.first_s - record.came_s,
                record.worst_gap_s,
            )
        });
        let kept = kept.count() as f64;
        let (cached, asked) = counted().fold((0u64, 0u64), |(cached, asked), (arrival, record)| {
            (cached + u64::from(record.cached_tokens), asked + u64::from(arrival.prompt_tokens))
        });
        Measures {
            ttft_p50_s: quantile(&ttft, 0.5),
            ttft_p90_s: quantile(&ttft, 0.9),
            ttft_p99_s: quantile(&ttft, 0.99),
            later_ttft_p50_s: quantile(&later, 0.5),
            append_share: appended / count,
            tpot_p50_s: quantile(&tpot, 0.5),
            gap_p90_s: quantile(&gaps, 0.9),
            slo_share: kept / count,
            goodput_per_s: kept / count * workload.rate_per_s,
            hit_share: cached as f64 / (asked as f64).max(1.0),
            imbalance: imbalance(&run.busy_s),
            idle_share: run.idle_s / (run.end_s * f64::from(cluster.prefillers)).max(1e-9),
        }
    }
}

fn imbalance(busy_s: &[Seconds]) -> f64 {
    let mean = busy_s.iter().sum::<f64>() / (busy_s.len() as f64).max(1.0);
    let most = busy_s.iter().copied().fold(0.0, f64::max);
    if mean > 0.0 { most / mean } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::arrivals::Arrival;

    fn arrival(at_s: f64) -> Arrival {
        Arrival {
            at_s,
            after: None,
            prompt_tokens: 1_000,
            output_tokens: 11,
            blocks: [].into(),
            answered_blocks: [].into(),
            is_later_turn: at_s > 1.0,
            session: None,
        }
    }

    #[test]
    fn measures_are_those_of_the_counted_requests() {
        let workload = Workload {
            arrivals: vec![arrival(0.0), arrival(1.0), arrival(2.0)],
            mean_output_tokens: 11,
            rate_per_s: 2.0,
            warm_up: 1,
        };
        let record = |came_s: f64, first_s: f64, last_s: f64, worst_gap_s: f64, cached_tokens: u32| Record {
            came_s,
            first_s,
            last_s,
            worst_gap_s,
            cached_tokens,
            ..Record::default()
        };
        let records = vec![
            record(0.0, 99.0, 999.0, 9.0, 1_000),
            record(1.0, 1.5, 2.5, 0.2, 500),
            Record { is_appended: true, ..record(2.0, 2.25, 2.75, 0.05, 0) },
        ];
        let two = Cluster { prefillers: 2, ..Cluster::default() };
        let run = Run { records, busy_s: vec![3.0, 1.0], idle_s: 1.8, end_s: 9.0 };
        let measures = Measures::of(&run, &workload, &two, &Slo::default());
        let expected = Measures {
            ttft_p50_s: 0.25,
            ttft_p90_s: 0.5,
            ttft_p99_s: 0.5,
            later_ttft_p50_s: 0.25,
            append_share: 0.5,
            tpot_p50_s: 0.05,
            gap_p90_s: 0.2,
            slo_share: 0.5,
            goodput_per_s: 1.0,
            hit_share: 0.25,
            imbalance: 1.5,
            idle_share: 0.1,
        };
        assert_eq!(measures, expected);
    }

    #[test]
    fn the_promise_grows_with_the_prompt_unless_it_is_flat() {
        let (costs, slo) = (Costs::default(), Slo::default());
        let own_s = costs.prefill(50_000, 0);
        assert!(slo.kept(&costs, 50_000, 0.49 + 3.0 * own_s, 0.1));
        assert!(!slo.kept(&costs, 49_000, 0.49 + 3.0 * own_s, 0.1));
        let flat = Slo { ttft_s: 5.0, ttft_prefills: 0.0, gap_s: 0.1 };
        assert!(flat.kept(&costs, 50_000, 5.0, 0.1) && !flat.kept(&costs, 50_000, 5.1, 0.1));
        assert!(!flat.kept(&costs, 1, 0.1, 0.11));
    }
}
