//! The program's output, and its stream.

use std::process::{Command, Stdio};

use crate::command::run;

const PROGRAM: &str = env!("CARGO_BIN_EXE_pd-proxy");

/// `pd-proxy check | head -1`: a pipe that nobody reads any more is no reason to panic.
#[test]
fn closed_output_pipe_ends_the_command_quietly() {
    for (line, code, said) in [
        ("check --offline", 0, ""),
        ("generate reference", 0, ""),
        // An entry that nobody has taken is lost, and its key with it.
        ("api-key new --name a", 1, "pd-proxy: the entry can't be written: Broken pipe (os error 32)\n"),
    ] {
        let mut child = Command::new(PROGRAM)
            .args(line.split_whitespace())
            .env_clear()
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let ended = child.wait_with_output().unwrap();
        let err = String::from_utf8(ended.stderr).unwrap();
        assert_eq!((ended.status.code(), err.as_str()), (Some(code), said), "{line}");
    }
}

#[test]
fn help_and_version_answer_on_standard_output() {
    let (code, out, err) = run(&["--version"], &[]);
    assert_eq!((code, out, err), (0, format!("pd-proxy {}\n", env!("CARGO_PKG_VERSION")), String::new()));
    let (code, out, err) = run(&["--help"], &[]);
    assert_eq!((code, err.as_str()), (0, ""));
    for flag in [
        "--host",
        "--port",
        "--prefiller-hosts",
        "--prefiller-ports",
        "--decoder-hosts",
        "--decoder-ports",
        "--max-retries",
        "--retry-delay",
        "--max-waiting-retries",
        "--waiting-retry-interval",
        "--workers",
        "--log-level",
        "--prefill",
        "--decode",
        "--model",
        "check",
        "demo",
        "sim",
    ] {
        assert!(out.contains(flag), "{flag} in\n{out}");
    }
    let (code, out, err) = run(&["--prefiler-hosts", "a"], &[]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("a similar argument exists: '--prefiller-hosts'"), "{err}");
}

/// Findings are not to be looked for under two hundred lines that are in order.
#[test]
fn check_prints_findings_first_and_the_configuration_where_it_is_asked_for() {
    let flags = ["check", "--offline", "--set", "server.admin_port=9999"];
    let (code, out, err) = run(&flags, &[]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 2, "{out}");
    assert!(lines[0].starts_with("# warn server.admin_port = 9999 has no effect"), "{out}");
    assert!(lines[1].starts_with("# ok   the configuration is valid"), "{out}");
    let (_, shown, _) = run(&[&flags[..], &["--show"]].concat(), &[]);
    assert!(shown.starts_with(&out), "{shown}");
    let table: toml::Table = shown.parse().unwrap();
    assert_eq!(table["server"]["admin_port"].as_integer(), Some(9999));
}
