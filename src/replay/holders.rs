//! The caches of several machines, and an index over them: the part of a prompt that each holds, in
//! one walk along it.

use super::cache::{BlockMap, Cache, Change};

/// Most machines: the index has a bit for each.
pub const MACHINES_MAX: usize = 64;

/// One cache per machine.
#[derive(Debug)]
pub struct Holders {
    caches: Vec<Cache>,
    index: BlockMap<u64>,
}

impl Holders {
    /// Creates `machines` empty caches, at most [`MACHINES_MAX`], each with room for this number of
    /// blocks.
    #[must_use]
    pub fn new(machines: usize, capacity_blocks: u32) -> Holders {
        let caches = (0..machines.min(MACHINES_MAX)).map(|_| Cache::new(capacity_blocks)).collect();
        Holders { caches, index: BlockMap::default() }
    }

    /// Number of a prompt's leading blocks that one machine has.
    #[must_use]
    pub fn leading(&self, machine: usize, blocks: &[u64]) -> usize {
        self.caches.get(machine).map_or(0, |cache| cache.leading(blocks))
    }

    /// Calls `found` for each machine that has the first block, with the number of leading blocks
    /// it has.
    pub fn each_leading(&self, blocks: &[u64], mut found: impl FnMut(usize, usize)) {
        let mut left = u64::MAX;
        for (at, block) in blocks.iter().enumerate() {
            let holders = self.index.get(block).copied().unwrap_or(0);
            let out = if at == 0 { 0 } else { left & !holders };
            each_bit(out, |machine| found(machine, at));
            left &= holders;
            if left == 0 {
                return;
            }
        }
        if !blocks.is_empty() {
            each_bit(left, |machine| found(machine, blocks.len()));
        }
    }

    /// A machine uses all blocks of a prompt, and stores those that it lacks.
    pub fn touch(&mut self, machine: usize, blocks: &[u64]) {
        let (index, bit) = (&mut self.index, 1u64 << (machine % MACHINES_MAX));
        let Some(cache) = self.caches.get_mut(machine) else { return };
        cache.touch(blocks, |block, change| match change {
            Change::Came => *index.entry(block).or_default() |= bit,
            Change::Went => forget(index, block, bit),
        });
    }

    /// A machine has lost everything.
    pub fn clear(&mut self, machine: usize) {
        let (index, bit) = (&mut self.index, 1u64 << (machine % MACHINES_MAX));
        if let Some(cache) = self.caches.get_mut(machine) {
            cache.clear(|block| forget(index, block, bit));
        }
    }
}

fn forget(index: &mut BlockMap<u64>, block: u64, bit: u64) {
    if let Some(holders) = index.get_mut(&block) {
        *holders &= !bit;
        if *holders == 0 {
            index.remove(&block);
        }
    }
}

fn each_bit(mut bits: u64, mut found: impl FnMut(usize)) {
    while bits != 0 {
        found(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_index_says_what_the_caches_say(
            turns in proptest::collection::vec((0usize..5, 0u64..4, 1u64..9, proptest::bool::weighted(0.1)), 1..60),
        ) {
            let mut holders = Holders::new(5, 12);
            let chain = |seed: u64, length: u64| (0..length).map(|n| seed * 100 + n).collect::<Vec<u64>>();
            for (machine, seed, length, clears) in turns {
                if clears { holders.clear(machine) } else { holders.touch(machine, &chain(seed, length)) }
                for seed in 0..4 {
                    let prompt = chain(seed, 9);
                    let mut found = [0; 5];
                    holders.each_leading(&prompt, |machine, blocks| found[machine] = blocks);
                    let truth: Vec<usize> = (0..5).map(|machine| holders.leading(machine, &prompt)).collect();
                    prop_assert_eq!(&found[..], &truth[..]);
                }
            }
        }
    }
}
