//! Sources of the rows: `tests/vectors`, and the folder that `PD_PROXY_VECTORS` names, if it is
//! set.
//!
//! Nothing in that folder is passed over because of its name: a file or a row that no test takes is
//! an error.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::Value;

use super::Row;
use super::table::SCHEMES;

/// Names a folder with more rows.
pub(super) const VARIABLE: &str = "PD_PROXY_VECTORS";

static OWN: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    read(&folder).unwrap_or_else(|e| panic!("{e}"))
});
static OUTSIDE: LazyLock<Result<Vec<Row>, String>> = LazyLock::new(|| match std::env::var_os(VARIABLE) {
    Some(folder) => read(Path::new(&folder)),
    None => Ok(Vec::new()),
});

thread_local! {
    /// The rows that tests of this thread see instead.
    static STAND_IN: RefCell<Option<Vec<Row>>> = const { RefCell::new(None) };
}

/// The repository's rows.
pub(super) fn own() -> &'static [Row] {
    &OWN
}

/// The rows of the folder in [`VARIABLE`]; none without it.
pub(super) fn outside() -> &'static [Row] {
    OUTSIDE.as_deref().unwrap_or_else(|e| panic!("{VARIABLE}: {e}"))
}

/// The rows of a scheme: as many of our own as the table says, and those outside.
pub fn rows(scheme: &str) -> Vec<Row> {
    let of_scheme =
        |rows: &[Row]| -> Vec<Row> { rows.iter().filter(|row| row.scheme() == scheme).cloned().collect() };
    if let Some(rows) = STAND_IN.with_borrow(|rows| rows.as_deref().map(of_scheme)) {
        return rows;
    }
    let mut found = of_scheme(own());
    let (_, count, _) = SCHEMES.iter().find(|(name, ..)| *name == scheme).unwrap();
    assert_eq!(found.len(), *count, "rows of {scheme}");
    found.extend(of_scheme(outside()));
    found
}

/// Runs a test of this binary on other rows; whether it passes.
pub(super) fn passes(test: fn(), rows: Vec<Row>) -> bool {
    STAND_IN.set(Some(rows));
    let ended = std::panic::catch_unwind(test);
    STAND_IN.set(None);
    ended.is_ok()
}

/// All rows below a folder, of which there must be some.
pub(super) fn read(folder: &Path) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for path in files(folder)? {
        let at = |e: String| format!("{}: {e}", path.display());
        let values = match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => values_of(&text(&path)?).map_err(at)?,
            Some("jsonl" | "ndjson") => lines_of(&text(&path)?).map_err(at)?,
            // Texts beside the rows: said, so that rows under another ending are seen.
            _ => {
                eprintln!("{}: no rows are read from it", path.display());
                continue;
            }
        };
        for (index, value) in values.into_iter().enumerate() {
            rows.push(row(value).map_err(|e| at(format!("row {index}: {e}")))?);
        }
    }
    if rows.is_empty() { Err(format!("{}: no rows", folder.display())) } else { Ok(rows) }
}

/// All files, those in folders within too, hidden ones not.
fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let (mut found, mut todo) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = todo.pop() {
        let at = |e| format!("{}: {e}", folder.display());
        for entry in std::fs::read_dir(&folder).map_err(at)? {
            let entry = entry.map_err(at)?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let to = if entry.path().is_dir() { &mut todo } else { &mut found };
            to.push(entry.path());
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn text(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// A file is a list of rows, or one row.
fn values_of(text: &str) -> Result<Vec<Value>, String> {
    match serde_json::from_str(text).map_err(|e| e.to_string())? {
        Value::Array(values) => Ok(values),
        value @ Value::Object(_) => Ok(vec![value]),
        other => Err(format!("neither a list nor an object: {other}")),
    }
}

fn lines_of(text: &str) -> Result<Vec<Value>, String> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| serde_json::from_str(line).map_err(|e| e.to_string())).collect()
}

/// Members of every row, and a scheme that some test looks at.
fn row(value: Value) -> Result<Row, String> {
    let scheme = value["scheme"].as_str().ok_or("it has no scheme")?;
    let checked = SCHEMES.iter().any(|(known, _, tests)| *known == scheme && !tests.is_empty());
    if !checked {
        return Err(format!("no test looks at the scheme {scheme:?}"));
    }
    let whole = value["name"].is_string() && value["params"].is_object() && value["expect"].is_array();
    if whole { Ok(Row(value)) } else { Err("it lacks a name, params or expect".to_owned()) }
}
