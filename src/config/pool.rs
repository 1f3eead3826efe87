//! `[pool]`: where the gateway learns which blocks of a prompt are already computed.

use super::bounds::{block_tokens, count, ms, within};
use super::table::section;
use super::values::PoolKind;

/// The longest wait for a pool; one that takes longer saves nothing.
const MAX_POOL_MS: u64 = 10_000;
/// Most connections to one address.
const MAX_CONNECTIONS: u64 = 64;

section! {
    /// `[pool]`: the pool that the engines share, asked about each prompt before it is routed.
    Pool = "pool" {
        /// The service that answers.
        kind: PoolKind = PoolKind::Off, AfterRestart;
        /// Its addresses, each `host:port`; several where it has standbys (Mooncake), or where each
        /// engine has its own (EMS).
        addresses: Vec<String> = Vec::new(), AfterRestart;
        /// Mooncake: HTTP (admin) addresses of the masters, asked who leads. MemCache: its
        /// `metrics_url`. They list the keys, too.
        admins: Vec<String> = Vec::new(), AfterRestart;
        /// The longest that a request waits for it, ms; after that it is routed without.
        deadline_ms: u64 = 5, AfterRestart, within(1, MAX_POOL_MS);
        /// Time for which an answer is good for, ms.
        fresh_ms: u64 = 1_000, AfterRestart, ms(0);
        /// Mooncake: connections to the master that leads.
        connections: u32 = 2, AfterRestart, within(1, MAX_CONNECTIONS);
        /// Mooncake: ask where blocks are, not only whether they exist.
        locations: bool = true, AfterRestart;
        /// MemCache: the host of each rank, as `3=node-5`; without them blocks are known to exist,
        /// not where.
        ranks: Vec<String> = Vec::new(), AfterRestart;
        /// Pairs of the pool's name of a host and the name of the prefillers there, as
        /// `10.0.0.5=p1`, where they differ.
        hosts: Vec<String> = Vec::new(), AfterRestart;
        /// Tenant whose objects are asked for, on Mooncake masters that tell tenants apart.
        tenant: String = "default".to_owned(), AfterRestart;
        /// EMS: every server answers for its own host (`EMS_ENABLE_READ_LOCAL_ONLY`).
        reads_local: bool = false, AfterRestart;
        /// EMS: engines load nothing below this many tokens (`EMS_NUM_MIN_REUSE_TOKENS`).
        least_tokens: u32 = 0, AfterRestart, count(0);
        /// LMCache: tokens per chunk (`LMCACHE_CHUNK_SIZE`); 0 = `hash.block_tokens` where LMCache
        /// hashes, else 256.
        chunk_tokens: u32 = 0, AfterRestart, block_tokens();
        /// LMCache: engines load from each other's memory (`enable_p2p`, `--p2p-advertise-url`).
        p2p: bool = false, AfterRestart;
    }
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
