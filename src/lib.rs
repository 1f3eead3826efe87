//! pd-proxy: an OpenAI-compatible gateway for prefill/decode-disaggregated LLM serving on vLLM and
//! vLLM-Ascend.
//!
//! One request's life: [`server`] reads it under limits, [`codec`] finds its top-level members,
//! [`dialect`] writes the bodies of both legs, [`relay`] drives it (choose a prefiller in [`fleet`]
//! by [`route`], prefill, choose a decoder, hand over, stream), [`upstream`] talks to the engines,
//! and the relay's ledger settles the account exactly once. ARCHITECTURE.md has the map and the
//! invariants; `tests/it/layers.rs` checks which module may use which.

pub mod codec;
pub mod kvhash;

#[cfg(feature = "gateway")]
pub mod app;
#[cfg(feature = "gateway")]
pub mod auth;
#[cfg(feature = "gateway")]
pub mod cli;
#[cfg(feature = "gateway")]
pub mod cmd;
#[cfg(feature = "gateway")]
pub mod config;
#[cfg(feature = "gateway")]
pub mod control;
#[cfg(feature = "gateway")]
pub mod dialect;
#[cfg(feature = "gateway")]
pub mod endpoint;
#[cfg(feature = "gateway")]
pub mod error;
#[cfg(feature = "gateway")]
pub mod fleet;
#[cfg(feature = "gateway")]
pub mod intake;
#[cfg(feature = "gateway")]
pub mod obs;
#[cfg(feature = "gateway")]
pub mod pool;
#[cfg(feature = "gateway")]
pub mod profile;
#[cfg(feature = "gateway")]
pub mod prompt;
#[cfg(feature = "gateway")]
pub mod relay;
#[cfg(feature = "gateway")]
pub mod replay;
#[cfg(feature = "gateway")]
pub mod route;
#[cfg(feature = "gateway")]
pub mod server;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "gateway")]
pub mod tls;
#[cfg(feature = "gateway")]
pub mod trace;
#[cfg(feature = "gateway")]
pub mod upstream;
#[cfg(feature = "gateway")]
pub mod util;
