//! pd-proxy: an OpenAI-compatible gateway for prefill/decode-disaggregated LLM serving on vLLM and
//! vLLM-Ascend.
//!
//! One request's life: [`server`] reads it under limits, [`codec`] finds its top-level members,
//! [`dialect`] writes the bodies of both legs, [`relay`] drives it (choose a prefiller in [`fleet`]
//! by [`route`], prefill, choose a decoder, hand over, stream), [`upstream`] talks to the engines,
//! and the relay's ledger settles the account exactly once. ARCHITECTURE.md has the map and the
//! invariants; `tests/it/layers.rs` checks which module may use which.

pub mod app;
pub mod auth;
pub mod cli;
pub mod cmd;
pub mod config;
pub mod control;
pub mod dialect;
pub mod endpoint;
pub mod error;
pub mod fleet;
pub mod naming_config;
pub mod obs;
pub mod pool;
pub mod prompt;
pub mod relay;
pub mod replay;
pub mod route;
pub mod server;
#[cfg(feature = "share")]
pub mod share;
pub mod tls;
pub mod tokenization;
pub mod trace;
pub mod upstream;
pub mod util;

pub use pd_proxy_core::{codec, kvhash};
#[cfg(feature = "sim")]
pub use pd_proxy_sim as sim;
