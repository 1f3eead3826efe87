//! Routes and errors as pages of the reference, and the OpenAPI document of all routes.

use std::fmt::Write as _;

use http::Method;

use super::openapi::{self, key_name, tag};
use super::reply;
use super::table::{Listener, Row, TABLE};
use crate::error::Kind;

/// Headings of the page of routes, by who answers, each with a word on it.
const SECTIONS: [(&str, &str); 5] = [
    ("generating", "A prefiller computes the prompt, a decoder answers."),
    ("one engine", "Passed to one engine: prefillers first, or to a decoder where it generates."),
    ("gateway", "Answered by the gateway."),
    ("operators", "Answered by the gateway, on the listener of operators if there is one."),
    ("every engine", "Sent to every engine of the roles that `?role=` names, on the same listener."),
];

/// The OpenAPI document of every route, as `/openapi.json` serves it.
pub fn openapi() -> String {
    let rows: Vec<&Row> = TABLE.iter().collect();
    format!("{:#}\n", openapi::openapi(&rows, &[]))
}

/// A table of the routes for each kind of answer, in Markdown.
pub fn routes() -> String {
    let mut text = String::new();
    for (name, about) in SECTIONS {
        // Nothing written to a String fails, here and below.
        let _ = writeln!(
            text,
            "\n## {}\n\n{about}\n\n| Path | Method | Key | |\n|---|---|---|---|",
            heading(name)
        );
        for row in TABLE.iter().filter(|row| tag(row) == name && !is_part_of_page(row)) {
            let methods: Vec<&str> = row.methods.iter().map(Method::as_str).collect();
            let (methods, key) = (methods.join(", "), key_name(row.key));
            let _ = writeln!(text, "| `{}` | {methods} | {key} | {} |", row.path, row.summary);
        }
    }
    text
}

/// A table of the errors by their status, in Markdown.
pub fn errors() -> String {
    let mut kinds: Vec<Kind> = Kind::ALL.to_vec();
    // Those of one status keep the order of the table.
    kinds.sort_by_key(|kind| reply::status(*kind));
    let mut text = String::from("| Status | `code` | `type` | When | What to do |\n|---|---|---|---|---|\n");
    for kind in kinds {
        let (status, code, blame) = (reply::status(kind).as_u16(), kind.code(), kind.openai_type());
        let (meaning, remedy) = (kind.meaning(), kind.remedy());
        let _ = writeln!(text, "| {status} | `{code}` | `{blame}` | {meaning} | {remedy} |");
    }
    text
}

/// True of styles and scripts of the status page, which nobody calls.
fn is_part_of_page(row: &Row) -> bool {
    row.listener == Listener::Pages && [".css", ".js"].iter().any(|end| row.path.ends_with(end))
}

/// A name with a capital.
fn heading(name: &str) -> String {
    let (first, rest) = name.split_at(1);
    first.to_ascii_uppercase() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_and_errors_are_listed_once() {
        let (routes, errors) = (routes(), errors());
        for row in TABLE.iter().filter(|row| row.listener != Listener::Pages) {
            let line = format!("| `{}` | {}", row.path, row.methods[0]);
            assert_eq!(routes.matches(&line).count(), 1, "{line}");
        }
        for kind in Kind::ALL {
            assert_eq!(errors.matches(&format!(" | `{}` | ", kind.code())).count(), 1, "{kind:?}");
        }
        assert!(errors.find("| 400 |") < errors.find("| 503 |"));
    }
}
