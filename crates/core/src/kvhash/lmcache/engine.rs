//! Engine mode: `h(i) = f((h(i - 1), tokens of chunk i, ()))`, numbers of 64 bits.

use std::fmt;
use std::num::NonZeroUsize;

use crate::codec::pyhash::{self, HashSecret, StrHash, TupleHasher};
use crate::kvhash::encode::{CanonicalValue, Encode};
use crate::kvhash::none::none_hash;
use crate::kvhash::{Algo, ProfileError, Seed, VllmVersion};

/// Values of `LMCACHE_PRE_CACHING_HASH_ALGORITHM`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineAlgo {
    /// `builtin`, the default: Python's `hash()`. Needs a numeric `PYTHONHASHSEED`, and the same
    /// side of Python 3.11 in every process.
    Builtin(StrHash),
    /// `sha256`: of a pickle; the first 8 bytes.
    Sha256,
    /// `sha256_cbor`: of canonical CBOR; the first 8 bytes.
    Sha256Cbor,
}

/// Releases that differ in their hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// 0.3: the hashed tuple ends with `None`.
    V0_3,
    /// 0.4 and later: it ends with an empty tuple.
    V0_4,
}

/// Settings that engine mode hashes depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineProfile {
    /// Release of LMCache.
    pub release: Release,
    /// Algorithm of the hash.
    pub algo: EngineAlgo,
    /// vLLM's release, which decides what an unset seed means.
    pub version: VllmVersion,
    /// `PYTHONHASHSEED` of all engine processes.
    pub seed: Seed,
    /// Tokens per chunk.
    pub chunk_tokens: usize,
    /// `save_unfull_chunk`: the tail of a prompt has a hash too.
    pub partial_chunk: bool,
}

/// Computes the hashes of chunks.
#[derive(Debug, Clone)]
pub struct EngineHasher {
    release: Release,
    algo: EngineAlgo,
    start: ChunkHash,
    chunk_tokens: NonZeroUsize,
    partial_chunk: bool,
}

/// Hash of a chunk: an i64 with `builtin`, else a u64. Displays as keys have it: hex, not padded,
/// with a minus if negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkHash(i128);

impl EngineHasher {
    /// Refuses what differs from process to process.
    pub fn new(profile: &EngineProfile) -> Result<Self, ProfileError> {
        let EngineProfile { release, algo, version, ref seed, chunk_tokens, partial_chunk } = *profile;
        let chunk_tokens = NonZeroUsize::new(chunk_tokens).ok_or(ProfileError::BlockSizeZero)?;
        let start = match (algo, seed) {
            (EngineAlgo::Builtin(_), _) if release == Release::V0_3 => {
                return Err(ProfileError::NoneIsAnAddress);
            }
            (EngineAlgo::Builtin(how), Seed::Text(text)) => {
                let secret = HashSecret::from_env(text).ok_or(ProfileError::SeedNotNumeric)?;
                ChunkHash(i128::from(pyhash::text(text, how, secret)))
            }
            (EngineAlgo::Builtin(_), Seed::Unset | Seed::Drawn(_)) => {
                return Err(ProfileError::SeedNotNumeric);
            }
            (EngineAlgo::Sha256, seed) => digest(none_hash(version, Algo::Sha256, seed)?),
            (EngineAlgo::Sha256Cbor, seed) => digest(none_hash(version, Algo::Sha256Cbor, seed)?),
        };
        Ok(Self { release, algo, start, chunk_tokens, partial_chunk })
    }

    /// The parent of the first chunk.
    pub fn none_hash(&self) -> ChunkHash {
        self.start
    }

    /// The hash that [`ChunkHash::to_be_bytes`] spells: signed with `builtin`, else not.
    pub fn chunk_hash(&self, bytes: [u8; 8]) -> ChunkHash {
        ChunkHash(match self.algo {
            EngineAlgo::Builtin(_) => i128::from(i64::from_be_bytes(bytes)),
            EngineAlgo::Sha256 | EngineAlgo::Sha256Cbor => i128::from(u64::from_be_bytes(bytes)),
        })
    }

    /// The hashes of a prompt's chunks.
    pub fn chain<'a>(&'a self, tokens: &'a [u32]) -> impl Iterator<Item = ChunkHash> + 'a {
        self.chain_from(self.start, tokens)
    }

    /// The hashes of the chunks in `tokens`, which follow the full chunk with hash `parent`.
    pub fn chain_from<'a>(
        &'a self,
        parent: ChunkHash,
        tokens: &'a [u32],
    ) -> impl Iterator<Item = ChunkHash> + 'a {
        let mut spelled = Vec::new();
        let size = self.chunk_tokens.get();
        let hashed = if self.partial_chunk { tokens.len() } else { tokens.len() - tokens.len() % size };
        tokens[..hashed].chunks(size).scan(parent, move |parent, chunk| {
            *parent = self.hash(*parent, chunk, &mut spelled);
            Some(*parent)
        })
    }

    fn hash(&self, parent: ChunkHash, chunk: &[u32], spelled: &mut Vec<u8>) -> ChunkHash {
        let algo = match self.algo {
            EngineAlgo::Builtin(_) => return builtin(parent, chunk),
            EngineAlgo::Sha256 => Algo::Sha256,
            EngineAlgo::Sha256Cbor => Algo::Sha256Cbor,
        };
        spelled.clear();
        algo.format().append(spelled, &ChunkTuple { release: self.release, parent, chunk });
        digest(algo.digest(spelled))
    }
}

/// Hash input of one chunk.
struct ChunkTuple<'a> {
    release: Release,
    parent: ChunkHash,
    chunk: &'a [u32],
}

impl CanonicalValue for ChunkTuple<'_> {
    fn spell(&self, out: &mut impl Encode) {
        out.open(3);
        out.uint(u64::try_from(self.parent.0).unwrap_or_default());
        out.open(self.chunk.len());
        out.tokens(self.chunk);
        out.close(self.chunk.len());
        match self.release {
            Release::V0_3 => out.none(),
            Release::V0_4 => {
                out.open(0);
                out.close(0);
            }
        }
        out.close(3);
    }
}

fn builtin(parent: ChunkHash, chunk: &[u32]) -> ChunkHash {
    let mut tokens = TupleHasher::new();
    tokens.tokens(chunk);
    let mut tuple = TupleHasher::new();
    tuple.lane(pyhash::int(parent.0));
    tuple.lane(tokens.finish());
    tuple.lane(TupleHasher::new().finish());
    ChunkHash(i128::from(tuple.finish()))
}

fn digest(hash: crate::kvhash::BlockHash) -> ChunkHash {
    ChunkHash(i128::from(hash.leading_u64()))
}

impl ChunkHash {
    /// Number as it was given.
    pub fn value(self) -> i128 {
        self.0
    }

    /// Its 64 bits, as the key templates take them: a negative one in two's complement.
    pub fn to_be_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes().last_chunk().copied().unwrap_or_default()
    }
}

impl fmt::Display for ChunkHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        write!(f, "{sign}{:x}", self.0.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(algo: EngineAlgo) -> EngineProfile {
        let version = VllmVersion::new(0, 28, 0);
        let seed = Seed::Text("0".into());
        EngineProfile { release: Release::V0_4, algo, version, seed, chunk_tokens: 4, partial_chunk: true }
    }

    #[test]
    fn chains_resume() {
        for algo in [EngineAlgo::Builtin(StrHash::Sip13), EngineAlgo::Sha256, EngineAlgo::Sha256Cbor] {
            let hasher = EngineHasher::new(&profile(algo)).unwrap();
            let tokens: Vec<u32> = (0..11).collect();
            let whole: Vec<_> = hasher.chain(&tokens).collect();
            assert_eq!(whole.len(), 3);
            assert_eq!(hasher.chain_from(whole[0], &tokens[4..]).collect::<Vec<_>>(), whole[1..]);
            assert_eq!(hasher.chain(&tokens[..8]).collect::<Vec<_>>(), whole[..2]);
        }
    }

    #[test]
    fn process_bound_hash_is_refused() {
        let refused = |profile| EngineHasher::new(&profile).unwrap_err();
        let builtin = profile(EngineAlgo::Builtin(StrHash::Sip24));
        let random = EngineProfile { seed: Seed::Text("random".into()), ..builtin.clone() };
        assert_eq!(refused(random), ProfileError::SeedNotNumeric);
        let old = EngineProfile { release: Release::V0_3, ..builtin };
        assert_eq!(refused(old), ProfileError::NoneIsAnAddress);
        let unset = EngineProfile { seed: Seed::Unset, ..profile(EngineAlgo::Sha256) };
        assert_eq!(refused(unset), ProfileError::SeedUnset(VllmVersion::new(0, 28, 0)));
    }

    #[test]
    fn the_bytes_of_a_hash_are_read_with_the_sign_of_its_kind() {
        let read =
            |algo, hash: ChunkHash| EngineHasher::new(&profile(algo)).unwrap().chunk_hash(hash.to_be_bytes());
        let (negative, large) = (ChunkHash(-2), ChunkHash((1 << 64) - 2));
        assert_eq!(negative.to_be_bytes(), large.to_be_bytes());
        assert_eq!(read(EngineAlgo::Builtin(StrHash::Sip13), negative), negative);
        assert_eq!([EngineAlgo::Sha256, EngineAlgo::Sha256Cbor].map(|algo| read(algo, large)), [large; 2]);
    }

    #[test]
    fn negative_hashes_have_a_minus() {
        assert_eq!(ChunkHash(-0x4e39_ae5d).to_string(), "-4e39ae5d");
        assert_eq!(ChunkHash(0).to_string(), "0");
    }
}
