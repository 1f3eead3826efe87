//! `[discovery]`: engines that come and go by themselves.

use super::Problem;
use super::bounds::ms;
use super::kubernetes::Kubernetes;
use super::table::{Rule, section};
use crate::endpoint::Endpoint;

section! {
    /// `[discovery]`: where engines are looked for, beside `[fleet]`.
    Discovery = "discovery" {
        /// A file that lists them; None = there is none.
        file: Option<String> = None, AfterRestart, Rule::NotEmpty;
        /// Names with ports, each address of which is a prefiller.
        prefill_dns: Vec<String> = Vec::new(), AfterRestart, Rule::Judged(endpoint_fault);
        /// The same for decoders.
        decode_dns: Vec<String> = Vec::new(), AfterRestart, Rule::Judged(endpoint_fault);
        /// Between looks, ms.
        interval_ms: u64 = 5_000, AfterRestart, ms(100);
    }
    sections {
        /// Engines found through the API server.
        kubernetes: Kubernetes,
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
}

fn endpoint_fault(key: &'static str, text: &str) -> Option<Problem> {
    Endpoint::parse(text).err().map(|why| Problem::Host { key, text: text.to_owned(), why })
}
