//! pd-proxy: an OpenAI-compatible gateway for prefill/decode-disaggregated serving.

pub mod codec;
