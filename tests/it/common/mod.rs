//! Simulated engines, a model's files, a gateway in front of them, and a client that speaks raw
//! bytes.

pub mod client;
pub mod log;
pub mod memory;
pub mod model;
pub mod place;
pub mod raw_engine;
pub mod stage;
#[cfg(feature = "share")]
pub mod store;
pub mod time;
