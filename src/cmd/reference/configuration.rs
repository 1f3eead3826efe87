//! Every key of the configuration as a document for people: the meanings from the commented file
//! `config/pd-proxy.toml`, all else from the tables of keys.

use std::fmt::Write;

use serde_json::Value;

use crate::config::{Config, Effect, KeyValue, Row};

/// The commented configuration, from which the keys' meanings are taken. A test compares it with
/// the tables.
const COMMENTED: &str = include_str!("../../../config/pd-proxy.toml");

/// Text before the first section.
const HEAD: &str = "# Configuration

Every key, made from the program by `pd-proxy generate reference`. Keys stand in a TOML file (`--config FILE`, repeatable), in variables
(`PD_PROXY__SERVER__PORT=8000`) or in flags (`--set server.port=8000`); flags win over variables, variables over files.
`pd-proxy check --show` prints the merged result and where each value came from.

Two variables are no keys. `PD_PROXY_CONFIG` names files, with commas between several, that every command reads before those of `--config`:
name them so in an image, whose health check (`pd-proxy health`) has no flags. `PD_PROXY_DEFAULT_HOST` is `server.host` where neither a file
nor another variable nor a flag says one; the image has it at `0.0.0.0`. A variable that is empty counts as not set.

Keys that end in `_ms` take milliseconds, or a time with a unit: `500ms`, `60s`, `30m`, `1h30m`, `2d`; in a file in quotes. A variable that begins
with `PD_PROXY_` and that nothing reads is warned of.

Every section but `[server]`, `[tls]`, `[auth]`, `[limit]`, `[log]` and `[trace]` may also stand in a fleet, as `[fleets.NAME.route]`: several fleets, with
what stands at the top level as the default of each ([several models](guides/several-models.md)).

A file is read again on SIGHUP and when its content changes. What takes effect *at once* then counts for new requests; other keys count
*after a restart*, and the log says so.
";

/// Lines of the commented file that belong together.
#[derive(Debug, Default, PartialEq)]
struct Section<'a> {
    name: &'a str,
    about: Vec<&'a str>,
    keys: Vec<Key<'a>>,
}

#[derive(Debug, PartialEq)]
struct Key<'a> {
    name: &'a str,
    about: Vec<&'a str>,
}

/// The document, in Markdown.
pub(super) fn markdown() -> String {
    let config = Config::default();
    let rows = config.rows();
    let mut text = HEAD.to_owned();
    for section in sections(COMMENTED) {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n## {}\n\n{}\n\n", section.name, section.about.join("\n"));
        text.push_str("| key | default | takes effect | what |\n|---|---|---|---|\n");
        for key in &section.keys {
            let name = format!("{}.{}", section.name, key.name);
            text.extend(rows.iter().find(|row| row.name == name).map(|row| line(key, row)));
        }
    }
    text
}

/// A key's line in the table of its section.
fn line(key: &Key<'_>, row: &Row<'_>) -> String {
    let effect = match row.effect {
        Effect::AtOnce => "at once",
        Effect::AfterRestart => "after a restart",
    };
    let names = match row.value {
        KeyValue::Name { names, .. } => format!(" One of `{}`.", names.join("`, `")),
        _ => String::new(),
    };
    let about = format!("{}{names}", key.about.join(" ")).replace('|', "\\|");
    format!("| `{}` | {} | {effect} | {about} |\n", key.name, shown(&row.value.json()))
}

/// The file in parts. A key that is not set is a comment itself: `# name = "…"`.
fn sections(text: &str) -> Vec<Section<'_>> {
    let (mut sections, mut about): (Vec<Section<'_>>, Vec<&str>) = (Vec::new(), Vec::new());
    for line in text.lines() {
        if line.is_empty() {
            about.clear();
        } else if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            sections.push(Section { name, about: std::mem::take(&mut about), keys: Vec::new() });
        } else if let Some(name) = key_of(line) {
            let key = Key { name, about: std::mem::take(&mut about) };
            sections.last_mut().map(|section| section.keys.push(key)).unwrap_or_default();
        } else {
            about.push(line.trim_start_matches('#').trim());
        }
    }
    sections
}

fn key_of(line: &str) -> Option<&str> {
    let (name, _) =
        line.split_once(" = ").filter(|(_, value)| !line.starts_with('#') || *value == "\"…\"")?;
    let name = name.trim_start_matches("# ");
    name.chars()
        .all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_')
        .then_some(name)
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "unset".to_owned(),
        value => format!("`{value}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_are_there_and_have_words() {
        let config = Config::default();
        let sections = sections(COMMENTED);
        assert!(sections.iter().all(|section| !section.about.is_empty()), "{sections:?}");
        let keys = sections.iter().flat_map(|section| {
            section.keys.iter().map(move |key| (format!("{}.{}", section.name, key.name), &key.about))
        });
        let (names, words): (Vec<String>, Vec<_>) = keys.unzip();
        assert_eq!(names, config.rows().iter().map(|row| row.name).collect::<Vec<_>>());
        for (name, about) in names.iter().zip(words) {
            assert!(!about.is_empty(), "{name}");
        }
    }
}
