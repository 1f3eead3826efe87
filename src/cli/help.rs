//! The command line as `--help` shows it. Commands take every flag of a gateway, so that one line
//! serves them all; those that change nothing for a command are not shown there.

use clap::{Arg, Command, CommandFactory};

use super::Cli;

/// Flags that `health` reads: it asks the gateway that runs here.
const OF_HEALTH: [&str; 4] = ["config", "set", "host", "port"];
/// Groups and flags that change no name of a block.
const NOT_OF_KEYS: [&str; 2] = ["Listening", "Routing and retries"];
const NO_FLAGS_OF_KEYS: [&str; 5] = ["log_level", "log_format", "layerwise", "callback_url", "lease"];

/// Last lines of the help of commands that hide flags.
const HIDDEN: &str = "Every other flag of a gateway is taken as well, and changes nothing here.";

#[cfg(feature = "sim")]
const FIRST_EXAMPLE: &str =
    "  pd-proxy demo --traffic                                           look around, without engines\n";
#[cfg(not(feature = "sim"))]
const FIRST_EXAMPLE: &str =
    "  pd-proxy check --config pd-proxy.toml                             judge it, ask the engines\n";

const OTHER_EXAMPLES: &str = "  pd-proxy init --prefill 10.0.0.1:8100 --decode 10.0.0.2:8200      ask engines, write pd-proxy.toml\n  \
    pd-proxy --config pd-proxy.toml --host 0.0.0.0 --port 8000        run the gateway";

const KEYS: &str = "Keys of the configuration, each with its default: `pd-proxy check --show`.\n\
    Precedence: defaults, files (of the variable PD_PROXY_CONFIG, then of --config), environment (PD_PROXY__SECTION__KEY), flags.";

/// Text below the flags of the program: three examples, and the ways to set a key.
pub(super) fn examples() -> String {
    format!("Examples:\n{FIRST_EXAMPLE}{OTHER_EXAMPLES}\n\n{KEYS}")
}

/// The command line, for parsing and for help.
pub(super) fn program() -> Command {
    let for_health = |flag: &Arg| OF_HEALTH.contains(&flag.get_id().as_str());
    let for_keys = |flag: &Arg| {
        let heading = flag.get_help_heading().unwrap_or_default();
        !NOT_OF_KEYS.contains(&heading) && !NO_FLAGS_OF_KEYS.contains(&flag.get_id().as_str())
    };
    let program = Cli::command();
    let program = program.mut_subcommand("health", |command| showing(command, for_health));
    program.mut_subcommand("keys", |command| showing(command, for_keys))
}

/// The command with only these flags in its help.
fn showing(command: Command, is_shown: impl Fn(&Arg) -> bool) -> Command {
    let command = command.mut_args(|flag| {
        let hidden = flag.is_hide_set() || !is_shown(&flag);
        flag.hide(hidden)
    });
    command.after_help(HIDDEN)
}

#[cfg(test)]
mod tests {
    use super::super::{Command as Given, parse_from};
    use super::*;

    fn help(command: &str) -> String {
        parse_from(["pd-proxy", command, "--help"]).unwrap_err().to_string()
    }

    #[test]
    fn help_has_three_examples_that_can_be_typed() {
        let text = parse_from(["pd-proxy", "--help"]).unwrap_err().to_string();
        let examples = text.split("Examples:\n").nth(1).unwrap().split("\n\n").next().unwrap();
        assert_eq!(examples.lines().count(), 3, "{examples}");
        for line in examples.lines() {
            let (typed, about) = line.trim().split_once("  ").unwrap();
            assert!(parse_from(typed.split(' ')).is_ok() && !about.is_empty(), "{line}");
        }
    }

    #[test]
    fn flags_that_change_nothing_for_a_command_are_taken_and_not_shown() {
        for (command, shown, hidden) in [
            ("health", "--port", "--policy"),
            ("health", "--config", "--workers"),
            ("keys", "--tp", "--policy"),
            ("keys", "--prefill", "--port"),
        ] {
            let text = help(command);
            assert!(text.contains(shown) && !text.contains(hidden), "{text}");
            assert!(text.contains(HIDDEN), "{text}");
        }
        for other in ["check", "init", "serve"] {
            assert!(help(other).contains("--policy") && !help(other).contains(HIDDEN), "{other}");
        }
        let taken = ["pd-proxy", "health", "--policy", "random", "--workers", "2", "--port", "1"];
        let Ok(Given::Health(args)) = parse_from(taken) else { panic!() };
        assert_eq!((args.policy.as_deref(), args.port.as_deref()), (Some("random"), Some("1")));
    }

    /// Flags of a gateway before a command that is none are refused, and not lost.
    #[test]
    fn flags_of_a_gateway_before_a_command_are_refused() {
        for command in ["replay --trace t", "demo", "api-key new"] {
            let line = format!("pd-proxy --policy random {command}");
            let refused = parse_from(line.split(' ')).unwrap_err().to_string();
            assert!(refused.contains("cannot be used with"), "{refused}");
            assert!(!help(command.split(' ').next().unwrap()).contains("--max-retries"), "{command}");
        }
    }
}
