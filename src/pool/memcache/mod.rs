//! MemCache's meta service: which keys it has, on which ranks.
//!
//! [`MemCache`] speaks its binary protocol ([`wire`], over the connection in [`conn`]); [`MemCacheHttp`] asks its HTTP
//! address, for where only that one can be reached. Both only ask. Nothing here is ever sent under a rank: the service
//! forgets what a rank has stored when a link in its name ends.

//C
//O
//H
pub mod ranks;
pub mod wire;

//UC
//UH
pub use ranks::RankHosts;

#[cfg(test)]
mod captures;
