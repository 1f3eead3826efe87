//! pd-proxy: an OpenAI-compatible gateway for prefill/decode-disaggregated serving.

#[cfg(feature = "gateway")]
pub mod cli;
#[cfg(feature = "gateway")]
pub mod config;
