//! Wiring of `[pool]`: from the configuration to a client behind its gate.

use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Client;

use crate::config::{Config, PoolKind, endpoints};
use crate::endpoint::Endpoint;
use crate::kvhash::keys::KvShape;
use crate::kvhash::keys::ranks::RankRule;
use crate::kvhash::lmcache::CHUNK_TOKENS;
use crate::naming_config::lmcache_chunk_tokens;
use crate::pool::ems::{Ems, EmsSettings};
use crate::pool::listing::KeyListing;
use crate::pool::lmcache::{Directory, Lmcache, LmcacheSettings};
use crate::pool::memcache::{MemCache, MemCacheConfig, MemCacheHttp, MemCacheHttpConfig, RankHosts};
use crate::pool::mooncake::{self, Admin, Mooncake, MooncakeConfig, MooncakeHttp, MooncakeHttpConfig};
use crate::pool::ucm::{Ucm, UcmConfig};
use crate::pool::{Gate, GateLimits, Keyed, KvPool};

/// Factor of the deadline for which an exchange goes on: its late answer serves the next equal
/// lookup.
const PATIENCE: u32 = 20;
/// Threads that read files, and so the most calls that a hung mount can block.
const FILE_THREADS: usize = 16;
/// Bytes of all lookups under way: two of the largest, or thousands for prompts of 8 Ki tokens.
const QUESTION_BYTES: usize = 256 << 20;

/// Reasons for which a pool's client can't be made.
#[derive(Debug, thiserror::Error)]
pub enum PoolsError {
    /// The address is missing, which a loaded configuration cannot lack.
    #[error("pool.addresses is empty")]
    NoAddress,
    /// A block size of zero tokens.
    #[error("hash.block_tokens is 0: this pool needs it")]
    NoBlockSize,
    /// Threads that can't be started.
    #[error("the threads that look at files can't be started: {0}")]
    Threads(#[from] io::Error),
}

/// The gate in front of the configured pool; `None` if no pool is configured. Must run inside a
/// tokio runtime; `control` must follow no redirects and use no proxy.
///
/// # Errors
/// [`PoolsError`] names the key at fault.
pub fn gate(config: &Config, control: &Client) -> Result<Option<Gate>, PoolsError> {
    let deadline = Duration::from_millis(config.pool.deadline_ms);
    let limits = GateLimits {
        deadline,
        exchange: deadline.saturating_mul(PATIENCE),
        fresh: Duration::from_millis(config.pool.fresh_ms),
        answers: config.limit.pool_answers,
        in_flight: config.limit.pool_inflight,
        bytes: QUESTION_BYTES,
    };
    Ok(client(config, control)?.map(|pool| Gate::new(pool, limits)))
}

/// Place where the configured pool lists its keys, if it does.
pub fn listing(config: &Config, control: &Client) -> Option<KeyListing> {
    let ports = |texts: &[String]| Some(admins(texts, control)).filter(|ports| !ports.is_empty());
    match config.pool.kind {
        PoolKind::Mooncake | PoolKind::Memcache => ports(&config.pool.admins).map(KeyListing::Ports),
        PoolKind::MooncakeHttp | PoolKind::MemcacheHttp => {
            ports(&config.pool.addresses).map(KeyListing::Ports)
        }
        PoolKind::Ucm => Some(KeyListing::Roots(config.key.roots.iter().map(PathBuf::from).collect())),
        PoolKind::Off | PoolKind::Ems | PoolKind::LmcacheController | PoolKind::LmcacheCoordinator => None,
    }
}

fn client(config: &Config, control: &Client) -> Result<Option<Arc<dyn KvPool>>, PoolsError> {
    let pool = &config.pool;
    let in_flight = config.limit.pool_inflight;
    let first = || endpoints(&pool.addresses).into_iter().next().ok_or(PoolsError::NoAddress);
    let hosts = || -> RankHosts { pool.rank_hosts().collect() };
    Ok(Some(match pool.kind {
        PoolKind::Off => return Ok(None),
        PoolKind::Mooncake => Arc::new(Keyed::new(Mooncake::new(MooncakeConfig {
            masters: endpoints(&pool.addresses),
            admins: admins(&pool.admins, control),
            connections: pool.connections as usize,
            in_flight: in_flight.min(mooncake::IN_FLIGHT),
            locate: pool.locations,
            tenant: pool.tenant.clone(),
            connect_time: mooncake::CONNECT_TIME,
            patience: mooncake::PATIENCE,
        }))),
        PoolKind::MooncakeHttp => Arc::new(Keyed::new(MooncakeHttp::new(MooncakeHttpConfig {
            admins: admins(&pool.addresses, control),
            allow_leases: false,
        }))),
        PoolKind::Memcache => Arc::new(Keyed::new(MemCache::new(MemCacheConfig {
            service: first()?,
            hosts: hosts(),
            in_flight,
        }))),
        PoolKind::MemcacheHttp => {
            let settings = MemCacheHttpConfig { service: first()?, hosts: hosts(), in_flight };
            Arc::new(Keyed::new(MemCacheHttp::new(control.clone(), settings)))
        }
        PoolKind::Ucm => {
            let roots = config.key.roots.iter().map(PathBuf::from).collect();
            Arc::new(Keyed::new(Ucm::new(UcmConfig { roots, threads: FILE_THREADS })?))
        }
        PoolKind::Ems => Arc::new(Ems::new(EmsSettings {
            servers: endpoints(&pool.addresses),
            block_tokens: tokens(config.hash.block_tokens)?,
            reads_local: pool.reads_local,
            least_tokens: pool.least_tokens,
        })),
        PoolKind::LmcacheController => lmcache(config, control, Directory::Controller, first()?)?,
        PoolKind::LmcacheCoordinator => {
            let model = config.key.model.clone().unwrap_or_default();
            let world_size = mp_world_size(config);
            lmcache(config, control, Directory::Coordinator { model, world_size }, first()?)?
        }
    }))
}

fn lmcache(
    config: &Config,
    control: &Client,
    directory: Directory,
    endpoint: Endpoint,
) -> Result<Arc<dyn KvPool>, PoolsError> {
    let (chunk_tokens, p2p) = (tokens(chunk_tokens(config))?, config.pool.p2p);
    let settings = LmcacheSettings { endpoint, directory, chunk_tokens, p2p };
    Ok(Arc::new(Lmcache::new(control.clone(), settings)))
}

/// The pieces that a chunk is in, as LMCache's servers count them.
fn mp_world_size(config: &Config) -> u32 {
    let key = &config.key;
    let shape = KvShape { tp: key.tp, pp: key.pp, dcp: key.dcp, mla: key.mla, ..KvShape::default() };
    shape.world(RankRule::LmcacheMp)
}

/// Tokens of one LMCache chunk. Chunks are the unit only if LMCache itself hashes; they are no
/// engine's blocks.
fn chunk_tokens(config: &Config) -> u32 {
    match config.pool.chunk_tokens {
        0 => u32::try_from(lmcache_chunk_tokens(config).unwrap_or(CHUNK_TOKENS)).unwrap_or(u32::MAX),
        chunk_tokens => chunk_tokens,
    }
}

fn tokens(block_tokens: u32) -> Result<NonZeroUsize, PoolsError> {
    NonZeroUsize::new(block_tokens as usize).ok_or(PoolsError::NoBlockSize)
}

fn admins(texts: &[String], control: &Client) -> Vec<Admin> {
    let admin = |endpoint| Admin { client: control.clone(), endpoint, time: mooncake::ADMIN_TIME };
    endpoints(texts).into_iter().map(admin).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HashScheme;

    #[test]
    fn a_coordinator_is_asked_about_the_ranks_that_store() {
        // `ParallelStrategy.kv_world_size` of LMCache 0.5.6: with latent attention one copy per
        // stage and token shard.
        let pieces = |mla, dcp| {
            let mut config = Config::default();
            (config.key.tp, config.key.pp) = (8, 2);
            (config.key.mla, config.key.dcp) = (mla, dcp);
            mp_world_size(&config)
        };
        assert_eq!([pieces(false, 1), pieces(false, 2), pieces(true, 1), pieces(true, 4)], [16, 16, 2, 8]);
    }

    #[test]
    fn chunks_are_lmcaches_own() {
        let chunk = |scheme, block_tokens, own| {
            let mut config = Config::default();
            (config.hash.scheme, config.hash.block_tokens, config.pool.chunk_tokens) =
                (scheme, block_tokens, own);
            chunk_tokens(&config)
        };
        assert_eq!(chunk(HashScheme::Vllm, 16, 0), 256, "an engine's block is no chunk");
        assert_eq!(chunk(HashScheme::Vllm, 16, 512), 512);
        let config = toml::from_str("[key]\npreset = \"lmcache\"\n[hash]\nblock_tokens = 128").unwrap();
        assert_eq!(chunk_tokens(&config), 128, "the preset says whose hashes they are");
        assert_eq!(
            [(128, 0), (0, 0), (128, 64)].map(|(block, own)| chunk(HashScheme::Lmcache, block, own)),
            [128, 256, 64]
        );
    }
}
