//! `json.dumps` of a template's values, with the arguments that transformers' `tojson` filter
//! takes.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::allowance::charge;
use super::python::float_repr;

/// Deepest nesting that is written; JSON from a request is never deeper.
const MAX_DEPTH: usize = 200;

/// Arguments of `json.dumps(…, ensure_ascii=…, indent=…, separators=…, sort_keys=…)`.
struct Style {
    ensure_ascii: bool,
    /// Indentation of one level; `None` = everything on one line.
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
}

/// The filter: `ensure_ascii` is false by default, and nothing is escaped for HTML.
pub(super) fn tojson(state: &State<'_, '_>, value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(indent) if indent.is_none() => None,
        Some(indent) => Some(match (indent.as_usize(), indent.as_str()) {
            (Some(width), _) if width <= 64 => " ".repeat(width),
            (None, Some(text)) => text.to_owned(),
            _ => return Err(unsupported("indent")),
        }),
    };
    let (mut item, mut key) = (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    if let Some(pair) = kwargs.get::<Option<Value>>("separators")?.filter(|pair| !pair.is_none()) {
        let mut pair = pair.try_iter()?;
        let mut next = || {
            pair.next().and_then(|v| v.as_str().map(str::to_owned)).ok_or_else(|| unsupported("separators"))
        };
        (item, key) = (next()?, next()?);
    }
    let style = Style {
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent,
        item,
        key,
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    style.write(&mut out, value, 0)?;
    charge(state, out.len())?;
    Ok(out)
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {what}"))
}

impl Style {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => number(out, value)?,
            ValueKind::String => self.string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq if depth < MAX_DEPTH => self.sequence(out, value, depth)?,
            ValueKind::Map if depth < MAX_DEPTH => self.map(out, value, depth)?,
            _ => return Err(unsupported("a value that is not JSON")),
        }
        Ok(())
    }

    fn sequence(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        out.push('[');
        let mut any = false;
        for element in value.try_iter()? {
            self.before(out, any, depth + 1);
            self.write(out, &element, depth + 1)?;
            any = true;
        }
        self.close(out, any, depth);
        out.push(']');
        Ok(())
    }

    fn map(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        // Python refuses to sort keys of different types and spells others its own way; templates
        // have strings.
        if keys.iter().any(|key| key.as_str().is_none()) {
            return Err(unsupported("a key that is not a string"));
        }
        if self.sort_keys {
            keys.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
        }
        out.push('{');
        let any = !keys.is_empty();
        for (at, key) in keys.iter().enumerate() {
            self.before(out, at > 0, depth + 1);
            self.string(out, key.as_str().unwrap_or_default());
            out.push_str(&self.key);
            self.write(out, &value.get_item(key)?, depth + 1)?;
        }
        self.close(out, any, depth);
        out.push('}');
        Ok(())
    }

    /// The comma and the line break before an element.
    fn before(&self, out: &mut String, another: bool, depth: usize) {
        if another {
            out.push_str(&self.item);
        }
        self.line(out, depth);
    }

    fn close(&self, out: &mut String, any: bool, depth: usize) {
        if any {
            self.line(out, depth);
        }
    }

    fn line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        let mut from = 0;
        for (at, char) in text.char_indices() {
            if !self.escaped(char) {
                continue;
            }
            out.push_str(&text[from..at]);
            from = at + char.len_utf8();
            escape(out, char);
        }
        out.push_str(&text[from..]);
        out.push('"');
    }

    fn escaped(&self, char: char) -> bool {
        matches!(char, '"' | '\\' | '\0'..='\x1f') || (self.ensure_ascii && !matches!(char, ' '..='~'))
    }
}

fn number(out: &mut String, value: &Value) -> Result<(), Error> {
    if value.is_integer() {
        write!(out, "{value}").map_err(|_| unsupported("a number"))
    } else {
        let float = f64::try_from(value.clone())?;
        out.push_str(&float_repr(float).ok_or_else(|| unsupported("a number"))?);
        Ok(())
    }
}

fn escape(out: &mut String, char: char) {
    match char {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\x08' => out.push_str("\\b"),
        '\x0c' => out.push_str("\\f"),
        _ => {
            for unit in char.encode_utf16(&mut [0; 2]) {
                // Writing to a string can't fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
}
