//! Names of blocks in KV cache groups whose blocks are longer than hash blocks.

use super::{BlockHash, GroupRule};

/// The names of a group's blocks, each of `ratio` hash blocks; an incomplete last one has none.
/// Empty for ratio 0.
///
/// A name is one hash, or with [`GroupRule::Concat`] `ratio` hashes.
pub fn coarse(hashes: &[BlockHash], ratio: usize, rule: GroupRule) -> impl Iterator<Item = &[BlockHash]> {
    // A ratio of 0 has no blocks; chunks of 0 can't be asked for.
    let whole = if ratio == 0 { &[] } else { hashes };
    whole.chunks_exact(ratio.max(1)).map(move |block| match rule {
        GroupRule::Concat => block,
        GroupRule::Last => &block[block.len() - 1..],
    })
}

/// Identity of a block within one engine: its hash, then its group's number as a big-endian u32.
pub fn with_group_id(hash: &BlockHash, group: u32) -> Vec<u8> {
    [hash.as_bytes(), &group.to_be_bytes()].concat()
}
