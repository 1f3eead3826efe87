//! Simulated engines, a gateway in front of them, and a client that speaks raw bytes.

pub mod client;
pub mod stage;
