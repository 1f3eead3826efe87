//! The verdict of a replay in a sentence, and the policies that are left out of the tables since
//! they can't bear the load at all.

use super::virtual_time::LoadTrials;
use crate::replay::stats::Estimate;
use crate::replay::{Capacity, Trial};

/// A policy diverges if one in ten first tokens takes so many times longer than with the best
/// policy: its queue grows for as long as the trace lasts, and its numbers tell that length.
const DIVERGES_TIMES: f64 = 20.0;

/// One of those that are compared, with its result in each run.
pub(super) struct Entrant<'a> {
    /// Name of a policy, or of a split.
    pub(super) name: &'a str,
    /// Result of each run; the n-th is of the same seed for all of them.
    pub(super) results: Vec<f64>,
}

impl Entrant<'_> {
    fn mean(&self) -> f64 {
        Estimate::of(&self.results).mean
    }

    /// Lead over another one, run by run.
    fn lead(&self, other: &Entrant<'_>) -> Estimate {
        let pairs = self.results.iter().zip(&other.results);
        Estimate::of(&pairs.map(|(own, others)| own - others).collect::<Vec<_>>())
    }

    /// True if chance alone may have put it before the other one.
    fn is_within_spread(&self, other: &Entrant<'_>) -> bool {
        let Estimate { mean, plus_minus } = self.lead(other);
        mean <= plus_minus.unwrap_or(0.0)
    }
}

/// The best of those that are compared.
pub(super) struct Best<'a> {
    /// Name of the policy.
    pub(super) name: &'a str,
    /// Its result and its lead, or those that it can't be told from.
    pub(super) words: String,
}

/// Spellings of a result and of a difference between two.
pub(super) struct Unit {
    pub(super) result: fn(f64) -> String,
    pub(super) lead: fn(f64) -> String,
}

/// The best of these. `None` if there is nobody.
pub(super) fn best<'a>(entrants: &[Entrant<'a>], unit: &Unit) -> Option<Best<'a>> {
    let mut order: Vec<&Entrant<'a>> = entrants.iter().collect();
    // The first of equals stays first.
    order.sort_by(|one, other| other.mean().total_cmp(&one.mean()));
    let (best, others) = order.split_first()?;
    let own = (unit.result)(best.mean());
    let (count, is_one_run) = (order.len(), best.results.len() == 1);
    let level: Vec<&str> = others.iter().filter(|it| best.is_within_spread(it)).map(|it| it.name).collect();
    let names = level.join(", ");
    let words = match (others.first(), level.is_empty()) {
        (None, _) => return Some(Best { name: best.name, words: own }),
        (Some(next), true) => {
            format!("{own}, best of {count}, by {} before {}", (unit.lead)(best.lead(next).mean), next.name)
        }
        (Some(_), false) if is_one_run => format!("{own}, of {count} as much as {names}"),
        (Some(_), false) => format!("{own}, of {count} within the spread of {names}"),
    };
    let words = if is_one_run { words + "; one run tells no spread" } else { words };
    Some(Best { name: best.name, words })
}

/// One sentence for each load: the best policy by the share of requests within the SLO, and by how
/// much.
pub(super) fn of_loads(loads: &[LoadTrials]) -> String {
    loads.iter().map(of_load).collect::<Vec<_>>().join("; ")
}

fn of_load(LoadTrials { load, trials, .. }: &LoadTrials) -> String {
    let shares = |trial: &Trial| trial.measures.iter().map(|measures| measures.slo_share).collect();
    let entrants: Vec<Entrant<'_>> =
        trials.iter().map(|trial| Entrant { name: trial.policy, results: shares(trial) }).collect();
    let unit = Unit {
        result: |share| format!("{:.1} %", share * 1e2),
        lead: |share| format!("{:.1} points", share * 1e2),
    };
    match best(&entrants, &unit) {
        None => format!("load {load}: no policy was replayed"),
        Some(Best { name, words }) => format!("load {load}: {name} keeps the SLO for {words}"),
    }
}

/// The largest loads in a sentence: the best policy, and by how much.
pub(super) fn of_capacities(found: &[Capacity]) -> String {
    let entrants: Vec<Entrant<'_>> =
        found.iter().map(|it| Entrant { name: it.policy, results: it.loads.clone() }).collect();
    let load = |load: f64| format!("{load:.2}");
    match best(&entrants, &Unit { result: load, lead: load }) {
        None => "no policy was replayed".to_owned(),
        Some(Best { name, words }) => format!("{name} bears load {words}"),
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

    fn at(trials: Vec<Trial>) -> String {
        of_loads(&[LoadTrials { load: 0.75, rate_per_s: 1.0, trials }])
    }

    fn runs(policy: &'static str, shares: [f64; 3]) -> Trial {
        let measure = |slo_share| Measures { slo_share, ..Measures::default() };
        Trial { policy, measures: shares.map(measure).to_vec() }
    }

    #[test]
    fn the_best_policy_is_named_with_its_lead() {
        let one_run = [trial("a", 0.5, 1.0), trial("b", 0.98, 0.5), trial("c", 0.9, 0.6)];
        let expected = "load 0.75: b keeps the SLO for 98.0 %, best of 3, by 8.0 points before c; one run tells no spread";
        assert_eq!(at(one_run.to_vec()), expected);
        let apart = vec![runs("a", [0.8, 0.9, 0.85]), runs("b", [0.9, 1.0, 0.95])];
        assert_eq!(at(apart), "load 0.75: b keeps the SLO for 95.0 %, best of 2, by 10.0 points before a");
        assert_eq!(at(vec![trial("a", 0.5, 1.0)]), "load 0.75: a keeps the SLO for 50.0 %");
        let of = |policy, loads| Capacity { policy, loads };
        let capacities = [of("a", vec![0.5, 0.7]), of("b", vec![0.9, 1.1])];
        assert_eq!(of_capacities(&capacities), "b bears load 1.00, best of 2, by 0.40 before a");
        assert_eq!(of_capacities(&capacities[..1]), "a bears load 0.60");
    }

    /// Runs with the same seed are compared, so that what all policies have in common says nothing.
    #[test]
    fn a_lead_that_chance_may_have_made_is_within_the_spread() {
        let near = vec![runs("a", [0.8, 0.9, 0.7]), runs("b", [0.9, 0.8, 0.8]), runs("c", [0.1, 0.2, 0.1])];
        assert_eq!(at(near), "load 0.75: b keeps the SLO for 83.3 %, of 3 within the spread of a");
        let equal = vec![runs("a", [1.0; 3]), runs("b", [1.0; 3])];
        assert_eq!(at(equal), "load 0.75: a keeps the SLO for 100.0 %, of 2 within the spread of b");
        let one = vec![trial("a", 1.0, 1.0), trial("b", 1.0, 1.0)];
        let words = "load 0.75: a keeps the SLO for 100.0 %, of 2 as much as b; one run tells no spread";
        assert_eq!(at(one), words);
        let paired = vec![runs("a", [0.2, 0.9, 0.5]), runs("b", [0.21, 0.91, 0.51])];
        assert!(
            at(paired).contains(" by 1.0 points before a"),
            "the spread between seeds is none of the lead"
        );
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
