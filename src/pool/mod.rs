//! The pools of KV blocks that engines share: which leading blocks of a prompt exist, and where.
//!
//! [`KvPool`] is asked about a whole prompt, [`KeyStore`] about keys; [`keyed`] makes the first of
//! the second. A client does its exchange and reports what it got; deadlines, repetition, caching
//! and giving up are the gate's.

mod aside;
pub mod breaker;
pub mod ems;
pub mod events;
pub mod gate;
pub mod inquiry;
pub mod keyed;
pub mod listing;
pub mod lmcache;
pub mod memcache;
pub mod misfit;
pub mod mooncake;
pub mod store;
pub mod ucm;
pub mod zmtp;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::kvhash::BlockHash;
use crate::kvhash::keys::KeyBatch;

pub use gate::{Gate, GateLimits, Lookup, Verdict};
pub use inquiry::Inquiry;
pub use keyed::Keyed;
pub use store::{KeyStore, Placement, ReplicaPlace, Tier};

/// Hosts of a prompt's leading blocks that are told, and of one object's replicas: there are a few
/// of either.
pub const MAX_HOSTS: usize = 16;

/// Future answer of a client. Dropping it at any point leaves the client usable: an answer that
/// comes later is recognised and thrown away, or its connection is not used again.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, PoolError>> + Send + 'a>>;

/// A pool, asked about prompts.
pub trait KvPool: Send + Sync {
    /// A short stable name for metrics and logs.
    fn name(&self) -> &'static str;

    /// The leading blocks of a prompt that the pool has.
    fn lookup<'a>(&'a self, question: &'a Question) -> Answer<'a, Presence>;
}

/// One prompt, as far as any kind of pool wants to know it.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Its token ids.
    pub tokens: Arc<[u32]>,
    /// The hashes of its blocks.
    pub hashes: Arc<[BlockHash]>,
    /// The keys of its blocks, where the pool has keys.
    pub keys: Arc<KeyBatch>,
    /// The request's `cache_salt`, for pools that make their keys themselves; empty for none.
    pub salt: Arc<str>,
}

impl Question {
    /// The memory that it takes, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let index = self.keys.len().saturating_mul(size_of::<(u32, u32)>());
        size_of_val(&*self.tokens) + size_of_val(&*self.hashes) + self.keys.bytes() + index + self.salt.len()
    }
}

/// The part of a prompt that a pool has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// Tokens of the leading blocks that are there, wherever they are.
    pub hit_tokens: u32,
    /// The engines that can load them.
    pub reach: LoadableBy,
    /// Tokens that are known to lie on one host, per host and tier; longest first. At most
    /// [`MAX_HOSTS`], but as many as are asked where each is asked for its own. Empty where pools
    /// don't say.
    pub near: SmallVec<[Near; 4]>,
    /// The whole was told from samples: blocks in between were not asked for.
    pub sampled: bool,
    /// Nothing that engines would put there of this prompt is missing, as far as was asked.
    pub whole: bool,
    /// Rest of a prompt whose first block is not there. Nothing where pools tell leading tokens
    /// alone.
    pub remnant: Remnant,
}

/// Rest of a prompt whose first block is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Remnant {
    /// No key of it.
    #[default]
    Nothing,
    /// Keys of blocks, none of which is whole: the engines have fewer ranks, or layers, than are
    /// asked for.
    Keys,
    /// Whole blocks: those before them were evicted.
    Blocks,
}

/// The engines that can load what a pool has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadableBy {
    /// Every engine, all of it.
    #[default]
    All,
    /// Hosts, or engines, may have parts of their own, which nobody else loads.
    Own {
        /// The leading tokens that every engine can load all the same.
        fetchable_tokens: u32,
    },
}

impl Presence {
    /// True if some block of the prompt is there.
    #[must_use]
    pub fn has_any(&self) -> bool {
        self.hit_tokens > 0 || self.remnant == Remnant::Blocks
    }

    /// The leading tokens that every engine can load, wherever it runs.
    #[must_use]
    pub fn fetchable_tokens(&self) -> u32 {
        match self.reach {
            LoadableBy::All => self.hit_tokens,
            LoadableBy::Own { fetchable_tokens } => fetchable_tokens.min(self.hit_tokens),
        }
    }
}

/// Leading blocks on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Near {
    /// Host as the pool names it, without port and brackets.
    pub host: Arc<str>,
    /// The slowest tier among them.
    pub tier: Tier,
    /// Number of tokens.
    pub tokens: u32,
}

/// The first `most` hosts of a list that is longest first. Of several entries for a host and tier
/// the longest stands for all.
fn by_host(longest_first: impl IntoIterator<Item = Near>, most: usize) -> SmallVec<[Near; 4]> {
    let mut hosts = SmallVec::<[Near; 4]>::new();
    for near in longest_first {
        if hosts.len() == most {
            break;
        }
        if !hosts.iter().any(|known| (&known.host, known.tier) == (&near.host, near.tier)) {
            hosts.push(near);
        }
    }
    hosts
}

/// Reasons why a pool gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// No connection, or it broke.
    #[error("not reachable: {0}")]
    Unreachable(String),
    /// It answered that it can't or won't; another question may fare better.
    #[error("refused: {0}")]
    Refused(String),
    /// It answered what this client does not understand: another version, another service.
    #[error("not understood: {0}")]
    Protocol(String),
    /// More questions are open than it is to be asked at once.
    #[error("too many questions are open")]
    Busy,
    /// The question is more than one pool can be asked.
    #[error("the question is too large: {0}")]
    TooLarge(String),
}
