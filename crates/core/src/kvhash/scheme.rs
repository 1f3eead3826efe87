//! One value for every way in which an engine or its connector turns a prompt into block hashes.
//!
//! A [`Scheme`] is what the operator says, a [`Hasher`] is the same, checked. Its hashes are the
//! bytes that the key templates of [`keys`](super::keys) take. Besides its tokens, these parts of a
//! request enter them:
//!
//! | scheme | LoRA | media | `cache_salt` | embeddings | bytes |
//! |---|---|---|---|---|---|
//! | vLLM | yes | yes | yes | from 0.11.1 | 32, xxhash 16 |
//! | UCM from 0.8 | yes | yes | yes | from vLLM 0.11.1 | 16 |
//! | UCM before 0.8 | – | – | – | – | 16 |
//! | LMCache in the engine | – | in place of their tokens | – | – | 8 |
//! | LMCache's server | – | in place of their tokens | – (it is a field of the keys) | – | 32 |
//! | EMS | – | – | – | – | 8 |
//! | MooncakeConnectorStoreV1 | – | – | – | – | 32 |
//!
//! Requests that differ only in a part with a dash have equal hashes, and the engines share their
//! blocks.

use std::borrow::Cow;
use std::num::NonZeroUsize;

use super::lmcache::{EngineHasher, EngineProfile, ServerAlgo, ServerHasher, media_tokens};
use super::ucm::{Generation, UcmHasher, UcmProfile};
use super::{BlockContext, BlockHash, BlockHasher, HashProfile, Known, Media, ProfileError, ascend011, ems};

/// A way to hash, and what it depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scheme {
    /// vLLM's own, which AscendStore and MooncakeStoreConnector use too.
    Vllm(HashProfile),
    /// UCM's own ids.
    Ucm(UcmProfile),
    /// LMCache inside the engine.
    LmcacheEngine(EngineProfile),
    /// LMCache's multi-process server.
    LmcacheServer {
        /// Hash algorithm of the server.
        algo: ServerAlgo,
        /// Tokens per chunk.
        chunk_tokens: usize,
    },
    /// Hashes of EMS.
    Ems {
        /// Engine's setting `--block-size`.
        block_tokens: usize,
    },
    /// MooncakeConnectorStoreV1 of vllm-ascend 0.10 and 0.11.
    Ascend011 {
        /// Engine's setting `--block-size`.
        block_tokens: usize,
    },
}

/// Computes the block hashes of prompts under one scheme.
#[derive(Debug, Clone)]
pub struct Hasher {
    kind: Kind,
    block_tokens: NonZeroUsize,
    /// Tokens behind a block that its hash covers.
    lookahead_tokens: usize,
    hash_bytes: usize,
    extra_keys: bool,
}

#[derive(Debug, Clone)]
enum Kind {
    Vllm(BlockHasher),
    Ucm(Box<UcmHasher>),
    LmcacheEngine(EngineHasher),
    LmcacheServer(ServerHasher),
    Ems,
    Ascend011,
}

/// Bytes of SHA-256 and BLAKE3.
const LONG_BYTES: usize = 32;
/// Bytes of XXH3-128 and MD5.
const SHORT_BYTES: usize = 16;
/// Bytes of a number.
const NUMBER_BYTES: usize = 8;

impl Hasher {
    /// Refuses what no engine can do, and what can't be known outside of the engine.
    pub fn new(scheme: &Scheme) -> Result<Self, ProfileError> {
        let (kind, block_tokens, hash_bytes) = match scheme {
            Scheme::Vllm(profile) => {
                let bytes = if profile.algo.is_xxhash() { SHORT_BYTES } else { LONG_BYTES };
                (Kind::Vllm(BlockHasher::new(profile)?), profile.block_tokens, bytes)
            }
            Scheme::Ucm(profile) => {
                (Kind::Ucm(Box::new(UcmHasher::new(profile)?)), profile.block_tokens, SHORT_BYTES)
            }
            Scheme::LmcacheEngine(profile) => {
                (Kind::LmcacheEngine(EngineHasher::new(profile)?), profile.chunk_tokens, NUMBER_BYTES)
            }
            Scheme::LmcacheServer { algo, chunk_tokens } => {
                (Kind::LmcacheServer(ServerHasher::new(algo, *chunk_tokens)?), *chunk_tokens, LONG_BYTES)
            }
            Scheme::Ems { block_tokens } => (Kind::Ems, *block_tokens, NUMBER_BYTES),
            Scheme::Ascend011 { block_tokens } => (Kind::Ascend011, *block_tokens, LONG_BYTES),
        };
        Ok(Self {
            kind,
            block_tokens: NonZeroUsize::new(block_tokens).ok_or(ProfileError::BlockSizeZero)?,
            lookahead_tokens: scheme.lookahead_tokens(),
            hash_bytes,
            extra_keys: scheme.has_extra_keys(),
        })
    }

    /// Tokens per hash: a block, or LMCache's chunk.
    pub fn block_tokens(&self) -> NonZeroUsize {
        self.block_tokens
    }

    /// Bytes of each hash.
    pub fn hash_bytes(&self) -> usize {
        self.hash_bytes
    }

    /// True if requests that differ only in `cache_salt` have different hashes. If not, the engines
    /// share their blocks (with LMCache's server the keys still differ).
    pub fn separates_salt(&self) -> bool {
        self.extra_keys
    }

    /// True if requests that differ only in their LoRA adapter have different hashes.
    pub fn separates_lora(&self) -> bool {
        self.extra_keys
    }

    /// Number of hashes that depend on nothing but a prompt's first `tokens` tokens, and are the
    /// same in all prompts that begin with them: those of full blocks.
    pub fn settled_blocks(&self, tokens: usize) -> usize {
        tokens.saturating_sub(self.lookahead_tokens) / self.block_tokens
    }

    /// The hashes of a prompt's blocks, in order: of all full ones, and of a partial last one where
    /// the scheme stores such. MooncakeConnectorStoreV1 always does, LMCache in the engine does
    /// with `save_unfull_chunk`.
    ///
    /// EMS: the i64 in big-endian bytes, which `leading_u64().cast_signed()` gives back. UCM: the
    /// ids of rank 0.
    pub fn hashes(&self, tokens: &[u32], context: BlockContext<'_>) -> Vec<BlockHash> {
        self.extend(&[], tokens, context)
    }

    /// As [`hashes`](Self::hashes) of the whole prompt `tokens`, without computing again those that
    /// are `known`.
    ///
    /// Known are the hashes of a prompt with the same context. They reach as far as
    /// [`settled_blocks`](Self::settled_blocks) says of the tokens that both begin with; the hash
    /// of a partial block is never among them.
    pub fn extend(&self, known: &[BlockHash], tokens: &[u32], context: BlockContext<'_>) -> Vec<BlockHash> {
        let tokens = self.as_hashed(tokens, context.media);
        let known = known.get(..self.settled_blocks(tokens.len())).unwrap_or(known);
        let rest = tokens.get(known.len() * self.block_tokens.get()..).unwrap_or_default();
        let mut all = Vec::with_capacity(known.len() + rest.len().div_ceil(self.block_tokens.get()));
        all.extend_from_slice(known);
        self.append(&mut all, rest, context);
        all
    }

    /// Appends the hashes of the blocks in `rest`, which follow those in `all`.
    fn append(&self, all: &mut Vec<BlockHash>, rest: &[u32], context: BlockContext<'_>) {
        let parent = all.last().copied();
        let known = |start: BlockHash| Known { hash: parent.unwrap_or(start), blocks: all.len() };
        match &self.kind {
            Kind::Vllm(hasher) => {
                let known = known(hasher.none_hash());
                all.extend(hasher.chain_from(known, rest, context));
            }
            Kind::Ucm(hasher) => {
                let known = known(hasher.seed());
                all.extend(hasher.chain_from(known, rest, context));
            }
            Kind::LmcacheEngine(hasher) => {
                let parent = parent.map(|hash| hasher.chunk_hash(hash.leading_u64().to_be_bytes()));
                let chain = hasher.chain_from(parent.unwrap_or(hasher.none_hash()), rest);
                all.extend(chain.map(|hash| BlockHash::from(hash.to_be_bytes())));
            }
            Kind::LmcacheServer(hasher) => {
                all.extend(hasher.chain_from(parent.unwrap_or(hasher.none_hash()), rest));
            }
            Kind::Ems => {
                let parent = parent.map_or(ems::START, |hash| hash.leading_u64().cast_signed());
                let chain = ems::chain(parent, rest, self.block_tokens);
                all.extend(chain.map(|hash| BlockHash::from(hash.to_be_bytes())));
            }
            Kind::Ascend011 => all.extend(ascend011::chain(parent, rest, self.block_tokens)),
        }
    }

    /// The tokens that enter the hashes: LMCache writes media over their placeholders.
    fn as_hashed<'a>(&self, tokens: &'a [u32], media: &[Media<'_>]) -> Cow<'a, [u32]> {
        if media.is_empty() || !matches!(self.kind, Kind::LmcacheEngine(_) | Kind::LmcacheServer(_)) {
            return Cow::Borrowed(tokens);
        }
        let mut written = tokens.to_vec();
        for item in media {
            let places = written.iter_mut().skip(item.offset_tokens).take(item.length_tokens);
            places.zip(media_tokens(item.identifier)).for_each(|(place, token)| *place = token);
        }
        Cow::Owned(written)
    }
}

impl Scheme {
    fn lookahead_tokens(&self) -> usize {
        match self {
            Self::Vllm(HashProfile { lookahead_tokens, .. }) => *lookahead_tokens,
            _ => 0,
        }
    }

    /// True if vLLM's extra keys enter the hashes.
    fn has_extra_keys(&self) -> bool {
        match self {
            Self::Vllm(_) => true,
            Self::Ucm(profile) => profile.generation >= Generation::V0_8,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
