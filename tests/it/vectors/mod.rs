//! Golden vectors: what the original code of engines and connectors computed, see `tests/vectors/README.md`.
//!
//! All files of `tests/vectors` are read, and those of the folder in `PD_PROXY_VECTORS`, if that is set.

mod hashes;
mod schemes;
mod wide;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Who looks at the rows of a scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// `hashes.rs`.
    Hashes,
    /// The tests of pool keys.
    Keys,
}

/// Rows of each scheme in `tests/vectors`, so that none is left out unnoticed.
const SCHEMES: &[(&str, usize, By)] = &[
    ("ascend_011_mooncake_store_v1", 6, By::Hashes),
    ("ascend_store", 87, By::Keys),
    ("ascend_store_fmt", 20, By::Keys),
    ("ascend_store_groups", 11, By::Keys),
    ("ascend_store_gva", 8, By::Keys),
    ("ascend_yuanrong_normalize", 3, By::Keys),
    ("ems_chain", 13, By::Hashes),
    ("ems_lookup_pickle", 1, By::Hashes),
    ("ems_tuple", 12, By::Hashes),
    ("libstdcxx_hash_string_view_16", 1, By::Keys),
    ("lmcache_engine_key", 43, By::Hashes),
    ("lmcache_mm", 5, By::Hashes),
    ("lmcache_mp", 9, By::Hashes),
    ("py_int_hash", 1, By::Hashes),
    ("py_str_hash", 12, By::Hashes),
    ("py_tuple_hash", 5, By::Hashes),
    ("ucm_block_id", 62, By::Hashes),
    ("ucm_path_ds3fs", 1, By::Keys),
    ("ucm_path_nfsstore_legacy", 2, By::Keys),
    ("ucm_path_pcstore", 2, By::Keys),
    ("ucm_path_pcstore_noshard", 2, By::Keys),
    ("ucm_path_posix", 2, By::Keys),
    ("ucm_path_posix_noshard", 2, By::Keys),
    ("vllm_block_hash", 278, By::Hashes),
    ("vllm_group_list", 7, By::Hashes),
    ("vllm_kv_event_msgpack", 32, By::Hashes),
    ("vllm_mooncake_store_fmt", 3, By::Keys),
    ("vllm_mooncake_store_ws", 9, By::Keys),
    ("vllm_none_hash", 34, By::Hashes),
    ("vllm_with_group_id", 3, By::Hashes),
];

/// One row of a file.
struct Row(Value);

impl Row {
    fn name(&self) -> &str {
        self.0["name"].as_str().unwrap()
    }

    fn scheme(&self) -> &str {
        self.0["scheme"].as_str().unwrap()
    }

    fn param(&self, name: &str) -> &Value {
        &self.0["params"][name]
    }

    fn text(&self, param: &str) -> &str {
        self.param(param).as_str().unwrap_or_else(|| panic!("{}: {param}", self.name()))
    }

    fn number(&self, param: &str) -> usize {
        let number = self.param(param).as_u64().unwrap_or_else(|| panic!("{}: {param}", self.name()));
        number.try_into().unwrap()
    }

    fn texts(&self, param: &str) -> Vec<&str> {
        strings(self.param(param))
    }

    fn tokens(&self) -> Vec<u32> {
        numbers(&self.0["token_ids"])
    }

    /// Tokens as the original code took them too: integers of any size.
    fn wide_tokens(&self) -> Vec<i128> {
        numbers(&self.0["token_ids"])
    }

    /// Whether it has tokens that no tokenizer makes, beyond 32 bits.
    fn is_wide(&self) -> bool {
        self.wide_tokens().iter().any(|token| u32::try_from(*token).is_err())
    }

    fn expect(&self) -> &Value {
        &self.0["expect"]
    }
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect()
}

/// Of any integer type: all that JSON's numbers hold here fit in an i128.
fn numbers<T: TryFrom<i128, Error: std::fmt::Debug>>(value: &Value) -> Vec<T> {
    value.as_array().unwrap().iter().map(|it| number(it).try_into().unwrap()).collect()
}

fn number(value: &Value) -> i128 {
    value.as_u64().map(i128::from).or(value.as_i64().map(i128::from)).unwrap()
}

fn unhex(hex: &str) -> Vec<u8> {
    assert!(hex.len().is_multiple_of(2));
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

/// The rows of a folder, of one scheme or of all.
fn rows_in(folder: &Path, scheme: Option<&str>) -> Vec<Row> {
    let mut rows = Vec::new();
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for path in
        entries.map(|entry| entry.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "json"))
    {
        let text = std::fs::read_to_string(&path).unwrap();
        let file: Vec<Value> =
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        rows.extend(
            file.into_iter().map(Row).filter(|row| scheme.is_none_or(|scheme| scheme == row.scheme())),
        );
    }
    rows
}

/// Calls `check` with every row of a scheme, of which there must be as many as the table says.
fn each(scheme: &str, mut check: impl FnMut(&Row)) {
    let (_, count, _) = SCHEMES.iter().find(|(name, ..)| *name == scheme).unwrap();
    let rows = rows_in(&own(), Some(scheme));
    assert_eq!(rows.len(), *count, "rows of {scheme}");
    let more = std::env::var_os("PD_PROXY_VECTORS");
    let more = more.map(|folder| rows_in(Path::new(&folder), Some(scheme))).unwrap_or_default();
    for row in rows.iter().chain(&more) {
        if row.is_wide() { wide::check(row) } else { check(row) }
    }
}

#[test]
fn every_row_has_a_test_that_looks_at_it() {
    let mut found = BTreeMap::<String, usize>::new();
    for row in rows_in(&own(), None) {
        *found.entry(row.scheme().to_owned()).or_default() += 1;
    }
    let table = SCHEMES.iter().map(|(scheme, count, _)| ((*scheme).to_owned(), *count));
    assert_eq!(found, table.collect());
    let tests = include_str!("hashes.rs");
    assert_eq!(rows_in(&own(), None).iter().filter(|row| row.is_wide()).count(), wide::ROWS);
    for (scheme, _, by) in SCHEMES {
        let tested = tests.contains(&format!("each(\"{scheme}\""));
        assert!(tested || *by == By::Keys, "{scheme} has no test");
    }
}
