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

/// Where a block must be to count.
#[derive(Clone, Copy)]
enum Reach {
    Hbm = 0,
    Own = 1,
    Anywhere = 2,
}
const REACHES: [Reach; 3] = [Reach::Hbm, Reach::Own, Reach::Anywhere];

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
        let mut found = [0_u32; 3];
        if self.name(holder).is_some() {
            let gates = self.gates();
            let mut open = [true; 3];
            for hash in hashes {
                let mut seen = [false; 3];
                for cell in self.blocks.get(&hash.event_u64()).into_iter().flatten() {
                    if cell.slot / 2 == holder.0 {
                        REACHES
                            .iter()
                            .for_each(|reach| seen[*reach as usize] |= counts(cell, &gates, *reach));
                    }
                }
                for at in 0..3 {
                    open[at] &= seen[at];
                    found[at] += u32::from(open[at]);
                }
                if !open[Reach::Anywhere as usize] {
                    break;
                }
            }
        }
        let [hbm_blocks, own_blocks, blocks] = found;
        Leading { holder, hbm_blocks, own_blocks, blocks }
    }

    /// Leading blocks of all holders that have the first one, by number. One pass over the hashes, which ends where no
    /// holder goes on.
    pub fn leading_all(&self, hashes: &[BlockHash]) -> Vec<Leading> {
        let gates = self.gates();
        let mut everyone: Set = [0; WORDS];
        (0..self.holders.len()).for_each(|holder| everyone[holder / 64] |= 1 << (holder % 64));
        let mut open = [everyone; 3];
        let mut found: Vec<[u32; 3]> = vec![[0; 3]; self.holders.len()];
        let mut depth = 0;
        for hash in hashes {
            let seen = self.holders_of(hash.event_u64(), &gates);
            let mut any = 0;
            for reach in REACHES {
                let at = reach as usize;
                for (word, (open, seen)) in open[at].iter_mut().zip(seen[at]).enumerate() {
                    settle(&mut found, *open & !seen, word, (at, depth));
                    *open &= seen;
                    any |= *open;
                }
            }
            if any == 0 {
                break;
            }
            depth += 1;
        }
        for reach in REACHES {
            for (word, open) in open[reach as usize].into_iter().enumerate() {
                settle(&mut found, open, word, (reach as usize, depth));
            }
        }
        let named = found.into_iter().zip(0_u16..).filter(|(found, _)| found[Reach::Anywhere as usize] > 0);
        named
            .map(|([hbm_blocks, own_blocks, blocks], holder)| Leading {
                holder: HolderId(holder),
                hbm_blocks,
                own_blocks,
                blocks,
            })
            .collect()
    }

    fn holders_of(&self, hash: u64, gates: &[Gate]) -> [Set; 3] {
        let mut seen = [[0; WORDS]; 3];
        for cell in self.blocks.get(&hash).into_iter().flatten() {
            let holder = usize::from(cell.slot / 2);
            let bit = 1_u64 << (holder % 64);
            for reach in REACHES {
                if counts(cell, gates, reach) {
                    seen[reach as usize][holder / 64] |= bit;
                }
            }
        }
        seen
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

/// Writes down how deep the holders in a word of a set came.
fn settle(found: &mut [[u32; 3]], mut stopped: u64, word: usize, (at, depth): (usize, u32)) {
    while stopped != 0 {
        if let Some(holder) = found.get_mut(word * 64 + stopped.trailing_zeros() as usize) {
            holder[at] = depth;
        }
        stopped &= stopped - 1;
    }
}

fn counts(cell: &Cell, gates: &[Gate], reach: Reach) -> bool {
    let gate = gates[usize::from(cell.slot)];
    let in_pool = cell.slot % 2 == 1;
    let [hbm, memory, disk] = [HBM, MEMORY, DISK].map(|tier| cell.tiers[tier] & gate.groups != 0);
    cell.stamp >= gate.floor
        && match reach {
            Reach::Hbm => hbm && !in_pool,
            Reach::Own => (hbm || memory || disk) && !in_pool,
            Reach::Anywhere => hbm || memory || disk,
        }
}
