//! `server.names`: the names by which the operators' routes are served where no key is asked for.
//! The module is pure.

use super::{Config, Problem};
use crate::endpoint::parse_host;

/// Finds fault with an entry that is no name.
pub(super) fn name_fault(_: &'static str, text: &str) -> Option<Problem> {
    (!is_name(text)).then(|| Problem::NotAName { text: text.to_owned() })
}

/// True for a host name alone: letters, digits, `-`, `_` and dots. Addresses are served without
/// being listed.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        !label.is_empty() && label.chars().all(plain)
    };
    text.split('.').all(is_label)
}

impl Config {
    /// The gateway's names as a request may have them for its host, in lower case: those of
    /// `server.names`, and those that `server.host`, `server.admin_host` and `dialect.callback_url`
    /// say, where they are names.
    pub fn own_names(&self) -> Vec<String> {
        let server = &self.server;
        let bound = [Some(server.host.as_str()), server.admin_host.as_deref()].into_iter().flatten();
        let called = self.dialect.callback_url.as_deref().and_then(host_of_url);
        let hosts = bound.filter_map(|host| parse_host(host).ok()).chain(called);
        let own = hosts.filter(|host| is_name(host)).chain(server.names.iter().cloned());
        own.map(|name| name.to_ascii_lowercase()).collect()
    }
}

fn host_of_url(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let authority: http::uri::Authority = rest.split('/').next()?.parse().ok()?;
    Some(authority.host().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names_alone() {
        for good in ["gateway", "pd-proxy.team.svc.cluster.local", "GATEWAY", "a_b"] {
            assert!(is_name(good), "{good}");
        }
        for bad in
            ["", "gateway:8000", "http://gateway", "a..b", "gateway.", "*", "*.example", "[::1]", "a b"]
        {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn own_names_come_from_every_key_that_has_one() {
        let mut config = Config::default();
        config.server.host = "GW.example".into();
        config.server.admin_host = Some("10.0.0.1".into());
        config.server.names = vec!["Other".into()];
        config.dialect.callback_url = Some("http://back.example:9000/v1/metaserver".into());
        assert_eq!(config.own_names(), ["gw.example", "10.0.0.1", "back.example", "other"]);
    }
}
