//! Server ("MP") mode: digests of 32 bytes over full chunks.

use std::num::NonZeroUsize;

use crate::kvhash::{
    Algo, BlockContext, BlockHash, BlockHasher, HashProfile, Known, ProfileError, Seed, VllmVersion,
};

/// The server's `--hash-algorithm`. (With `builtin`, its third, hashes depend on the Python
/// process.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAlgo {
    /// `blake3`, the default: `h(i) = BLAKE3(h(i - 1), tokens as u32 big-endian)`.
    Blake3,
    /// `sha256_cbor`: vLLM's chain of that name, with its seed.
    Sha256Cbor {
        /// vLLM's release, which decides what an unset seed means.
        version: VllmVersion,
        /// `PYTHONHASHSEED` of all processes.
        seed: Seed,
    },
}

/// Computes the hashes of full chunks.
#[derive(Debug, Clone)]
pub struct ServerHasher {
    start: BlockHash,
    chunk_tokens: NonZeroUsize,
    /// Hasher over CBOR; `None` = BLAKE3.
    cbor: Option<BlockHasher>,
}

impl ServerHasher {
    /// Refuses what differs from process to process.
    pub fn new(algo: &ServerAlgo, chunk_tokens: usize) -> Result<Self, ProfileError> {
        let size = NonZeroUsize::new(chunk_tokens).ok_or(ProfileError::BlockSizeZero)?;
        let (start, cbor) = match algo {
            // An i64 and a u32 of zeros.
            ServerAlgo::Blake3 => (BlockHash::from(*blake3::hash(&[0; 12]).as_bytes()), None),
            ServerAlgo::Sha256Cbor { version, seed } => {
                let profile = HashProfile {
                    version: *version,
                    algo: Algo::Sha256Cbor,
                    seed: seed.clone(),
                    block_tokens: chunk_tokens,
                    lookahead_tokens: 0,
                };
                let hasher = BlockHasher::new(&profile)?;
                (hasher.none_hash(), Some(hasher))
            }
        };
        Ok(Self { start, chunk_tokens: size, cbor })
    }

    /// The parent of the first chunk.
    pub fn none_hash(&self) -> BlockHash {
        self.start
    }

    /// The hashes of a prompt's full chunks.
    pub fn chain(&self, tokens: &[u32]) -> Vec<BlockHash> {
        self.chain_from(self.start, tokens)
    }

    /// The hashes of the full chunks in `tokens`, which follow the chunk with hash `parent`.
    pub fn chain_from(&self, parent: BlockHash, tokens: &[u32]) -> Vec<BlockHash> {
        if let Some(hasher) = &self.cbor {
            // The place in the prompt matters to extra keys only, and there are none.
            let known = Known { hash: parent, blocks: 0 };
            return hasher.chain_from(known, tokens, BlockContext::default()).collect();
        }
        let mut spelled = Vec::new();
        let chunks = tokens.chunks_exact(self.chunk_tokens.get()).scan(parent, |parent, chunk| {
            spelled.clear();
            spelled.extend_from_slice(parent.as_bytes());
            spelled.extend(chunk.iter().flat_map(|token| token.to_be_bytes()));
            *parent = BlockHash::from(*blake3::hash(&spelled).as_bytes());
            Some(*parent)
        });
        chunks.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_resume() {
        let cbor = ServerAlgo::Sha256Cbor { version: VllmVersion::new(0, 32, 0), seed: Seed::Unset };
        for algo in [ServerAlgo::Blake3, cbor] {
            let hasher = ServerHasher::new(&algo, 4).unwrap();
            let tokens: Vec<u32> = (0..15).collect();
            let whole = hasher.chain(&tokens);
            assert_eq!(whole.len(), 3);
            assert_eq!(hasher.chain_from(whole[0], &tokens[4..]), whole[1..]);
            assert_eq!(hasher.chain(&tokens[..8]), whole[..2]);
        }
    }
}
