//! `[pool]`: where the gateway learns which blocks of a prompt are already computed.

use super::values::PoolKind;
use serde::{Deserialize, Serialize};

/// `[pool]`: the pool that the engines share, asked about each prompt before it is routed.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pool {
    /// The service that answers.
    pub kind: PoolKind,
    /// Its addresses, each `host:port`; several where it has standbys (Mooncake), or where each
    /// engine has its own (EMS).
    pub addresses: Vec<String>,
    /// Mooncake: HTTP (admin) addresses of the masters, asked who leads. MemCache: its
    /// `metrics_url`, for `check` alone.
    pub admins: Vec<String>,
    /// The longest that a request waits for it, ms; after that it is routed without.
    pub deadline_ms: u64,
    /// Time for which an answer is good for, ms.
    pub fresh_ms: u64,
    /// Mooncake: connections to the master that leads.
    pub connections: u32,
    /// Mooncake: ask where blocks are, not only whether they exist.
    pub locations: bool,
    /// MemCache: the host of each rank, as `3=node-5`; without them blocks are known to exist, not
    /// where.
    pub ranks: Vec<String>,
    /// Pairs of the pool's name of a host and the name of the prefillers there, as `10.0.0.5=p1`,
    /// where they differ.
    pub hosts: Vec<String>,
    /// Tenant whose objects are asked for, on Mooncake masters that tell tenants apart.
    pub tenant: String,
    /// EMS: every server answers for its own host (`EMS_ENABLE_READ_LOCAL_ONLY`).
    pub reads_local: bool,
    /// EMS: engines load nothing below this many tokens (`EMS_NUM_MIN_REUSE_TOKENS`).
    pub least_tokens: u32,
    /// LMCache: tokens per chunk (`LMCACHE_CHUNK_SIZE`); 0 = `hash.block_tokens` where LMCache
    /// hashes, else 256.
    pub chunk_tokens: u32,
    /// LMCache: engines load from each other's memory (`enable_p2p`, `--p2p-advertise-url`).
    pub p2p: bool,
}

impl Pool {
    /// `ranks` as pairs; entries that are none, which a loaded configuration cannot hold, are left
    /// out.
    pub fn rank_hosts(&self) -> impl Iterator<Item = (u32, &str)> {
        self.ranks.iter().filter_map(|text| rank_host(text))
    }

    /// `hosts` as pairs, in the same way.
    pub fn host_names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.hosts.iter().filter_map(|text| host_name(text))
    }
}

/// Splits a pair of rank and host, as `3=node-5`.
pub(super) fn rank_host(text: &str) -> Option<(u32, &str)> {
    let (rank, host) = text.split_once('=')?;
    Some((rank.trim().parse().ok()?, host.trim())).filter(|(_, host)| !host.is_empty())
}

/// Splits a pair of host names, as `10.0.0.5=p1`.
pub(super) fn host_name(text: &str) -> Option<(&str, &str)> {
    let (name, host) = text.split_once('=')?;
    Some((name.trim(), host.trim())).filter(|(name, host)| !name.is_empty() && !host.is_empty())
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            kind: PoolKind::Off,
            addresses: Vec::new(),
            admins: Vec::new(),
            deadline_ms: 5,
            fresh_ms: 1_000,
            connections: 2,
            locations: true,
            ranks: Vec::new(),
            hosts: Vec::new(),
            tenant: "default".to_owned(),
            reads_local: false,
            least_tokens: 0,
            chunk_tokens: 0,
            p2p: false,
        }
    }
}
