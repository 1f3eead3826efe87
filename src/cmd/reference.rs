//! Every key of the configuration as a document for people, made from what the program has: the
//! commented file `config/pd-proxy.toml`, the default tree, the names that values may have, and
//! what a running gateway can take.

use std::fmt::Write;

use serde_json::Value;

use crate::config::Config;
use crate::control::reload::adopt;

/// The commented configuration, from which the keys' meanings are taken. A test compares it with
/// the tree.
const COMMENTED: &str = include_str!("../../config/pd-proxy.toml");

/// Text before the first section.
const HEAD: &str = "# Configuration

Every key, made from the program by `pd-proxy generate reference`. Keys stand in a TOML file (`--config FILE`, repeatable), in variables
(`PD_PROXY__SERVER__PORT=8000`) or in flags (`--set server.port=8000`); flags win over variables, variables over files.
`pd-proxy check` prints the merged result and where each value came from.

Two variables are no keys. `PD_PROXY_CONFIG` names files, with commas between several, that every command reads before those of `--config`:
name them so in an image, whose health check (`pd-proxy health`) has no flags. `PD_PROXY_DEFAULT_HOST` is `server.host` where neither a file
nor another variable nor a flag says one; the image has it at `0.0.0.0`. A variable that is empty counts as not set.

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
pub fn markdown() -> String {
    let tree = serde_json::to_value(Config::default()).unwrap_or_default();
    let mut text = HEAD.to_owned();
    for section in sections(COMMENTED) {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n## {}\n\n{}\n\n", section.name, section.about.join("\n"));
        text.push_str("| key | default | takes effect | what |\n|---|---|---|---|\n");
        for key in &section.keys {
            let at = pointer(section.name, key.name);
            let default = tree.pointer(&at).unwrap_or(&Value::Null);
            let (names, live) = (names(&tree, &at), live(&tree, &at));
            let effect = if live { "at once" } else { "after a restart" };
            let about = format!(
                "{}{}",
                key.about.join(" "),
                names.map(|names| format!(" One of {names}.")).unwrap_or_default()
            );
            let _ = writeln!(
                text,
                "| `{}` | {} | {effect} | {} |",
                key.name,
                shown(default),
                about.replace('|', "\\|")
            );
        }
    }
    text
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

/// JSON pointer of a key in the tree; sections may be nested.
fn pointer(section: &str, key: &str) -> String {
    format!("/{}/{key}", section.replace('.', "/"))
}

/// The names that a value may have, as the refusal of another one tells them.
fn names(tree: &Value, at: &str) -> Option<String> {
    let refused = serde_json::from_value::<Config>(changed(tree, at)).err()?.to_string();
    let names = refused.split_once("expected one of ")?.1;
    Some(names.split(", ").map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "))
}

/// True if a running gateway takes another value for this key.
fn live(tree: &Value, at: &str) -> bool {
    let names = names(tree, at).unwrap_or_default();
    let mut other = changed(tree, at);
    let own = shown(tree.pointer(at).unwrap_or(&Value::Null)).replace('"', "");
    let name = names.split(", ").find(|name| !name.is_empty() && **name != own);
    if let (Some(name), Some(value)) = (name, other.pointer_mut(at)) {
        *value = Value::from(name.trim_matches('`'));
    }
    let adopted = serde_json::from_value::<Config>(other).map(|new| adopt::live(&Config::default(), &new));
    adopted.is_ok_and(|adopted| !adopted.applied.is_empty())
}

/// The tree with another value for one key.
fn changed(tree: &Value, at: &str) -> Value {
    let mut tree = tree.clone();
    let Some(value) = tree.pointer_mut(at) else { return tree };
    *value = match &*value {
        Value::Bool(on) => Value::from(!on),
        Value::Number(number) if number.is_f64() => {
            Value::from(number.as_f64().unwrap_or_default() / 2.0 + 0.125)
        }
        Value::Number(number) => Value::from(number.as_u64().unwrap_or_default() + 1),
        Value::Array(_) => Value::from(vec!["other"]),
        _ => Value::from("other"),
    };
    tree
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_the_programs() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(kept == markdown(), "pd-proxy generate reference > docs/configuration.md");
    }

    #[test]
    fn all_keys_are_there_and_have_words() {
        let tree = serde_json::to_value(Config::default()).unwrap();
        let sections = sections(COMMENTED);
        // With those that are in another one.
        let mut todo: Vec<(String, &Value)> = vec![(String::new(), &tree)];
        let mut seen = 0;
        while let Some((name, keys)) = todo.pop() {
            let (inner, own): (Vec<_>, Vec<_>) =
                keys.as_object().unwrap().iter().partition(|(_, value)| value.is_object());
            todo.extend(
                inner
                    .into_iter()
                    .map(|(key, value)| (format!("{name}.{key}").trim_start_matches('.').to_owned(), value)),
            );
            if name.is_empty() {
                assert_eq!(own.len(), 0);
                continue;
            }
            seen += 1;
            let section =
                sections.iter().find(|section| section.name == name).unwrap_or_else(|| panic!("[{name}]"));
            assert!(!section.about.is_empty(), "[{name}]");
            for (key, _) in &own {
                let found = section.keys.iter().find(|found| found.name == key.as_str());
                assert!(found.is_some_and(|found| !found.about.is_empty()), "{name}.{key}");
            }
            assert_eq!(section.keys.len(), own.len(), "[{name}]");
        }
        assert_eq!(sections.len(), seen);
    }

    #[test]
    fn names_and_effects_are_asked_from_the_program() {
        let tree = serde_json::to_value(Config::default()).unwrap();
        assert!(names(&tree, "/dialect/name").unwrap().contains("`kv_transfer`, "));
        assert_eq!(names(&tree, "/server/port"), None);
        assert!(
            live(&tree, "/log/level") && live(&tree, "/timeout/total_ms") && live(&tree, "/server/admin_key")
        );
        assert!(!live(&tree, "/log/format") && !live(&tree, "/server/port") && !live(&tree, "/pool/kind"));
    }
}
