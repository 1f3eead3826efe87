//! The text of a new configuration: TOML with the reason above each key. The module is pure.

use std::fmt::Write;

use super::draft::{Setting, State};
use crate::cmd::check::in_one_line;

/// Columns of a comment, at most, unless one word is longer.
const COLUMNS: usize = 100;

/// Parts of the text beside its settings.
pub(super) struct Head<'a> {
    /// A line for each engine: what it said, or why it could not be asked.
    pub(super) engines: &'a [String],
    /// The file's name, as commands are told it.
    pub(super) file: &'a str,
}

/// The whole file. Sections stand in the order of `sections`, as those of the reference do.
pub(super) fn render(head: &Head<'_>, settings: &[Setting], sections: &[&str]) -> String {
    let mut text = String::new();
    comment(&mut text, "Written by `pd-proxy init` from what these engines said:");
    for engine in head.engines {
        comment(&mut text, &format!("- {engine}"));
    }
    comment(
        &mut text,
        "An engine that could not be asked is taken to be as the others. A key behind # is left to the gateway, which asks the \
         engines at each start; beside it stands today's answer. QUESTION marks a key that could not be found out, with an example.",
    );
    comment(&mut text, &format!("Check it: pd-proxy check --config {}", head.file));
    comment(&mut text, &format!("Run it: pd-proxy --config {}", head.file));
    for section in sections {
        let of_section = |setting: &&Setting| setting.key.rsplit_once('.').is_some_and(|it| it.0 == *section);
        let inside: Vec<&Setting> = settings.iter().filter(of_section).collect();
        if inside.is_empty() {
            continue;
        }
        line(&mut text, "");
        line(&mut text, &format!("[{section}]"));
        inside.into_iter().for_each(|setting| put(&mut text, setting));
    }
    text
}

fn put(text: &mut String, setting: &Setting) {
    let Setting { key, value, state, why } = setting;
    let name = key.rsplit_once('.').map_or(*key, |(_, name)| name);
    match state {
        State::Set => {
            comment(text, why);
            line(text, &format!("{name} = {value}"));
        }
        State::Asked => {
            comment(text, why);
            line(text, &format!("# {name} = {value}"));
        }
        State::Question => {
            comment(text, &format!("QUESTION: {why}"));
            line(text, &format!("# {name} = {value}"));
        }
    }
}

/// Adds a comment, broken between words. What an engine sent can't end it.
fn comment(text: &mut String, words: &str) {
    let shown = in_one_line(words);
    let mut row = String::from("#");
    for word in shown.split(' ').filter(|word| !word.is_empty()) {
        if row.len() > 1 && row.chars().count() + 1 + word.chars().count() > COLUMNS {
            line(text, &row);
            row = String::from("#");
        }
        row.push(' ');
        row.push_str(word);
    }
    line(text, &row);
}

fn line(text: &mut String, row: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{row}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::report::quoted;
    use proptest::prelude::*;

    fn setting(key: &'static str, value: &str, state: State, why: &str) -> Setting {
        Setting { key, value: value.to_owned(), state, why: why.to_owned() }
    }

    fn rendered(engines: &[String], settings: &[Setting]) -> String {
        render(&Head { engines, file: "pd-proxy.toml" }, settings, &["fleet", "hash", "key"])
    }

    #[test]
    fn settings_stand_in_their_sections_and_what_is_not_set_is_a_comment() {
        let settings = [
            setting("key.tp", "2", State::Set, "It said so."),
            setting("hash.block_tokens", "16", State::Asked, "It has."),
            setting("fleet.model", "\"m\"", State::Question, "Which?"),
        ];
        let text = rendered(&["prefiller a:1: vLLM 0.32.0".to_owned()], &settings);
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["key"]["tp"].as_integer(), Some(2));
        assert!(
            table["fleet"].as_table().unwrap().is_empty() && table["hash"].as_table().unwrap().is_empty()
        );
        for part in [
            "# - prefiller a:1: vLLM 0.32.0\n",
            "[fleet]\n# QUESTION: Which?\n# model = \"m\"\n",
            "[hash]\n# It has.\n# block_tokens = 16\n",
            "[key]\n# It said so.\ntp = 2\n",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
    }

    proptest! {
        #[test]
        fn values_of_engines_add_nothing_to_the_configuration(said in "(?s).{0,100}") {
            let settings = [State::Asked, State::Question].map(|state| setting("key.tp", &quoted(&said), state, "So."));
            let table: toml::Table = rendered(&[], &settings).parse().unwrap();
            prop_assert!(table["key"].as_table().unwrap().is_empty() && table.len() == 1);
        }

        #[test]
        fn texts_of_engines_add_nothing_to_the_configuration(said in "(?s).{0,300}", why in "(?s).{0,300}") {
            let settings = [setting("key.tp", "2", State::Question, &why)];
            let text = rendered(&[said], &settings);
            let table: toml::Table = text.parse().unwrap();
            prop_assert!(table["key"].as_table().unwrap().is_empty() && table.len() == 1);
        }
    }
}
