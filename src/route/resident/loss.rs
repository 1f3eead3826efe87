//! Blocks that a lane is found to have lost sooner than was believed.

use super::{Holders, Residents};
use crate::route::job::LaneId;

impl Residents {
    /// A lane turned out to lack what is behind the first `kept` blocks of a prompt. What it used
    /// no later than that is forgotten with it: engines forget in this order.
    pub fn forget_old(&mut self, lane: LaneId, blocks: &[u64], kept: u32) {
        let clock = self.clock;
        let Some(used) = self.used_behind(lane, blocks, kept) else { return };
        let is_old = |stamp: u32| clock.wrapping_sub(stamp) >= clock.wrapping_sub(used);
        let Some(here) = self.lanes.get_mut(usize::from(lane.0)) else { return };
        self.version += 1;
        while let Some((last, _)) = here.order.front().copied().filter(|(_, stamp)| is_old(*stamp)) {
            here.order.pop_front();
            let mut at = last;
            while let Some(node) = self.chains.get_mut(at) {
                let (parent, used) = (node.parent(), node.value.of(lane.0));
                // What is above was used at the same time or later.
                if used.is_some_and(|used| !is_old(used)) {
                    break;
                }
                if node.value.drop_by(lane.0) {
                    here.held_tokens -= node.tokens();
                    self.chains.drop_unused(at, Holders::is_empty);
                }
                at = parent;
            }
        }
    }

    /// Stamp of the first node behind `kept` blocks of a prompt, if a lane is believed to hold it.
    fn used_behind(&self, lane: LaneId, blocks: &[u64], kept: u32) -> Option<u32> {
        let mut upto = 0;
        let behind = self.chains.along(blocks).find(|step| {
            upto += step.blocks;
            upto > kept as usize
        });
        self.chains.get(behind?.node)?.value.of(lane.0)
    }
}
