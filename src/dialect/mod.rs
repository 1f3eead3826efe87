//! How prefiller and decoder are told about each other. Pure: bytes and values in, bytes and values out.
//!
//! A dialect decides what both legs' bodies look like and what the prefiller's answer means. So far there is one,
//! [`kv_transfer`]; the [`Api`] (which of OpenAI's, Anthropic's or vLLM's request shapes) is orthogonal to it.

pub mod api;
pub mod engine_load;
pub mod facts;
pub mod guard;
pub mod kv_transfer;
pub mod resume;
pub mod shape;
pub mod usage;

pub use api::Api;
pub use shape::{Bypass, Shape};
