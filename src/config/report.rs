//! Configuration report of `pd-proxy check --show`: every key, its value and its origin.

use super::hidden_characters::is_hidden;
use super::load::{Loaded, Origin};
use super::table::Row;
use serde_json::Value as Json;
use std::fmt::Write;

/// The whole configuration as readable TOML, one key per line with its origin behind it, then the
/// keys that each fleet sets itself. Secrets are masked; a key that is not set is a comment.
pub fn render(loaded: &Loaded) -> String {
    let mut lines = lines(&loaded.config.rows(), "", loaded);
    for fleet in &loaded.config.fleets {
        let prefix = format!("fleets.{}.", fleet.name);
        let mut rows = fleet.config.rows();
        rows.retain(|row| *loaded.origins.of(&format!("{prefix}{}", row.name)) != Origin::Default);
        lines.extend(self::lines(&rows, &prefix, loaded));
    }
    let width =
        lines.iter().map(|line| line.text.chars().count()).filter(|width| *width <= MAX_ALIGNED).max();
    let width = width.unwrap_or(0);
    let mut text = String::new();
    let mut open = "";
    for Line { section, text: line, origin } in &lines {
        if section != open {
            let gap = if open.is_empty() { "" } else { "\n" };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{gap}[{section}]");
            open = section;
        }
        let _ = writeln!(text, "{line:width$}  # {origin}");
    }
    text
}

/// A key as it is shown.
struct Line {
    section: String,
    text: String,
    origin: String,
}

/// Lines of these keys, whose sections are named with `prefix`.
fn lines(rows: &[Row<'_>], prefix: &str, loaded: &Loaded) -> Vec<Line> {
    rows.iter()
        .filter_map(|row| {
            let (section, name) = row.name.rsplit_once('.')?;
            let value = row.value.json();
            let text =
                if value.is_null() { format!("# {name} is not set") } else { value_line(name, &value, rows) };
            let origin = loaded.origins.of(&format!("{prefix}{}", row.name)).to_string();
            Some(Line { section: format!("{prefix}{section}"), text, origin })
        })
        .collect()
}

/// Origins stand in one column beside lines up to this many characters; a longer line has its own
/// right behind.
const MAX_ALIGNED: usize = 60;

fn value_line(name: &str, value: &Json, rows: &[Row<'_>]) -> String {
    let names = rows.iter().filter_map(|row| row.name.rsplit_once('.'));
    let width = names.map(|(_, name)| name.len()).max().unwrap_or(0);
    format!("{name:width$} = {}", in_toml(value))
}

/// A text as a value in TOML, always one line, in which nothing is hidden: behind a `#` all of it
/// is a comment.
pub(crate) fn quoted(text: &str) -> String {
    // The escapes of JSON are escapes of TOML, too; some characters it need not escape.
    let mut shown = String::new();
    for c in Json::from(text).to_string().chars() {
        if is_hidden(c) {
            // Writing to a String cannot fail.
            let _ = match u32::from(c) {
                code @ ..=0xffff => write!(shown, "\\u{code:04x}"),
                code => write!(shown, "\\U{code:08x}"),
            };
        } else {
            shown.push(c);
        }
    }
    shown
}

/// A value as TOML.
pub(crate) fn in_toml(value: &Json) -> String {
    match value {
        Json::String(text) => quoted(text),
        Json::Array(entries) => format!("[{}]", entries.iter().map(in_toml).collect::<Vec<_>>().join(", ")),
        Json::Number(number) if number.is_u64() => grouped(&number.to_string()),
        other => other.to_string(),
    }
}

/// `64000` as `64_000`.
fn grouped(digits: &str) -> String {
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('_');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cli::ServeArgs;
    use crate::config::{Config, Env};

    fn loaded(args: ServeArgs, env: &[(&str, &str)]) -> Loaded {
        let env: Env = env.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Config::load(&args, &env).unwrap()
    }

    #[test]
    fn values_stand_with_their_origin_and_secrets_masked() {
        let args = ServeArgs { port: Some("9000".to_owned()), ..ServeArgs::default() };
        let env = [("OPENAI_API_KEY", "sk-secret"), ("PD_PROXY__FLEET__DECODE", "a:1,b:2")];
        let text = render(&loaded(args, &env));
        let line = |start: &str| {
            let line = text.lines().find(|line| line.starts_with(start)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("port"), "port = 9_000 # flag --port");
        assert_eq!(line("host"), "host = \"localhost\" # default");
        assert_eq!(line("decode"), "decode = [\"a:1\", \"b:2\"] # env PD_PROXY__FLEET__DECODE");
        assert_eq!(line("api_key"), "api_key = \"***\" # env OPENAI_API_KEY");
        assert_eq!(line("delay_ms"), "delay_ms = 1.0 # default");
        assert_eq!(line("# model"), "# model is not set # default");
        assert!(!text.contains("sk-secret"));
    }

    #[test]
    fn the_report_is_toml_and_names_every_key() {
        let loaded = loaded(ServeArgs::default(), &[]);
        let text = render(&loaded);
        let table: toml::Table = text.parse().unwrap();
        for (key, value) in loaded.config.rows().iter().map(|row| (row.name, row.value.json())) {
            let (section, name) = key.rsplit_once('.').unwrap();
            let section = section.split('.').fold(&table, |table, part| table[part].as_table().unwrap());
            assert_eq!(section.get(name).is_none(), value.is_null(), "{key}");
            assert!(!value.is_null() || text.contains(&format!("# {name} is not set")), "{key}");
        }
    }

    proptest! {
        #[test]
        fn a_quoted_text_is_one_line_and_is_read_again(text in "(?s)(.|\\p{Bidi_Control}|\\p{Cf}|\\p{Z}){0,60}") {
            let line = quoted(&text);
            prop_assert!(!line.contains(is_hidden), "{line}");
            let table: toml::Table = format!("key = {line}").parse().unwrap();
            prop_assert_eq!(table["key"].as_str(), Some(text.as_str()));
        }
    }

    #[test]
    fn long_numbers_are_grouped() {
        for (digits, shown) in [("0", "0"), ("999", "999"), ("1000", "1_000"), ("67108864", "67_108_864")] {
            assert_eq!(grouped(digits), shown);
        }
    }
}
