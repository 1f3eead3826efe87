//! `json.dumps(value, ensure_ascii=False)` of a request's JSON.

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

/// The text of `value`.
///
/// # Errors
/// [`Reason::Json`] for a number that Python spells otherwise.
pub(super) fn dumps(value: &Value) -> Result<String, Reason> {
    let mut out = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut out, Python);
    value.serialize(&mut serializer).map_err(|_| Reason::Json)?;
    String::from_utf8(out).map_err(|_| Reason::Json)
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
    }
}
