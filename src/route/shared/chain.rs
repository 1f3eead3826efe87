//! Beginnings of prompts in a form that is small enough to be told: one hash of 40 bits for each
//! 512 tokens, at most 200 of them. 100 000 tokens take 980 bytes.

use std::sync::Arc;

use crate::route::job::{History, Job};

/// Tokens of a block, where the engines' blocks are not larger.
pub(super) const CHAIN_TOKENS: u32 = 512;
/// Most blocks of a prompt: what is beyond them is not remembered.
pub(super) const MOST_BLOCKS: usize = 200;
/// Bits of a hash. A prompt is taken for another one of a million blocks with a chance of one in a
/// million, and then a guess is wrong.
const HASH_BITS: u32 = 40;

/// The beginning of a prompt as gateways tell it. Hashes of blocks are chained, so that the hash of
/// the last block of several stands for all of them.
pub(super) fn chain(job: &Job) -> History {
    let each = job.chain_tokens().max(1);
    let together = (CHAIN_TOKENS / each).max(1);
    let nth = usize::try_from(together).unwrap_or(1);
    let ends = job.chain().iter().skip(nth - 1).step_by(nth).take(MOST_BLOCKS);
    let blocks = ends.map(|hash| hash & ((1 << HASH_BITS) - 1)).collect();
    History { blocks, block_tokens: each.saturating_mul(together) }
}

/// A job whose way is remembered by what gateways tell each other.
pub(super) fn with_chain(job: &Arc<Job>) -> Arc<Job> {
    Arc::new(Job { history: Some(chain(job)), ..job.as_ref().clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_has_one_short_hash_for_each_512_tokens() {
        let job = |count: u64, block_tokens| Job {
            blocks: (0..count).map(|at| at << 32 | u64::from(u32::MAX)).collect(),
            block_tokens,
            ..Job::default()
        };
        let history = chain(&job(100, 128));
        assert_eq!((history.blocks.len(), history.block_tokens), (25, 512));
        assert_eq!(history.blocks[0], (3 << 32 | u64::from(u32::MAX)) & 0xff_ffff_ffff);
        assert_eq!(chain(&job(3, 128)).blocks.len(), 0);
        assert_eq!(chain(&job(10_000, 16)).blocks.len(), MOST_BLOCKS);
        let large = chain(&job(9, 4096));
        assert_eq!((large.blocks.len(), large.block_tokens), (9, 4096));
        assert_eq!(chain(&job(9, 0)).block_tokens, 512);
    }

    #[test]
    fn a_longer_prompt_begins_with_the_chain_of_a_shorter_one() {
        let blocks: Arc<[u64]> = (0..64).map(|at| at * 7_919).collect();
        let job = |count: usize| Job { blocks: blocks[..count].into(), block_tokens: 64, ..Job::default() };
        let (short, long) = (chain(&job(25)), chain(&job(64)));
        assert_eq!(short.blocks[..], long.blocks[..short.blocks.len()]);
    }
}
