//! The split of a number of engines into prefillers and decoders that bears the most requests.

use std::fmt::Write;

use serde_json::{Value, json};

use super::report::ReplayInfo;
use super::verdict::{self, Best, Entrant, Unit};
use super::virtual_time::all;
use super::{TrialError, write_plot};
use crate::cli::ReplayArgs;
use crate::replay::plot::{self, PlotLoad};
use crate::replay::stats::Estimate;
use crate::replay::{Cluster, Contender, Experiment, Measures, Trial, table};

/// A split, and the most requests per second that it bears.
struct Split {
    prefillers: u16,
    decoders: u16,
    /// Of each seed.
    rates_per_s: Vec<f64>,
}

impl Split {
    fn name(&self) -> String {
        format!("{}P+{}D", self.prefillers, self.decoders)
    }

    fn rate(&self) -> Estimate {
        Estimate::of(&self.rates_per_s)
    }

    fn point(&self, policy: &'static str) -> PlotLoad {
        let measures =
            self.rates_per_s.iter().map(|rate| Measures { goodput_per_s: *rate, ..Measures::default() });
        let trials = vec![Trial { policy, measures: measures.collect() }];
        PlotLoad { load: f64::from(self.prefillers), trials }
    }
}

/// Searches the most requests per second of each split of `engines`, by one policy, and returns the
/// report.
pub(super) fn run(
    args: &ReplayArgs,
    experiment: &Experiment<'_>,
    contender: Contender,
    engines: u16,
) -> Result<String, TrialError> {
    let extent = Extent { engines, seeds: args.simulated.seeds as usize };
    let splits = splits(experiment, contender, extent)?;
    let about = ReplayInfo { trace: &args.trace, requests: experiment.trace.len(), flags: &args.simulated };
    let head = about.of_splits(engines, contender.name);
    if let Some(path) = &args.plot {
        let points: Vec<PlotLoad> = splits.iter().map(|split| split.point(contender.name)).collect();
        write_plot(path, &plot::of_splits(&head, &points))?;
    }
    Ok(if args.json { about.json("splits", as_json(&splits)) } else { text(&about, &head, &splits) })
}

/// Number of engines to split, and of runs of each split.
#[derive(Clone, Copy)]
struct Extent {
    engines: u16,
    seeds: usize,
}

fn splits(
    experiment: &Experiment<'_>,
    contender: Contender,
    extent: Extent,
) -> Result<Vec<Split>, TrialError> {
    let Extent { engines, seeds } = extent;
    let of = |prefillers: u16| {
        let cluster = Cluster { prefillers, decoders: engines - prefillers, ..experiment.cluster };
        Experiment { cluster, ..*experiment }
    };
    let rates = all(usize::from(engines - 1) * seeds, |nth| {
        let (prefillers, seed) = ((nth / seeds) as u16 + 1, (nth % seeds) as u64 + 1);
        let failed =
            |source| TrialError::Run { policy: contender.name, load: "to be found".to_owned(), source };
        of(prefillers).rate_capacity(contender, seed).map_err(failed)
    })?;
    let each = (1..engines).zip(rates.chunks(seeds));
    let split = |(prefillers, rates): (u16, &[f64])| Split {
        prefillers,
        decoders: engines - prefillers,
        rates_per_s: rates.to_vec(),
    };
    Ok(each.map(split).collect())
}

fn best(splits: &[Split]) -> Option<&Split> {
    splits.iter().max_by(|one, other| one.rate().mean.total_cmp(&other.rate().mean))
}

fn text(about: &ReplayInfo<'_>, head: &str, splits: &[Split]) -> String {
    let names: Vec<String> = splits.iter().map(Split::name).collect();
    let entrants: Vec<Entrant<'_>> = splits
        .iter()
        .zip(&names)
        .map(|(split, name)| Entrant { name, results: split.rates_per_s.clone() })
        .collect();
    let rate = |rate: f64| format!("{rate:.2} requests/s");
    let Some(Best { name, words }) = verdict::best(&entrants, &Unit { result: rate, lead: rate }) else {
        return String::new();
    };
    let most = best(splits).map_or(0.0, |best| best.rate().mean);
    let (note, promise) = (about.note(), about.promise());
    let mut text = format!("{name} bears most: {words}\n\n{head}\n{note}{promise}\n\n");
    text.push_str("| split | requests/s | of the best |\n|---|---:|---:|\n");
    for split in splits {
        let Estimate { mean, plus_minus } = split.rate();
        let spread = plus_minus.map_or(String::new(), |it| format!(" ±{it:.2}"));
        let share = if most > 0.0 { 100.0 * mean / most } else { 0.0 };
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {} | {mean:.2}{spread} | {share:.0} % |", split.name());
    }
    text
}

fn as_json(splits: &[Split]) -> Value {
    let most = best(splits).map(|best| best.prefillers);
    let each = splits.iter().map(|split| {
        json!({
            "prefillers": split.prefillers,
            "decoders": split.decoders,
            "rate_per_s": table::estimate_json(split.rate()),
            "best": most == Some(split.prefillers),
        })
    });
    each.collect()
}
