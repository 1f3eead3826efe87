//! The pure core of pd-proxy: formats of request bodies and streams, and names of KV blocks.
//!
//! [`codec`] finds and replaces members of JSON bodies without parsing them, splits streams into
//! server-sent events, and writes the Python formats that engines hash. [`kvhash`] computes the
//! hashes of KV blocks and the keys under which pools keep them. Bytes and values in, bytes and
//! values out: no sockets, no clock, no randomness.

pub mod codec;
pub mod kvhash;
