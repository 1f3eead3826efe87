//! JSON as Python reads it, or not at all.

use serde_json::Value;

use super::Reason;

/// Floats from here on are printed with an exponent by Python, and may have been integers that
/// don't fit 64 bits.
const LARGE: f64 = 1e16;
/// Smaller ones too.
const SMALL: f64 = 1e-4;

/// Reads `text` when Python's `json.loads` would read the same, to the spelling of every number.
pub(super) fn parse(text: &[u8]) -> Result<Value, Reason> {
    let value: Value = serde_json::from_slice(text).map_err(|_| Reason::Json)?;
    if plain_numbers(&value) { Ok(value) } else { Err(Reason::Json) }
}

/// True if every number prints alike in Rust and Python. The depth is bounded by the parser (128).
fn plain_numbers(value: &Value) -> bool {
    match value {
        Value::Number(number) => {
            number.as_i64().is_some() || number.as_u64().is_some() || plain_float(number.as_f64())
        }
        Value::Array(items) => items.iter().all(plain_numbers),
        Value::Object(members) => members.values().all(plain_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

/// `-0` is refused because it is an integer to Python and a float here.
fn plain_float(float: Option<f64>) -> bool {
    float.is_some_and(|f| {
        let size = f.abs();
        (SMALL..LARGE).contains(&size) || (size == 0.0 && f.is_sign_positive())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_python_spells_differently_are_refused() {
        for good in ["0", "-1", "18446744073709551615", "1.0", "0.1", "123456.789", "0.0", "[{\"a\":2.5}]"] {
            assert!(parse(good.as_bytes()).is_ok(), "{good}");
        }
        for bad in [
            "1e16",
            "1e-5",
            "-0",
            "-0.0",
            "18446744073709551616",
            "NaN",
            "1e999",
            "\"\\ud800\"",
            "[[0.00001]]",
        ] {
            assert_eq!(parse(bad.as_bytes()), Err(Reason::Json), "{bad}");
        }
    }
}
