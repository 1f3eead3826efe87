//! The promises of the documents, and the largest size of files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pd_proxy::prompt::Reason;

use crate::command::run;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn the_documents_list_every_metric_and_no_other() {
    let page = read("docs/metrics.md");
    let listed: BTreeSet<&str> = page
        .split('`')
        .filter(|w| w.starts_with("pd_proxy_"))
        .map(|w| w.split('{').next().unwrap())
        .collect();
    let known: BTreeSet<&str> = pd_proxy::obs::names::ALL.into_iter().collect();
    assert_eq!(listed, known);
}

#[test]
fn the_documents_list_every_reason_and_no_other() {
    let page = read("docs/pool-and-tokens.md");
    let table = page.split("| Reason | Why").nth(1).unwrap().split("\n\n").next().unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let listed: BTreeSet<&str> = rows.collect();
    assert_eq!(listed, Reason::ALL.iter().map(|reason| reason.name()).collect());
}

#[test]
fn whole_configurations_in_the_documents_are_good() {
    let pages = ["first-hour", "pool-and-tokens", "operating"].map(|page| read(&format!("docs/{page}.md")));
    let text = pages.concat();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    let mut checked = 0;
    for text in text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()) {
        std::fs::write(&file, text).unwrap();
        let (code, _, err) = run(&["check", "--offline", "--config", file.to_str().unwrap()], &[]);
        assert_eq!((code, err.as_str()), (0, ""), "{text}");
        checked += 1;
    }
    assert_eq!(checked, 4);
}

/// The numbers are those of a row of the golden vectors, which other tests compare.
#[test]
fn the_documented_example_of_keys_is_what_is_printed() {
    let page = read("docs/pool-and-tokens.md");
    let example = page.split("<!-- keys example -->\n```\n$ pd-proxy ").nth(1).unwrap();
    let (command, printed) = example.split("```").next().unwrap().split_once('\n').unwrap();
    let (code, out, err) = run(&command.split(' ').collect::<Vec<_>>(), &[]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, printed, ""));
}

/// Every source file below a folder of the repository, with its text.
pub(crate) fn sources_below(folder: &str) -> Vec<(PathBuf, String)> {
    let mut todo = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    let mut found = Vec::new();
    while let Some(dir) = todo.pop() {
        for path in std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()) {
            // What fuzzing builds and finds is no source.
            if path.is_dir() && !path.ends_with("target") {
                todo.push(path);
            } else if path.extension().is_some_and(|e| ["rs", "py", "sh"].iter().any(|of| e == *of)) {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has no sources");
    found
}

/// Lines of every source file below a folder of the repository.
fn lines_below(folder: &str) -> Vec<usize> {
    let count = |(path, text): &(PathBuf, String)| {
        let lines = text.lines().count();
        assert!(lines <= 500, "{} has {lines} lines", path.display());
        lines
    };
    sources_below(folder).iter().map(count).collect()
}

/// A clone has nothing beside it: what tests, benches and scripts read is in the project.
#[test]
fn sources_read_nothing_beside_the_project() {
    let out = ["CARGO_MANIFEST_DIR\"), \"/..", "{}/..", "$PWD/..", "$root/.."];
    for folder in ["crates", "src", "tests", "benches", "examples"] {
        for (path, text) in sources_below(folder).iter().filter(|(path, _)| !path.ends_with("tidy.rs")) {
            for (number, line) in text.lines().enumerate() {
                let place = || format!("{}:{}: {line}", path.display(), number + 1);
                assert!(!out.iter().any(|way| line.contains(way)), "{}", place());
            }
        }
    }
}

#[test]
fn files_hold_one_idea() {
    let mut lines = [lines_below("src"), lines_below("crates")].concat();
    lines.sort_unstable();
    let median = lines[lines.len() / 2];
    assert!(median <= 200, "the median file has {median} lines");
    for folder in ["tests", "benches", "examples"] {
        lines_below(folder);
    }
}

/// Tests wait for events, or run in virtual time: what sleeps has a name in `common/time.rs`, and
/// nothing is shown by waiting for a while.
#[test]
fn tests_sleep_in_one_place() {
    for (path, text) in sources_below("tests/it") {
        if path.ends_with("common/time.rs") || path.ends_with("tidy.rs") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let sleeps = ["sleep(", "sleep_until(", "park_timeout("].iter().any(|call| line.contains(call));
            assert!(!sleeps, "{}:{}: {line}: see common/time.rs", path.display(), number + 1);
        }
    }
}

#[test]
fn the_image_is_built_with_the_pinned_compiler() {
    let pinned = read("rust-toolchain.toml");
    let channel =
        pinned.lines().find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"')).unwrap();
    let image = format!("FROM rust:{channel}-");
    assert!(read("Dockerfile").contains(&image), "the Dockerfile builds with another compiler: {image}…");
}
