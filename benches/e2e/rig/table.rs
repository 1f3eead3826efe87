//! Writes a Markdown table for each scenario.

use std::fmt::Write as _;

use super::measure::Outcome;
use super::plan::{Cell, Scenario};
use super::sample::Sample;
use super::trouble::Troubles;

/// Outcomes of a cell, for each proxy and each of its repetitions.
#[derive(Debug)]
pub(crate) struct Row {
    /// Cell of the row.
    pub(crate) cell: Cell,
    /// Outcomes of the repetitions, by proxy.
    pub(crate) outcomes: Vec<Vec<Outcome>>,
}

/// A column: its heading, and the value that it shows.
type Column = (&'static str, fn(&Sample) -> Option<f64>);

fn columns(scenario: Scenario) -> &'static [Column] {
    match scenario {
        Scenario::Small | Scenario::Prompts | Scenario::Instances => {
            &[("CPU us per request", Sample::us_per_request), ("requests per s", Sample::requests_per_s)]
        }
        Scenario::Streams => &[
            ("CPU us per chunk", Sample::us_per_chunk),
            ("KB per stream", Sample::kb_per_stream),
            ("chunks per s", Sample::chunks_per_s),
        ],
        Scenario::Cores => {
            &[("requests per CPU s", Sample::requests_per_cpu_s), ("requests per s", Sample::requests_per_s)]
        }
        Scenario::Idle => {
            &[("KB per stream", Sample::kb_per_stream), ("CPU ms per s of silence", Sample::silent_ms_per_s)]
        }
    }
}

/// Word for the requests of a scenario.
fn requests(scenario: Scenario) -> &'static str {
    if matches!(scenario, Scenario::Streams | Scenario::Idle) { "streams" } else { "requests" }
}

/// Renders the table of a scenario for the proxies of these names. Remarks below it say what went
/// wrong or was left out.
pub(crate) fn render(scenario: Scenario, names: &[&str], rows: &[Row]) -> String {
    let columns = columns(scenario);
    let several = names.len() > 1;
    let first = names.first().copied().unwrap_or_default();
    let mut heads = vec![scenario.name().to_owned()];
    heads.extend(several.then(|| "proxy".to_owned()));
    heads.extend(columns.iter().map(|(head, _)| (*head).to_owned()));
    heads.extend(several.then(|| format!("{first} ÷ it")));
    heads.extend([requests(scenario).to_owned(), "errors".to_owned()]);
    let mut out = format!("\n{}: {}\n\n| {} |\n", scenario.name(), scenario.title(), heads.join(" | "));
    let left = if several { "---|---" } else { "---" };
    let numbers = heads.len() - 1 - usize::from(several);
    let _ = writeln!(out, "|{left}|{}", "--:|".repeat(numbers));
    let mut below = String::new();
    for row in rows {
        let ours = row.outcomes.first().and_then(|reps| median_of(reps, columns.first()?.1));
        for (name, reps) in names.iter().zip(&row.outcomes) {
            let mut cells = vec![row.cell.to_string()];
            cells.extend(several.then(|| (*name).to_owned()));
            cells.extend(columns.iter().map(|(_, of)| number(median_of(reps, *of))));
            let its = columns.first().and_then(|(_, of)| median_of(reps, *of));
            let ratio = ours.zip(its).filter(|_| *name != first).map(|(ours, its)| ours / its);
            cells.extend(several.then(|| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"))));
            cells.extend(counts(reps));
            let _ = writeln!(out, "| {} |", cells.join(" | "));
            remarks(&mut below, &format!("{}, {name}", row.cell), reps);
        }
    }
    if !below.is_empty() {
        let _ = write!(out, "\n{below}");
    }
    out
}

/// Requests and errors of all repetitions.
fn counts(reps: &[Outcome]) -> [String; 2] {
    let asked: u64 = samples(reps).map(|sample| sample.requests).sum();
    let bad = troubles(reps).count();
    let failed = reps.iter().any(|outcome| matches!(outcome, Outcome::Failed(_)));
    let errors = match (bad, failed, asked) {
        (_, true, _) => "failed".to_owned(),
        (0, _, 0) => "–".to_owned(),
        (0, ..) => "0".to_owned(),
        (bad, ..) => format!("**{bad}**"),
    };
    [if asked == 0 { "–".to_owned() } else { grouped(&asked.to_string()) }, errors]
}

/// Writes the remarks on a cell that go below the table.
fn remarks(into: &mut String, name: &str, reps: &[Outcome]) {
    for outcome in reps {
        if let Outcome::Failed(why) = outcome {
            let _ = writeln!(into, "- {name}: not measured: {why}");
        }
    }
    let skipped = reps.iter().find_map(|outcome| match outcome {
        Outcome::Skipped(why) => Some(why),
        _ => None,
    });
    if let Some(why) = skipped {
        let _ = writeln!(into, "- {name}: left out: {why}");
    }
    let bad = troubles(reps);
    if bad.count() > 0 {
        let _ = writeln!(into, "- {name}: bad answers: {bad}");
    }
}

/// True if the outcome is a failure, has a bad answer or has no answer.
pub(crate) fn is_bad(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Done(sample) => sample.troubles.count() > 0 || sample.answered == 0,
        Outcome::Skipped(_) => false,
        Outcome::Failed(_) => true,
    }
}

fn samples(reps: &[Outcome]) -> impl Iterator<Item = &Sample> {
    reps.iter().filter_map(|outcome| match outcome {
        Outcome::Done(sample) => Some(sample.as_ref()),
        _ => None,
    })
}

fn troubles(reps: &[Outcome]) -> Troubles {
    let mut all = Troubles::default();
    samples(reps).for_each(|sample| all.merge(&sample.troubles));
    all
}

fn median_of(reps: &[Outcome], of: fn(&Sample) -> Option<f64>) -> Option<f64> {
    let mut values: Vec<f64> = samples(reps).filter_map(of).collect();
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}

/// Formats a number with three digits, or with all those before the point.
fn number(value: Option<f64>) -> String {
    let Some(value) = value else { return "–".to_owned() };
    match value.abs() {
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => grouped(&format!("{value:.0}")),
    }
}

/// Groups digits by three.
fn grouped(digits: &str) -> String {
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}
