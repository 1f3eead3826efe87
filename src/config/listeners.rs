//! Checks that clients' and operators' listeners have different places. Pure: names are not
//! resolved.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Config, Problem};

const LOCALHOST: &str = "localhost";

impl Config {
    /// The listener of operators is to be where the one of clients is: the second one can't be
    /// bound.
    pub(super) fn one_place(&self) -> Option<(&'static str, Problem)> {
        let server = &self.server;
        let operators = server.admin_bind_host()?;
        let same =
            server.port != 0 && server.admin_port == server.port && meet(server.bind_host(), operators);
        let problem = || Problem::OnePlace { port: server.port, host: operators.to_owned() };
        same.then(|| ("server.admin_port", problem()))
    }
}

/// True if listeners at these hosts would be in each other's way.
fn meet(one: &str, other: &str) -> bool {
    let overlap = |a: &IpAddr, b: &IpAddr| {
        let either = |holds: fn(&IpAddr) -> bool| holds(a) || holds(b);
        // `::` is bound for IPv4 as well.
        a == b
            || either(|ip| ip.is_ipv6() && ip.is_unspecified())
            || a.is_ipv4() == b.is_ipv4() && either(IpAddr::is_unspecified)
    };
    let (ones, others) = (addresses(one), addresses(other));
    one.eq_ignore_ascii_case(other) || ones.iter().any(|a| others.iter().any(|b| overlap(a, b)))
}

fn addresses(host: &str) -> Vec<IpAddr> {
    match host {
        LOCALHOST => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        _ => host.parse().into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two listeners' ports.
    struct Ports {
        clients: u16,
        operators: u16,
    }

    fn wrong(host: &str, admin_host: &str, ports: &Ports) -> Option<String> {
        let mut config = Config::default();
        config.server.host = host.to_owned();
        config.server.admin_host = Some(admin_host.to_owned());
        (config.server.port, config.server.admin_port) = (ports.clients, ports.operators);
        let found: Vec<String> = config.validate().iter().map(|(_, what)| what.to_string()).collect();
        found.into_iter().find(|what| what.contains("server.admin_port"))
    }

    /// A kernel refuses each of these pairs, too: Linux says `Address already in use`.
    #[test]
    fn two_listeners_have_two_places() {
        let same = Ports { clients: 9_000, operators: 9_000 };
        let other = Ports { clients: 9_000, operators: 9_001 };
        let free = Ports { clients: 0, operators: 0 };
        for (host, admin_host) in [
            ("10.0.0.1", "10.0.0.1"),
            ("gateway", "Gateway"),
            ("localhost", "localhost"),
            ("localhost", "127.0.0.1"),
            ("0.0.0.0", "127.0.0.1"),
            ("127.0.0.1", "0.0.0.0"),
            ("[::]", "127.0.0.1"),
            ("0.0.0.0", "::"),
        ] {
            let said = wrong(host, admin_host, &same).expect(host);
            assert!(said.contains("server.port") && said.contains("9000"), "{said}");
            assert_eq!(wrong(host, admin_host, &other), None);
            assert_eq!(wrong(host, admin_host, &free), None, "two free ones");
        }
        for (host, admin_host) in
            [("10.0.0.1", "127.0.0.1"), ("localhost", "10.0.0.1"), ("0.0.0.0", "::1"), ("a", "b")]
        {
            assert_eq!(wrong(host, admin_host, &same), None, "{host} {admin_host}");
        }
    }
}
