//! Tokens of one prompt that engines hold, by their events, for routing.

use std::num::NonZeroUsize;
use std::sync::PoisonError;

use smallvec::SmallVec;

use super::watch::SharedIndex;
use crate::kvhash::BlockHash;

/// Tokens of a prompt that engines hold, as they told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Those that have its beginning in memory of their own, the longest in HBM first.
    pub held: SmallVec<[HeldPrefix; 4]>,
    /// Leading tokens that engines put into a pool; the pool may have evicted them since.
    pub told_tokens: u32,
}

/// Leading tokens of a prompt that one data-parallel rank of an instance holds, in whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldPrefix {
    /// The instance, by the number that its [`Source`](super::watch::Source) has.
    pub instance: u64,
    /// The rank: each has a cache of its own.
    pub rank: u32,
    /// So many are in memory of its accelerator.
    pub hbm_tokens: u32,
    /// So many are in any memory of its own, HBM, main memory or disk.
    pub own_tokens: u32,
}

/// Looks up the blocks with these hashes. Waits for nothing but a writer within its piece of work,
/// some microseconds.
pub fn heard(index: &SharedIndex, hashes: &[BlockHash], block_tokens: NonZeroUsize) -> Heard {
    let Ok(block_tokens) = u32::try_from(block_tokens.get()) else { return Heard::default() };
    let tokens = |blocks: u32| blocks.saturating_mul(block_tokens);
    let index = index.read().unwrap_or_else(PoisonError::into_inner);
    let found = index.prefixes(hashes, block_tokens);
    let held = found.holders.iter().filter_map(|it| {
        let (instance, rank) = index.name(it.holder)?;
        let (hbm_tokens, own_tokens) = (tokens(it.hbm_blocks), tokens(it.own_blocks));
        Some(HeldPrefix { instance, rank, hbm_tokens, own_tokens })
    });
    let mut held: SmallVec<[HeldPrefix; 4]> = held.collect();
    drop(index);
    held.sort_unstable_by_key(|it| {
        let longest = std::cmp::Reverse((it.hbm_tokens, it.own_tokens));
        (longest, it.instance, it.rank)
    });
    Heard { held, told_tokens: tokens(found.told_blocks) }
}

/// Tokens that each engine with such events holds in any memory of its own, zero included, ordered
/// by instance and rank. Engines that are silent, or speak of blocks of another size, are not in
/// it.
pub fn tellers(index: &SharedIndex, hashes: &[u64], block_tokens: NonZeroUsize) -> Vec<HeldPrefix> {
    let Ok(block_tokens) = u32::try_from(block_tokens.get()) else { return Vec::new() };
    let index = index.read().unwrap_or_else(PoisonError::into_inner);
    let found = index.prefixes(hashes, block_tokens);
    let mut held: Vec<HeldPrefix> = index
        .tellers(block_tokens)
        .map(|(instance, rank)| HeldPrefix { instance, rank, hbm_tokens: 0, own_tokens: 0 })
        .collect();
    held.sort_unstable_by_key(|it| (it.instance, it.rank));
    for leading in found.holders {
        let Some(name) = index.name(leading.holder) else { continue };
        if let Ok(at) = held.binary_search_by_key(&name, |it| (it.instance, it.rank)) {
            held[at].hbm_tokens = leading.hbm_blocks.saturating_mul(block_tokens);
            held[at].own_tokens = leading.own_blocks.saturating_mul(block_tokens);
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, RwLock};

    use super::*;
    use crate::pool::events::decode::{Event, Medium, Stored};
    use crate::pool::events::index::{BlockIndex, IndexLimits};

    #[test]
    fn the_longest_comes_first_and_pools_are_told_apart() {
        let mut index = BlockIndex::new(IndexLimits { holders: 4, blocks: 10 });
        let mut stores = |instance: u64, rank: u32, hashes: &[u64], medium: Medium| {
            let holder = index.holder(instance, rank).unwrap();
            let stored = Stored { hashes: hashes.to_vec(), medium, block_tokens: 16, ..Stored::default() };
            index.apply(holder, &Event::Stored(stored));
        };
        stores(7, 0, &[1], Medium::Gpu);
        stores(8, 1, &[1, 2], Medium::Gpu);
        stores(8, 1, &[3], Medium::Cpu);
        stores(9, 0, &[2, 3], Medium::Gpu);
        stores(9, 0, &[1, 2, 3, 4], Medium::Pool);
        let index: SharedIndex = Arc::new(RwLock::new(index));
        let hashes: Vec<BlockHash> = (1..6_u64).map(|it| BlockHash::from(it.to_be_bytes())).collect();
        let sixteen = NonZeroUsize::new(16).unwrap();
        let found = heard(&index, &hashes, sixteen);
        let held =
            |instance, rank, hbm_tokens, own_tokens| HeldPrefix { instance, rank, hbm_tokens, own_tokens };
        assert_eq!(found.held.as_slice(), [held(8, 1, 32, 48), held(7, 0, 16, 16)]);
        assert_eq!(found.told_tokens, 64);
        let other = NonZeroUsize::new(32).unwrap();
        assert_eq!(heard(&index, &hashes, other), Heard::default());
        let hashes: Vec<u64> = (1..6).collect();
        let each = [held(7, 0, 16, 16), held(8, 1, 32, 48), held(9, 0, 0, 0)];
        assert_eq!(tellers(&index, &hashes, sixteen), each, "who tells, in order, those without included");
        assert_eq!(tellers(&index, &hashes, other), []);
    }
}
