//! Bytes in, bytes out: the two texts that pass through the gateway, read without building a tree.
//!
//! A request body is one JSON object of which the gateway reads a few members and replaces a few others
//! ([`json`]); a reply is a stream of server-sent events of which it needs the frame boundaries ([`sse`]).
//! Everything else is forwarded as the very bytes that came in. Pure: no sockets, no clock, no randomness.

pub mod json;
pub mod sse;
