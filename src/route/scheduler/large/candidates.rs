//! The lanes that are compared for one request, of many: those that hold most of its prompt, and
//! those that are free soonest. All others are worse than one of these in both.

use smallvec::SmallVec;

use super::LargeFleet;
use super::order::LaneTimes;
use crate::route::choose::Standing;
use crate::route::job::{LaneId, Seconds};
use crate::route::lane::Lane;
use crate::route::resident::Way;
use crate::route::scheduler::line::Waiting;
use crate::route::scheduler::pump::draw;

/// Holders of one node of a prompt that are compared, those that are free soonest.
const HOLDERS: usize = 8;
/// Holders of all its nodes, and looks at holders, with which that is over.
const ALL_HOLDERS: usize = 16;
const HOLDER_LOOKS: usize = 256;
/// Lanes of good standing by the time at which they are free with what is planned for them, and of
/// any standing.
const SOONEST: usize = 16;
const SOONEST_LOOKS: usize = 64;
/// Lanes by the time at which they open, whatever is planned for them: who stands far in front need
/// not mind what is planned for others.
const OPENING: usize = 8;
/// Lanes on whose hosts a pool has some of it, and lanes that told of some.
const NEAR: usize = 32;
/// For so long a lane is set aside that was found to hang.
const ASIDE_S: Seconds = 0.25;

/// A lane that is compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) lane: LaneId,
    /// Leading blocks that it is believed to hold, where that is known already.
    pub(super) blocks: Option<u32>,
}

/// A set of lanes.
#[derive(Debug, Default)]
pub(super) struct LaneSet {
    pub(super) lanes: Vec<Found>,
    /// By lane, the round in which it was added last.
    rounds: Vec<u32>,
    round: u32,
}

impl LaneSet {
    fn clear(&mut self, lanes: usize) {
        self.lanes.clear();
        self.rounds.resize(lanes, 0);
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            self.rounds.fill(0);
            self.round = 1;
        }
    }

    pub(super) fn add(&mut self, lane: LaneId, blocks: Option<u32>) {
        if let Some(round) = self.rounds.get_mut(usize::from(lane.0))
            && *round != self.round
        {
            *round = self.round;
            self.lanes.push(Found { lane, blocks });
        }
    }
}

impl LargeFleet {
    /// Gathers lanes that hold some of a prompt, in place of those before.
    pub(super) fn gather_holders(&mut self, waiting: &Waiting, way: &Way<'_>, lanes: usize) {
        self.found.clear(lanes);
        waiting.seen.told_some.iter().take(NEAR).for_each(|it| self.found.add(it.lane, None));
        waiting.job.pool.near.iter().take(NEAR).for_each(|(lane, _)| self.found.add(*lane, None));
        let (before, mut looks) = (self.found.lanes.len(), HOLDER_LOOKS);
        let mut seen_all = true;
        for node in way.longest_first() {
            if self.found.lanes.len() >= before + ALL_HOLDERS || looks == 0 {
                return;
            }
            let holders = node.holders;
            let start = if holders.len() > looks {
                // Of very many another part each time.
                seen_all = false;
                self.rotation = self.rotation.wrapping_add(1);
                (self.rotation * looks) % holders.len()
            } else {
                0
            };
            let some = holders[start..].iter().chain(&holders[..start]).take(looks);
            let some = self.soonest_of(some.map(|holder| LaneId(holder.lane)));
            let blocks = seen_all.then_some(node.upto_blocks);
            some.into_iter().for_each(|lane| self.found.add(lane, blocks));
            looks = looks.saturating_sub(holders.len());
        }
    }

    /// Those of `lanes` that are free soonest.
    fn soonest_of(&self, lanes: impl Iterator<Item = LaneId>) -> SmallVec<[LaneId; HOLDERS]> {
        let mut best: SmallVec<[(Seconds, LaneId); HOLDERS]> = SmallVec::new();
        for lane in lanes {
            let free_s = self.order.rank_s(lane);
            let full = best.len() == HOLDERS;
            if full && best.last().is_some_and(|(worst_s, _)| free_s >= *worst_s) {
                continue;
            }
            let at = best.partition_point(|(its_s, _)| *its_s <= free_s);
            if full {
                best.pop();
            }
            best.insert(at, (free_s, lane));
        }
        best.into_iter().map(|(_, lane)| lane).collect()
    }

    /// Adds lanes that are free soon. Of lanes that hang time alone tells: those that are met are
    /// set aside.
    pub(super) fn gather_free(&mut self, waiting: &Waiting, lanes: &[Option<Lane>], now: Seconds) {
        let mut hanging: SmallVec<[LaneId; 8]> = SmallVec::new();
        let (mut good, mut looks) = (0, 0);
        for lane in self.order.soonest() {
            if good >= SOONEST || looks >= SOONEST_LOOKS {
                break;
            }
            let at = usize::from(lane.0);
            let Some(its) = lanes.get(at).and_then(Option::as_ref) else { continue };
            let standing = its.standing(now, draw(waiting.ticket, at));
            let known = || self.order.times(lane).is_some_and(|it| it.aside_until_s.is_some());
            if standing == Standing::Resting && !known() {
                hanging.push(lane);
            } else {
                looks += 1;
            }
            good += usize::from(standing == Standing::Good && !waiting.tried.contains(&lane));
            self.found.add(lane, None);
        }
        for lane in self.order.opening().take(OPENING) {
            self.found.add(lane, None);
        }
        for lane in hanging {
            let aside_until_s = Some(now + ASIDE_S);
            if let Some(times) = self.order.times(lane) {
                self.order.put(lane, LaneTimes { opens_s: None, aside_until_s, ..times });
                self.unplace(lane);
            }
        }
    }
}
