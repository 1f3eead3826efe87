//! vLLM's block hashes: `hash(i) = H((hash(i - 1), tokens of block i, extra keys))`.

use std::num::NonZeroUsize;

use super::encode::{CanonicalValue, Encode};
use super::extra::{Extras, MAX_LOOKAHEAD_TOKENS, Span};
use super::none::none_hash;
use super::{Algo, BlockContext, BlockHash, ProfileError, Seed, VllmVersion};

/// Settings by which an engine hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashProfile {
    /// The engine's release (`/version`).
    pub version: VllmVersion,
    /// Value of `--prefix-caching-hash-algo`.
    pub algo: Algo,
    /// `PYTHONHASHSEED` of all engine processes.
    pub seed: Seed,
    /// Tokens per hash block, see [`VllmVersion::hash_block_tokens`].
    pub block_tokens: usize,
    /// Tokens behind a block that are hashed with it: 0.33 and later, with speculation and without
    /// a KV connector. 0 everywhere else, and for pool keys.
    pub lookahead_tokens: usize,
}

/// Computes the hashes of a prompt's full blocks.
#[derive(Debug, Clone)]
pub struct BlockHasher {
    version: VllmVersion,
    algo: Algo,
    start: BlockHash,
    block_tokens: NonZeroUsize,
    lookahead_tokens: usize,
}

/// Place where a chain goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The hash of the last known block.
    pub hash: BlockHash,
    /// Blocks known, which says where in the prompt the next one begins.
    pub blocks: usize,
}

/// The hashes of successive blocks.
#[derive(Debug)]
pub struct Chain<'a> {
    hasher: &'a BlockHasher,
    tokens: &'a [u32],
    extras: Extras<'a>,
    parent: BlockHash,
    /// Of the next block.
    start_tokens: usize,
    /// Input of the last hash.
    spelled: Vec<u8>,
}

/// Hash input of one block.
struct BlockTuple<'a, 'r> {
    parent: &'a BlockHash,
    block: &'a [u32],
    extras: &'a Extras<'r>,
    span: Span,
    ahead: &'a [u32],
}

impl CanonicalValue for BlockTuple<'_, '_> {
    fn spell(&self, out: &mut impl Encode) {
        out.open(3);
        out.bytes(self.parent.as_bytes());
        out.open(self.block.len());
        out.tokens(self.block);
        out.close(self.block.len());
        self.extras.write(out, self.span, self.ahead);
        out.close(3);
    }
}

impl BlockHasher {
    /// Refuses what no engine can do, and what can't be known outside of the engine.
    pub fn new(profile: &HashProfile) -> Result<Self, ProfileError> {
        let HashProfile { version, algo, ref seed, block_tokens, lookahead_tokens } = *profile;
        if version < VllmVersion::OLDEST {
            return Err(ProfileError::VersionTooOld(version));
        }
        if algo.is_xxhash() && !version.has_xxhash() {
            return Err(ProfileError::NoXxhash(version));
        }
        if lookahead_tokens > 0 && !version.has_lookahead() {
            return Err(ProfileError::NoLookahead(version));
        }
        if lookahead_tokens > MAX_LOOKAHEAD_TOKENS {
            return Err(ProfileError::LookaheadTooLong(lookahead_tokens));
        }
        let block_tokens = NonZeroUsize::new(block_tokens).ok_or(ProfileError::BlockSizeZero)?;
        let start = none_hash(version, algo, seed)?;
        Ok(Self { version, algo, start, block_tokens, lookahead_tokens })
    }

    /// The parent of the first block: vLLM's `NONE_HASH`.
    pub fn none_hash(&self) -> BlockHash {
        self.start
    }

    /// Tokens per block.
    pub fn block_tokens(&self) -> NonZeroUsize {
        self.block_tokens
    }

    /// The hashes of a prompt's full blocks.
    pub fn chain<'a>(&'a self, tokens: &'a [u32], context: BlockContext<'a>) -> Chain<'a> {
        self.chain_from(Known { hash: self.start, blocks: 0 }, tokens, context)
    }

    /// The hashes of the full blocks in `tokens`, which follow the known blocks. The context is the
    /// whole request's.
    pub fn chain_from<'a>(&'a self, known: Known, tokens: &'a [u32], context: BlockContext<'a>) -> Chain<'a> {
        Chain {
            hasher: self,
            tokens,
            extras: Extras::new(self.version.era(), context),
            parent: known.hash,
            start_tokens: known.blocks.saturating_mul(self.block_tokens.get()),
            spelled: Vec::new(),
        }
    }
}

impl Chain<'_> {
    /// Input of the last hash: a pickle or CBOR.
    pub fn spelled(&self) -> &[u8] {
        &self.spelled
    }
}

impl Iterator for Chain<'_> {
    type Item = BlockHash;

    fn next(&mut self) -> Option<BlockHash> {
        let (block, rest) = self.tokens.split_at_checked(self.hasher.block_tokens.get())?;
        let ahead = rest.get(..self.hasher.lookahead_tokens)?;
        let end = self.start_tokens.saturating_add(block.len());
        let span = Span { start: self.start_tokens, end: end.saturating_add(ahead.len()) };
        self.spelled.clear();
        let format = self.hasher.algo.format();
        let plain = ahead.is_empty() && self.extras.are_none();
        if !(plain && format.append_plain(&mut self.spelled, self.parent.as_bytes(), block)) {
            let tuple = BlockTuple { parent: &self.parent, block, extras: &self.extras, span, ahead };
            format.append(&mut self.spelled, &tuple);
        }
        self.parent = self.hasher.algo.digest(&self.spelled);
        self.tokens = rest;
        self.start_tokens = end;
        Some(self.parent)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let hashable = self.tokens.len().saturating_sub(self.hasher.lookahead_tokens);
        let blocks = hashable / self.hasher.block_tokens.get();
        (blocks, Some(blocks))
    }
}

impl ExactSizeIterator for Chain<'_> {}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::{Lora, Media};
    use super::*;

    const MEDIA: &[Media<'_>] = &[
        Media { identifier: "ab", offset_tokens: 3, length_tokens: 5, object: None },
        Media { identifier: "cd", offset_tokens: 11, length_tokens: 30, object: None },
    ];
    const LORA: Lora<'_> = Lora { name: "a", int_id: 3, path: "/a" };
    const FULL: BlockContext<'_> =
        BlockContext { lora: Some(LORA), media: MEDIA, cache_salt: Some("a"), prompt_embeds: None };

    fn profile(version: &str, algo: Algo) -> HashProfile {
        let seed = Seed::Text("0".into());
        HashProfile { version: version.parse().unwrap(), algo, seed, block_tokens: 4, lookahead_tokens: 0 }
    }

    proptest! {
        #[test]
        fn chains_are_prefix_chains_and_resume(
            tokens in vec(any::<u32>(), 0..60),
            cut in 0..60_usize,
            algo in 0..4_usize,
            version in 0..3_usize,
        ) {
            let profile = profile(["0.13.0", "0.19.0", "0.32.0"][version], Algo::ALL[algo]);
            let hasher = BlockHasher::new(&profile).unwrap();
            let whole: Vec<_> = hasher.chain(&tokens, FULL).collect();
            prop_assert_eq!(whole.len(), hasher.chain(&tokens, FULL).len());
            let cut = cut.min(tokens.len());
            let head: Vec<_> = hasher.chain(&tokens[..cut], FULL).collect();
            prop_assert_eq!(&head[..], &whole[..cut / 4]);
            let hash = head.last().copied().unwrap_or(hasher.none_hash());
            let known = Known { hash, blocks: head.len() };
            let tail: Vec<_> = hasher.chain_from(known, &tokens[4 * head.len()..], FULL).collect();
            prop_assert_eq!(&tail[..], &whole[head.len()..]);
        }
    }

    #[test]
    fn unsupported_hash_profile_is_refused() {
        let refused = |change: &dyn Fn(&mut HashProfile)| {
            let mut profile = profile("0.12.0", Algo::Sha256);
            change(&mut profile);
            BlockHasher::new(&profile).unwrap_err()
        };
        let version = "0.12.0".parse().unwrap();
        assert_eq!(refused(&|p| p.seed = Seed::Unset), ProfileError::SeedUnset(version));
        assert_eq!(refused(&|p| p.algo = Algo::Xxhash), ProfileError::NoXxhash(version));
        assert_eq!(refused(&|p| p.block_tokens = 0), ProfileError::BlockSizeZero);
        assert_eq!(refused(&|p| p.lookahead_tokens = 1), ProfileError::NoLookahead(version));
        let newer = |p: &mut HashProfile| p.version = "0.33.0".parse().unwrap();
        let xxhash = |p: &mut HashProfile| (p.algo, p.seed) = (Algo::XxhashCbor, Seed::Unset);
        assert_eq!(refused(&|p| (newer(p), xxhash(p)).0), ProfileError::SeedUnsetXxhash);
        assert_eq!(refused(&|p| (newer(p), p.lookahead_tokens = 65).0), ProfileError::LookaheadTooLong(65));
    }

    #[test]
    fn salt_and_media_part_chains_where_they_stand() {
        let hasher = BlockHasher::new(&profile("0.32.0", Algo::Sha256)).unwrap();
        let tokens: Vec<u32> = (0..16).collect();
        let plain: Vec<_> = hasher.chain(&tokens, BlockContext::default()).collect();
        let salted = BlockContext { cache_salt: Some("s"), ..BlockContext::default() };
        assert!(hasher.chain(&tokens, salted).zip(&plain).all(|(salted, plain)| salted != *plain));
        let late = BlockContext { media: &MEDIA[1..], ..BlockContext::default() };
        let equal: Vec<bool> = hasher.chain(&tokens, late).zip(&plain).map(|(a, b)| a == *b).collect();
        assert_eq!(equal, [true, true, false, false]);
    }
}
