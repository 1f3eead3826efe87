//! What the README promises, and how large files may grow.

use std::path::Path;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn the_readme_lists_every_metric_and_no_other() {
    let readme = read("README.md");
    let listed: std::collections::BTreeSet<&str> = readme
        .split('`')
        .filter(|w| w.starts_with("pd_proxy_"))
        .map(|w| w.split('{').next().unwrap())
        .collect();
    let known: std::collections::BTreeSet<&str> = pd_proxy::obs::names::ALL.into_iter().collect();
    assert_eq!(listed, known);
}

#[test]
fn files_hold_one_idea() {
    let mut todo = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut lines_of_all = Vec::new();
    while let Some(dir) = todo.pop() {
        for path in std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()) {
            if path.is_dir() {
                todo.push(path);
                continue;
            }
            let lines = std::fs::read_to_string(&path).unwrap().lines().count();
            assert!(lines <= 500, "{} has {lines} lines", path.display());
            lines_of_all.push(lines);
        }
    }
    lines_of_all.sort_unstable();
    let median = lines_of_all[lines_of_all.len() / 2];
    assert!(median <= 200, "the median file has {median} lines");
}
