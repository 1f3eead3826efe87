//! What each prefiller is believed to hold in its own memory: the blocks of the prompts that were sent to it, as far as
//! they fit. Engines that publish KV events make this unnecessary but for the blocks that are on their way.
//!
//! Engines forget what was used longest ago, the end of a prompt before its beginning. So does this: what an instance is
//! believed to hold of a prompt is always a beginning of it. Believed is of whole nodes of [`Chains`]: where an instance
//! forgets a part of one, the node is cut there.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::chains::{Chains, NodeId, ROOT};
use super::job::LaneId;

/// Lanes that are remembered; those beyond are believed to hold nothing.
pub const MAX_LANES: usize = 256;
/// Entries of a lane's queue that may be stale whatever it holds.
const STALE_ENTRIES: usize = 1024;

/// Who is believed to hold what.
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
    /// Most blocks.
    capacity: usize,
    /// Blocks of the nodes that it holds.
    held: usize,
    /// Prompts by time: where each ends, or what is left of it. Those whose last node was used since, or forgotten, are stale.
    order: VecDeque<(NodeId, u32)>,
    /// The length of `order` at which stale entries are dropped.
    tidy_at: usize,
}

/// Which lanes hold a node, and by [`Residents::clock`] when each last used it.
#[derive(Clone, Debug, Default)]
struct Holders(SmallVec<[(u16, u32); 2]>);

impl Holders {
    fn of(&self, lane: u16) -> Option<u32> {
        self.0.iter().find(|(whose, _)| *whose == lane).map(|(_, stamp)| *stamp)
    }

    /// Whether it is new there.
    fn use_by(&mut self, lane: u16, stamp: u32) -> bool {
        let held = self.0.iter_mut().find(|(whose, _)| *whose == lane);
        let new = held.is_none();
        match held {
            Some((_, used)) => *used = stamp,
            None => self.0.push((lane, stamp)),
        }
        new
    }

    /// Whether it was there.
    fn drop_by(&mut self, lane: u16) -> bool {
        let at = self.0.iter().position(|(whose, _)| *whose == lane);
        at.map(|at| self.0.swap_remove(at)).is_some()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
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
        self.lanes[at] = Lane { capacity: capacity_blocks, tidy_at: STALE_ENTRIES, ..Lane::default() };
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

    /// A prompt goes to a lane: its blocks are used from now on. Returns its stamp, for [`forget`](Self::forget).
    pub fn enter(&mut self, lane: LaneId, blocks: &Arc<[u64]>) -> u32 {
        let Some(here) = self.lanes.get_mut(usize::from(lane.0)) else { return 0 };
        self.version += 1;
        self.clock = self.clock.wrapping_add(1);
        // What does not fit is not entered at all, rather than entered and pushed out again.
        let last = self.chains.reach(blocks, here.capacity);
        let mut at = last;
        while let Some(node) = self.chains.get_mut(at) {
            if node.value.use_by(lane.0, self.clock) {
                here.held += node.blocks();
            }
            at = node.above();
        }
        if last != ROOT {
            here.order.push_back((last, self.clock));
        }
        while here.held > here.capacity && here.give_way(&mut self.chains, lane.0) {}
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
            here.held -= at.blocks();
            self.chains.drop_unused(node, Holders::is_empty);
        }
    }

    /// Sets `out[lane]` to the number of leading `blocks` that each lane is believed to hold. `out` is as long as there are
    /// lanes to be asked about, at most [`MAX_LANES`] of them are.
    pub fn leading(&self, blocks: &[u64], out: &mut [u32]) {
        out.fill(0);
        let mut before = 0;
        for step in self.chains.along(blocks) {
            let Some(node) = self.chains.get(step.node) else { return };
            let upto = before + u32::try_from(step.blocks).unwrap_or(u32::MAX);
            let mut any = false;
            for (lane, _) in &node.value.0 {
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

    /// Blocks that a lane is believed to hold.
    pub fn held_blocks(&self, lane: LaneId) -> usize {
        self.lanes.get(usize::from(lane.0)).map_or(0, |lane| lane.held)
    }

    /// Changes with every change.
    pub fn version(&self) -> u64 {
        self.version
    }
}

impl Lane {
    /// Forgets some of what was used longest ago, at most what is too much. False when there is nothing to forget.
    fn give_way(&mut self, chains: &mut Chains<Holders>, lane: u16) -> bool {
        let Some((last, stamp)) = self.order.front_mut() else { return false };
        let (node, surplus) = (*last, self.held - self.capacity);
        let Some(oldest) =
            chains.get(node).filter(|node| node.value.of(lane).is_none_or(|used| used == *stamp))
        else {
            // What is above was used at the same time or later.
            self.order.pop_front();
            return true;
        };
        // The end goes, and the entry is of what is left.
        let (length, held) = (oldest.blocks(), oldest.value.of(lane).is_some());
        *last = match length.checked_sub(surplus) {
            Some(left) if held && left > 0 => chains.cut(node, left),
            _ => oldest.above(),
        };
        if held && let Some(gone) = chains.get_mut(node) {
            gone.value.drop_by(lane);
            self.held -= gone.blocks();
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::chains::Node;
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
        residents.enter(LaneId(0), &prompt[..7].into());
        residents.enter(LaneId(2), &prompt);
        residents.enter(LaneId(3), &prompt[..8].into());
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
        residents.enter(LaneId(0), &prompt[..4].into());
        residents.forget(LaneId(0), &prompt, first);
        assert_eq!(leading(&residents, 1, &prompt), [4]);
    }

    /// Prompts of eight that go on from four, and these from two: a block's hash tells all that is before it.
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

    proptest! {
        /// Against a list of (block, last use) that is searched from the front.
        #[test]
        fn equals_a_naive_model(
            turns in proptest::collection::vec((0u16..5, 0u64..8, 1usize..30, 0u8..6), 1..60),
            capacity in 5usize..60,
        ) {
            let mut residents = Residents::default();
            let mut naive: Vec<Vec<(u64, u32)>> = vec![Vec::new(); 5];
            (0..5).for_each(|lane| residents.open(LaneId(lane), capacity));
            for (lane, seed, length, mishap) in turns {
                let prompt = branching(seed, length);
                let stamp = residents.enter(LaneId(lane), &prompt);
                let held = &mut naive[usize::from(lane)];
                for block in prompt.iter().take(capacity).rev() {
                    held.retain(|(it, _)| it != block);
                    held.push((*block, stamp));
                }
                let surplus = held.len().saturating_sub(capacity);
                held.drain(..surplus);
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
                prop_assert_eq!(residents.held_blocks(LaneId(lane)), held.len());
            }
            for seed in 0..8 {
                let prompt = branching(seed, 30);
                let expected: Vec<u32> = naive
                    .iter()
                    .map(|held| prompt.iter().take_while(|block| held.iter().any(|(it, _)| it == *block)).count() as u32)
                    .collect();
                prop_assert_eq!(leading(&residents, 5, &prompt), expected);
            }
            let held = |node: &Node<Holders>| node.blocks() * node.value.0.len();
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
            residents.enter(LaneId(0), &prompts[turn % 3]);
        });
        assert!(residents.lanes[0].order.len() <= 2 * 3 + STALE_ENTRIES + 1);
        assert_eq!(leading(&residents, 1, &prompts[0]), [20]);
    }
}
