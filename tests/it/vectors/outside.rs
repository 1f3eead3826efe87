//! Rows from elsewhere: read under any name, counted, checked; and a wrong one is never passed
//! over.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::corpus::{VARIABLE, outside, own, passes, read};
use super::falsify::{At, falsify};
use super::table::SCHEMES;
use super::{Row, wide};

/// The inputs of a row and its name: changing one makes another row, not a false one.
const GIVEN: [&str; 4] = ["name", "scheme", "params", "token_ids"];

fn counts(rows: &[Row]) -> BTreeMap<&str, usize> {
    let mut found = BTreeMap::new();
    rows.iter().for_each(|row| *found.entry(row.scheme()).or_default() += 1);
    found
}

/// Short rows of every scheme: time enough has been spent on all of them elsewhere.
fn some_of_each() -> Vec<Row> {
    let mut found = Vec::new();
    for (scheme, ..) in SCHEMES {
        let mut rows: Vec<&Row> = own().iter().filter(|row| row.scheme() == *scheme).collect();
        rows.sort_by_cached_key(|row| row.0.to_string().len());
        found.extend(rows.into_iter().take(3).cloned());
    }
    found
}

/// A folder with these files.
fn folder(files: &[(&str, String)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    dir
}

fn list(rows: &[Row]) -> String {
    Value::from_iter(rows.iter().map(|row| row.0.clone())).to_string()
}

/// The schemes of which a test fails on the rows of a folder.
fn failing(dir: &Path) -> Vec<&'static str> {
    let rows = read(dir).unwrap();
    let fails = |scheme: &str, test: &fn()| {
        let of_scheme = rows.iter().filter(|row| row.scheme() == scheme).cloned().collect();
        !passes(*test, of_scheme)
    };
    let failing = SCHEMES.iter().filter(|(scheme, _, tests)| tests.iter().any(|test| fails(scheme, test)));
    failing.map(|(scheme, ..)| *scheme).collect()
}

/// The counts are printed even when the test passes: of a folder outside, they are all that is
/// seen.
#[test]
fn every_row_has_a_test_that_looks_at_it() {
    let table: BTreeMap<&str, usize> = SCHEMES.iter().map(|(scheme, count, _)| (*scheme, *count)).collect();
    assert_eq!(counts(own()), table);
    assert_eq!(own().iter().filter(|row| row.is_wide()).count(), wide::ROWS);
    assert_eq!(own().iter().filter(|row| row.0["first_block_serialized"].is_string()).count(), 240);
    if !outside().is_empty() {
        let total = outside().len();
        writeln!(std::io::stderr(), "{VARIABLE}: {total} rows: {:?}", counts(outside())).unwrap();
    }
}

#[test]
fn rows_are_found_under_any_name() {
    let rows = some_of_each();
    let (one, rest) = rows.split_first().unwrap();
    let (half, other) = rest.split_at(rest.len() / 2);
    let lines: String = half.iter().map(|row| format!("{}\n\n", row.0)).collect();
    let dir = folder(&[
        ("x.json", one.0.to_string()),
        ("kept back.jsonl", lines),
        ("deeper/still/7.json", list(other)),
        ("README.md", "Some words.".to_owned()),
    ]);
    let found = read(dir.path()).unwrap();
    assert_eq!((found.len(), counts(&found)), (rows.len(), counts(&rows)));
    assert_eq!(counts(&found).len(), SCHEMES.len());
    assert_eq!(failing(dir.path()), [""; 0]);
}

#[test]
fn one_false_row_is_enough() {
    let mut rows = some_of_each();
    let at = rows.iter().position(|row| row.scheme() == "ucm_path_posix").unwrap();
    assert!(falsify(&mut rows[at].0["expect"], At::First));
    let dir = folder(&[("other name.json", list(&rows))]);
    assert_eq!(failing(dir.path()), ["ucm_path_posix"]);
}

#[test]
fn untested_vector_row_is_an_error() {
    let good = &own()[0];
    let with = |member: &str, value: Value| {
        let mut row = good.clone();
        row.0[member] = value;
        list(&[good.clone(), row])
    };
    for (name, text, error) in [
        ("a.json", with("scheme", json!("new")), "row 1: no test looks at the scheme \"new\""),
        ("a.json", with("scheme", Value::Null), "row 1: it has no scheme"),
        ("a.json", with("expect", Value::Null), "row 1: it lacks a name, params or expect"),
        ("a.json", r#"{"rows": []}"#.to_owned(), "row 0: it has no scheme"),
        ("a.json", "7".to_owned(), "neither a list nor an object: 7"),
        ("a.json.gz", list(std::slice::from_ref(good)), "no rows"),
        ("a", list(std::slice::from_ref(good)), "no rows"),
        ("a.json", "[]".to_owned(), "no rows"),
        (".a.json", list(std::slice::from_ref(good)), "no rows"),
    ] {
        let dir = folder(&[(name, text)]);
        let found = read(dir.path()).err().unwrap_or_default();
        assert!(found.ends_with(error), "{found:?}, not {error:?}");
    }
    assert!(read(Path::new("/nowhere")).is_err());
}

/// For whatever a scheme's rows say, some test of the scheme compares it.
#[test]
fn no_member_of_a_row_can_be_false_unnoticed() {
    let mut unnoticed = Vec::new();
    let mut tried = 0;
    for (scheme, _, tests) in SCHEMES {
        let mut rows: Vec<&Row> = own().iter().filter(|row| row.scheme() == *scheme).collect();
        rows.sort_by_cached_key(|row| row.0.to_string().len());
        let mut members: Vec<&String> =
            rows.iter().flat_map(|row| row.0.as_object().unwrap().keys()).collect();
        members.sort_unstable();
        members.dedup();
        for member in members.into_iter().filter(|member| !GIVEN.contains(&member.as_str())) {
            for at in [At::First, At::Last] {
                let falsified = rows.iter().find_map(|row| {
                    let mut row = (*row).clone();
                    row.0.get_mut(member).is_some_and(|value| falsify(value, at)).then_some(row)
                });
                let Some(row) = falsified else { continue };
                tried += 1;
                if tests.iter().all(|test| passes(*test, vec![row.clone()])) {
                    unnoticed.push(format!("{scheme}: {at:?} of {member} in {}", row.name()));
                }
            }
        }
    }
    assert!(unnoticed.is_empty(), "of {tried}:\n{}", unnoticed.join("\n"));
    assert!(tried > 2 * SCHEMES.len());
}
