//! EMS (EmsStoreConnector): Python's `hash()` of a tuple, chained.
//!
//! `h(i) = hash((h(i - 1), token, …))` with `h(-1) = 0`: signed numbers, the same in every process
//! and on CPython 3.8 to
//! 3.13. Neither LoRA, salt nor media enter it.

use std::num::NonZeroUsize;

use crate::codec::pyhash::{TupleHasher, int};

/// The parent of the first block.
pub const START: i64 = 0;

/// The hashes of the full blocks of `tokens`, which follow the block with hash `parent` ([`START`]
/// for a whole prompt).
pub fn chain(parent: i64, tokens: &[u32], block_tokens: NonZeroUsize) -> impl Iterator<Item = i64> {
    tokens.chunks_exact(block_tokens.get()).scan(parent, |parent, block| {
        let mut tuple = TupleHasher::new();
        tuple.lane(int(i128::from(*parent)));
        tuple.tokens(block);
        *parent = tuple.finish();
        Some(*parent)
    })
}

/// Blocks of a prompt that EMS looks up: never the one that ends with the last token.
pub fn lookup_blocks(prompt_tokens: usize, block_tokens: NonZeroUsize) -> usize {
    prompt_tokens.saturating_sub(1) / block_tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_resumes_and_the_last_token_is_computed_anew() {
        let tokens: Vec<u32> = (0..12).collect();
        let block = NonZeroUsize::new(4).unwrap();
        let whole: Vec<_> = chain(START, &tokens, block).collect();
        assert_eq!(chain(whole[0], &tokens[4..], block).collect::<Vec<_>>(), whole[1..]);
        assert_eq!(chain(START, &tokens[..11], block).collect::<Vec<_>>(), whole[..2]);
        assert_eq!([0, 1, 4, 5, 12, 13].map(|len| lookup_blocks(len, block)), [0, 0, 0, 1, 2, 3]);
    }
}
