//! MooncakeConnectorStoreV1 of vllm-ascend 0.10 and 0.11: SHA-256 over the parent's hex and the
//! tokens.
//!
//! `h(i) = SHA-256(hex of h(i - 1) as ASCII, tokens as u32 little-endian)`; nothing stands for the
//! parent of the first. A partial last block has a hash too. Neither seed, LoRA, salt nor media
//! enter it.

use std::num::NonZeroUsize;

use sha2::{Digest as _, Sha256};

use super::BlockHash;

/// The hashes of all blocks of `tokens`, a partial last one included. `parent`: the hash of the
/// full block before, if any.
pub fn chain(
    parent: Option<BlockHash>,
    tokens: &[u32],
    block_tokens: NonZeroUsize,
) -> impl Iterator<Item = BlockHash> {
    let mut spelled = Vec::new();
    tokens.chunks(block_tokens.get()).scan(parent, move |parent, block| {
        spelled.clear();
        if let Some(parent) = parent {
            spelled.extend_from_slice(parent.to_string().as_bytes());
        }
        spelled.extend(block.iter().flat_map(|token| token.to_le_bytes()));
        *parent = Some(BlockHash::from(<[u8; 32]>::from(Sha256::digest(&spelled))));
        *parent
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_resumes_at_a_full_block() {
        let tokens: Vec<u32> = (0..11).collect();
        let block = NonZeroUsize::new(4).unwrap();
        let whole: Vec<_> = chain(None, &tokens, block).collect();
        assert_eq!(whole.len(), 3);
        let tail: Vec<_> = chain(Some(whole[0]), &tokens[4..], block).collect();
        assert_eq!(tail, whole[1..]);
        assert_eq!(chain(None, &tokens[..8], block).collect::<Vec<_>>(), whole[..2]);
    }
}
