//! KV events of vLLM engines: which blocks each engine holds in its own memory, and which it put
//! into a pool.
//!
//! Pools know nothing of an engine's own prefix cache, and some pools don't tell where a block
//! lies; engines publish both. [`decode`] reads what they publish, [`index`] keeps it, [`sequence`]
//! judges whether something was missed, and [`watch`] listens to an engine ([`zmtp`]) and has all
//! of these agree. [`held`] is what they come to for one prompt.

pub mod decode;
pub mod held;
pub mod index;
pub mod sequence;
pub mod status;
pub mod watch;
pub mod zmtp;

mod msgpack;
mod open;

pub use msgpack::Malformed;
