//! LMCache's two directories, asked over HTTP which chunks of a prompt exist and which instance has
//! them.
//!
//! The [`controller`] (`lmcache_controller`) serves LMCache inside of engines, the [`coordinator`]
//! (`lmcache.v1.mp_coordinator`) its multi-process servers. Both take tokens and hash them
//! themselves, in whole chunks.

pub mod client;
pub mod controller;
pub mod coordinator;
mod hosts;

use std::sync::Arc;

use super::Tier;
use coordinator::Scope;

pub use client::{Lmcache, LmcacheSettings};

/// The service that is asked, and what it wants to know besides the tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Directory {
    /// LMCache's service `lmcache_controller`.
    Controller,
    /// LMCache's service `lmcache.v1.mp_coordinator`.
    Coordinator {
        /// The model as the servers name it in their keys.
        model: String,
        /// Ranks that each have a part of every chunk: all must have theirs.
        world_size: u32,
    },
}

impl Directory {
    fn question(&self, tokens: &[u32], salt: &str) -> serde_json::Result<Vec<u8>> {
        match self.scope(salt) {
            None => controller::question(tokens),
            Some(scope) => coordinator::question(tokens, scope),
        }
    }

    /// The answer to a question of `asked` chunks of `chunk` tokens.
    fn answer(
        &self,
        body: &[u8],
        salt: &str,
        asked: usize,
        chunk: usize,
    ) -> Result<ChunkLookup, AnswerError> {
        match self.scope(salt) {
            None => controller::answer(body, chunk, asked),
            Some(scope) => coordinator::answer(body, scope, asked),
        }
    }

    /// LMCache inside of engines knows no salts.
    fn scope<'a>(&'a self, salt: &'a str) -> Option<Scope<'a>> {
        match self {
            Self::Controller => None,
            Self::Coordinator { model, world_size } => Some(Scope { model, world_size: *world_size, salt }),
        }
    }

    /// Place where it is asked.
    #[must_use]
    pub fn path(&self) -> &'static str {
        match self {
            Self::Controller => controller::PATH,
            Self::Coordinator { .. } => coordinator::PATH,
        }
    }

    /// Place where it lists its instances' addresses.
    #[must_use]
    pub fn instances_path(&self) -> &'static str {
        match self {
            Self::Controller => controller::INSTANCES_PATH,
            Self::Coordinator { .. } => coordinator::INSTANCES_PATH,
        }
    }
}

/// An answer, instances by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkLookup {
    /// Leading chunks that exist.
    pub chunks: usize,
    /// Leading chunks in stores that all instances share.
    pub shared: usize,
    /// Leading chunks that are there, or in the memory of an instance that lends it to its peers,
    /// where they do that.
    pub lent: usize,
    /// Leading chunks that one instance has by itself.
    pub held: Vec<InstanceChunks>,
}

/// Leading chunks of one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceChunks {
    /// The instance's name.
    pub instance: Arc<str>,
    /// The slowest tier among them.
    pub tier: Tier,
    /// Number of chunks.
    pub chunks: usize,
}

/// Faults of an answer.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// Not the JSON that it should be.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// It has another number of keys than chunks times ranks.
    #[error("{keys} keys are not those of {chunks} chunks")]
    Keys {
        /// Chunks that it speaks of.
        chunks: usize,
        /// Keys that it has.
        keys: usize,
    },
    /// It has the keys of another salt: the coordinator knows none.
    #[error("its keys are not of the salt that was asked for: this coordinator ignores cache_salt")]
    Salt,
    /// It has more chunks than were asked for: its chunks are smaller.
    #[error("it counts {found} chunks where {asked} were asked for: its chunk size is another")]
    ChunkSize {
        /// Chunks in the answer.
        found: usize,
        /// Chunks in the question.
        asked: usize,
    },
}
