//! Finds engines whose address is the gateway's own. Both have port 8000 by default: where no
//! engine listens there yet, the gateway would ask itself, again and again, until it has no sockets
//! left. Pure: names are not resolved.

use std::net::IpAddr;

use super::server::without_brackets;
use super::{Config, Problem};
use crate::endpoint::Endpoint;

const LOCALHOST: &str = "localhost";

impl Config {
    /// The engines of a role that are this gateway.
    pub(super) fn itself(&self, key: &'static str, engines: &[String]) -> Vec<(&'static str, Problem)> {
        let parsed = engines.iter().filter_map(|text| Endpoint::parse(text).ok());
        let own = parsed
            .filter(|engine| engine.port == self.server.port && reaches(&engine.host, &self.server.host));
        own.map(|engine| (key, Problem::Itself { key, endpoint: engine.to_string() })).collect()
    }
}

/// True if who connects to `host` finds who listens at `listens`.
fn reaches(host: &str, listens: &str) -> bool {
    let address = |text: &str| without_brackets(text).parse::<IpAddr>();
    let host_is_loopback = host == LOCALHOST || address(host).is_ok_and(|ip| ip.is_loopback());
    match address(listens) {
        Ok(ip) if ip.is_unspecified() => host_is_loopback,
        Ok(ip) if host == LOCALHOST => ip.is_loopback(),
        Ok(ip) => address(host) == Ok(ip),
        Err(_) => host == listens || listens == LOCALHOST && host_is_loopback,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_knows_its_own_address() {
        for (host, listens) in [
            ("localhost", "localhost"),
            ("127.0.0.1", "localhost"),
            ("::1", "localhost"),
            ("localhost", "0.0.0.0"),
            ("127.0.0.1", "0.0.0.0"),
            ("::1", "::"),
            ("localhost", "127.0.0.1"),
            ("10.0.0.1", "10.0.0.1"),
            ("fd00::1", "[fd00::1]"),
            ("gw.example", "gw.example"),
        ] {
            assert!(reaches(host, listens), "{host} at {listens}");
        }
        for (host, listens) in [
            ("10.0.0.1", "0.0.0.0"),
            ("10.0.0.1", "localhost"),
            ("10.0.0.1", "10.0.0.2"),
            ("127.0.0.2", "127.0.0.1"),
            ("::1", "127.0.0.1"),
            ("localhost", "10.0.0.1"),
            ("engine", "localhost"),
            ("engine", "0.0.0.0"),
        ] {
            assert!(!reaches(host, listens), "{host} at {listens}");
        }
    }
}
