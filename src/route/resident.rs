//! What each prefiller is believed to hold in its own memory: the blocks of the prompts that were sent to it, as far as
//! they fit. Engines that publish KV events make this unnecessary but for the blocks that are on their way.
//!
//! Engines forget what was used longest ago, the end of a prompt before its beginning. So does this: a prompt is entered
//! from its last block to its first, and what an instance is believed to hold of a prompt is always a beginning of it.
//! That allows to search for its end instead of walking along all blocks.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use super::job::LaneId;

/// Lanes that are remembered; those beyond are believed to hold nothing.
pub const MAX_LANES: usize = 256;
const WORDS: usize = MAX_LANES / 64;

/// A set of lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lanes([u64; WORDS]);

/// Who is believed to hold what.
#[derive(Debug, Default)]
pub struct Residents {
    blocks: HashMap<u64, Lanes, BuildHasherDefault<Spread>>,
    lanes: Vec<Lane>,
    /// Counts the changes, so that others know when what they computed is old.
    version: u64,
    /// Counts the prompts. It goes on when a lane is emptied: no stamp is ever given twice.
    clock: u32,
}

#[derive(Debug, Default)]
struct Lane {
    /// Most blocks.
    capacity: usize,
    /// When each block was last used, by [`Residents::clock`].
    used: HashMap<u64, u32, BuildHasherDefault<Spread>>,
    /// The same by time; entries whose stamp is not the block's are stale.
    order: VecDeque<(u64, u32)>,
}

impl Lanes {
    fn set(&mut self, lane: usize, on: bool) {
        if let Some(word) = self.0.get_mut(lane / 64) {
            let bit = 1 << (lane % 64);
            *word = if on { *word | bit } else { *word & !bit };
        }
    }

    fn and(&self, other: &Lanes) -> Lanes {
        Lanes(std::array::from_fn(|at| self.0[at] & other.0[at]))
    }

    fn without(&self, other: &Lanes) -> Lanes {
        Lanes(std::array::from_fn(|at| self.0[at] & !other.0[at]))
    }

    fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    fn each(&self, mut visit: impl FnMut(usize)) {
        for (at, mut word) in self.0.into_iter().enumerate() {
            while word != 0 {
                visit(at * 64 + word.trailing_zeros() as usize);
                word &= word - 1;
            }
        }
    }
}

impl Residents {
    /// A lane opens, with room for so many blocks; whoever had its place is forgotten.
    pub fn open(&mut self, lane: LaneId, capacity_blocks: usize) {
        self.close(lane);
        let at = usize::from(lane.0);
        if at >= MAX_LANES {
            return;
        }
        if self.lanes.len() <= at {
            self.lanes.resize_with(at + 1, Lane::default);
        }
        self.lanes[at].capacity = capacity_blocks;
    }

    /// A lane's memory is gone.
    pub fn close(&mut self, lane: LaneId) {
        let at = usize::from(lane.0);
        let Some(gone) = self.lanes.get_mut(at).map(std::mem::take) else { return };
        for block in gone.used.keys() {
            drop_lane(&mut self.blocks, *block, at);
        }
        self.version += 1;
    }

    /// A prompt goes to a lane: its blocks are used from now on. Returns its stamp, for [`forget`](Self::forget).
    pub fn enter(&mut self, lane: LaneId, blocks: &[u64]) -> u32 {
        let at = usize::from(lane.0);
        let Some(here) = self.lanes.get_mut(at) else { return 0 };
        self.version += 1;
        self.clock = self.clock.wrapping_add(1);
        let stamp = self.clock;
        // What does not fit is not entered at all, rather than entered and pushed out again.
        for &block in blocks.iter().take(here.capacity).rev() {
            here.order.push_back((block, stamp));
            if here.used.insert(block, stamp).is_none() {
                self.blocks.entry(block).or_default().set(at, true);
            }
        }
        while here.used.len() > here.capacity {
            let Some((block, stamp)) = here.order.pop_front() else { break };
            if here.used.get(&block) == Some(&stamp) {
                here.used.remove(&block);
                drop_lane(&mut self.blocks, block, at);
            }
        }
        here.tidy();
        stamp
    }

    /// Takes back what [`enter`](Self::enter) entered, unless another prompt has used it since.
    pub fn forget(&mut self, lane: LaneId, blocks: &[u64], stamp: u32) {
        let at = usize::from(lane.0);
        let Some(here) = self.lanes.get_mut(at) else { return };
        self.version += 1;
        for block in blocks {
            if here.used.get(block) == Some(&stamp) {
                here.used.remove(block);
                drop_lane(&mut self.blocks, *block, at);
            }
        }
    }

    /// Sets `out[lane]` to the number of leading `blocks` that each lane is believed to hold. `out` is as long as there are
    /// lanes to be asked about, at most [`MAX_LANES`] of them are.
    pub fn leading(&self, blocks: &[u64], out: &mut [u32]) {
        out.fill(0);
        let mut all = Lanes::default();
        (0..out.len().min(self.lanes.len())).for_each(|lane| all.set(lane, true));
        self.search(blocks, (0, blocks.len()), all, out);
    }

    /// Blocks that a lane is believed to hold.
    pub fn held_blocks(&self, lane: LaneId) -> usize {
        self.lanes.get(usize::from(lane.0)).map_or(0, |lane| lane.used.len())
    }

    /// Changes with every change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// `lanes` hold the blocks before `low`; none of them holds the block at `high`.
    fn search(&self, blocks: &[u64], (low, high): (usize, usize), lanes: Lanes, out: &mut [u32]) {
        let (mut low, mut high, mut lanes) = (low, high, lanes);
        // Prompts that nobody knows end here, after one look; others are worth to be halved.
        let mut middle = low;
        while low < high && !lanes.is_empty() {
            let holders = blocks.get(middle).and_then(|block| self.blocks.get(block));
            let have = holders.map_or(Lanes::default(), |holders| holders.and(&lanes));
            let lack = lanes.without(&have);
            if have.is_empty() {
                high = middle;
            } else {
                if !lack.is_empty() {
                    self.search(blocks, (low, middle), lack, out);
                }
                low = middle + 1;
                lanes = have;
            }
            middle = low + (high - low) / 2;
        }
        let count = u32::try_from(low).unwrap_or(u32::MAX);
        lanes.each(|lane| {
            if let Some(place) = out.get_mut(lane) {
                *place = count;
            }
        });
    }
}

impl Lane {
    /// Drops stale entries once they outnumber the others.
    fn tidy(&mut self) {
        if self.order.len() > 2 * self.used.len() + 1024 {
            let used = &self.used;
            self.order.retain(|(block, stamp)| used.get(block) == Some(stamp));
        }
    }
}

fn drop_lane(blocks: &mut HashMap<u64, Lanes, BuildHasherDefault<Spread>>, block: u64, lane: usize) {
    if let Some(holders) = blocks.get_mut(&block) {
        holders.set(lane, false);
        if holders.is_empty() {
            blocks.remove(&block);
        }
    }
}

/// Block hashes are uniform where they are digests; a multiplication helps those that are not.
#[derive(Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        /// 2^64 divided by the golden ratio, odd.
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = value.wrapping_mul(FACTOR);
        self.0 = product ^ (product >> 32);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chain(seed: u64, length: usize) -> Vec<u64> {
        (0..length as u64).map(|n| (seed + 1) * 1_000_003 + n).collect()
    }

    fn leading(residents: &Residents, lanes: usize, blocks: &[u64]) -> Vec<u32> {
        let mut out = vec![9; lanes];
        residents.leading(blocks, &mut out);
        out
    }

    #[test]
    fn each_lane_has_its_own_beginning() {
        let mut residents = Residents::default();
        (0..4).for_each(|lane| residents.open(LaneId(lane), 100));
        let prompt = chain(1, 50);
        residents.enter(LaneId(0), &prompt[..7]);
        residents.enter(LaneId(2), &prompt);
        residents.enter(LaneId(3), &prompt[..8]);
        assert_eq!(leading(&residents, 4, &prompt), [7, 0, 50, 8]);
        assert_eq!(leading(&residents, 4, &chain(2, 9)), [0; 4]);
        residents.close(LaneId(2));
        assert_eq!(leading(&residents, 4, &prompt), [7, 0, 0, 8]);
    }

    #[test]
    fn the_end_of_the_oldest_goes_first() {
        let mut residents = Residents::default();
        residents.open(LaneId(0), 10);
        let (old, new) = (chain(1, 6), chain(2, 7));
        residents.enter(LaneId(0), &old);
        residents.enter(LaneId(0), &new);
        assert_eq!(leading(&residents, 1, &old), [3]);
        assert_eq!(leading(&residents, 1, &new), [7]);
        assert_eq!(residents.held_blocks(LaneId(0)), 10);
        residents.enter(LaneId(0), &chain(3, 99));
        assert_eq!(leading(&residents, 1, &chain(3, 99)), [10], "what never fits is not entered");
    }

    #[test]
    fn what_another_prompt_uses_is_not_forgotten() {
        let mut residents = Residents::default();
        residents.open(LaneId(0), 100);
        let prompt = chain(1, 10);
        let first = residents.enter(LaneId(0), &prompt);
        residents.enter(LaneId(0), &prompt[..4]);
        residents.forget(LaneId(0), &prompt, first);
        assert_eq!(leading(&residents, 1, &prompt), [4]);
    }

    proptest! {
        /// Against a list of (block, last use) that is searched from the front.
        #[test]
        fn equals_a_naive_model(
            turns in proptest::collection::vec((0u16..5, 0u64..6, 1usize..30), 1..60),
            capacity in 5usize..60,
        ) {
            let mut residents = Residents::default();
            let mut naive: Vec<Vec<u64>> = vec![Vec::new(); 5];
            (0..5).for_each(|lane| residents.open(LaneId(lane), capacity));
            for (lane, seed, length) in turns {
                let prompt = chain(seed, length);
                residents.enter(LaneId(lane), &prompt);
                let held = &mut naive[usize::from(lane)];
                for block in prompt.iter().take(capacity).rev() {
                    held.retain(|it| it != block);
                    held.push(*block);
                }
                let surplus = held.len().saturating_sub(capacity);
                held.drain(..surplus);
            }
            for seed in 0..6 {
                let prompt = chain(seed, 30);
                let expected: Vec<u32> = naive
                    .iter()
                    .map(|held| prompt.iter().take_while(|block| held.contains(block)).count() as u32)
                    .collect();
                prop_assert_eq!(leading(&residents, 5, &prompt), expected);
            }
            let blocks = residents.blocks.values().map(|lanes| { let mut n = 0; lanes.each(|_| n += 1); n }).sum::<usize>();
            prop_assert_eq!(blocks, naive.iter().map(Vec::len).sum::<usize>());
        }
    }
}
