//! MemCache's meta service: which keys it has, on which ranks.
//!
//! [`MemCache`] speaks its binary protocol ([`wire`], over the connection in [`conn`]);
//! [`MemCacheHttp`] asks its HTTP address, for where only that one can be reached. Both only ask.
//! Nothing here is ever sent under a rank: the service forgets what a rank has stored when a link
//! in its name ends.

pub mod client;
pub mod conn;
mod greet;
pub mod http;
mod json;
pub mod ranks;
pub mod wire;

pub use client::{MemCache, MemCacheConfig};
pub use http::{MemCacheHttp, MemCacheHttpConfig};
pub use ranks::RankHosts;

#[cfg(test)]
mod captures;
