//! Pages of the reference, made from the program: `pd-proxy generate reference PAGE`.

mod configuration;

use std::fmt::Write as _;

use crate::cli::{self, Page};
use crate::obs::words::{self, Word};
use crate::server::reference as server;

/// Texts before the tables of the pages.
const CLI: &str = "# Command line

Made from the program by `pd-proxy generate reference cli`. Without a command, `pd-proxy` runs the
gateway. A flag of a gateway sets the key beside it. Each key also has a variable, as
`PD_PROXY__SERVER__PORT`, and a place in files: [Configuration](../configuration.md). Flags that
take several values take them after spaces, with commas, or repeated.
";
const HTTP: &str = "# Routes

Made from the program by `pd-proxy generate reference http`. `/openapi.json` of a gateway says the
same to tools, and `pd-proxy generate openapi` prints it. [HTTP API](../http-api.md) says what the
routes do. A path that has `GET` has `HEAD` as well. The key is that of clients (`any`) or of
operators (`admin`), where keys are asked for.
";
const ERRORS: &str = "# Errors

Made from the program by `pd-proxy generate reference errors`. An error of the gateway is
`{\"error\":{\"message\",\"type\",\"param\",\"code\"}}`, in the form of their API on `/v1/messages`. The
header `x-pd-error` has the code as well. The message is one sentence and names no engine. The log
has those, under the request's id (`x-request-id`). `param` is the field at fault, or null.

503 `overloaded` is 429 by `limit.overload_status`, and where every engine that was asked said 429.
All 429s and 503s carry `Retry-After`. What an engine refuses is passed on as the engine said it.
In a stream that has begun, the error is the last event.

";
const LOG: &str = "# Log lines

Made from the program by `pd-proxy generate reference log`. Every line has a time, a level and a
text, and fields as `name=value`; with `log.format = \"json\"` it is an object. Lines and what to do:
[troubleshooting](../troubleshooting.md#by-log-line).
";

const REQUEST_LINE: &str =
    "Every request ends with the line `request`: at WARN if its answer is a 5xx or its stream broke, else
at INFO. Fields that do not apply are left out.";

/// The page, in Markdown.
pub fn markdown(page: Page) -> String {
    match page {
        Page::Configuration => configuration::markdown(),
        Page::Cli => CLI.to_owned() + &cli::markdown(),
        Page::Http => HTTP.to_owned() + &server::routes(),
        Page::Errors => ERRORS.to_owned() + &server::errors(),
        Page::Log => log(),
    }
}

/// The OpenAPI document of every route, in JSON.
pub fn openapi() -> String {
    server::openapi()
}

fn log() -> String {
    let mut text = LOG.to_owned();
    let parts: [(&str, &str, &[Word]); 7] = [
        ("The line of a request", REQUEST_LINE, &words::REQUEST_FIELDS),
        (
            "How a request ended",
            "`reason` of that line and of `pd_proxy_requests_total`.",
            &words::END_REASONS,
        ),
        ("Refused for want of room", "`reason` of `pd_proxy_turned_away_total`.", &words::TURNED_AWAY),
        ("Refused keys", "`reason` of `pd_proxy_key_refusals_total`.", &words::KEY_REFUSED),
        (
            "Failed legs",
            "`reason` of `pd_proxy_leg_failures_total` and `pd_proxy_retries_total`.",
            &words::LEG_FAILURES,
        ),
        (
            "Answered by a decoder alone",
            "`bypass` of a request's line, `reason` of `pd_proxy_prefill_bypassed_total`.",
            &words::BYPASSED,
        ),
        (
            "Fields that many lines have",
            "Other fields are named in the text of their line.",
            &words::SHARED_FIELDS,
        ),
    ];
    for (heading, about, words) in parts {
        // Nothing written to a String fails.
        let _ = writeln!(text, "\n## {heading}\n\n{about}\n\n| | |\n|---|---|");
        for Word { name, meaning } in words {
            let _ = writeln!(text, "| `{name}` | {meaning} |");
        }
        if heading == "How a request ended" {
            let _ = writeln!(text, "| a code | an [error](errors.md) of the gateway |");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_are_what_the_program_prints() {
        for (page, name) in [
            (Page::Configuration, "configuration"),
            (Page::Cli, "reference/cli"),
            (Page::Http, "reference/http"),
            (Page::Errors, "reference/errors"),
            (Page::Log, "reference/log"),
        ] {
            let path = format!("{}/docs/{name}.md", env!("CARGO_MANIFEST_DIR"));
            let kept = std::fs::read_to_string(path).unwrap_or_default();
            assert!(kept == markdown(page), "docs/{name}.md differs: run `just reference`");
        }
    }
}
