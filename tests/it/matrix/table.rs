//! The matrix as Markdown: each cell in a line, and condensed.

use std::fmt::Write as _;

use super::plan::{Cell, Leg, Who};
use super::run::Outcome;

/// Cells with all that came of them.
pub fn full(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "| Leg | Fault | Stage | API | Form | At fault | Continued | Client saw | Prefills | Decodes | Left to the lease | |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for outcome in outcomes {
        let Cell { leg, ill, api, stream, who, resume } = outcome.cell;
        let wrong = outcome.wrong();
        let verdict =
            if wrong.is_empty() { "right".into() } else { format!("**WRONG**: {}", wrong.join("; ")) };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            name(leg),
            ill.name(),
            stage(&outcome.cell),
            api.name(),
            if stream { "stream" } else { "whole" },
            if who == Who::One { "one of two" } else { "all" },
            if resume { "on" } else { "off" },
            outcome.seen.name(),
            outcome.prefills,
            outcome.decodes,
            outcome.pinned,
            verdict.replace('|', "\\|").replace('\n', " "),
        );
    }
    text
}

fn name(leg: Leg) -> &'static str {
    match leg {
        Leg::Prefill => "prefill",
        Leg::Decode => "decode",
    }
}

fn stage(cell: &Cell) -> &'static str {
    use super::plan::Stage;
    match cell.stage() {
        Stage::BeforeHead => "before the head",
        Stage::InHead => "in the head",
        Stage::BeforeFirstByte => "before the first byte",
        Stage::MidStream => "mid-stream",
        Stage::BeforeEnd => "at the end",
    }
}

/// One row for each fault and leg. A cell is what the client saw, the prefills and decodes it took,
/// and what was left to its lease; where APIs differ, each has its own.
pub fn condensed(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "| Leg | Fault | stream, one of two | stream, all | stream, one, continued | stream, all, continued | whole, one of two | whole, all |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let mut rows: Vec<(Leg, String)> = Vec::new();
    for outcome in outcomes {
        let row = (outcome.cell.leg, outcome.cell.ill.name());
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    for (leg, fault) in rows {
        let columns = [
            (true, Who::One, false),
            (true, Who::All, false),
            (true, Who::One, true),
            (true, Who::All, true),
            (false, Who::One, false),
            (false, Who::All, false),
        ];
        let _ = write!(text, "| {} | {fault} |", name(leg));
        for (stream, who, resume) in columns {
            let fits = |o: &&Outcome| {
                let cell = o.cell;
                (cell.leg, cell.stream, cell.who, cell.resume) == (leg, stream, who, resume)
                    && cell.ill.name() == fault
            };
            let mut cells: Vec<String> = Vec::new();
            for outcome in outcomes.iter().filter(fits) {
                let cell = short(outcome);
                if !cells.contains(&cell) {
                    cells.push(cell);
                }
            }
            let _ = write!(text, " {} |", if cells.is_empty() { "–".into() } else { cells.join("<br>") });
        }
        text.push('\n');
    }
    text
}

/// Counts that the rules leave open, as those of a race, are given as the rules have them.
fn short(outcome: &Outcome) -> String {
    let want = &outcome.expected;
    let count = |count: u32, range: &std::ops::RangeInclusive<u32>| match range.start() == range.end() {
        true => count.to_string(),
        false => format!("{}–{}", range.start(), range.end()),
    };
    if !outcome.wrong().is_empty() {
        return "**WRONG**".into();
    }
    let left = match count(outcome.pinned, &want.pinned) {
        none if none == "0" => String::new(),
        some => format!(", {some} left"),
    };
    let attempts =
        format!("{}+{}", count(outcome.prefills, &want.prefills), count(outcome.decodes, &want.decodes));
    format!("{} ({attempts}{left})", outcome.seen.name())
}
