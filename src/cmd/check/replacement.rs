//! Readiness of this machine to replace a running gateway without refusing a connection.

use std::fs;
use std::path::Path;

use super::{Grade, Report};
use crate::config::Server;

/// Unit that keeps the listening sockets while gateways come and go.
const UNIT: &str = "pd-proxy.socket";

/// Folders in which systemd looks for units (systemd.unit(5)), the first one that has it first.
const FOLDERS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Setting of the kernel: connections that are queued for a socket which closes go to another one
/// on the same address.
const MIGRATION: &str = "/proc/sys/net/ipv4/tcp_migrate_req";

/// Facts about the machine.
struct Machine {
    /// Text of the `.socket` unit, if it is installed.
    unit: Option<String>,
    /// True if the kernel moves queued connections.
    migrates: bool,
}

/// Says whether another gateway can take over here while this one finishes.
pub(super) fn look(server: &Server, report: &mut Report) {
    let read = |folder: &&str| fs::read_to_string(Path::new(folder).join(UNIT)).ok();
    let migrates = fs::read_to_string(MIGRATION).is_ok_and(|value| value.trim() != "0");
    let machine = Machine { unit: FOLDERS.iter().find_map(read), migrates };
    let (grade, text) = machine.judge(server);
    report.say(grade, format!("replacing the gateway: {text}"));
}

impl Machine {
    fn judge(&self, server: &Server) -> (Grade, String) {
        if let Some(unit) = &self.unit {
            let admin = server.admin_host.as_ref().map(|_| ("server.admin_port", server.admin_port));
            let mut places = [Some(("server.port", server.port)), admin].into_iter().flatten();
            return match places.find(|(_, port)| !listens(unit, *port)) {
                None => (Grade::Good, format!("{UNIT} keeps its sockets, no connection is refused")),
                Some((key, port)) => (
                    Grade::Warn,
                    format!("{UNIT} has no ListenStream= for {key} = {port}: that port has no successor"),
                ),
            };
        }
        match (server.reuse_port, self.migrates) {
            (true, true) => (Grade::Good, "by server.reuse_port, no connection is refused".to_owned()),
            (true, false) => (
                Grade::Warn,
                "server.reuse_port is set and net.ipv4.tcp_migrate_req is 0: connections that the last gateway has not \
                 accepted yet may be reset; set it to 1 by sysctl"
                    .to_owned(),
            ),
            (false, _) => (
                Grade::Note,
                format!(
                    "neither {UNIT} nor server.reuse_port is there: connections are refused from the end of one \
                     gateway to the start of the next"
                ),
            ),
        }
    }
}

/// True if the unit has a socket with this port.
fn listens(unit: &str, port: u16) -> bool {
    let places = unit.lines().filter_map(|line| line.trim().strip_prefix("ListenStream="));
    let ports = places.filter_map(|place| place.rsplit(':').next());
    ports.into_iter().any(|text| text.trim().parse() == Ok(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(unit: Option<&str>, migrates: bool, server: &Server) -> (Grade, String) {
        Machine { unit: unit.map(str::to_owned), migrates }.judge(server)
    }

    #[test]
    fn machine_is_judged_by_unit_setting_and_kernel() {
        let shipped = include_str!("../../../config/systemd/pd-proxy.socket");
        let plain = Server::default();
        assert_eq!(judged(Some(shipped), false, &plain).0, Grade::Good);
        let moved = Server { port: 9_000, ..Server::default() };
        let (grade, text) = judged(Some(shipped), true, &moved);
        assert!(grade == Grade::Warn && text.contains("server.port = 9000"), "{text}");
        let apart = Server { admin_host: Some("127.0.0.1".to_owned()), ..Server::default() };
        let (grade, text) = judged(Some("ListenStream=[::]:8000\n"), true, &apart);
        assert!(grade == Grade::Warn && text.contains("server.admin_port = 8009"), "{text}");
        assert_eq!(judged(None, true, &plain).0, Grade::Note);
        let shares = Server { reuse_port: true, ..Server::default() };
        assert_eq!(judged(None, true, &shares).0, Grade::Good);
        let (grade, text) = judged(None, false, &shares);
        assert!(grade == Grade::Warn && text.contains("tcp_migrate_req"), "{text}");
    }
}
