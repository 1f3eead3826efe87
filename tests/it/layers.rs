//! Arrows between modules point downward: ARCHITECTURE.md's table, checked from the `use crate::` lines.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::tidy::sources_below;

/// Which modules of ours each module may name. What is not listed may name nothing.
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
    ("auth", &["obs"]),
    ("trace", &["obs"]),
    ("intake", &["codec", "dialect", "endpoint", "kvhash", "prompt", "util"]),
    ("pool", &["codec", "endpoint", "kvhash", "util"]),
    ("profile", &["codec", "config", "dialect", "endpoint", "intake", "kvhash", "prompt"]),
    ("config", &["cli", "endpoint", "tls"]),
    ("cli", &["config", "endpoint"]),
    (
        "relay",
        &[
            "auth", "codec", "dialect", "endpoint", "error", "fleet", "intake", "kvhash", "obs", "pool",
            "prompt", "route", "trace", "upstream", "util",
        ],
    ),
    (
        "server",
        &[
            "auth", "codec", "dialect", "endpoint", "error", "fleet", "intake", "obs", "relay", "route",
            "tls", "trace", "upstream", "util",
        ],
    ),
    (
        "control",
        &[
            "config", "dialect", "endpoint", "fleet", "intake", "obs", "pool", "profile", "prompt", "tls",
            "upstream", "util",
        ],
    ),
    (
        "app",
        &[
            "auth", "config", "control", "dialect", "endpoint", "fleet", "intake", "kvhash", "obs", "pool",
            "profile", "relay", "route", "server", "tls", "trace", "upstream", "util",
        ],
    ),
    ("sim", &["codec"]),
    ("replay", &["route"]),
    (
        "cmd",
        &[
            "app", "auth", "cli", "codec", "config", "control", "dialect", "endpoint", "fleet", "intake",
            "kvhash", "obs", "pool", "profile", "prompt", "replay", "sim", "tls",
        ],
    ),
];

/// What pure modules may not name: sockets, clocks, randomness.
const IMPURE: [&str; 7] = ["tokio", "hyper", "axum", "reqwest", "Instant::now", "SystemTime", "rand"];
const PURE: [&str; 7] = ["codec", "dialect", "kvhash", "cmd/keys_report", "prompt", "replay", "route"];

fn sources() -> Vec<(String, PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let is_code = |path: &Path| path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs");
    let all = sources_below("src").into_iter().filter(|(path, _)| is_code(path));
    let of_module = |(path, text): (PathBuf, String)| {
        let first = path.strip_prefix(&root).unwrap().iter().next().unwrap();
        (first.to_str().unwrap().trim_end_matches(".rs").to_owned(), path, text)
    };
    all.map(of_module).collect()
}

/// The part of a file before its tests.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}

#[test]
fn modules_use_only_what_lies_below_them() {
    let mut checked = 0;
    for (module, path, text) in sources() {
        if module == "lib" || module == "main" {
            continue;
        }
        let Some((_, allowed)) = MAY_USE.iter().find(|(m, _)| *m == module) else {
            panic!("{}: the module `{module}` has no row in the table", path.display());
        };
        for used in without_tests(&text).split("crate::").skip(1) {
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (_, path, text) in sources() {
        if !PURE.iter().any(|pure| path.starts_with(root.join(pure))) {
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
    for (_, path, text) in sources() {
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
