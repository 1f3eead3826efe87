//! `[discovery]`: engines that come and go by themselves.

use serde::{Deserialize, Serialize};

use super::Problem;
use super::error::Invalid;
use super::kubernetes::Kubernetes;
use crate::endpoint::Endpoint;

/// `[discovery]`: where engines are looked for, beside `[fleet]`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Discovery {
    /// A file that lists them; None = there is none.
    pub file: Option<String>,
    /// Names with ports, each address of which is a prefiller.
    pub prefill_dns: Vec<String>,
    /// The same for decoders.
    pub decode_dns: Vec<String>,
    /// Between looks, ms.
    pub interval_ms: u64,
    /// Engines found through the API server.
    pub kubernetes: Kubernetes,
}

impl Default for Discovery {
    fn default() -> Self {
        Self {
            file: None,
            prefill_dns: Vec::new(),
            decode_dns: Vec::new(),
            interval_ms: 5_000,
            kubernetes: Kubernetes::default(),
        }
    }
}

impl Discovery {
    /// True for each role that discovery finds engines of: `[prefill, decode]`, both or neither.
    pub fn looks_for(&self) -> [bool; 2] {
        let file = self.file.is_some();
        let (prefill, decode) = (self.kubernetes.prefill().is_some(), self.kubernetes.decode().is_some());
        [file || prefill || !self.prefill_dns.is_empty(), file || decode || !self.decode_dns.is_empty()]
    }

    /// True if there is a file or a name to look at again and again.
    pub fn looks_again(&self) -> bool {
        self.file.is_some() || !self.prefill_dns.is_empty() || !self.decode_dns.is_empty()
    }

    /// Checks the section beyond the bounds of its numbers.
    pub(super) fn validate(&self, invalid: &mut Vec<Invalid>) {
        if self.file.as_deref() == Some("") {
            invalid.push(("discovery.file", Problem::EmptyText { key: "discovery.file" }));
        }
        let lists =
            [("discovery.prefill_dns", &self.prefill_dns), ("discovery.decode_dns", &self.decode_dns)];
        for (key, names) in lists {
            for text in names {
                if let Err(why) = Endpoint::parse(text) {
                    invalid.push((key, Problem::Host { key, text: text.clone(), why }));
                }
            }
        }
        self.kubernetes.validate(invalid);
    }
}
