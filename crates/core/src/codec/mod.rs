//! Bytes in, bytes out: formats read and written without building more than is needed.
//!
//! A request body is one JSON object of which the gateway reads a few members and replaces a few
//! others ([`json`]). A reply is a stream of server-sent events of which it needs the frame
//! boundaries ([`sse`]). Everything else is forwarded as the very bytes that came in. Block hashes
//! are taken over Python objects as [`pickle`] and [`cbor`] write them, or are Python's own
//! `hash()` ([`pyhash`]). Pure: no sockets, no clock, no randomness.

pub mod cbor;
pub mod json;
pub mod pickle;
pub mod pyhash;
pub mod sse;
