//! The verdict of a replay in a sentence, and the policies that are left out of the tables since
//! they can't bear the load at all.

use super::virtual_time::LoadTrials;
use crate::replay::stats::Estimate;
use crate::replay::{Capacity, Trial};

/// A policy diverges if one in ten first tokens takes so many times longer than with the best
/// policy: its queue grows for as long as the trace lasts, and its numbers tell that length.
const DIVERGES_TIMES: f64 = 20.0;

/// One sentence for each load: the best policy by the share of requests within the SLO, and the
/// next one.
pub(super) fn of_loads(loads: &[LoadTrials]) -> String {
    loads.iter().map(of_load).collect::<Vec<_>>().join("; ")
}

fn of_load(LoadTrials { load, trials, .. }: &LoadTrials) -> String {
    let mut shares: Vec<(f64, &str)> = trials.iter().map(|trial| (slo_share(trial), trial.policy)).collect();
    // The first of equals stays first.
    shares.sort_by(|one, other| other.0.total_cmp(&one.0));
    let percent = |share: f64| format!("{:.1} %", share * 1e2);
    match shares.as_slice() {
        [] => format!("load {load}: no policy was replayed"),
        [(share, policy)] => format!("load {load}: {policy} keeps the SLO for {}", percent(*share)),
        [(share, policy), (next, other), ..] => format!(
            "load {load}: {policy} keeps the SLO for {}, best of {}; next {other} with {}",
            percent(*share),
            shares.len(),
            percent(*next)
        ),
    }
}

/// The largest loads in a sentence: the best policy and the next one.
pub(super) fn of_capacities(found: &[Capacity]) -> String {
    let mut loads: Vec<(f64, &str)> =
        found.iter().map(|it| (Estimate::of(&it.loads).mean, it.policy)).collect();
    loads.sort_by(|one, other| other.0.total_cmp(&one.0));
    match loads.as_slice() {
        [] => "no policy was replayed".to_owned(),
        [(load, policy)] => format!("{policy} bears load {load:.2}"),
        [(load, policy), (next, other), ..] => {
            format!("{policy} bears load {load:.2}, best of {}; next {other} with {next:.2}", loads.len())
        }
    }
}

/// The trials that are shown, and the names of those that diverge.
pub(super) fn split(trials: &[Trial]) -> (Vec<Trial>, Vec<&'static str>) {
    let best_s = trials.iter().map(ttft_p90_s).fold(f64::INFINITY, f64::min);
    let diverges = |trial: &Trial| ttft_p90_s(trial) > best_s * DIVERGES_TIMES;
    let hidden = trials.iter().filter(|trial| diverges(trial)).map(|trial| trial.policy).collect();
    // The others are compared with the first one, so that it stays.
    let kept = trials.iter().enumerate().filter(|(at, trial)| *at == 0 || !diverges(trial));
    (kept.map(|(_, trial)| trial.clone()).collect(), hidden)
}

fn slo_share(trial: &Trial) -> f64 {
    mean(trial.measures.iter().map(|measures| measures.slo_share))
}

fn ttft_p90_s(trial: &Trial) -> f64 {
    mean(trial.measures.iter().map(|measures| measures.ttft_p90_s))
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    Estimate::of(&values.collect::<Vec<_>>()).mean
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::Measures;

    fn trial(policy: &'static str, slo_share: f64, ttft_p90_s: f64) -> Trial {
        Trial { policy, measures: vec![Measures { slo_share, ttft_p90_s, ..Measures::default() }] }
    }

    #[test]
    fn the_best_policy_and_the_next_are_named() {
        let trials = vec![trial("a", 0.5, 1.0), trial("b", 0.98, 0.5), trial("c", 0.9, 0.6)];
        let load = LoadTrials { load: 0.75, rate_per_s: 1.0, trials };
        let expected = "load 0.75: b keeps the SLO for 98.0 %, best of 3; next c with 90.0 %";
        assert_eq!(of_loads(&[load]), expected);
        let of = |policy, loads| Capacity { policy, loads };
        let capacities = [of("a", vec![0.5, 0.7]), of("b", vec![0.9])];
        assert_eq!(of_capacities(&capacities), "b bears load 0.90, best of 2; next a with 0.60");
        assert_eq!(of_capacities(&capacities[..1]), "a bears load 0.60");
    }

    #[test]
    fn diverging_policies_are_left_out_unless_all_others_are_compared_with_them() {
        let (kept, hidden) = split(&[trial("a", 0.9, 1.0), trial("b", 0.0, 20.1), trial("c", 0.1, 19.9)]);
        assert_eq!(kept.iter().map(|trial| trial.policy).collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!(hidden, ["b"]);
        let (kept, hidden) = split(&[trial("a", 0.0, 50.0), trial("b", 0.9, 1.0)]);
        assert_eq!((kept.len(), hidden), (2, vec!["a"]));
    }
}
