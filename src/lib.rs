//! pd-proxy: an OpenAI-compatible gateway for prefill/decode-disaggregated serving.

#[cfg(feature = "sim")]
pub mod sim;
