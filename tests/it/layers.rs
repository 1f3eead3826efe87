//! Arrows between modules point downward: ARCHITECTURE.md's table, checked from the `use crate::`
//! lines.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::tidy::sources_below;

/// The modules that each module may name. A module that is not listed may name none.
const MAY_USE: &[(&str, &[&str])] = &[
    ("codec", &[]),
    ("kvhash", &["codec"]),
    ("endpoint", &[]),
    ("tls", &[]),
    ("util", &[]),
    ("error", &[]),
    ("route", &[]),
    ("dialect", &["codec", "error", "route"]),
    ("prompt", &["codec", "dialect"]),
    ("obs", &["dialect"]),
    ("fleet", &["dialect", "endpoint", "obs", "route", "util"]),
    ("upstream", &["codec", "endpoint", "fleet", "tls"]),
    ("auth", &["obs", "util"]),
    ("trace", &["obs"]),
    ("tokenization", &["codec", "dialect", "endpoint", "kvhash", "prompt", "util"]),
    ("pool", &["codec", "endpoint", "kvhash", "util"]),
    ("naming_config", &["codec", "config", "dialect", "endpoint", "kvhash", "prompt", "tokenization"]),
    ("config", &["cli", "endpoint", "tls"]),
    ("cli", &["config", "endpoint"]),
    (
        "relay",
        &[
            "auth",
            "codec",
            "dialect",
            "endpoint",
            "error",
            "fleet",
            "kvhash",
            "obs",
            "pool",
            "prompt",
            "route",
            "tokenization",
            "trace",
            "upstream",
            "util",
        ],
    ),
    (
        "server",
        &[
            "auth",
            "codec",
            "dialect",
            "endpoint",
            "error",
            "fleet",
            "obs",
            "relay",
            "route",
            "tls",
            "tokenization",
            "trace",
            "upstream",
            "util",
        ],
    ),
    (
        "control",
        &[
            "config",
            "dialect",
            "endpoint",
            "fleet",
            "naming_config",
            "obs",
            "pool",
            "prompt",
            "tls",
            "tokenization",
            "upstream",
            "util",
        ],
    ),
    (
        "app",
        &[
            "auth",
            "config",
            "control",
            "dialect",
            "endpoint",
            "fleet",
            "kvhash",
            "naming_config",
            "obs",
            "pool",
            "relay",
            "route",
            "server",
            "share",
            "tls",
            "tokenization",
            "trace",
            "upstream",
            "util",
        ],
    ),
    ("share", &["auth", "config", "fleet", "obs", "relay", "route"]),
    ("sim", &["codec"]),
    ("replay", &["route", "util"]),
    (
        "cmd",
        &[
            "app",
            "auth",
            "cli",
            "codec",
            "config",
            "control",
            "dialect",
            "endpoint",
            "fleet",
            "kvhash",
            "naming_config",
            "obs",
            "pool",
            "prompt",
            "replay",
            "route",
            "server",
            "share",
            "sim",
            "tls",
            "tokenization",
            "util",
        ],
    ),
];

/// Names that are forbidden in pure modules: sockets, clocks, randomness.
const IMPURE: [&str; 7] = ["tokio", "hyper", "axum", "reqwest", "Instant::now", "SystemTime", "rand"];
const PURE: [&str; 7] = ["codec", "dialect", "kvhash", "cmd/keys_report", "prompt", "replay", "route"];

/// Folders of sources, each with the module that all its files belong to, unless the first part of
/// their path names it.
const FOLDERS: [(&str, Option<&str>); 3] =
    [("src", None), ("crates/core/src", None), ("crates/sim/src", Some("sim"))];

/// A file of the library or of a crate below it.
struct Source {
    module: String,
    /// Path below its folder of sources.
    below: PathBuf,
    path: PathBuf,
    text: String,
}

fn sources() -> Vec<Source> {
    let is_code = |path: &Path| path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs");
    let mut found = Vec::new();
    for (folder, module) in FOLDERS {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        for (path, text) in sources_below(folder).into_iter().filter(|(path, _)| is_code(path)) {
            let below = path.strip_prefix(&root).unwrap().to_owned();
            let first = below.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
            let module = module.unwrap_or(first).to_owned();
            found.push(Source { module, below, path, text });
        }
    }
    found
}

/// The part of a file before its tests.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}

#[test]
fn modules_use_only_what_lies_below_them() {
    let mut checked = 0;
    for Source { module, below, path, text } in sources() {
        if below == Path::new("lib.rs") || below == Path::new("main.rs") {
            continue;
        }
        let Some((_, allowed)) = MAY_USE.iter().find(|(m, _)| *m == module) else {
            panic!("{}: the module `{module}` has no row in the table", path.display());
        };
        // In a crate that is one module, `crate::` is that module.
        let root = if module == "sim" { "pd_proxy_core::" } else { "crate::" };
        for used in without_tests(&text).split(root).skip(1) {
            let name: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let fine = name.is_empty() || name == module || allowed.contains(&name.as_str());
            assert!(fine, "{}: `{module}` may not use `{name}`", path.display());
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} uses were looked at");
}

#[test]
fn the_table_is_the_one_that_people_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md");
    let text = std::fs::read_to_string(path).unwrap();
    let table = text.split("| Module | may use |\n|---|---|\n").nth(1).unwrap().split("\n\n").next().unwrap();
    // What stands in parentheses narrows a name down.
    let names = |cell: &str| -> BTreeSet<String> {
        cell.split('`')
            .skip(1)
            .step_by(2)
            .filter(|n| !n.contains("::") && !n.contains("Args"))
            .map(str::to_owned)
            .collect()
    };
    let read: Vec<(BTreeSet<String>, BTreeSet<String>)> = table
        .lines()
        .map(|line| {
            line.trim_matches('|').split_once('|').map(|(module, used)| (names(module), names(used))).unwrap()
        })
        .collect();
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    for (module, allowed) in MAY_USE {
        assert!(read.contains(&(owned(&[module]), owned(allowed))), "the row of `{module}` differs");
    }
    assert_eq!(read.len(), MAY_USE.len());
}

#[test]
fn pure_modules_have_no_clock_and_no_socket() {
    for Source { below, path, text, .. } in sources() {
        if !PURE.iter().any(|pure| below.starts_with(pure)) {
            continue;
        }
        for (number, line) in without_tests(&text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            for word in IMPURE {
                assert!(
                    !code.contains(&format!("{word}::")) && !code.contains(&format!("{word}(")),
                    "{}:{}: `{word}` in a pure module",
                    path.display(),
                    number + 1
                );
            }
        }
    }
}

#[test]
fn only_one_file_knows_our_status_codes_and_one_names_metrics() {
    for Source { path, text, .. } in sources() {
        let name = path.to_string_lossy().into_owned();
        let code = without_tests(&text);
        if !name.ends_with("obs/names.rs") {
            assert!(!code.contains("\"pd_proxy_"), "{name} names a metric");
        }
        if !name.ends_with("server/reply.rs") && !name.contains("/sim") {
            assert!(!code.contains("StatusCode::BAD_GATEWAY"), "{name} maps errors to a status");
        }
    }
}
