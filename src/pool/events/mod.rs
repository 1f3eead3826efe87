//! KV events of vLLM engines: which blocks each engine holds in its own memory, and which it put into a pool.
//!
//! Pools know nothing of an engine's own prefix cache, and some pools don't tell where a block lies; engines publish
//! both. [`decode`] reads what they publish, [`index`] keeps it.

pub mod decode;
pub mod index;
mod msgpack;

pub use msgpack::Malformed;
