//! KV-cache groups of hybrid models: block sizes, families, and how the hash of a coarse block is
//! made of fine ones.

use sha2::{Digest, Sha256};
use thiserror::Error;

/// Largest group block in hash blocks.
pub const MAX_HASHES_PER_BLOCK: u32 = 1024;

/// Kinds of state that the layers of a group keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupKind {
    /// Full attention: every block of the prompt is in the store.
    #[default]
    Full,
    /// Latent attention, every block too.
    Mla,
    /// Sliding window: only the blocks a later request can reach.
    Window,
    /// State of a recurrent layer: only some blocks.
    Mamba,
}

/// One KV-cache group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// Tokens of a block as the layer spec counts them.
    pub block_tokens: u32,
    /// `default`, or `c{ratio}`, `c1`, `mixed` from the spec's compress ratio (DeepSeek-V4).
    pub family: String,
    /// Kind of its state.
    pub kind: GroupKind,
    /// `cache_role` of the key: `kv` or `state`.
    pub role: &'static str,
}

/// Ways in which k fine hashes become the hash of one coarse block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupHash {
    /// All of them, one after the other (vllm-ascend 0.20.2, vLLM 0.22 and 0.23).
    Concat,
    /// SHA-256 over a domain, their number and each with its length (vllm-ascend 0.21 to 0.24).
    Sha256V1,
    /// The last one (vllm-ascend from 0.25.1, vLLM from 0.24).
    Last,
}

/// Reasons why a group is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GroupError {
    /// The block is not a whole number of hash blocks, or too many.
    #[error("{block_tokens} tokens are not 1 to {MAX_HASHES_PER_BLOCK} times {hash_tokens}")]
    Uneven {
        /// Tokens of the group's block.
        block_tokens: u64,
        /// Tokens of a hash block.
        hash_tokens: u32,
    },
}

const DOMAIN: &[u8] = b"vllm-ascend-grouped-block-hash-v1\0";

impl Default for KvGroup {
    fn default() -> Self {
        Self { block_tokens: 0, family: "default".to_owned(), kind: GroupKind::Full, role: "kv" }
    }
}

impl KvGroup {
    /// True if a hit needs every block of this group.
    #[must_use]
    pub fn keeps_every_block(&self) -> bool {
        matches!(self.kind, GroupKind::Full | GroupKind::Mla)
    }

    /// The N of a family `cN`, else 1.
    #[must_use]
    pub fn compress_ratio(&self) -> u32 {
        self.family.strip_prefix('c').and_then(|n| n.parse().ok()).filter(|n| *n > 0).unwrap_or(1)
    }
}

impl GroupHash {
    /// Bytes of the hash of a block of `count` hashes of `hash_bytes` bytes.
    #[must_use]
    pub fn bytes(self, count: usize, hash_bytes: usize) -> usize {
        match self {
            _ if count == 1 => hash_bytes,
            Self::Concat => count * hash_bytes,
            Self::Sha256V1 => 32,
            Self::Last => hash_bytes,
        }
    }

    /// Writes the hash of the block that `hashes` make up to `out`, which is cleared. A single hash
    /// stays as it is.
    pub fn write<H: AsRef<[u8]>>(self, hashes: &[H], out: &mut Vec<u8>) {
        out.clear();
        match (self, hashes) {
            (_, [one]) => out.extend_from_slice(one.as_ref()),
            (Self::Concat, all) => all.iter().for_each(|h| out.extend_from_slice(h.as_ref())),
            (Self::Last, all) => out.extend_from_slice(all.last().map_or(&[], AsRef::as_ref)),
            (Self::Sha256V1, all) => {
                let mut digest = Sha256::new();
                digest.update(DOMAIN);
                digest.update(length(all.len()));
                for hash in all {
                    digest.update(length(hash.as_ref().len()));
                    digest.update(hash);
                }
                out.extend_from_slice(&digest.finalize());
            }
        }
    }
}

fn length(n: usize) -> [u8; 4] {
    u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes()
}

/// Number of hash blocks in a block of a group.
pub(super) fn hashes_per_block(block_tokens: u64, hash_tokens: u32) -> Result<u32, GroupError> {
    let count = block_tokens / u64::from(hash_tokens.max(1));
    match u32::try_from(count) {
        Ok(n @ 1..=MAX_HASHES_PER_BLOCK) if u64::from(n) * u64::from(hash_tokens) == block_tokens => Ok(n),
        _ => Err(GroupError::Uneven { block_tokens, hash_tokens }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_hash_is_its_own_group_hash_under_every_rule() {
        let mut out = vec![9];
        for rule in [GroupHash::Concat, GroupHash::Sha256V1, GroupHash::Last] {
            rule.write(&[[7_u8; 4]], &mut out);
            assert_eq!((out.as_slice(), rule.bytes(1, 4)), ([7_u8; 4].as_slice(), 4));
        }
    }

    #[test]
    fn the_length_is_known_beforehand() {
        let mut out = Vec::new();
        for rule in [GroupHash::Concat, GroupHash::Sha256V1, GroupHash::Last] {
            for count in 1..5 {
                rule.write(&vec![[1_u8; 32]; count], &mut out);
                assert_eq!(out.len(), rule.bytes(count, 32), "{rule:?} {count}");
            }
        }
    }

    #[test]
    fn only_a_number_behind_c_is_a_ratio() {
        let ratio =
            |family: &str| KvGroup { family: family.to_owned(), ..KvGroup::default() }.compress_ratio();
        assert_eq!(["default", "c1", "c128", "mixed", "c0", "cx"].map(ratio), [1, 1, 128, 1, 1, 1]);
    }

    #[test]
    fn a_block_is_a_whole_number_of_hash_blocks() {
        assert_eq!(hashes_per_block(128, 32), Ok(4));
        for (block, hash) in [(100, 32), (16, 32), (0, 32), (1 << 40, 1), (32, 0)] {
            assert_eq!(
                hashes_per_block(block, hash),
                Err(GroupError::Uneven { block_tokens: block, hash_tokens: hash })
            );
        }
    }
}
