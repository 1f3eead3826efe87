//! `[dialect]`: how the engines move KV from a prefiller to a decoder.

use serde::{Deserialize, Serialize};

use super::Problem;
use super::validate::Invalid;
use super::values::DialectName;
use crate::endpoint::Endpoint;

/// `[dialect]`: what both legs are told about each other.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dialect {
    /// What the engines speak: their `kv_connector`.
    pub name: DialectName,
    /// Port of the bootstrap server on each prefiller's host (`VLLM_MOONCAKE_BOOTSTRAP_PORT`).
    pub bootstrap_port: u16,
    /// Prefillers whose bootstrap server is elsewhere, each `prefiller=host:port`.
    pub bootstraps: Vec<String>,
}

impl Default for Dialect {
    fn default() -> Self {
        Self { name: DialectName::default(), bootstrap_port: 8998, bootstraps: Vec::new() }
    }
}

impl Dialect {
    /// Prefillers with the place of their bootstrap server, where that is given; entries that can't be read are left out.
    pub fn bootstraps(&self) -> Vec<(Endpoint, Endpoint)> {
        self.bootstraps.iter().filter_map(|text| pair(text)).collect()
    }

    /// What is wrong beside the bounds of numbers.
    pub(super) fn validate(&self, invalid: &mut Vec<Invalid>) {
        for text in self.bootstraps.iter().filter(|text| pair(text).is_none()) {
            invalid.push((
                "dialect.bootstraps",
                Problem::NotAPair { key: "dialect.bootstraps", text: text.clone() },
            ));
        }
    }
}

fn pair(text: &str) -> Option<(Endpoint, Endpoint)> {
    let (prefiller, bootstrap) = text.split_once('=')?;
    Some((Endpoint::parse(prefiller).ok()?, Endpoint::parse(bootstrap).ok()?.plain().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bootstrap_server_is_given_with_its_prefiller() {
        assert_eq!(
            pair("10.0.0.1:8100=10.0.0.9:9001"),
            Some((Endpoint::new("10.0.0.1", 8100), Endpoint::new("10.0.0.9", 9001)))
        );
        for bad in ["", "a:1", "a:1=", "=b:2", "a=b:2", "a:1=https://b:2"] {
            assert_eq!(pair(bad), None, "{bad}");
        }
    }
}
