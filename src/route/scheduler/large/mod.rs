//! Fleets of many lanes: a decision costs some looks, however many lanes there are and however many
//! requests wait.
//!
//! Among few lanes everybody who waits is planned anew each time, by all lanes ([`super::pump`]).
//! Here a request keeps the place that was planned for it, on the lane that is best for it. A lane
//! that opens asks those who have a place there, in their order, and each of them looks again: at
//! the lanes that hold its prompt and at those that are free soon ([`candidates`]). If nobody has a
//! place there, the lane asks the last of those who would wait longest. One more request is planned
//! anew each time, so that all plans are fresh after a while. What a pass does is bounded; what is
//! left is done by the next.

mod candidates;
mod order;
mod places;

use std::collections::BTreeSet;

use smallvec::SmallVec;

use self::candidates::{Found, LaneSet};
use self::order::{LaneOrder, LaneTimes};
use self::places::{Place, Places};
use super::line::{Turn, Waiting};
use super::pump::{runners_up, standing, tie_s};
use super::sight::Sight;
use super::{CacheView, Commit, PrefillScheduler};
use crate::route::choose::Standing;
use crate::route::job::{Hit, LaneId, Seconds};
use crate::route::resident::Way;
use crate::route::score::{CommonTerms, LaneCandidate, Terms, pressure, terms};

/// Up to so many lanes each pass plans everybody anew.
pub(super) const FEW_LANES: usize = 16;
/// Requests that one pass considers: a few microseconds each.
const PASS_REQUESTS: usize = 64;
/// Passes for each request that is planned anew though nobody asks it.
const REFRESH_PASSES: u32 = 8;
/// A lane without places asks so many of the most loaded lanes, and so many requests on each of
/// them, for one who would rather come.
const ASKED_LANES: usize = 4;
const ASKED_PLACES: usize = 6;

/// State that many lanes need beyond that of each.
#[derive(Debug, Default)]
pub(super) struct LargeFleet {
    order: LaneOrder,
    places: Places,
    /// Those who wait and have no place.
    unplaced: BTreeSet<Turn>,
    /// Lanes of which something has changed since the last pass.
    changed: Vec<LaneId>,
    /// The one that was planned anew last.
    refreshed: Option<Turn>,
    /// All lanes are set aside, so none is.
    all_aside: bool,
    /// Candidates of the request that is considered.
    found: LaneSet,
    all: Vec<Terms>,
    rotation: usize,
    passes: u32,
}

/// One pass over a large fleet.
struct Pass<'a> {
    now: Seconds,
    view: &'a dyn CacheView,
    large: Box<LargeFleet>,
    commits: Vec<Commit>,
    /// Requests that it may still consider.
    left: usize,
}

impl LargeFleet {
    /// Something about a lane has changed.
    pub(super) fn touch(&mut self, lane: LaneId) {
        self.changed.push(lane);
    }

    /// A request waits, without a place yet.
    pub(super) fn joined(&mut self, turn: Turn) {
        self.unplaced.insert(turn);
    }

    /// Somebody does not wait any more, and gives up the place that was planned for it.
    pub(super) fn left(&mut self, turn: Turn, place: Option<LaneId>) {
        match place {
            Some(lane) => {
                self.places.give_up(lane, turn);
                self.touch(lane);
            }
            None => drop(self.unplaced.remove(&turn)),
        }
    }

    /// True if a pass has left something to the next one.
    fn is_unfinished(&self, now: Seconds) -> bool {
        self.order.len() > 0 && (self.order.open(now).is_some() || !self.unplaced.is_empty())
    }

    /// Plans those who have a place on a lane anew.
    fn unplace(&mut self, lane: LaneId) {
        self.unplaced.extend(self.places.clear(lane));
    }
}

impl PrefillScheduler {
    /// Prepares for the number of lanes that there are.
    pub(super) fn fit(&mut self) {
        let is_large = self.late() && self.lanes.len() > FEW_LANES;
        if is_large == self.large.is_some() {
            return;
        }
        self.line.forget_places();
        self.large = is_large.then(|| {
            let lanes = (0u16..).take(self.lanes.len()).map(LaneId);
            let unplaced = self.line.turns().collect();
            Box::new(LargeFleet { changed: lanes.collect(), unplaced, ..LargeFleet::default() })
        });
    }

    /// Commits whom it can in one pass.
    pub(super) fn pump_large(&mut self, now: Seconds, view: &dyn CacheView) -> Vec<Commit> {
        let Some(mut pass) = self.begin_pass(now, view) else { return Vec::new() };
        self.line_up(&mut pass);
        if pass.large.order.len() == 0 {
            pass.left = 0;
        }
        while pass.left > 0
            && let Some(lane) = pass.large.order.open(now)
        {
            self.serve_lane(&mut pass, lane);
        }
        while pass.left > 0
            && let Some(turn) = pass.large.unplaced.pop_first()
        {
            self.consider_turn(&mut pass, turn, None);
        }
        pass.large.passes = pass.large.passes.wrapping_add(1);
        if pass.left > 0 && pass.large.passes.is_multiple_of(REFRESH_PASSES) {
            let next = self.line.next(pass.large.refreshed).or_else(|| self.line.next(None));
            pass.large.refreshed = next;
            if let Some(turn) = next {
                self.consider_turn(&mut pass, turn, None);
            }
        }
        let Pass { large, commits, .. } = pass;
        let unfinished = large.is_unfinished(now);
        self.wake_s = match self.line.len() {
            0 => None,
            _ if unfinished => Some(now + 1e-6),
            _ => large.order.next_s(now),
        };
        self.large = Some(large);
        commits
    }

    /// Commits one who finds nobody in line, if its best lane is about to be free.
    pub(super) fn assign_large(
        &mut self,
        now: Seconds,
        view: &dyn CacheView,
        waiting: &mut Waiting,
    ) -> Option<Commit> {
        let mut pass = self.begin_pass(now, view)?;
        self.line_up(&mut pass);
        let commit = self.consider_among_many(&mut pass, waiting, None, 0);
        self.large = Some(pass.large);
        commit
    }

    fn begin_pass<'a>(&mut self, now: Seconds, view: &'a dyn CacheView) -> Option<Pass<'a>> {
        let large = self.large.take()?;
        Some(Pass { now, view, large, commits: Vec::new(), left: PASS_REQUESTS })
    }

    /// Brings the order of lanes up to date with what has changed, and with time.
    fn line_up(&self, pass: &mut Pass<'_>) {
        for lane in std::mem::take(&mut pass.large.changed) {
            self.place_lane(pass, lane);
        }
        while let Some(lane) = pass.large.order.returned(pass.now) {
            self.place_lane(pass, lane);
            if pass.large.order.returned(pass.now) == Some(lane) {
                break;
            }
        }
        let order = &pass.large.order;
        let all_aside = order.len() > 0 && order.aside() == order.len();
        if all_aside != pass.large.all_aside {
            pass.large.all_aside = all_aside;
            (0u16..).take(self.lanes.len()).for_each(|lane| self.place_lane(pass, LaneId(lane)));
        }
    }

    /// Puts a lane where it belongs among the others.
    fn place_lane(&self, pass: &mut Pass<'_>, lane_id: LaneId) {
        let (now, large) = (pass.now, &mut *pass.large);
        let lane = self.lanes.get(usize::from(lane_id.0)).and_then(Option::as_ref);
        let Some(lane) = lane.filter(|lane| !lane.draining) else {
            large.order.remove(lane_id);
            large.unplace(lane_id);
            return;
        };
        let rests_until_s = lane.health.resting_until_s;
        let aside_until_s = (rests_until_s > now).then_some(rests_until_s);
        let opens_s = if self.is_open(lane, now) {
            Some(Seconds::NEG_INFINITY)
        } else {
            lane.opens_s(self.settings.open_s)
        };
        let usable = aside_until_s.is_none() || large.all_aside;
        if !usable {
            large.unplace(lane_id);
        }
        let free_s = lane.free_s() + large.places.planned_s(lane_id);
        large.order.put(lane_id, LaneTimes { opens_s: opens_s.filter(|_| usable), free_s, aside_until_s });
    }

    /// Gives a lane that takes something those for whom it is the best.
    fn serve_lane(&mut self, pass: &mut Pass<'_>, lane: LaneId) {
        if let Some(turn) = pass.large.places.first(lane) {
            self.consider_turn(pass, turn, Some(lane));
            return;
        }
        if let Some(turn) = self.who_would_come(pass, lane) {
            let commits = pass.commits.len();
            self.consider_turn(pass, turn, Some(lane));
            if pass.commits.len() > commits {
                return;
            }
        }
        // Nobody would rather be here. Who comes, and who is planned anew, finds it free.
        if let Some(times) = pass.large.order.times(lane) {
            pass.large.order.put(lane, LaneTimes { opens_s: None, ..times });
        }
    }

    /// The first in line of those who would have their first token sooner on `lane` than where they
    /// wait longest.
    fn who_would_come(&self, pass: &Pass<'_>, lane: LaneId) -> Option<Turn> {
        let (order, places) = (&pass.large.order, &pass.large.places);
        let sooner = |there: LaneId, turn: &Turn| {
            let Some(waiting) = self.line.get(*turn) else { return false };
            let way = self.residents.way(waiting.job.chain());
            let first_token_s = |at: LaneId| {
                let planned_s = places.before_s(at, *turn);
                let terms = self.terms_of_many(pass.now, waiting, &way, PlannedLane { id: at, planned_s })?;
                Some(terms.first_token_s())
            };
            first_token_s(lane).zip(first_token_s(there)).is_some_and(|(here_s, there_s)| here_s < there_s)
        };
        let asked = order.latest().take(ASKED_LANES);
        asked.filter_map(|it| places.turns(it).take(ASKED_PLACES).find(|turn| sooner(it, turn))).min()
    }

    /// Considers one who waits, for `lane` among others.
    fn consider_turn(&mut self, pass: &mut Pass<'_>, turn: Turn, lane: Option<LaneId>) {
        pass.left = pass.left.saturating_sub(1);
        let others = self.line.len().saturating_sub(1);
        // Lent out, so that the rest of the scheduler can be changed.
        let mut line = std::mem::take(&mut self.line);
        let commit = line.get_mut(turn).and_then(|waiting| {
            let at = Asking { turn, lane };
            self.consider_among_many(pass, waiting, Some(at), others)
        });
        if commit.is_some() {
            line.leave(turn.ticket);
        }
        self.line = line;
        pass.commits.extend(commit);
    }

    /// Commits one, with so many others in line, if its best lane is open; else keeps it a place
    /// there, if it has a turn.
    fn consider_among_many(
        &mut self,
        pass: &mut Pass<'_>,
        waiting: &mut Waiting,
        asking: Option<Asking>,
        others: usize,
    ) -> Option<Commit> {
        let now = pass.now;
        let before = waiting.place.take();
        if let (Some(lane), Some(asking)) = (before, asking) {
            pass.large.places.give_up(lane, asking.turn);
            self.place_lane(pass, lane);
        }
        if waiting.seen.told_s.is_none() {
            self.ask(waiting, Sight { now, view: pass.view });
        }
        self.weigh_many(pass, waiting, Circumstances { asking, before, others });
        let best = self.best_of_many(pass, before)?;
        let terms = *pass.large.all.get(best)?;
        let told = waiting.seen.told_by(terms.lane);
        let lane = self.lanes.get(usize::from(terms.lane.0)).and_then(Option::as_ref)?;
        if !self.is_open(lane, now) {
            if let Some(Asking { turn, .. }) = asking {
                let place = Place { turn, work_s: terms.prefill_s };
                if pass.large.places.keep(terms.lane, place) {
                    waiting.place = Some(terms.lane);
                } else {
                    pass.large.unplaced.insert(turn);
                }
                self.place_lane(pass, terms.lane);
            }
            return None;
        }
        let in_flight = terms.hit.hbm_tokens > 0 && lane.computes(waiting.job.chain());
        let told_tokens = told.or_else(|| (lane.tells && waiting.job.named).then_some(0));
        let all = std::mem::take(&mut pass.large.all);
        let commit = self.commit(now, waiting, Terms { in_flight, told_tokens, ..terms });
        let (others_of, all) = runners_up(all, best);
        pass.large.all = all;
        self.place_lane(pass, terms.lane);
        Some(Commit { others: others_of, waiting: others, ..commit })
    }

    /// Writes down the terms of all candidates of the best standing.
    fn weigh_many(
        &self,
        pass: &mut Pass<'_>,
        waiting: &Waiting,
        Circumstances { asking, before, others }: Circumstances,
    ) {
        let (now, large) = (pass.now, &mut *pass.large);
        let way = self.residents.way(waiting.job.chain());
        large.gather_holders(waiting, &way, self.lanes.len());
        asking.and_then(|it| it.lane).into_iter().chain(before).for_each(|lane| large.found.add(lane, None));
        large.gather_free(waiting, &self.lanes, now);
        large.all.clear();
        let asked = self.common_terms(waiting, large.order.len(), others, now);
        let (mut best, mut known) = (Standing::Tried, None);
        for Found { lane: id, blocks } in large.found.lanes.iter().copied() {
            let at = usize::from(id.0);
            let Some(lane) = self.lanes.get(at).and_then(Option::as_ref).filter(|it| !it.draining) else {
                continue;
            };
            let its = standing(waiting, at, lane, now);
            if its > best {
                continue;
            }
            if its < best {
                best = its;
                large.all.clear();
            }
            let class = lane.spec.class;
            let costs = match known {
                Some((of, costs)) if of == class => costs,
                _ => known.insert((class, self.costs(class))).1,
            };
            let planned_s = match asking {
                Some(it) => large.places.before_s(id, it.turn),
                None => large.places.planned_s(id),
            };
            let hit = self.hit_of_many(waiting, id, blocks.unwrap_or_else(|| way.leading(id)));
            let candidate = LaneCandidate { id, lane, hit, backlog_s: lane.backlog_s(now) + planned_s };
            large.all.push(terms(&asked, &costs, candidate));
        }
    }

    fn common_terms<'a>(
        &self,
        waiting: &'a Waiting,
        instances: usize,
        others: usize,
        now: Seconds,
    ) -> CommonTerms<'a> {
        CommonTerms {
            prompt_tokens: waiting.job.prompt_tokens,
            shared_prefixes: &waiting.shared_prefixes,
            instances,
            pressure: pressure(others, instances),
            now,
        }
    }

    /// The terms of one lane, if nobody else waited.
    fn terms_of_many(
        &self,
        now: Seconds,
        waiting: &Waiting,
        way: &Way<'_>,
        PlannedLane { id, planned_s }: PlannedLane,
    ) -> Option<Terms> {
        let lane = self.lanes.get(usize::from(id.0))?.as_ref()?;
        let hit = self.hit_of_many(waiting, id, way.leading(id));
        let candidate = LaneCandidate { id, lane, hit, backlog_s: lane.backlog_s(now) + planned_s };
        let asked = self.common_terms(waiting, 1, 0, now);
        Some(terms(&asked, &self.costs(lane.spec.class), candidate))
    }

    fn hit_of_many(&self, waiting: &Waiting, lane: LaneId, believed_blocks: u32) -> Hit {
        let told = waiting.seen.told_by(lane).filter(|_| self.beliefs.named).unwrap_or(0);
        let blocks = if self.beliefs.history { believed_blocks } else { 0 };
        let own = blocks.saturating_mul(waiting.job.chain_tokens());
        Hit::of(&waiting.job, lane, told.max(own), self.beliefs.named)
    }

    /// The position of the best. Among equals, as among few lanes, it is one that has most of the
    /// prompt; of these one that is open, or where the request has its place already, so that plans
    /// are kept.
    fn best_of_many(&self, pass: &Pass<'_>, before: Option<LaneId>) -> Option<usize> {
        let all = &pass.large.all;
        let least_s = all.iter().map(|it| it.score_s).fold(f64::INFINITY, f64::min);
        let most_s = least_s + tie_s(least_s);
        let lane = |it: &Terms| self.lanes.get(usize::from(it.lane.0)).and_then(Option::as_ref);
        let open = |it: &Terms| lane(it).is_some_and(|lane| self.is_open(lane, pass.now));
        let has = |it: &Terms| (it.hit.any_tokens, it.hit.hbm_tokens, open(it), before == Some(it.lane));
        let close = || all.iter().enumerate().filter(|(_, it)| it.score_s <= most_s);
        let most = close().map(|(_, it)| has(it)).max();
        let tied: SmallVec<[usize; 16]> =
            close().filter(|(_, it)| Some(has(it)) == most).map(|(at, _)| at).collect();
        let turn = usize::try_from(self.turn % tied.len().max(1) as u64).unwrap_or(0);
        let best = tied.get(turn).copied()?;
        if all.get(best).is_some_and(open) {
            return Some(best);
        }
        let idle = all.iter().enumerate().filter(|(_, it)| lane(it).is_some_and(|lane| lane.requests() == 0));
        let sooner = |at: &usize| all.get(*at).map_or(f64::INFINITY, Terms::first_token_s);
        let soonest = idle.map(|(at, _)| at).min_by(|a, b| sooner(a).total_cmp(&sooner(b)));
        Some(soonest.filter(|at| sooner(at) < sooner(&best)).unwrap_or(best))
    }

    /// The least work that a request makes on some lane: one of those that hold most of it.
    pub(super) fn least_service_of_many(&self, large: &LargeFleet, waiting: &Waiting) -> Seconds {
        let way = self.residents.way(waiting.job.chain());
        let holder = way.longest_first().next().and_then(|node| node.holders.first());
        let told = waiting.seen.told_some.iter().max_by_key(|it| it.tokens);
        let near = waiting.job.pool.near.iter().max_by_key(|(_, tokens)| *tokens);
        let lanes = [
            holder.map(|holder| LaneId(holder.lane)),
            told.map(|it| it.lane),
            near.map(|(lane, _)| *lane),
            large.order.soonest().next(),
        ];
        let each = lanes.into_iter().flatten().filter_map(|id| {
            let lane = self.lanes.get(usize::from(id.0))?.as_ref().filter(|lane| !lane.draining)?;
            let hit = self.hit_of_many(waiting, id, way.leading(id));
            let service = lane.here(self.costs(lane.spec.class).service(waiting.job.prompt_tokens, hit));
            Some(service.prefill_s + service.restore_s)
        });
        each.fold(f64::INFINITY, f64::min)
    }
}

/// Facts beside a request that decide on its candidates.
#[derive(Clone, Copy, Debug)]
struct Circumstances {
    asking: Option<Asking>,
    /// The lane where it has its place already.
    before: Option<LaneId>,
    /// Number of other requests that wait.
    others: usize,
}

/// A lane, and the time for which the requests take that have their place there.
#[derive(Clone, Copy, Debug)]
struct PlannedLane {
    id: LaneId,
    planned_s: Seconds,
}

/// A request's turn, and the lane that asks it.
#[derive(Clone, Copy, Debug)]
struct Asking {
    turn: Turn,
    lane: Option<LaneId>,
}

#[cfg(test)]
mod tests;
