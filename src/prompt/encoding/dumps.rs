//! `json.dumps` of a request's JSON.

use std::io;

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

use crate::prompt::Reason;
use crate::prompt::python::float_repr;

/// Python's separators and floats; escapes are the same in both.
struct Python;

impl Formatter for Python {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn write_f64<W: ?Sized + io::Write>(&mut self, out: &mut W, float: f64) -> io::Result<()> {
        let text = float_repr(float).ok_or(io::ErrorKind::InvalidData)?;
        out.write_all(text.as_bytes())
    }
}

/// The text of `value` by `json.dumps(value, ensure_ascii=False)`.
///
/// # Errors
/// [`Reason::Json`] for a number that Python spells otherwise.
pub(in crate::prompt) fn dumps(value: &Value) -> Result<String, Reason> {
    let mut out = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut out, Python);
    value.serialize(&mut serializer).map_err(|_| Reason::Json)?;
    String::from_utf8(out).map_err(|_| Reason::Json)
}

/// The text of `value` by `json.dumps(value)`, which escapes what is not printable ASCII.
///
/// # Errors
/// [`Reason::Json`] for a number that Python spells otherwise.
pub(in crate::prompt) fn dumps_ascii(value: &Value) -> Result<String, Reason> {
    let text = dumps(value)?;
    if text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Ok(text);
    }
    let mut out = String::with_capacity(text.len() + text.len() / 4);
    for c in text.chars() {
        match c {
            ' '..='~' => out.push(c),
            // Such characters stand in strings alone.
            _ => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_spells_values_as_python_does() {
        let value: Value =
            serde_json::from_str(r#"{"a":[1,-2,1.50,100.0,true,null,{}],"é\"\u0001\u007f\u2028":"\/\n"}"#)
                .unwrap();
        let expect = "{\"a\": [1, -2, 1.5, 100.0, true, null, {}], \"é\\\"\\u0001\u{7f}\u{2028}\": \"/\\n\"}";
        assert_eq!(dumps(&value).as_deref(), Ok(expect));
        assert_eq!(dumps(&serde_json::json!(1e300)), Err(Reason::Json));
        let expect = r#"{"a": [1, -2, 1.5, 100.0, true, null, {}], "\u00e9\"\u0001\u007f\u2028": "/\n"}"#;
        assert_eq!(dumps_ascii(&value).as_deref(), Ok(expect));
        assert_eq!(dumps_ascii(&serde_json::json!("😀")).as_deref(), Ok(r#""\ud83d\ude00""#));
    }
}
