//! Mooncake Store, asked at its master.

pub mod wire;
