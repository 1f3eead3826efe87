//! Golden vectors: what the original code of engines and connectors computed, see
//! `tests/vectors/README.md`.

mod corpus;
mod falsify;
mod hashes;
mod outside;
mod profiles;
mod schemes;
mod table;
mod wide;

use serde_json::Value;

pub use corpus::rows;

/// One row of a file.
#[derive(Clone)]
pub struct Row(pub Value);

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

    /// At least one: a row that is true for no version would pass without being looked at.
    fn texts(&self, param: &str) -> Vec<&str> {
        let texts = strings(self.param(param));
        assert!(!texts.is_empty(), "{}: no {param}", self.name());
        texts
    }

    fn tokens(&self) -> Vec<u32> {
        numbers(&self.0["token_ids"])
    }

    /// Tokens as the original code took them too: integers of any size.
    fn wide_tokens(&self) -> Vec<i128> {
        numbers(&self.0["token_ids"])
    }

    /// True if it has tokens that no tokenizer makes, beyond 32 bits.
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

/// Calls `check` with every row of a scheme.
fn each(scheme: &str, mut check: impl FnMut(&Row)) {
    for row in &rows(scheme) {
        if row.is_wide() { wide::check(row) } else { check(row) }
    }
}
