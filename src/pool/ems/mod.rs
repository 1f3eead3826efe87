//! EMS's lookup server: an engine's own thread that says how many leading blocks of a prompt its
//! pool has.
//!
//! The worker with tensor-parallel rank 0 of each data-parallel rank binds a ZeroMQ REP socket
//! (`EMS_LOOKUP_KEY_SERVER_IP`, `EMS_LOOKUP_KEY_SERVER_BASE_PORT` + rank) for its scheduler, which
//! waits on it without a limit. So the client is careful. It puts one question at a time to a
//! server, and sends nothing but what [`frame`] can write. A socket whose question is unanswered is
//! not used again, and [`health`] keeps away from a server in trouble.

pub mod client;
pub mod frame;
pub mod health;
mod server;
pub mod socket;
pub mod zmtp;

pub use client::{Ems, EmsSettings, check};
