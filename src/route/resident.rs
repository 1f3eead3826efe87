//! Belief about what each prefiller holds in its own memory: the blocks of the prompts that were
//! sent to it, as far as they fit. Engines that publish KV events make this unnecessary but for the
//! blocks that are on their way.
//!
//! Engines forget the blocks that were used longest ago, the end of a prompt before its beginning.
//! This belief does the same: an instance is always believed to hold a beginning of a prompt. It is
//! kept for whole nodes of [`Chains`]: where an instance forgets a part of one, the node is cut
//! there.

mod loss;

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::chains::{Chains, Node, NodeId, ROOT};
use super::job::{LaneId, MAX_LANES};

/// Entries of a lane's queue that may be stale whatever it holds.
const STALE_ENTRIES: usize = 1024;

/// Beliefs about all lanes.
#[derive(Debug, Default)]
pub struct Residents {
    chains: Chains<Holders>,
    lanes: Vec<Lane>,
    /// Counts the changes, so that others know when what they computed is old.
    version: u64,
    /// Counts the prompts. It goes on when a lane is emptied: no stamp is ever given twice.
    clock: u32,
}

#[derive(Debug, Default)]
struct Lane {
    capacity_tokens: u64,
    /// Of the nodes that it holds.
    held_tokens: u64,
    /// Prompts by time: where each ends, or what is left of it. Those whose last node was used
    /// since, or forgotten, are stale.
    order: VecDeque<(NodeId, u32)>,
    /// The length of `order` at which stale entries are dropped.
    tidy_at: usize,
}

/// A lane that holds a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) lane: u16,
    /// The [`Residents::clock`] of its last use.
    used: u32,
}

/// The lanes that hold a node.
#[derive(Clone, Debug, Default)]
struct Holders {
    /// Holders, ordered by lane.
    lanes: SmallVec<[Holder; 2]>,
    /// Tokens of each of the node's blocks, once somebody holds it: who names a prompt decides, and
    /// a lane is told of blocks of several sizes.
    block_tokens: u32,
}

/// The place of a lane among holders, or where it would stand. They stand by number, so that where
/// nearly all lanes are holders, few places are possible.
fn find(holders: &[Holder], lane: u16) -> Result<usize, usize> {
    let Some(last) = holders.last().filter(|last| last.lane >= lane) else { return Err(holders.len()) };
    let missing = usize::from(last.lane) + 1 - holders.len();
    let first = usize::from(lane).saturating_sub(missing);
    let end = holders.len().min(usize::from(lane) + 1);
    let possible = holders.get(first..end).unwrap_or_default();
    let found = possible.binary_search_by_key(&lane, |holder| holder.lane);
    found.map(|at| first + at).map_err(|at| first + at)
}

impl Holders {
    /// Its place among the holders, or where it would stand.
    fn find(&self, lane: u16) -> Result<usize, usize> {
        find(&self.lanes, lane)
    }

    fn of(&self, lane: u16) -> Option<u32> {
        self.find(lane).ok().and_then(|at| self.lanes.get(at)).map(|holder| holder.used)
    }

    /// True if it is new there.
    fn use_by(&mut self, lane: u16, stamp: u32, block_tokens: u32) -> bool {
        if self.is_empty() {
            self.block_tokens = block_tokens;
        }
        match self.find(lane) {
            Ok(at) => {
                self.lanes[at].used = stamp;
                false
            }
            Err(at) => {
                self.lanes.insert(at, Holder { lane, used: stamp });
                true
            }
        }
    }

    /// True if it was there.
    fn drop_by(&mut self, lane: u16) -> bool {
        self.find(lane).map(|at| self.lanes.remove(at)).is_ok()
    }

    fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }
}

impl Node<Holders> {
    fn tokens(&self) -> u64 {
        self.blocks() as u64 * u64::from(self.value.block_tokens)
    }
}

impl Residents {
    /// A lane opens, with room for so many tokens; whoever had its place is forgotten.
    pub fn open(&mut self, lane: LaneId, capacity_tokens: u64) {
        self.close(lane);
        let at = usize::from(lane.0);
        if at >= MAX_LANES {
            return;
        }
        if self.lanes.len() <= at {
            self.lanes.resize_with(at + 1, Lane::default);
        }
        self.lanes[at] = Lane { capacity_tokens, tidy_at: STALE_ENTRIES, ..Lane::default() };
    }

    /// A lane's memory is gone.
    pub fn close(&mut self, lane: LaneId) {
        let Some(gone) = self.lanes.get_mut(usize::from(lane.0)) else { return };
        *gone = Lane::default();
        for node in self.chains.places() {
            if self.chains.get_mut(node).is_some_and(|node| node.value.drop_by(lane.0)) {
                self.chains.drop_unused(node, Holders::is_empty);
            }
        }
        self.version += 1;
    }

    /// A prompt goes to a lane: its blocks, of so many tokens each, are used from now on. Returns
    /// its stamp, for [`forget`](Self::forget).
    pub fn enter(&mut self, lane: LaneId, blocks: &Arc<[u64]>, block_tokens: u32) -> u32 {
        let Some(here) = self.lanes.get_mut(usize::from(lane.0)) else { return 0 };
        self.version += 1;
        self.clock = self.clock.wrapping_add(1);
        // What does not fit is not entered at all, rather than entered and pushed out again.
        let block_tokens = block_tokens.max(1);
        let most_blocks =
            usize::try_from(here.capacity_tokens / u64::from(block_tokens)).unwrap_or(usize::MAX);
        let last = self.chains.reach(blocks, most_blocks);
        let mut at = last;
        while let Some(node) = self.chains.get_mut(at) {
            if node.value.use_by(lane.0, self.clock, block_tokens) {
                here.held_tokens += node.tokens();
            }
            at = node.parent();
        }
        if last != ROOT {
            here.order.push_back((last, self.clock));
        }
        while here.held_tokens > here.capacity_tokens && here.give_way(&mut self.chains, lane.0) {}
        here.tidy(&self.chains, lane.0);
        self.clock
    }

    /// Takes back what [`enter`](Self::enter) entered, unless another prompt has used it since.
    pub fn forget(&mut self, lane: LaneId, blocks: &[u64], stamp: u32) {
        let Some(here) = self.lanes.get_mut(usize::from(lane.0)) else { return };
        self.version += 1;
        let way: SmallVec<[NodeId; 8]> = self.chains.along(blocks).map(|step| step.node).collect();
        // From its end: nothing goes on behind what is dropped.
        for node in way.into_iter().rev() {
            let Some(at) = self.chains.get_mut(node).filter(|at| at.value.of(lane.0) == Some(stamp)) else {
                continue;
            };
            at.value.drop_by(lane.0);
            here.held_tokens -= at.tokens();
            self.chains.drop_unused(node, Holders::is_empty);
        }
    }

    /// Sets `out[lane]` to the number of leading `blocks` that each lane is believed to hold. `out`
    /// is as long as there are lanes to be asked about, at most [`MAX_LANES`] of them are.
    pub fn leading(&self, blocks: &[u64], out: &mut [u32]) {
        out.fill(0);
        let mut before = 0;
        for step in self.chains.along(blocks) {
            let Some(node) = self.chains.get(step.node) else { return };
            let upto = before + u32::try_from(step.blocks).unwrap_or(u32::MAX);
            let mut any = false;
            for Holder { lane, .. } in &node.value.lanes {
                if let Some(count) = out.get_mut(usize::from(*lane)).filter(|count| **count == before) {
                    *count = upto;
                    any = true;
                }
            }
            if !any {
                return;
            }
            before = upto;
        }
    }

    /// The nodes along a prompt that some lane is believed to hold. Nodes with the same holders are
    /// one.
    pub(super) fn way(&self, blocks: &[u64]) -> Way<'_> {
        let mut way = Way::default();
        let mut upto_blocks = 0;
        for step in self.chains.along(blocks) {
            let Some(node) = self.chains.get(step.node).filter(|node| !node.value.is_empty()) else { break };
            upto_blocks += u32::try_from(step.blocks).unwrap_or(u32::MAX);
            let holders = node.value.lanes.as_slice();
            match way.0.last_mut() {
                // Holders of the end are holders of the beginning.
                Some(before) if before.holders.len() == holders.len() => before.upto_blocks = upto_blocks,
                _ => way.0.push(WayNode { upto_blocks, holders }),
            }
        }
        way
    }

    /// Tokens that a lane is believed to hold.
    pub fn held_tokens(&self, lane: LaneId) -> u64 {
        self.lanes.get(usize::from(lane.0)).map_or(0, |lane| lane.held_tokens)
    }

    /// Changes with every change.
    pub fn version(&self) -> u64 {
        self.version
    }
}

/// The nodes of one prompt.
#[derive(Debug, Default)]
pub(super) struct Way<'a>(SmallVec<[WayNode<'a>; 8]>);

/// A node of one prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct WayNode<'a> {
    /// Blocks up to its end.
    pub(super) upto_blocks: u32,
    /// The lanes that hold it, by number.
    pub(super) holders: &'a [Holder],
}

impl<'a> Way<'a> {
    /// Number of leading blocks that a lane is believed to hold. Whoever holds a node holds those
    /// before it, so that a few looks are enough however often a prompt was continued.
    pub(super) fn leading(&self, lane: LaneId) -> u32 {
        let held = self.0.partition_point(|node| find(node.holders, lane.0).is_ok());
        held.checked_sub(1).and_then(|last| self.0.get(last)).map_or(0, |node| node.upto_blocks)
    }

    /// Its nodes, those of most of the prompt first.
    pub(super) fn longest_first(&self) -> impl Iterator<Item = WayNode<'a>> {
        self.0.iter().rev().copied()
    }
}

impl Lane {
    /// Forgets some of what was used longest ago, at most what is too much. False when there is
    /// nothing to forget.
    fn give_way(&mut self, chains: &mut Chains<Holders>, lane: u16) -> bool {
        let Some((last, stamp)) = self.order.front_mut() else { return false };
        let (node, surplus_tokens) = (*last, self.held_tokens - self.capacity_tokens);
        let Some(oldest) =
            chains.get(node).filter(|node| node.value.of(lane).is_none_or(|used| used == *stamp))
        else {
            // What is above was used at the same time or later.
            self.order.pop_front();
            return true;
        };
        // The end goes, and the entry is of what is left.
        let held = oldest.value.of(lane).is_some();
        *last = match blocks_left(oldest, surplus_tokens) {
            Some(left) if held => chains.cut(node, left),
            _ => oldest.parent(),
        };
        if held && let Some(gone) = chains.get_mut(node) {
            gone.value.drop_by(lane);
            self.held_tokens -= gone.tokens();
            chains.drop_unused(node, Holders::is_empty);
        }
        true
    }

    /// Drops stale entries once they outnumber the others.
    fn tidy(&mut self, chains: &Chains<Holders>, lane: u16) {
        if self.order.len() > self.tidy_at {
            let fresh = |&(last, stamp): &(NodeId, u32)| {
                chains.get(last).and_then(|node| node.value.of(lane)) == Some(stamp)
            };
            self.order.retain(fresh);
            self.tidy_at = 2 * self.order.len() + STALE_ENTRIES;
        }
    }
}

/// The blocks of a node that stay when so many tokens of it have to go, if any do.
fn blocks_left(node: &Node<Holders>, surplus_tokens: u64) -> Option<usize> {
    let gone = surplus_tokens.div_ceil(u64::from(node.value.block_tokens.max(1)));
    node.blocks().checked_sub(usize::try_from(gone).ok()?).filter(|left| *left > 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chain(seed: u64, length: usize) -> Arc<[u64]> {
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
        residents.enter(LaneId(0), &prompt[..7].into(), 1);
        residents.enter(LaneId(2), &prompt, 1);
        residents.enter(LaneId(3), &prompt[..8].into(), 1);
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
        residents.enter(LaneId(0), &old, 1);
        residents.enter(LaneId(0), &new, 1);
        assert_eq!(leading(&residents, 1, &old), [3]);
        assert_eq!(leading(&residents, 1, &new), [7]);
        assert_eq!(residents.held_tokens(LaneId(0)), 10);
        residents.enter(LaneId(0), &chain(3, 99), 1);
        assert_eq!(leading(&residents, 1, &chain(3, 99)), [10], "what never fits is not entered");
    }

    #[test]
    fn room_is_counted_in_tokens_whatever_the_blocks_are() {
        let mut residents = Residents::default();
        residents.open(LaneId(0), 1_000);
        residents.enter(LaneId(0), &chain(1, 99), 16);
        assert_eq!(leading(&residents, 1, &chain(1, 99)), [62], "992 tokens");
        residents.enter(LaneId(0), &chain(2, 2), 256);
        assert_eq!(leading(&residents, 1, &chain(2, 2)), [2]);
        assert_eq!(leading(&residents, 1, &chain(1, 99)), [30], "488 are left");
        assert_eq!(residents.held_tokens(LaneId(0)), 480 + 512);
    }

    #[test]
    fn shared_blocks_are_not_forgotten() {
        let mut residents = Residents::default();
        residents.open(LaneId(0), 100);
        let prompt = chain(1, 10);
        let first = residents.enter(LaneId(0), &prompt, 1);
        residents.enter(LaneId(0), &prompt[..4].into(), 1);
        residents.forget(LaneId(0), &prompt, first);
        assert_eq!(leading(&residents, 1, &prompt), [4]);
    }

    /// Prompts of eight that go on from four, and these from two: a block's hash tells all that is
    /// before it.
    fn branching(seed: u64, length: usize) -> Arc<[u64]> {
        let branch = |n| {
            if n < 7 {
                seed % 2
            } else if n < 15 {
                10 + seed % 4
            } else {
                100 + seed
            }
        };
        (0..length as u64).map(|n| branch(n) * 1_000_003 + n).collect()
    }

    /// Of the blocks of such a prompt: prompts that have nothing in common may have been named by
    /// others.
    fn size(seed: u64) -> u32 {
        if seed.is_multiple_of(2) { 1 } else { 3 }
    }

    /// And of one block of it, by its hash.
    fn tokens(block: u64) -> u64 {
        let branch = block / 1_000_003;
        u64::from(size(branch))
    }

    proptest! {
        /// Against a list of (block, last use) that is searched from the front.
        #[test]
        fn equals_a_naive_model(
            turns in proptest::collection::vec((0u16..5, 0u64..8, 1usize..30, 0u8..6), 1..60),
            capacity in 5u64..120,
        ) {
            let mut residents = Residents::default();
            let mut naive: Vec<Vec<(u64, u32)>> = vec![Vec::new(); 5];
            (0..5).for_each(|lane| residents.open(LaneId(lane), capacity));
            for (lane, seed, length, mishap) in turns {
                let prompt = branching(seed, length);
                let stamp = residents.enter(LaneId(lane), &prompt, size(seed));
                let held = &mut naive[usize::from(lane)];
                let fits = (capacity / u64::from(size(seed))) as usize;
                for block in prompt.iter().take(fits).rev() {
                    held.retain(|(it, _)| it != block);
                    held.push((*block, stamp));
                }
                while held.iter().map(|(block, _)| tokens(*block)).sum::<u64>() > capacity {
                    held.remove(0);
                }
                match mishap {
                    0 => {
                        residents.forget(LaneId(lane), &prompt, stamp);
                        held.retain(|(_, used)| *used != stamp);
                    }
                    1 if length == 1 => {
                        residents.open(LaneId(lane), capacity);
                        held.clear();
                    }
                    _ => {}
                }
                let held_tokens = held.iter().map(|(block, _)| tokens(*block)).sum::<u64>();
                prop_assert_eq!(residents.held_tokens(LaneId(lane)), held_tokens);
            }
            for seed in 0..8 {
                let prompt = branching(seed, 30);
                let expected: Vec<u32> = naive
                    .iter()
                    .map(|held| prompt.iter().take_while(|block| held.iter().any(|(it, _)| it == *block)).count() as u32)
                    .collect();
                prop_assert_eq!(leading(&residents, 5, &prompt), expected);
            }
            let held = |node: &Node<Holders>| node.blocks() * node.value.lanes.len();
            let places = residents.chains.places();
            let blocks = places.filter_map(|node| residents.chains.get(node)).map(held).sum::<usize>();
            prop_assert_eq!(blocks, naive.iter().map(Vec::len).sum::<usize>());
            (0..5).for_each(|lane| residents.close(LaneId(lane)));
            prop_assert_eq!(residents.chains.blocks(), 0, "nothing is kept for nobody");
        }
    }

    #[test]
    fn the_queue_stays_short_when_prompts_repeat() {
        let mut residents = Residents::default();
        residents.open(LaneId(0), 100);
        let prompts: Vec<Arc<[u64]>> = (0..3).map(|seed| branching(seed, 20)).collect();
        (0..10_000).for_each(|turn| {
            residents.enter(LaneId(0), &prompts[turn % 3], 1);
        });
        assert!(residents.lanes[0].order.len() <= 2 * 3 + STALE_ENTRIES + 1);
        assert_eq!(leading(&residents, 1, &prompts[0]), [20]);
    }
}
