//! Leading blocks of a prompt, for all holders in one pass.

use super::{BlockIndex, Cell, HolderId, MAX_HOLDERS, is_pool};
use crate::kvhash::BlockHash;

/// Holders of a prompt's leading blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefixes {
    /// Those that have the first block, by number.
    pub holders: Vec<Leading>,
    /// So many were put into a pool, by whomever. They may have been evicted there since.
    pub told_blocks: u32,
}

/// Leading blocks of a prompt that a holder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leading {
    /// Holder of the blocks.
    pub holder: HolderId,
    /// So many are in memory of its accelerator.
    pub hbm_blocks: u32,
    /// So many are in any memory of its own.
    pub own_blocks: u32,
}

/// A block's name in events: given as such, or the end of a digest.
pub trait EventHash {
    /// Hash of 64 bits.
    fn event_hash(&self) -> u64;
}

impl EventHash for u64 {
    fn event_hash(&self) -> u64 {
        *self
    }
}

impl EventHash for BlockHash {
    fn event_hash(&self) -> u64 {
        self.event_u64()
    }
}

/// Words of a set of all holders. Most fleets have one word full: their sets stay in registers.
const WORDS: usize = MAX_HOLDERS / 64;
/// And of fleets in between.
const SOME_WORDS: usize = 4;
const MANY_WORDS: usize = 16;
/// Blocks looked up at a time, so that the waits for memory overlap.
const AHEAD: usize = 16;

/// Values that count of a slot's cells.
#[derive(Clone, Copy, Default)]
struct Gate {
    floor: u32,
    /// Groups that make a prefix; none where the slot's blocks are of another size than the
    /// prompt's.
    groups: u8,
}

/// Holders of all blocks so far.
struct Open<const W: usize> {
    hbm: [u64; W],
    own: [u64; W],
    told: bool,
}

/// Results, written as holders drop out.
struct QueryResult {
    /// Blocks in HBM and in any own memory, by holder.
    depths: Vec<[u32; 2]>,
    told_blocks: u32,
}

impl BlockIndex {
    /// Leading blocks by holder, and of what was put into a pool. One pass over the hashes ends at
    /// the first block that no holder has. Holders that tell of blocks of another size than
    /// `block_tokens` count for nothing.
    pub fn prefixes<H: EventHash>(&self, hashes: &[H], block_tokens: u32) -> Prefixes {
        let mut found = QueryResult { depths: vec![[0; 2]; self.holders.len()], told_blocks: 0 };
        let gates = self.gates(block_tokens);
        match self.holders.len().div_ceil(64) {
            0..=1 => self.walk::<1>(hashes, &gates, &mut found),
            2..=SOME_WORDS => self.walk::<SOME_WORDS>(hashes, &gates, &mut found),
            5..=MANY_WORDS => self.walk::<MANY_WORDS>(hashes, &gates, &mut found),
            _ => self.walk::<WORDS>(hashes, &gates, &mut found),
        }
        self.named(found)
    }

    fn walk<const W: usize>(&self, hashes: &[impl EventHash], gates: &[Gate], found: &mut QueryResult) {
        let mut open = Open::<W>::all(self.holders.len());
        let mut depth = 0;
        for hashes in hashes.chunks(AHEAD) {
            let mut cells: [&[Cell]; AHEAD] = [&[]; AHEAD];
            for (cells, hash) in cells.iter_mut().zip(hashes) {
                *cells = self.blocks.get(&hash.event_hash()).map_or(&[], |it| it.as_slice());
            }
            for cells in &cells[..hashes.len()] {
                if !open.step(cells, gates, depth, found) {
                    return;
                }
                depth += 1;
            }
        }
        open.step(&[], gates, depth, found);
    }

    fn named(&self, found: QueryResult) -> Prefixes {
        let holders = found.depths.into_iter().zip(0_u16..).filter(|([_, own], _)| *own > 0);
        let holders = holders.map(|([hbm_blocks, own_blocks], holder)| Leading {
            holder: HolderId(holder),
            hbm_blocks,
            own_blocks,
        });
        Prefixes { holders: holders.collect(), told_blocks: found.told_blocks }
    }

    fn gates(&self, block_tokens: u32) -> Vec<Gate> {
        let groups = |at: usize| {
            let holder = &self.holders[at / 2];
            match (holder.block_tokens[at % 2] == block_tokens, holder.full_groups) {
                (false, _) => 0,
                (true, full) if full != 0 && at.is_multiple_of(2) => full,
                (true, _) => u8::MAX,
            }
        };
        let gate = |(at, slot): (usize, &super::Slot)| Gate { floor: slot.floor(), groups: groups(at) };
        self.slots.iter().enumerate().map(gate).collect()
    }
}

impl<const W: usize> Open<W> {
    /// Nobody has dropped out yet.
    fn all(holders: usize) -> Self {
        let mut own = [0; W];
        for holder in 0..holders {
            own[holder / 64 % W] |= 1 << (holder % 64);
        }
        Self { hbm: own, own, told: true }
    }

    /// Goes on to a block that these cells are of. True if any holder is left.
    fn step(&mut self, cells: &[Cell], gates: &[Gate], depth: u32, found: &mut QueryResult) -> bool {
        let (mut hbm, mut own, mut told) = ([0; W], [0; W], false);
        for cell in cells {
            let gate = gates.get(usize::from(cell.slot)).copied().unwrap_or_default();
            let groups = if cell.stamp >= gate.floor { gate.groups } else { 0 };
            let any = cell.groups() & groups != 0;
            if is_pool(cell.slot) {
                told |= any;
                continue;
            }
            let (word, bit) = (usize::from(cell.slot / 128) % W, cell.slot / 2 % 64);
            own[word] |= u64::from(any) << bit;
            hbm[word] |= u64::from(cell.hbm.groups() & groups != 0) << bit;
        }
        if self.told && !told {
            (self.told, found.told_blocks) = (false, depth);
        }
        let mut left = u64::from(self.told);
        for word in 0..W {
            settle(found, self.hbm[word] & !hbm[word], word, 0, depth);
            settle(found, self.own[word] & !own[word], word, 1, depth);
            self.hbm[word] &= hbm[word];
            self.own[word] &= own[word];
            // A block in HBM is in own memory, too.
            left |= self.own[word];
        }
        left != 0
    }
}

/// Writes down how deep the holders in a word of a set came. `reach` is the index of their
/// [`QueryResult::depths`].
fn settle(found: &mut QueryResult, mut stopped: u64, word: usize, reach: usize, depth: u32) {
    while stopped != 0 {
        if let Some(holder) = found.depths.get_mut(word * 64 + stopped.trailing_zeros() as usize) {
            holder[reach] = depth;
        }
        stopped &= stopped - 1;
    }
}
