//! Every command and flag in Markdown, for the reference.

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};

use super::{Command as Given, help, parse_from};
use crate::config::load::CollectedEntries;

/// Groups of a gateway's flags, in the order of `--help`.
const GROUPS: [&str; 5] = ["Configuration", "Listening", "Engines", "Pool", "Routing and retries"];
/// Values of which every flag takes one: what it is given tells which key it sets.
const SAMPLES: [&str; 3] = ["1", "a", "mooncake://a:1"];

/// A table of flags for each command, in Markdown.
pub fn markdown() -> String {
    let mut program = help::program();
    program.build();
    let mut text = String::from("\n## Flags of a gateway\n");
    for group in GROUPS {
        let in_group = |flag: &&Arg| flag.get_help_heading() == Some(group) && !flag.is_hide_set();
        // Nothing written to a String fails, here and below.
        let _ = writeln!(text, "\n### {group}\n\n| Flag | Default | Key | |\n|---|---|---|---|");
        for flag in program.get_arguments().filter(in_group) {
            let (Words { about, default }, keys) = (Words::of(flag), keys(flag).join(", "));
            let _ = writeln!(text, "| {} | {default} | {keys} | {about} |", spelled(flag));
        }
    }
    for command in program.get_subcommands() {
        describe(&program, command, &mut text);
    }
    text
}

/// Adds a command with the flags that are its own, and its commands.
fn describe(program: &Command, command: &Command, text: &mut String) {
    if command.get_name() == "help" {
        return;
    }
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(text, "\n## {name}\n\n{}.", escaped(&about));
    if let Some(after) = command.get_after_help() {
        let _ = writeln!(text, "\n{}", escaped(&after.to_string()));
    }
    let of_gateway = |flag: &Arg| program.get_arguments().any(|other| other.get_id() == flag.get_id());
    let is_own = |flag: &&Arg| !flag.is_hide_set() && !of_gateway(flag) && flag.get_id() != "help";
    // Flags of the demo that a gateway has, too, have defaults of their own.
    let takes_all = command.get_arguments().any(|flag| flag.get_id() == "prefiller_hosts");
    let shown: Vec<&Arg> = match takes_all {
        true => command.get_arguments().filter(is_own).collect(),
        false => {
            command.get_arguments().filter(|flag| flag.get_id() != "help" && !flag.is_hide_set()).collect()
        }
    };
    if takes_all {
        let _ = writeln!(text, "\nAnd the [flags of a gateway](#flags-of-a-gateway).");
    }
    if !shown.is_empty() {
        let _ = writeln!(text, "\n| Flag | Default | |\n|---|---|---|");
    }
    for flag in shown {
        let Words { about, default } = Words::of(flag);
        let _ = writeln!(text, "| {} | {default} | {about} |", spelled(flag));
    }
    for inner in command.get_subcommands() {
        describe(program, inner, text);
    }
}

/// The words of a flag's help.
struct Words {
    about: String,
    default: String,
}

impl Words {
    fn of(flag: &Arg) -> Words {
        let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
        let (about, said) = match help.strip_suffix(']').and_then(|help| help.rsplit_once(" [default: ")) {
            Some((about, default)) => (about.to_owned(), Some(default.to_owned())),
            None => (help.clone(), None),
        };
        let values: Vec<_> = flag.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = said.or_else(|| flag.get_action().takes_values().then(|| values.join(",")));
        let names: Vec<String> = match flag.get_action().takes_values() {
            true => flag.get_possible_values().iter().map(|it| it.get_name().to_owned()).collect(),
            false => Vec::new(),
        };
        let mut about = escaped(&about);
        if !names.is_empty() {
            let _ = write!(about, ": `{}`", names.join("`, `"));
        }
        let aliases: Vec<&str> = flag.get_all_aliases().unwrap_or_default();
        if !aliases.is_empty() {
            let _ = write!(about, "; also `--{}`", aliases.join("`, `--"));
        }
        Words { about, default: default.unwrap_or_default() }
    }
}

/// The spellings of a flag, with the name of its value.
fn spelled(flag: &Arg) -> String {
    let Some(long) = flag.get_long() else { return format!("`{}`", flag.get_id().as_str().to_uppercase()) };
    let takes = flag.get_action().takes_values();
    let value = flag.get_value_names().filter(|_| takes).and_then(|names| names.first());
    let several = matches!(flag.get_action(), ArgAction::Append)
        && flag.get_num_args().is_some_and(|n| n.max_values() > 1);
    let value = value.map(|name| format!(" {name}{}", if several { "…" } else { "" })).unwrap_or_default();
    let short = flag.get_short().map(|letter| format!("`-{letter}`, ")).unwrap_or_default();
    format!("{short}`--{long}{value}`")
}

/// The keys that a flag of a gateway sets, found by giving it a value.
fn keys(flag: &Arg) -> Vec<String> {
    let Some(long) = flag.get_long() else { return Vec::new() };
    let takes = flag.get_action().takes_values();
    let set = SAMPLES.iter().map(|sample| {
        let flag = if takes { format!("--{long}={sample}") } else { format!("--{long}") };
        let mut found = CollectedEntries::default();
        if let Ok(Given::Serve(args)) = parse_from(["pd-proxy".to_owned(), flag]) {
            args.overlay(&mut found);
        }
        found.entries.into_iter().map(|entry| format!("`{}`", entry.key)).collect::<Vec<_>>()
    });
    set.into_iter().find(|keys| !keys.is_empty()).unwrap_or_default()
}

/// A text for a cell of a table.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shown_flag_is_listed_with_the_key_that_it_sets() {
        let text = markdown();
        let program = help::program();
        let mut grouped = 0;
        for flag in program.get_arguments().filter(|flag| !flag.is_hide_set()) {
            let long = flag.get_long().unwrap();
            let heading = flag.get_help_heading().unwrap_or_default();
            assert!(GROUPS.contains(&heading), "--{long} is under {heading:?}");
            assert!(text.contains(&format!("`--{long}")), "--{long}");
            grouped += usize::from(!keys(flag).is_empty());
        }
        // All but --config and --set are a key under another spelling.
        let shown = program.get_arguments().filter(|flag| !flag.is_hide_set()).count();
        assert_eq!(grouped, shown - 2);
        let line = |flag: &str| text.lines().find(|line| line.starts_with(&format!("| `{flag}"))).unwrap();
        assert_eq!(
            line("--port"),
            "| `--port PORT` | 8000 | `server.port` | Port to listen on; 0 takes any free one |"
        );
        assert!(line("--pool URL").contains("`pool.kind`, `pool.addresses`"), "{}", line("--pool URL"));
        assert!(line("--prefiller-hosts HOST…").ends_with("also `--prefiller-host` |"));
    }

    #[test]
    fn commands_have_their_own_flags_and_defaults() {
        let text = markdown();
        let of =
            |name: &str| text.split(&format!("\n## {name}\n")).nth(1).unwrap().split("\n## ").next().unwrap();
        assert!(
            of("pd-proxy check").contains("| `--offline` |") && !of("pd-proxy check").contains("--policy")
        );
        assert!(of("pd-proxy replay").contains("| `--policy NAME` | all |"));
        assert!(of("pd-proxy replay").contains("`none`, `shared`, `local`, `mixed`"));
        assert!(of("pd-proxy api-key new").contains("| `--name NAME` | client-1 |"));
    }
}
