//! `[tls]`: what the listener shows to clients, and what it wants to see.

use serde::{Deserialize, Serialize};

use super::{Config, Invalid, Problem};
use crate::tls::{EngineFiles, ListenerFiles};

/// `[tls]`: HTTPS for clients, on both listeners. Without `cert` they speak plain HTTP.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// A PEM file with the certificate, and what leads from it to its authority. Read again when it
    /// changes.
    pub cert: Option<String>,
    /// A PEM file with its private key. Read again when it changes.
    pub key: Option<String>,
    /// A PEM file with authorities, one of which must have signed the certificate that a client
    /// shows; None = clients need none.
    pub client_ca: Option<String>,
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

/// Checks pairs of keys that need each other, and files whose names are empty.
pub(super) fn validate(config: &Config, invalid: &mut Vec<Invalid>) {
    let Config { tls, engine, server, .. } = config;
    let texts = [
        ("tls.cert", &tls.cert),
        ("tls.key", &tls.key),
        ("tls.client_ca", &tls.client_ca),
        ("engine.tls_ca", &engine.tls_ca),
        ("engine.tls_cert", &engine.tls_cert),
        ("engine.tls_key", &engine.tls_key),
        ("engine.tls_name", &engine.tls_name),
    ];
    for (key, text) in texts {
        match text.as_deref() {
            None => {}
            Some("") => invalid.push((key, Problem::EmptyText { key })),
            Some(_) if !cfg!(feature = "tls") => invalid.push((key, Problem::NoTls { key })),
            Some(_) => {}
        }
    }
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
    if let Some(host) = &server.admin_host
        && let Err(why) = crate::endpoint::bind_host(host, "server.admin_port")
    {
        let key = "server.admin_host";
        invalid.push((key, Problem::Host { key, text: host.clone(), why }));
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
                "engine.tls_ca is empty: leave it out instead",
                "tls.cert = … needs tls.key",
                "engine.tls_key = … needs engine.tls_cert",
                "server.admin_host: `127.0.0.1:8009` carries a port: give the address alone, and the port by server.admin_port",
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
