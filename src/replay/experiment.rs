//! Runs of one kind: the same machines, faults and promises for every policy, load and seed.

use super::outcome::{Measures, Slo};
use super::search;
use super::world::{RunError, World};
use super::{Cluster, Contender, Director, Faults, Pace, TraceRequest, Workload};

/// Settings that the runs of a comparison have in common.
#[derive(Clone, Copy, Debug)]
pub struct Experiment<'a> {
    /// Place where requests come from.
    pub trace: &'a [TraceRequest],
    /// Way in which later turns of conversations come.
    pub pace: Pace,
    /// Machines of the cluster.
    pub cluster: Cluster,
    /// Description of the fault.
    pub faults: Faults,
    /// Latencies that are promised.
    pub slo: Slo,
}

impl Experiment<'_> {
    /// Makes one run.
    ///
    /// # Errors
    /// [`RunError`] if the decision code leaves requests behind.
    pub fn run(&self, contender: Contender, load: f64, seed: u64) -> Result<Measures, RunError> {
        let workload = Workload::new(self.trace, &self.cluster, self.pace, load, seed);
        let director = |gateway| Director::new(contender, &self.cluster, &self.faults, gateway);
        let gateways = (0..self.faults.gateways.max(1)).map(director).collect();
        let run = World::new(&self.cluster, &self.faults, &workload, gateways, seed).run()?;
        Ok(Measures::of(&run, &workload, &self.cluster, &self.slo))
    }

    /// The largest load at which enough requests get what they are promised.
    ///
    /// # Errors
    /// As [`Experiment::run`].
    pub fn capacity(&self, contender: Contender, seed: u64) -> Result<f64, RunError> {
        search::capacity(|load| self.run(contender, load, seed).map(|measures| measures.slo_share))
    }

    /// The most requests per second at which enough of them get what they are promised: clusters
    /// are compared by it, for which a load of one means different things.
    ///
    /// # Errors
    /// As [`Experiment::run`].
    pub fn rate_capacity(&self, contender: Contender, seed: u64) -> Result<f64, RunError> {
        let load =
            search::fine_capacity(|load| self.run(contender, load, seed).map(|measures| measures.slo_share))?;
        let workload = || Workload::new(self.trace, &self.cluster, self.pace, load, seed);
        Ok(if load > 0.0 { workload().rate_per_s } else { 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AppendRules, CONTENDERS, Costs, trace};
    use super::*;

    fn small() -> (Vec<TraceRequest>, Cluster) {
        conversations(4)
    }

    /// Conversations whose turns add so many blocks.
    fn conversations(blocks: u64) -> (Vec<TraceRequest>, Cluster) {
        let line = |n: u64| {
            let (chat, turn) = (n % 30, n / 30);
            let ids: Vec<String> =
                (0..=blocks * turn + 6).map(|block| (chat * 1_000 + block).to_string()).collect();
            format!(
                r#"{{"timestamp": {}, "input_length": {}, "output_length": 100, "hash_ids": [{}]}}"#,
                n * 400,
                512 * (blocks * turn + 6) + 100,
                ids.join(",")
            )
        };
        let text: Vec<String> = (0..300).map(line).collect();
        let cluster = Cluster { prefillers: 4, decoders: 4, ..Cluster::default() };
        (trace::parse(&text.join("\n"), usize::MAX).unwrap(), cluster)
    }

    #[test]
    fn every_contender_serves_everybody_the_same_way_twice() {
        let (trace, cluster) = small();
        let faults = Faults { gateways: 2, pool_missing: 0.3, dies: true, ..Faults::default() };
        let experiment = Experiment { trace: &trace, pace: Pace::Open, cluster, faults, slo: Slo::default() };
        for contender in CONTENDERS {
            for (pace, decode_cache) in [(Pace::Open, true), (Pace::Closed { think_s: Some(1.0) }, false)] {
                let cluster = Cluster { decode_cache, ..cluster };
                let experiment = Experiment { pace, cluster, ..experiment };
                let measures = experiment.run(contender, 0.4, 7).unwrap();
                assert_eq!(experiment.run(contender, 0.4, 7), Ok(measures), "{}", contender.name);
            }
        }
    }

    #[test]
    fn decoders_that_remember_are_of_use_where_they_do() {
        let (trace, cluster) = conversations(1);
        let experiment = |decode_cache| Experiment {
            trace: &trace,
            pace: Pace::Closed { think_s: Some(1.0) },
            // One prefiller is behind, and decoders compute short chunks.
            cluster: Cluster {
                decode_cache,
                prefillers: 1,
                append: AppendRules { chunk_tokens: 256, ..cluster.append },
                costs: Costs { decode_chunk_tokens: 256, ..cluster.costs },
                ..cluster
            },
            faults: Faults { gateways: 2, ..Faults::default() },
            slo: Slo::default(),
        };
        let [today, appends] = ["predicted", "predicted-append"].map(|name| Contender::named(name).unwrap());
        let (forgets, keeps) = (experiment(false), experiment(true));
        assert_eq!(forgets.run(appends, 2.0, 1), forgets.run(today, 2.0, 1));
        let (one, other) = (keeps.run(appends, 2.0, 1).unwrap(), keeps.run(today, 2.0, 1).unwrap());
        assert_eq!(keeps.run(appends, 2.0, 1), Ok(one));
        assert!(one.append_share > 0.1 && other.append_share == 0.0, "{one:?}");
        assert!(one.later_ttft_p50_s < other.later_ttft_p50_s, "{one:?} {other:?}");
    }

    #[test]
    fn slow_links_are_seen_and_equal_ones_decide_nothing() {
        let (trace, cluster) = small();
        let [ours, blind] = ["predicted", "predicted-any-link"].map(|name| Contender::named(name).unwrap());
        let runs = |far_links| {
            let cluster = Cluster { far_links, ..cluster };
            let (pace, faults, slo) = (Pace::Open, Faults::default(), Slo::default());
            let experiment = Experiment { trace: &trace, pace, cluster, faults, slo };
            [ours, blind].map(|contender| experiment.run(contender, 0.5, 1).unwrap())
        };
        let [one, other] = runs(10.0);
        assert!(one.ttft_p50_s < other.ttft_p50_s && one.ttft_p90_s < other.ttft_p90_s, "{one:?} {other:?}");
        let [one, other] = runs(1.0);
        assert_eq!(one, other);
    }

    #[test]
    fn affinity_beats_chance_where_prompts_come_back() {
        let (trace, cluster) = small();
        let experiment = Experiment {
            trace: &trace,
            pace: Pace::Open,
            cluster,
            faults: Faults::default(),
            slo: Slo::default(),
        };
        let [ours, random] = ["predicted", "random"].map(|name| Contender::named(name).unwrap());
        let (one, other) = (experiment.run(ours, 0.7, 1).unwrap(), experiment.run(random, 0.7, 1).unwrap());
        assert!(one.hit_share > other.hit_share + 0.1, "{one:?} {other:?}");
        assert!(one.ttft_p90_s < other.ttft_p90_s, "{one:?} {other:?}");
        assert!(experiment.capacity(ours, 1).unwrap() > experiment.capacity(random, 1).unwrap());
    }
}
