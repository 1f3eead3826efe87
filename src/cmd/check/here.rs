//! This machine's part: open files and ports.

use std::io::ErrorKind;
use std::net::TcpListener;

use super::{Grade, Report};
use crate::config::Config;

/// Files besides clients' connections and the legs that serve them: listeners, logs, pools, probes,
/// connections that wait.
const OTHER_FILES: u64 = 500;

/// Open files that this number of clients' connections may need: each has one of its own, and one
/// to an engine.
pub fn files_needed(connections: usize) -> u64 {
    (connections as u64).saturating_mul(2).saturating_add(OTHER_FILES)
}

/// Streams that this number of open files allows.
pub fn streams_of(open_files: u64) -> u64 {
    open_files.saturating_sub(OTHER_FILES) / 2
}

/// Looks at what the gateway would find here. It may run elsewhere, or here already: nothing of
/// this is bad.
pub(super) fn look(config: &Config, report: &mut Report) {
    let connections = config.limit.connections;
    if let Ok((_, hard)) = rlimit::Resource::NOFILE.get() {
        let (grade, text) = files(hard, connections);
        report.say(grade, text);
    }
    let server = &config.server;
    port("server.port", server.bind_host(), server.port, report);
    if let Some(host) = server.admin_bind_host() {
        port("server.admin_port", host, server.admin_port, report);
    }
}

fn files(hard: u64, connections: usize) -> (Grade, String) {
    let needed = files_needed(connections);
    if hard >= needed {
        return (Grade::Good, format!("open files: at most {hard} here, {needed} may be needed"));
    }
    let streams = streams_of(hard);
    (
        Grade::Warn,
        format!(
            "open files: at most {hard} here, and limit.connections = {connections} may need {needed}: raise the hard \
             limit (ulimit -Hn, LimitNOFILE), or serve at most {streams} streams"
        ),
    )
}

fn port(key: &str, host: &str, port: u16, report: &mut Report) {
    // Any free one.
    if port == 0 {
        return;
    }
    match TcpListener::bind((host, port)) {
        Ok(_) => report.say(Grade::Good, format!("{host}:{port} ({key}) is free here")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => report.say(
            Grade::Warn,
            format!(
                "{host}:{port} ({key}) is taken here: by the gateway itself, if it runs; else choose another"
            ),
        ),
        Err(error) => {
            report.say(Grade::Warn, format!("{host}:{port} ({key}) can't be listened on here: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_files_are_told_with_what_they_are_enough_for() {
        assert_eq!(files(2_500, 1_000).0, Grade::Good);
        let (grade, text) = files(1_024, 1_000);
        assert!(grade == Grade::Warn && text.contains("at most 262 streams"), "{text}");
    }

    #[test]
    fn a_port_is_free_or_taken() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = taken.local_addr().unwrap().port();
        let mut report = Report::default();
        port("server.port", "127.0.0.1", at, &mut report);
        assert!(report.to_string().starts_with("# warn 127.0.0.1:"), "{report}");
        assert!(report.good());
    }
}
