//! The comparison of policies in virtual time, on as many threads as there are cores.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::progress::Progress;
use super::{TrialError, ratio, report, write_plot};
use crate::cli::{ReplayArgs, ReplayLoop, ReplayPool, SimulatedArgs};
use crate::replay::{
    CONTENDERS, Capacity, Cluster, Contender, Costs, Experiment, Faults, Pace, PoolKind, Slo, TraceRequest,
    Trial, Workload,
};
use crate::route::AppendRules;

/// Runs what the flags ask for, and returns the report.
pub(super) fn run(args: &ReplayArgs, trace: &[TraceRequest]) -> Result<String, TrialError> {
    let flags = &args.simulated;
    leaves_someone(flags)?;
    let (cluster, faults, slo) = (cluster(flags), faults(flags), slo(flags));
    let contenders = contenders(&flags.policy, &cluster)?;
    let experiment = Experiment { trace, pace: pace(flags)?, cluster, faults, slo };
    let about = report::ReplayInfo { trace: &args.trace, requests: trace.len(), flags };
    if let Some(engines) = flags.ratio {
        // Each split of each policy would be a table that nobody reads.
        return ratio::run(args, &experiment, contenders[0], engines);
    }
    if flags.capacity && args.plot.is_some() {
        return Err(TrialError::NoCurve);
    }
    if flags.capacity {
        let capacities = capacities(&experiment, &contenders, flags.seeds)?;
        return Ok(report::capacities(&about, &capacities, args.json));
    }
    let loads = loads(&experiment, &contenders, flags)?;
    if let Some(path) = &args.plot {
        write_plot(path, &report::plot(&about, &loads))?;
    }
    Ok(report::loads(&about, &loads, args.json))
}

/// The runs at one load.
pub(super) struct LoadTrials {
    pub(super) load: f64,
    /// Requests per second that it means.
    pub(super) rate_per_s: f64,
    pub(super) trials: Vec<Trial>,
}

fn loads(
    experiment: &Experiment<'_>,
    contenders: &[Contender],
    flags: &SimulatedArgs,
) -> Result<Vec<LoadTrials>, TrialError> {
    let seeds = flags.seeds as usize;
    let count = flags.load.len() * contenders.len() * seeds;
    let measured = all(count, |nth| {
        let (load, nth) = (flags.load[nth / (contenders.len() * seeds)], nth % (contenders.len() * seeds));
        let (contender, seed) = (contenders[nth / seeds], (nth % seeds) as u64 + 1);
        let failed = |source| TrialError::Run { policy: contender.name, load: load.to_string(), source };
        experiment.run(contender, load, seed).map_err(failed)
    })?;
    let mut measured = measured.chunks(seeds);
    let at = |load: &f64| LoadTrials {
        load: *load,
        rate_per_s: Workload::new(experiment.trace, &experiment.cluster, experiment.pace, *load, 1)
            .rate_per_s,
        trials: contenders
            .iter()
            .zip(measured.by_ref())
            .map(|(contender, measures)| Trial { policy: contender.name, measures: measures.to_vec() })
            .collect(),
    };
    Ok(flags.load.iter().map(at).collect())
}

fn capacities(
    experiment: &Experiment<'_>,
    contenders: &[Contender],
    seeds: u32,
) -> Result<Vec<Capacity>, TrialError> {
    let seeds = seeds as usize;
    let found = all(contenders.len() * seeds, |nth| {
        let (contender, seed) = (contenders[nth / seeds], (nth % seeds) as u64 + 1);
        let failed =
            |source| TrialError::Run { policy: contender.name, load: "to be found".to_owned(), source };
        experiment.capacity(contender, seed).map_err(failed)
    })?;
    let each = contenders.iter().zip(found.chunks(seeds));
    Ok(each.map(|(one, loads)| Capacity { policy: one.name, loads: loads.to_vec() }).collect())
}

/// The results of `job` for 0 to `count`, in that order, or the first error.
pub(super) fn all<T: Send>(
    count: usize,
    job: impl Fn(usize) -> Result<T, TrialError> + Sync,
) -> Result<Vec<T>, TrialError> {
    let (next, progress) = (AtomicUsize::new(0), Progress::new(count));
    let results: Vec<Mutex<Option<Result<T, TrialError>>>> = (0..count).map(|_| Mutex::new(None)).collect();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(count);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    let Some(place) = results.get(nth) else { break };
                    let result = job(nth);
                    *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                    progress.step();
                }
            });
        }
    });
    let taken =
        results.into_iter().filter_map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner));
    taken.collect()
}

/// The policies of these names. Of all, those that would decide as another one does are none.
fn contenders(names: &[String], cluster: &Cluster) -> Result<Vec<Contender>, TrialError> {
    if names.iter().any(|name| name == "all") {
        return Ok(CONTENDERS.into_iter().filter(|it| it.differs(cluster)).collect());
    }
    let known = || CONTENDERS.map(|contender| contender.name).join(", ");
    let named = |name: &String| {
        Contender::named(name).ok_or_else(|| TrialError::Policy { name: name.clone(), known: known() })
    };
    names.iter().map(named).collect()
}

/// Refuses faults after which no prefiller is left.
fn leaves_someone(flags: &SimulatedArgs) -> Result<(), TrialError> {
    match (flags.dead, flags.ratio, flags.prefillers) {
        (true, Some(_), _) => Err(TrialError::NobodyLeftOfSplit),
        (true, None, 1) => Err(TrialError::NobodyLeft),
        _ => Ok(()),
    }
}

fn pace(flags: &SimulatedArgs) -> Result<Pace, TrialError> {
    match (flags.pace, flags.think_ms) {
        (ReplayLoop::Open, None) => Ok(Pace::Open),
        (ReplayLoop::Open, Some(_)) => Err(TrialError::Think),
        (ReplayLoop::Closed, think_ms) => Ok(Pace::Closed { think_s: think_ms.map(|ms| ms / 1e3) }),
    }
}

fn cluster(flags: &SimulatedArgs) -> Cluster {
    let costs = Costs::default();
    Cluster {
        prefillers: flags.prefillers,
        decoders: flags.decoders,
        pool: match flags.pool {
            ReplayPool::None => PoolKind::None,
            ReplayPool::Shared => PoolKind::Shared,
            ReplayPool::Local => PoolKind::Local,
            ReplayPool::Mixed => PoolKind::Mixed,
        },
        kv_events: flags.kv_events,
        decode_cache: flags.decode_cache,
        append: AppendRules {
            gap_s: flags.append_gap_ms / 1e3,
            late_s: flags.append_late_ms / 1e3,
            chunk_tokens: flags.append_chunk,
        },
        costs: Costs {
            decode_chunk_tokens: flags.append_chunk,
            hbm_tokens: flags.hbm_tokens.unwrap_or(costs.hbm_tokens),
            pool_tokens: flags.pool_tokens.unwrap_or(costs.pool_tokens),
            ..costs
        },
        far_links: flags.far_links,
    }
}

fn faults(flags: &SimulatedArgs) -> Faults {
    Faults {
        pool_missing: flags.pool_missing / 100.0,
        pool_stale_s: flags.pool_stale,
        cost_factor: flags.cost_factor,
        gateways: flags.gateways,
        share_s: flags.share_ms.map(|ms| ms / 1e3),
        share_lost: flags.share_lost / 100.0,
        slowness: flags.slow,
        dies: flags.dead,
        joins: false,
    }
}

fn slo(flags: &SimulatedArgs) -> Slo {
    Slo { ttft_s: flags.slo_ttft, ttft_prefills: flags.slo_prefills, gap_s: flags.slo_gap / 1e3 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_order_and_errors_come_out() {
        assert_eq!(all(100, Ok).unwrap(), (0..100).collect::<Vec<_>>());
        assert!(all(0, Ok).unwrap().is_empty());
        let unknown = || TrialError::Policy { name: "K".to_owned(), known: String::new() };
        let odd = |nth| if nth == 7 { Err(unknown()) } else { Ok(nth) };
        assert!(matches!(all(20, odd), Err(TrialError::Policy { .. })));
    }

    #[test]
    fn policies_are_named_or_all() {
        let cluster = |far_links| Cluster { decode_cache: true, far_links, ..Cluster::default() };
        let names = |names: &[&str]| {
            contenders(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>(), &cluster(2.0))
        };
        assert_eq!(contenders(&["all".to_owned()], &cluster(1.0)).unwrap().len(), CONTENDERS.len() - 1);
        assert_eq!(names(&["all"]).unwrap().len(), CONTENDERS.len());
        assert_eq!(names(&["random", "predicted"]).unwrap()[1].name, CONTENDERS[0].name);
        let mistake = names(&["best"]).unwrap_err().to_string();
        assert!(mistake.starts_with("--policy best: no such policy; there are predicted, "), "{mistake}");
    }
}
