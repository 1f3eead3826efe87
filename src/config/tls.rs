//! `[tls]`: what the listener shows to clients, and what it wants to see.

use super::table::{Rule, section};
use super::{Config, Invalid, Problem};
use crate::tls::{EngineFiles, ListenerFiles};

section! {
    /// `[tls]`: HTTPS for clients, on both listeners. Without `cert` they speak plain HTTP.
    Tls = "tls" {
        /// A PEM file with the certificate, and what leads from it to its authority. Read again
        /// when it changes.
        cert: Option<String> = None, AfterRestart, Rule::Judged(file_fault);
        /// A PEM file with its private key. Read again when it changes.
        key: Option<String> = None, AfterRestart, Rule::Judged(file_fault);
        /// A PEM file with authorities, one of which must have signed the certificate that a client
        /// shows; None = clients need none.
        client_ca: Option<String> = None, AfterRestart, Rule::Judged(file_fault);
    }
}

impl Config {
    /// Files and names for TLS towards engines.
    pub fn engine_tls(&self) -> EngineFiles {
        let engine = &self.engine;
        EngineFiles {
            ca: engine.tls_ca.clone(),
            cert: engine.tls_cert.clone(),
            key: engine.tls_key.clone(),
            name: engine.tls_name.clone(),
        }
    }

    /// Files of the listeners; None = they speak plain HTTP.
    pub fn listener_tls(&self) -> Option<ListenerFiles> {
        let Tls { cert, key, client_ca } = self.tls.clone();
        Some(ListenerFiles { cert: cert?, key: key?, client_ca })
    }
}

/// Finds fault with the name of a file for TLS, or with any other text for it.
pub(super) fn file_fault(key: &'static str, text: &str) -> Option<Problem> {
    match text {
        "" => Some(Problem::EmptyText { key }),
        _ => (!cfg!(feature = "tls")).then_some(Problem::NoTls { key }),
    }
}

/// Checks pairs of keys that need each other.
pub(super) fn validate(config: &Config, invalid: &mut Vec<Invalid>) {
    let Config { tls, engine, .. } = config;
    let needs = [
        ("tls.cert", &tls.cert, "tls.key", &tls.key),
        ("tls.key", &tls.key, "tls.cert", &tls.cert),
        ("tls.client_ca", &tls.client_ca, "tls.cert", &tls.cert),
        ("engine.tls_cert", &engine.tls_cert, "engine.tls_key", &engine.tls_key),
        ("engine.tls_key", &engine.tls_key, "engine.tls_cert", &engine.tls_cert),
    ];
    for (key, _, needed, _) in needs.into_iter().filter(|(_, set, _, other)| set.is_some() && other.is_none())
    {
        invalid.push((key, Problem::Needs { key, value: "…", needed }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "tls")]
    fn a_certificate_and_its_key_come_together() {
        let mut config = Config::default();
        config.tls.cert = Some("c.pem".to_owned());
        config.engine.tls_key = Some("k.pem".to_owned());
        config.engine.tls_ca = Some(String::new());
        config.server.admin_host = Some("127.0.0.1:8009".to_owned());
        let found: Vec<String> = config.validate().into_iter().map(|(_, what)| what.to_string()).collect();
        assert_eq!(
            found,
            [
                "server.admin_host: `127.0.0.1:8009` carries a port: give the address alone, and the port by server.admin_port",
                "engine.tls_ca is empty: leave it out instead",
                "tls.cert = … needs tls.key",
                "engine.tls_key = … needs engine.tls_cert",
            ]
        );
    }

    #[test]
    #[cfg(not(feature = "tls"))]
    fn a_build_without_tls_names_the_key_that_asks_for_it() {
        let mut config = Config::default();
        config.tls.client_ca = Some("c.pem".to_owned());
        let found: Vec<String> = config.validate().into_iter().map(|(_, what)| what.to_string()).collect();
        assert_eq!(found[0], "tls.client_ca needs TLS, and this program was built without the feature `tls`");
    }
}
