//! Python's `str`, `repr` and string methods, where minijinja's differ.

use std::fmt::Write;

use minijinja::value::{Rest, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::allowance::charge;

/// Deepest nesting that is printed; JSON from a request is never deeper.
const MAX_DEPTH: usize = 200;

/// Methods whose port was checked against CPython; any other fails the rendering rather than
/// approximate.
const STRING_METHODS: [&str; 9] =
    ["upper", "lower", "replace", "startswith", "endswith", "find", "rfind", "join", "split"];
const DICT_METHODS: [&str; 4] = ["items", "keys", "values", "get"];

/// `str.isspace`: what `strip()` takes away. Beyond Unicode's white space it has the four
/// separators of ASCII.
pub(super) fn is_space(char: char) -> bool {
    char.is_whitespace() || matches!(char, '\x1c'..='\x1f')
}

/// `repr` of a float: the shortest digits that round-trip; `None` where Python would write an
/// exponent or a name.
pub(super) fn float_repr(float: f64) -> Option<String> {
    let size = float.abs();
    if !float.is_finite() || size >= 1e16 || (size < 1e-4 && size != 0.0) {
        return None;
    }
    let mut text = float.to_string();
    if !text.contains('.') {
        text.push_str(".0");
    }
    Some(text)
}

/// `str(value)`; an undefined value is empty, as Jinja2 prints it.
pub(super) fn str_of(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::Undefined => Some(String::new()),
        ValueKind::String => value.as_str().map(str::to_owned),
        _ => {
            let mut out = String::new();
            write_repr(&mut out, value, 0)?;
            Some(out)
        }
    }
}

/// `repr(value)`; what has none that we know is a text that no template prints.
pub(super) fn repr(value: &Value) -> String {
    let mut out = String::new();
    match write_repr(&mut out, value, 0) {
        Some(()) => out,
        None => "<?>".to_owned(),
    }
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Option<()> {
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if value.is_integer() => write!(out, "{value}").ok()?,
        ValueKind::Number => out.push_str(&float_repr(f64::try_from(value.clone()).ok()?)?),
        ValueKind::String => write_quoted(out, value.as_str()?)?,
        // A tuple, which is not JSON and so comes from the template itself.
        ValueKind::Seq if value.downcast_object_ref::<Tuple>().is_some() => return None,
        ValueKind::Seq if depth < MAX_DEPTH => write_list(out, value, depth + 1)?,
        ValueKind::Map if depth < MAX_DEPTH => write_dict(out, value, depth + 1)?,
        _ => return None,
    }
    Some(())
}

fn write_list(out: &mut String, value: &Value, depth: usize) -> Option<()> {
    out.push('[');
    for (at, element) in value.try_iter().ok()?.enumerate() {
        out.push_str(if at > 0 { ", " } else { "" });
        write_repr(out, &element, depth)?;
    }
    out.push(']');
    Some(())
}

fn write_dict(out: &mut String, value: &Value, depth: usize) -> Option<()> {
    out.push('{');
    for (at, key) in value.try_iter().ok()?.enumerate() {
        out.push_str(if at > 0 { ", " } else { "" });
        write_repr(out, &key, depth)?;
        out.push_str(": ");
        write_repr(out, &value.get_item(&key).ok()?, depth)?;
    }
    out.push('}');
    Some(())
}

/// Printable characters, as Python sees them: that is its Unicode version's business: beyond ASCII,
/// only letters and digits and what is surely visible are written; the rest is not known.
fn write_quoted(out: &mut String, text: &str) -> Option<()> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for char in text.chars() {
        match char {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            '\0'..='\x1f' | '\x7f' => write!(out, "\\x{:02x}", u32::from(char)).ok()?,
            _ if char == quote => out.extend(['\\', char]),
            ' '..='~' => out.push(char),
            _ if char.is_alphanumeric() => out.push(char),
            _ => return None,
        }
    }
    out.push(quote);
    Some(())
}

/// Methods of strings and dicts that minijinja leaves to the embedder.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => string_method(state, value, text, name, args),
        (None, ValueKind::Map) if DICT_METHODS.contains(&name) => {
            pycompat::unknown_method_callback(state, value, name, args)
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn string_method(
    state: &mut State,
    value: &Value,
    text: &str,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    charge(state, text.len())?;
    match name {
        "strip" => strip(text, args, Ends::Both),
        "lstrip" => strip(text, args, Ends::Left),
        "rstrip" => strip(text, args, Ends::Right),
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "split" if args.first().is_none_or(|sep| sep.as_str().is_none_or(str::is_empty)) => {
            // By white space, or by nothing, which Python refuses.
            Err(Error::from(ErrorKind::UnknownMethod))
        }
        _ if STRING_METHODS.contains(&name) => pycompat::unknown_method_callback(state, value, name, args),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// The ends of a text that are stripped.
#[derive(Clone, Copy, PartialEq)]
enum Ends {
    Left,
    Right,
    Both,
}

fn strip(text: &str, args: &[Value], ends: Ends) -> Result<Value, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    Ok(Value::from(stripped(text, chars, ends)))
}

fn stripped<'a>(text: &'a str, chars: Option<&str>, ends: Ends) -> &'a str {
    let goes = |char: char| chars.map_or_else(|| is_space(char), |chars| chars.contains(char));
    let text = if ends == Ends::Right { text } else { text.trim_start_matches(goes) };
    if ends == Ends::Left { text } else { text.trim_end_matches(goes) }
}

/// Python's method `str.rstrip()`.
pub(super) fn rstrip(text: &str) -> &str {
    stripped(text, None, Ends::Right)
}

/// Python's method `str.strip()`.
pub(super) fn strip_both(text: &str) -> &str {
    stripped(text, None, Ends::Both)
}

/// The `trim` filter: `str(value).strip(chars)`.
pub(super) fn trim(state: &State<'_, '_>, value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let text = string(state, value)?;
    let (chars,): (Option<&str>,) = from_args(&args)?;
    Ok(stripped(&text, chars, Ends::Both).to_owned())
}

/// The `string` filter.
pub(super) fn string(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    let text = printed(value)?;
    charge(state, text.len())?;
    Ok(text)
}

/// The `join` filter without its `attribute`.
pub(super) fn join(state: &State<'_, '_>, value: &Value, separator: Option<&str>) -> Result<String, Error> {
    let parts: Vec<String> = value.try_iter()?.map(|part| string(state, &part)).collect::<Result<_, _>>()?;
    Ok(parts.join(separator.unwrap_or_default()))
}

/// Text that `{{ value }}` prints.
pub(super) fn printed(value: &Value) -> Result<String, Error> {
    str_of(value)
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "a value whose Python spelling is not known"))
}

/// `is sequence`: anything with a length and an index, so strings and dicts too.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
}

/// `is iterable`: an undefined value is one.
pub(super) fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || matches!(value.kind(), ValueKind::Iterable | ValueKind::Undefined)
}

#[cfg(test)]
mod tests {
    use super::super::allowance::{Allowance, Stop};
    use super::super::pyvalue::from_json;
    use super::*;

    #[test]
    fn values_print_as_in_python() {
        for (json, expect) in [
            ("null", "None"),
            ("[true,false]", "[True, False]"),
            ("{\"a\":[1,2.0,\"x\"],\"b\":{}}", "{'a': [1, 2.0, 'x'], 'b': {}}"),
            ("[\"it's\",\"\\\"\",\"'\\\"\",\"\\n\\u0001\\\\\"]", r#"["it's", '"', '\'"', '\n\x01\\']"#),
            ("0.1", "0.1"),
        ] {
            assert_eq!(
                repr(&from_json(
                    serde_json::from_str(json).unwrap(),
                    &Allowance::new(1_000, 0, Stop::default())
                )),
                expect,
                "{json}"
            );
            assert_eq!(
                from_json(serde_json::from_str(json).unwrap(), &Allowance::new(1_000, 0, Stop::default()))
                    .to_string(),
                expect,
                "{json}"
            );
        }
    }

    #[test]
    fn characters_that_python_may_spell_differently_are_not_printed() {
        assert_eq!(str_of(&Value::from(1e16)), None);
        assert_eq!(str_of(&Value::from(vec!["\u{200b}"])), None);
        assert_eq!(str_of(&Value::from("\u{200b}")).as_deref(), Some("\u{200b}"));
    }

    #[test]
    fn white_space_is_pythons() {
        assert_eq!(strip_both("\x1c\u{a0} a \u{2003}\x1f"), "a");
        assert_eq!(rstrip(" a\n"), " a");
    }
}
