//! Results for people and for programs.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::outcome::Measures;
use super::stats::Estimate;

/// One policy's runs at one load, a run per seed.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The policy's name.
    pub policy: &'static str,
    /// Measures of its runs; the n-th is of the same seed for every policy.
    pub measures: Vec<Measures>,
}

/// The largest loads at which a policy keeps the promise.
#[derive(Clone, Debug)]
pub struct Capacity {
    /// The policy's name.
    pub policy: &'static str,
    /// The largest load of each seed.
    pub loads: Vec<f64>,
}

/// A measure, as it is shown.
struct Column {
    title: &'static str,
    key: &'static str,
    /// Factor for the table.
    scale: f64,
    decimals: usize,
    measure: fn(&Measures) -> f64,
}

const COLUMNS: [Column; 9] = [
    column("TTFT p50 s", "ttft_p50_s", 1.0, 2, |m| m.ttft_p50_s),
    column("p90 s", "ttft_p90_s", 1.0, 2, |m| m.ttft_p90_s),
    column("p99 s", "ttft_p99_s", 1.0, 1, |m| m.ttft_p99_s),
    column("TPOT p50 ms", "tpot_p50_s", 1e3, 1, |m| m.tpot_p50_s),
    column("gap p90 ms", "gap_p90_s", 1e3, 1, |m| m.gap_p90_s),
    column("in SLO %", "slo_share", 1e2, 1, |m| m.slo_share),
    column("in SLO /s", "goodput_per_s", 1.0, 2, |m| m.goodput_per_s),
    column("hits %", "hit_share", 1e2, 1, |m| m.hit_share),
    column("imbalance", "imbalance", 1.0, 2, |m| m.imbalance),
];

/// Measures that JSON alone has.
const MORE: [Column; 3] = [
    column("", "idle_while_waiting_share", 1.0, 3, |m| m.idle_share),
    column("", "later_ttft_p50_s", 1.0, 2, |m| m.later_ttft_p50_s),
    column("", "append_share", 1.0, 3, |m| m.append_share),
];

/// Measures that are compared with the first policy, run by run: theirs over its.
const RATIOS: [Column; 3] = [
    column("p50", "ttft_p50_ratio", 1.0, 2, |m| m.ttft_p50_s),
    column("p90", "ttft_p90_ratio", 1.0, 2, |m| m.ttft_p90_s),
    column("in SLO", "goodput_ratio", 1.0, 2, |m| m.goodput_per_s),
];

const fn column(
    title: &'static str,
    key: &'static str,
    scale: f64,
    decimals: usize,
    measure: fn(&Measures) -> f64,
) -> Column {
    Column { title, key, scale, decimals, measure }
}

impl Column {
    fn estimate(&self, trial: &Trial) -> Estimate {
        Estimate::of(
            &trial.measures.iter().map(|measures| (self.measure)(measures) * self.scale).collect::<Vec<_>>(),
        )
    }

    fn ratio(&self, trial: &Trial, first: &Trial) -> Estimate {
        let pairs = trial.measures.iter().zip(&first.measures);
        let ratios = pairs.map(|(its, firsts)| (self.measure)(its) / (self.measure)(firsts));
        Estimate::of(&ratios.filter(|ratio| ratio.is_finite()).collect::<Vec<_>>())
    }

    fn cell(&self, estimate: Estimate) -> String {
        let Estimate { mean, plus_minus } = estimate;
        // Three digits before the point say enough.
        let decimals = if mean >= 100.0 { 0 } else { self.decimals };
        match plus_minus {
            Some(half) => format!("{mean:.decimals$} ±{half:.decimals$}"),
            None => format!("{mean:.decimals$}"),
        }
    }
}

/// A Markdown table: a row per policy, a column per measure as mean ± half of its 95 % confidence
/// interval, and the ratios to the first row.
#[must_use]
pub fn text(trials: &[Trial]) -> String {
    let mut rows = vec![vec!["policy".to_owned()]];
    rows[0].extend(COLUMNS.iter().map(|column| column.title.to_owned()));
    rows[0].extend(RATIOS.iter().map(|column| format!("× {}", column.title)));
    for trial in trials {
        let mut row = vec![trial.policy.to_owned()];
        row.extend(COLUMNS.iter().map(|column| column.cell(column.estimate(trial))));
        row.extend(RATIOS.iter().map(|column| column.cell(column.ratio(trial, &trials[0]))));
        rows.push(row);
    }
    markdown(&rows)
}

/// A Markdown table of the largest loads: a row per policy, `capacities` being one per seed.
#[must_use]
pub fn capacities(policies: &[Capacity]) -> String {
    let mut rows = vec![vec!["policy".to_owned(), "largest load".to_owned(), "× first".to_owned()]];
    let shown = column("", "", 1.0, 2, |_| 0.0);
    for Capacity { policy, loads } in policies {
        let pairs = loads.iter().zip(&policies[0].loads);
        let ratios: Vec<f64> =
            pairs.map(|(its, firsts)| its / firsts).filter(|ratio| ratio.is_finite()).collect();
        let cells = [Estimate::of(loads), Estimate::of(&ratios)].map(|estimate| shown.cell(estimate));
        rows.push([policy.to_string()].into_iter().chain(cells).collect());
    }
    markdown(&rows)
}

/// The same as JSON: an object per policy, a member per measure in seconds and shares, each with
/// `mean` and `plus_minus`.
#[must_use]
pub fn json(trials: &[Trial]) -> Value {
    let each = trials.iter().map(|trial| {
        let unscaled = |column: &Column| Column { scale: 1.0, ..*column }.estimate(trial);
        let measures = COLUMNS.iter().chain(&MORE).map(|column| (column.key, unscaled(column)));
        let ratios = RATIOS.iter().map(|column| (column.key, column.ratio(trial, &trials[0])));
        let mut object = Map::new();
        object.insert("policy".to_owned(), trial.policy.into());
        for (key, estimate) in measures.chain(ratios) {
            object.insert(key.to_owned(), estimate_json(estimate));
        }
        Value::Object(object)
    });
    Value::Array(each.collect())
}

/// An estimate as JSON.
#[must_use]
pub fn estimate_json(Estimate { mean, plus_minus }: Estimate) -> Value {
    json!({ "mean": mean, "plus_minus": plus_minus })
}

/// Rows of as many cells as the first, which is the heading. The first column is text, the others
/// are numbers.
fn markdown(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(2);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Writing to a string does not fail.
            let _ = if column == 0 {
                write!(text, "| {cell:<width$} ")
            } else {
                write!(text, "| {cell:>width$} ")
            };
        }
        text.push_str("|\n");
        if at == 0 {
            for (column, width) in widths.iter().enumerate() {
                let _ = write!(text, "|{}{}", "-".repeat(width + 1), if column == 0 { "-" } else { ":" });
            }
            text.push_str("|\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trials() -> Vec<Trial> {
        let measures =
            |ttft_p50_s: f64| Measures { ttft_p50_s, ttft_p90_s: 1.0, slo_share: 0.5, ..Measures::default() };
        vec![
            Trial { policy: "ours", measures: vec![measures(0.5), measures(0.7)] },
            Trial { policy: "theirs", measures: vec![measures(1.0), measures(1.4)] },
        ]
    }

    #[test]
    fn a_table_has_a_row_per_policy() {
        let table = text(&trials());
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[0].starts_with("| policy | TTFT p50 s |"), "{table}");
        assert!(lines[1].starts_with("|--------|-----------:|"), "{table}");
        // Student's factor of one degree of freedom times the standard error.
        assert!(lines[2].starts_with("| ours   | 0.60 ±1.27 | 1.00 ±0.00 |"), "{table}");
        assert!(lines[3].contains("| 2.00 ±0.00 | 1.00 ±0.00 |"), "{table}");
        assert!(lines.iter().all(|line| line.chars().count() == lines[0].chars().count()), "{table}");
    }

    #[test]
    fn json_has_plain_units() {
        let value = json(&trials());
        assert_eq!(value[0]["slo_share"]["mean"], 0.5);
        assert_eq!(value[1]["ttft_p50_ratio"]["mean"], 2.0);
        assert_eq!(value[0]["idle_while_waiting_share"]["mean"], 0.0);
        let single = json(&[Trial { policy: "one", measures: vec![Measures::default()] }]);
        assert_eq!(single[0]["ttft_p50_s"]["plus_minus"], Value::Null);
    }

    #[test]
    fn capacities_are_compared_with_the_first() {
        let capacity = |policy, load| Capacity { policy, loads: vec![load, load] };
        let table = capacities(&[capacity("ours", 0.8), capacity("theirs", 0.4)]);
        assert!(table.contains("| theirs |   0.40 ±0.00 | 0.50 ±0.00 |"), "{table}");
    }
}
