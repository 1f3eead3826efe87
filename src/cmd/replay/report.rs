//! Report of a replay in virtual time.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::verdict;
use super::virtual_time::LoadTrials;
use crate::cli::{ReplayLoop, ReplayPool, SimulatedArgs};
use crate::replay::plot::{self, PlotLoad};
use crate::replay::stats::Estimate;
use crate::replay::table;
use crate::replay::{Capacity, Contender};

/// Description of what was replayed.
pub(super) struct ReplayInfo<'a> {
    pub(super) trace: &'a Path,
    pub(super) requests: usize,
    pub(super) flags: &'a SimulatedArgs,
}

impl ReplayInfo<'_> {
    fn text(&self) -> String {
        let SimulatedArgs { prefillers, decoders, seeds, .. } = self.flags;
        let name = self.trace.file_name().unwrap_or_default().to_string_lossy();
        let (requests, pool, pace) = (self.requests, self.pool(), self.pace());
        let runs =
            if *seeds == 1 { "one run each".to_owned() } else { format!("mean ± 95 % of {seeds} runs") };
        format!(
            "{name}: {requests} requests, {prefillers}P+{decoders}D, pool: {pool}; {pace} loop; {runs}; × = to the first\n"
        )
    }

    /// Description of a replay through each split of so many engines.
    pub(super) fn of_splits(&self, engines: u16, policy: &str) -> String {
        let name = self.trace.file_name().unwrap_or_default().to_string_lossy();
        let (requests, pool, pace, seeds) = (self.requests, self.pool(), self.pace(), self.flags.seeds);
        format!(
            "{name}: {requests} requests, {engines} engines, pool: {pool}; {pace} loop; {policy}; runs of each: {seeds}"
        )
    }

    /// A note on policies that can't do here what they are for, or nothing.
    pub(super) fn note(&self) -> String {
        let appends = |name: &String| Contender::named(name).is_some_and(|it| it.appends);
        match self.flags.policy.iter().find(|name| appends(name)).filter(|_| !self.flags.decode_cache) {
            Some(name) => format!(
                "{name}: decoders keep nothing without --decode-cache, so it decides as without them\n"
            ),
            None => String::new(),
        }
    }

    /// Promise to each request, in words.
    pub(super) fn promise(&self) -> String {
        let SimulatedArgs { slo_ttft, slo_prefills, slo_gap, .. } = self.flags;
        format!("90 % within TTFT {slo_ttft} s + {slo_prefills} × own prefill, gaps {slo_gap} ms")
    }

    pub(super) fn json(&self, key: &str, results: Value) -> String {
        let SimulatedArgs { prefillers, decoders, seeds, .. } = self.flags;
        let mut object = json!({
            "trace": self.trace.to_string_lossy(),
            "requests": self.requests,
            "pool": self.pool(),
            "loop": self.pace(),
            "seeds": seeds,
        });
        match self.flags.ratio {
            Some(engines) => object["engines"] = engines.into(),
            None => (object["prefillers"], object["decoders"]) = ((*prefillers).into(), (*decoders).into()),
        }
        let note = self.note();
        if !note.is_empty() {
            object["note"] = note.trim_end().into();
        }
        object[key] = results;
        format!("{object}\n")
    }

    /// True if policies that diverge are shown: they were asked for, alone or by name.
    fn shows_all(&self) -> bool {
        self.flags.diverging || !self.flags.policy.iter().any(|name| name == "all")
    }

    fn pace(&self) -> &'static str {
        match self.flags.pace {
            ReplayLoop::Open => "open",
            ReplayLoop::Closed => "closed",
        }
    }

    fn pool(&self) -> &'static str {
        match self.flags.pool {
            ReplayPool::None => "none",
            ReplayPool::Shared => "shared",
            ReplayPool::Local => "local",
            ReplayPool::Mixed => "mixed",
        }
    }
}

/// A table for each load.
pub(super) fn loads(about: &ReplayInfo<'_>, loads: &[LoadTrials], as_json: bool) -> String {
    if as_json {
        let each = loads.iter().map(
            |at| json!({ "load": at.load, "rate_per_s": at.rate_per_s, "policies": table::json(&at.trials) }),
        );
        return about.json("loads", each.collect());
    }
    let mut text = format!("{}\n\n{}{}", verdict::of_loads(loads), about.text(), about.note());
    for LoadTrials { load, rate_per_s, trials } in loads {
        let (shown, hidden) =
            if about.shows_all() { (trials.clone(), Vec::new()) } else { verdict::split(trials) };
        // Writing to a string does not fail.
        let _ = write!(text, "\nload {load}: {rate_per_s:.2} requests/s\n\n{}", table::text(&shown));
        if !hidden.is_empty() {
            let _ = writeln!(text, "\ndiverge at this load (--diverging shows them): {}", hidden.join(", "));
        }
    }
    text
}

/// The runs as a plot.
pub(super) fn plot(about: &ReplayInfo<'_>, loads: &[LoadTrials]) -> String {
    let mut loads: Vec<PlotLoad> =
        loads.iter().map(|at| PlotLoad { load: at.load, trials: at.trials.clone() }).collect();
    loads.sort_by(|one, other| one.load.total_cmp(&other.load));
    plot::svg(about.text().trim_end(), &loads)
}

/// A table of the largest loads.
pub(super) fn capacities(about: &ReplayInfo<'_>, found: &[Capacity], as_json: bool) -> String {
    if as_json {
        let each = found.iter().map(|Capacity { policy, loads }| {
            json!({ "policy": policy, "load": table::estimate_json(Estimate::of(loads)) })
        });
        return about.json("capacities", each.collect());
    }
    let promise = format!("{}; loads ± 0.02\n\n", about.promise());
    format!("{}\n\n", verdict::of_capacities(found))
        + &about.text()
        + &about.note()
        + &promise
        + &table::capacities(found)
}
