//! Leading blocks of a prompt, for one holder or for all.

use super::{BlockIndex, Cell, DISK, HBM, HolderId, MAX_HOLDERS, MEMORY};
use crate::kvhash::BlockHash;

/// Leading blocks of a prompt that a holder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leading {
    /// Who.
    pub holder: HolderId,
    /// So many are in memory of its accelerator.
    pub hbm_blocks: u32,
    /// So many are in any memory of its own.
    pub own_blocks: u32,
    /// So many are there, or were put into a pool by it (and may have been evicted there since).
    pub blocks: u32,
}

const WORDS: usize = MAX_HOLDERS / 64;
/// A set of holders.
type Set = [u64; WORDS];
/// Blocks looked up at a time, so that the waits for memory overlap.
const AHEAD: usize = 16;

/// How far a block may be to count: in HBM, in memory of its own, anywhere.
const REACHES: usize = 3;

/// What cells of a slot count for.
#[derive(Clone, Copy, Default)]
struct Gate {
    floor: u32,
    /// Groups that make a prefix.
    groups: u8,
}

impl BlockIndex {
    /// Leading blocks that one holder has.
    pub fn leading(&self, holder: HolderId, hashes: &[BlockHash]) -> Leading {
        let mut found = [0_u32; REACHES];
        let gates = if self.name(holder).is_some() { self.gates() } else { Vec::new() };
        let mut open = [!gates.is_empty(); REACHES];
        for hash in hashes {
            let mut seen = [false; REACHES];
            let cells = self.blocks.get(&hash.event_u64()).into_iter().flatten();
            for cell in cells.filter(|cell| cell.slot / 2 == holder.0) {
                let reached = reached(cell, &gates);
                seen.iter_mut().zip(reached).for_each(|(seen, it)| *seen |= it);
            }
            for ((open, seen), found) in open.iter_mut().zip(seen).zip(&mut found) {
                *open &= seen;
                *found += u32::from(*open);
            }
            if open == [false; REACHES] {
                break;
            }
        }
        Leading::new(holder, found)
    }

    /// Leading blocks of all holders that have the first one, by number. One pass over the hashes, which ends where no
    /// holder goes on.
    pub fn leading_all(&self, hashes: &[BlockHash]) -> Vec<Leading> {
        let mut found: Vec<[u32; REACHES]> = vec![[0; REACHES]; self.holders.len()];
        self.walk(hashes, &mut found);
        let named = found.into_iter().zip(0_u16..).filter(|(found, _)| found.iter().any(|it| *it > 0));
        named.map(|(found, holder)| Leading::new(HolderId(holder), found)).collect()
    }

    fn walk(&self, hashes: &[BlockHash], found: &mut [[u32; REACHES]]) {
        let gates = self.gates();
        let mut everyone: Set = [0; WORDS];
        (0..self.holders.len()).for_each(|holder| everyone[holder / 64] |= 1 << (holder % 64));
        let mut open = [everyone; REACHES];
        let mut depth = 0;
        for hashes in hashes.chunks(AHEAD) {
            let mut cells: [&[Cell]; AHEAD] = [&[]; AHEAD];
            for (cells, hash) in cells.iter_mut().zip(hashes) {
                *cells = self.blocks.get(&hash.event_u64()).map_or(&[], |it| it.as_slice());
            }
            for cells in &cells[..hashes.len()] {
                let seen = holders_of(cells, &gates);
                let mut any = 0;
                for (reach, (open, seen)) in open.iter_mut().zip(&seen).enumerate() {
                    for (word, (open, seen)) in open.iter_mut().zip(seen).enumerate() {
                        settle(found, *open & !seen, word, (reach, depth));
                        *open &= seen;
                        any |= *open;
                    }
                }
                if any == 0 {
                    return;
                }
                depth += 1;
            }
        }
        for (reach, open) in open.iter().enumerate() {
            for (word, open) in open.iter().enumerate() {
                settle(found, *open, word, (reach, depth));
            }
        }
    }

    fn gates(&self) -> Vec<Gate> {
        let groups = |slot: usize| match self.holders[slot / 2].full_groups {
            full if full != 0 && slot.is_multiple_of(2) => full,
            _ => u8::MAX,
        };
        let gate = |(at, slot): (usize, &super::Slot)| Gate { floor: slot.floor(), groups: groups(at) };
        self.slots.iter().enumerate().map(gate).collect()
    }
}

impl Leading {
    fn new(holder: HolderId, [hbm_blocks, own_blocks, blocks]: [u32; REACHES]) -> Self {
        Self { holder, hbm_blocks, own_blocks, blocks }
    }
}

/// Writes down how deep the holders in a word of a set came.
fn settle(found: &mut [[u32; REACHES]], mut stopped: u64, word: usize, (reach, depth): (usize, u32)) {
    while stopped != 0 {
        if let Some(holder) = found.get_mut(word * 64 + stopped.trailing_zeros() as usize) {
            holder[reach] = depth;
        }
        stopped &= stopped - 1;
    }
}

/// Who has a block, for each reach.
fn holders_of(cells: &[Cell], gates: &[Gate]) -> [Set; REACHES] {
    let mut seen = [[0; WORDS]; REACHES];
    for cell in cells {
        let (word, bit) = (usize::from(cell.slot / 128) % WORDS, cell.slot / 2 % 64);
        for (seen, reached) in seen.iter_mut().zip(reached(cell, gates)) {
            seen[word] |= u64::from(reached) << bit;
        }
    }
    seen
}

/// Within which reaches a cell says that its block is.
fn reached(cell: &Cell, gates: &[Gate]) -> [bool; REACHES] {
    let gate = gates.get(usize::from(cell.slot)).copied().unwrap_or_default();
    let groups = if cell.stamp >= gate.floor { gate.groups } else { 0 };
    let hbm = cell.tiers[HBM] & groups != 0;
    let any = (cell.tiers[HBM] | cell.tiers[MEMORY] | cell.tiers[DISK]) & groups != 0;
    let own = cell.slot.is_multiple_of(2);
    [hbm & own, any & own, any]
}
