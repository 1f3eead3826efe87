//! `[engine]`: what the gateway must know about the engines.

use super::bounds::ms;
use super::table::{Rule, section};
use super::tls::file_fault;
use super::values::Secret;

section! {
    /// `[engine]`: what the gateway must know about the engines.
    Engine = "engine" {
        /// Replaces the client's `Authorization` towards engines; also `OPENAI_API_KEY`. None = the
        /// client's is passed on.
        api_key: Option<Secret> = None, AfterRestart, Rule::Secret { variable: "OPENAI_API_KEY" };
        /// A file with that key and nothing else, in place of `engine.api_key`; None = there is
        /// none.
        api_key_file: Option<String> = None, AfterRestart, Rule::NotEmpty;
        /// Time for which a prefiller keeps KV for a decoder, ms, where its hand-offs don't tell it
        /// (vLLM's `kv_lease_duration`).
        lease_ms: u64 = 30_000, AtOnce, ms(1);
        /// Time for which a prefill goes on after its client left, ms, so that KV that is finished
        /// in this time can be released; longer ones are hung up on.
        abandon_grace_ms: u64 = 500, AtOnce, ms(0);
        /// A PEM file with the authorities whose engines at `https://` are believed; None = those
        /// of the system.
        tls_ca: Option<String> = None, AfterRestart, Rule::Judged(file_fault);
        /// A PEM file with the certificate that is shown to them; None = none is.
        tls_cert: Option<String> = None, AfterRestart, Rule::Judged(file_fault);
        /// A PEM file with its private key.
        tls_key: Option<String> = None, AfterRestart, Rule::Judged(file_fault);
        /// The name that their certificates must have, where it is not the host that is connected
        /// to.
        tls_name: Option<String> = None, AfterRestart, Rule::Judged(file_fault);
        /// True if they run with `--scheduling-policy priority`: vLLM's `priority` is then that of
        /// the client's key, or a later one if the client asks for it.
        priority_scheduling: bool = false, AtOnce;
    }
}
