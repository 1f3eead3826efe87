//! Mooncake Store, asked at its master.
//!
//! [`Mooncake`] speaks the RPC of the masters of 0.3.7 to 0.3.13, [`MooncakeHttp`] the admin port,
//! which from 0.3.12 on answers without any effect on eviction. [`wire`] is the bytes, without
//! sockets.

mod admin;
mod client;
mod conn;
mod http;
pub mod wire;

pub use admin::{ADMIN_TIME, Admin, Health, KeySample, Segment};
pub use client::{
    CONNECT_TIME, CONNECTIONS, IN_FLIGHT, LinkStatus, MasterGreeting, Mooncake, MooncakeConfig, PATIENCE,
    TENANT, greet,
};
pub use http::{MooncakeHttp, MooncakeHttpConfig};
