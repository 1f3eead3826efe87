//! A prefix cache as engines and pools keep it: blocks by their chained hash, the least recently
//! used forgotten first.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Hashes are mixed where they are made ([`super::trace`]); hashing them again is a waste.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// A map whose keys are block hashes.
pub type BlockMap<V> = HashMap<u64, V, BuildHasherDefault<IdentityHasher>>;

/// The blocks of one machine.
#[derive(Debug)]
pub struct Cache {
    slots: Vec<Slot>,
    places: BlockMap<u32>,
    capacity: usize,
    newest: u32,
    oldest: u32,
}

/// A block in the order of use; `NONE` ends the list.
#[derive(Clone, Copy, Debug)]
struct Slot {
    block: u64,
    newer: u32,
    older: u32,
}

const NONE: u32 = u32::MAX;

impl Cache {
    /// Creates an empty cache with room for this number of blocks.
    #[must_use]
    pub fn new(capacity_blocks: u32) -> Cache {
        let capacity = capacity_blocks.min(NONE - 1) as usize;
        Cache { slots: Vec::new(), places: BlockMap::default(), capacity, newest: NONE, oldest: NONE }
    }

    /// Number of a prompt's leading blocks that it has. Does not count as use.
    #[must_use]
    pub fn leading(&self, blocks: &[u64]) -> usize {
        blocks.iter().take_while(|block| self.places.contains_key(block)).count()
    }

    /// Blocks it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// True if it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Uses all blocks of a prompt, storing those that it lacks; `came` and `went` are told what
    /// changed.
    ///
    /// As in vLLM, which frees a request's blocks from the last to the first, the end of a prompt
    /// is forgotten before its beginning; what does not fit is not stored.
    pub fn touch(&mut self, blocks: &[u64], mut changed: impl FnMut(u64, Change)) {
        for &block in blocks.iter().take(self.capacity).rev() {
            if let Some(&place) = self.places.get(&block) {
                self.unlink(place);
                self.link(place);
                continue;
            }
            let place = if self.slots.len() < self.capacity {
                self.slots.push(Slot { block, newer: NONE, older: NONE });
                (self.slots.len() - 1) as u32
            } else {
                let place = self.oldest;
                self.unlink(place);
                let gone = std::mem::replace(&mut self.slots[place as usize].block, block);
                self.places.remove(&gone);
                changed(gone, Change::Went);
                place
            };
            self.places.insert(block, place);
            self.link(place);
            changed(block, Change::Came);
        }
    }

    /// Forgets everything, and tells of each block.
    pub fn clear(&mut self, mut gone: impl FnMut(u64)) {
        self.places.keys().for_each(|block| gone(*block));
        *self = Cache::new(self.capacity as u32);
    }

    fn unlink(&mut self, place: u32) {
        let Slot { newer, older, .. } = self.slots[place as usize];
        match newer {
            NONE => self.newest = older,
            at => self.slots[at as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            at => self.slots[at as usize].newer = newer,
        }
    }

    fn link(&mut self, place: u32) {
        let older = std::mem::replace(&mut self.newest, place);
        let slot = &mut self.slots[place as usize];
        (slot.newer, slot.older) = (NONE, older);
        match older {
            NONE => self.oldest = place,
            at => self.slots[at as usize].newer = place,
        }
    }
}

/// Changes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is stored now.
    Came,
    /// It was forgotten.
    Went,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a list in the order of use.
        #[test]
        fn equals_a_naive_model(
            prompts in proptest::collection::vec(proptest::collection::vec(0u64..40, 0..12), 1..80),
            capacity in 1u32..30,
        ) {
            let mut cache = Cache::new(capacity);
            let mut naive: Vec<u64> = Vec::new();
            let mut told: Vec<u64> = Vec::new();
            for prompt in prompts {
                for block in prompt.iter().take(capacity as usize).rev() {
                    naive.retain(|held| held != block);
                    naive.push(*block);
                    if naive.len() > capacity as usize {
                        naive.remove(0);
                    }
                }
                cache.touch(&prompt, |block, change| match change {
                    Change::Came => told.push(block),
                    Change::Went => told.retain(|held| *held != block),
                });
                prop_assert_eq!(cache.len(), naive.len());
                prop_assert!(naive.iter().all(|block| cache.leading(&[*block]) == 1));
                told.sort_unstable();
                let mut sorted = naive.clone();
                sorted.sort_unstable();
                prop_assert_eq!(&told, &sorted);
            }
            cache.clear(|block| told.retain(|held| *held != block));
            prop_assert!(told.is_empty() && cache.is_empty());
        }
    }

    #[test]
    fn the_end_of_the_oldest_prompt_goes_first() {
        let mut cache = Cache::new(6);
        cache.touch(&[1, 2, 3, 4], |_, _| ());
        cache.touch(&[7, 8, 9], |_, _| ());
        assert_eq!((cache.leading(&[1, 2, 3, 4]), cache.leading(&[7, 8, 9])), (3, 3));
        cache.touch(&[1], |_, _| ());
        cache.touch(&[5, 6], |_, _| ());
        assert_eq!((cache.leading(&[1, 2]), cache.leading(&[5, 6, 1])), (1, 3));
    }
}
