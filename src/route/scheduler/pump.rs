//! Walking the line: who goes where, now.

use smallvec::SmallVec;

use super::line::Waiting;
use super::sight::{Sight, hit};
use super::{Bind, Booking, CacheView, Commit, GivenBooking, NewRequest, PrefillScheduler, Ticket};
use crate::route::choose::{Candidate, Policy, RequestFacts, Standing, TieBreak, choose};
use crate::route::job::{LaneId, Seconds};
use crate::route::lane::{Lane, LaneBooking};
use crate::route::score::{CommonTerms, LaneCandidate, Terms, pressure, terms};

/// So many of the line are looked at: beyond it plans are guesses, and the walk must stay short.
const WINDOW: usize = 512;
/// Scores that differ by less are equal: what is predicted is not known better. In seconds, and as
/// a share.
const TIE_S: Seconds = 1e-3;
const TIE_SHARE: f64 = 0.02;
/// Weight of one commitment in their mean.
const MEAN_STEP: f64 = 0.05;
/// The cost of a step that is spared counts so many times for each that waits: a prefiller that
/// computes prompts one by one bears less, and a line that grows by that costs all who come.
const STEP_WORTH: f64 = 8.0;
/// A step holds no more than so many times the tokens that are given at any rate: 16 384, the
/// largest budget that vLLM takes by itself.
const STEP_BATCHES: u64 = 8;
/// The best that were not taken, for who asks why.
const RUNNERS_UP: usize = 3;

/// One walk: its moment, the source of cache reports, and random numbers.
struct Walk<'a> {
    now: Seconds,
    sight: &'a dyn CacheView,
    random: &'a mut dyn FnMut() -> u64,
    /// Outlooks by lane.
    outlooks: Vec<Option<LaneOutlook>>,
}

/// A prefiller in one walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneOutlook {
    /// Work that is committed to it, and planned for it, in seconds.
    backlog_s: Seconds,
    /// It takes something now.
    open: bool,
}

impl Walk<'_> {
    fn any_open(&self) -> bool {
        self.outlooks.iter().flatten().any(|lane| lane.open)
    }
}

impl PrefillScheduler {
    /// A request comes, or comes back: the same as [`arrive`](PrefillScheduler::arrive) or
    /// [`return_to_line`](PrefillScheduler::return_to_line) and then
    /// [`pump`](PrefillScheduler::pump), without a place in the line where nobody stands there and
    /// its prefiller is about to be free.
    ///
    /// # Errors
    /// The place in the line. It is to be pumped.
    pub fn try_assign(
        &mut self,
        new_request: NewRequest<'_>,
        now: Seconds,
        sight: &dyn CacheView,
        random: &mut dyn FnMut() -> u64,
    ) -> Result<Commit, Ticket> {
        let mut waiting = self.newcomer(new_request);
        self.ask(&mut waiting, Sight { now, view: sight });
        self.fit();
        if self.line.len() == 0 {
            self.waiting_each = 0.0;
            self.fade(now);
            if self.large.is_some() {
                return match self.assign_large(now, sight, &mut waiting) {
                    Some(commit) => Ok(commit),
                    None => Err(self.enqueue(waiting)),
                };
            }
            let mut walk = Walk { now, sight, random, outlooks: self.outlooks(now) };
            let finds_open = self.finds_open(&walk.outlooks, now) || !waiting.tried.is_empty();
            if walk.any_open()
                && finds_open
                && let Some(commit) = self.consider(&mut walk, &mut waiting, 0)
            {
                return Ok(commit);
            }
        }
        Err(self.enqueue(waiting))
    }

    /// Commits whom it can. To be called when somebody came, when a prefill ended, when prefillers
    /// came, went, failed or recovered, and at [`wake_s`](PrefillScheduler::wake_s).
    pub fn pump(
        &mut self,
        now: Seconds,
        sight: &dyn CacheView,
        random: &mut dyn FnMut() -> u64,
    ) -> Vec<Commit> {
        self.fade(now);
        self.fit();
        self.waiting_each = self.line.len().saturating_sub(1) as f64 / self.lanes.len().max(1) as f64;
        if self.large.is_some() {
            return self.pump_large(now, sight);
        }
        let mut commits: Vec<Commit> = Vec::new();
        let mut walk = Walk { now, sight, random, outlooks: self.outlooks(now) };
        // Lent out, so that the rest of the scheduler can be changed while it is walked.
        let mut line = std::mem::take(&mut self.line);
        let window = if self.late() { WINDOW } else { usize::MAX };
        let length = line.len();
        let mut finds_open = self.finds_open(&walk.outlooks, now);
        for waiting in line.first(window) {
            if !walk.any_open() {
                break;
            }
            if !finds_open && waiting.tried.is_empty() {
                continue;
            }
            let others = length - commits.len() - 1;
            if let Some(commit) = self.consider(&mut walk, waiting, others) {
                commits.push(commit);
                finds_open = self.finds_open(&walk.outlooks, now);
            }
        }
        for commit in &commits {
            line.leave(commit.ticket);
        }
        self.line = line;
        self.wake_s = self.next_wake(now);
        commits
    }

    /// Commits one who waits, with so many others, if its best place is about to be free; else
    /// plans it there.
    fn consider(&mut self, walk: &mut Walk<'_>, waiting: &mut Waiting, others: usize) -> Option<Commit> {
        let now = walk.now;
        let stale = |told_s: Seconds| walk.sight.asks_again() && now - told_s > self.settings.sight_s;
        if !waiting.job.is_elsewhere() && waiting.seen.told_s.is_none_or(stale) {
            self.ask(waiting, Sight { now, view: walk.sight });
        }
        self.look(waiting);
        let all = self.all_terms(waiting, now, &walk.outlooks, others);
        let tie_break = TieBreak { turn: self.turn, random: (walk.random)() };
        let at = self.best(waiting, &all, tie_break)?;
        let best = all.get(at).copied()?;
        let outlook = walk.outlooks.get_mut(usize::from(best.lane.0))?.as_mut()?;
        outlook.backlog_s += best.prefill_s;
        if !outlook.open {
            return None;
        }
        let commit = self.commit(now, waiting, best);
        let lane = self.lanes.get(usize::from(best.lane.0)).and_then(Option::as_ref);
        outlook.open = lane.is_some_and(|lane| self.is_open(lane, now));
        Some(Commit { others: runners_up(all, at).0, waiting: others, ..commit })
    }

    /// Forgets what engines have told by now.
    fn fade(&mut self, now: Seconds) {
        while self.fading.front().is_some_and(|(when, ..)| *when <= now) {
            let Some((_, lane, job, stamp)) = self.fading.pop_front() else { return };
            self.residents.forget(lane, job.chain(), stamp);
        }
    }

    /// Requests wait here until their place is free.
    pub(super) fn late(&self) -> bool {
        self.settings.bind == Bind::Late && self.settings.policy == Policy::Predicted
    }

    pub(super) fn outlooks(&self, now: Seconds) -> Vec<Option<LaneOutlook>> {
        let each =
            |lane: &Lane| LaneOutlook { backlog_s: lane.backlog_s(now), open: self.is_open(lane, now) };
        self.lanes.iter().map(|lane| lane.as_ref().filter(|lane| !lane.draining).map(each)).collect()
    }

    pub(super) fn is_open(&self, lane: &Lane, now: Seconds) -> bool {
        let settings = &self.settings;
        // One without a request of ours takes one in any case: what others gave it is a guess.
        !self.late()
            || lane.requests() == 0
            || lane.backlog_s(now) < settings.open_s
            || lane.work_tokens() < settings.batch_tokens
            || self.has_room_in_step(lane, now)
    }

    /// True if one more prompt had better be computed in the next step of a prefiller, with those
    /// that wait there: a step of their own costs those who wait here more than it spares these.
    fn has_room_in_step(&self, lane: &Lane, now: Seconds) -> bool {
        if self.waiting_each <= 0.0 || lane.work_tokens() >= STEP_BATCHES * self.settings.batch_tokens {
            return false;
        }
        let next_s = lane.queued_s();
        let is_ending = lane.backlog_s(now) - next_s < self.settings.open_s;
        is_ending && next_s < STEP_WORTH * self.waiting_each * self.costs(lane.spec.class).base_s
    }

    /// True if one that takes something now may be the choice of a request that has failed nowhere
    /// yet: who rests is none while others don't. Without a request it would be open as long as it
    /// rests, and the whole line be looked at in vain each time.
    fn finds_open(&self, outlooks: &[Option<LaneOutlook>], now: Seconds) -> bool {
        let lanes = || {
            self.lanes.iter().zip(outlooks).filter_map(|(lane, outlook)| lane.as_ref().zip(outlook.as_ref()))
        };
        let rests = |lane: &Lane| lane.standing(now, 0.0) == Standing::Resting;
        let all_rest = lanes().all(|(lane, _)| rests(lane));
        lanes().any(|(lane, outlook)| outlook.open && (all_rest || !rests(lane)))
    }

    /// The terms of every lane that may be chosen: those of the best standing.
    pub(super) fn all_terms(
        &self,
        waiting: &Waiting,
        now: Seconds,
        outlooks: &[Option<LaneOutlook>],
        others: usize,
    ) -> Vec<Terms> {
        let usable = || {
            let lanes = self.lanes.iter().zip(outlooks).enumerate();
            lanes.filter_map(|(at, (lane, outlook))| Some((at, lane.as_ref()?, (*outlook)?)))
        };
        let standings: SmallVec<[Standing; 64]> =
            usable().map(|(at, lane, _)| standing(waiting, at, lane, now)).collect();
        let Some(best) = standings.iter().min() else { return Vec::new() };
        let instances = standings.len();
        let asking = CommonTerms {
            prompt_tokens: waiting.job.prompt_tokens,
            shared_prefixes: &waiting.shared_prefixes,
            instances,
            pressure: if self.late() { pressure(others, instances) } else { 0.0 },
            now,
        };
        let mut all = Vec::with_capacity(instances);
        let mut known = None;
        for ((at, lane, outlook), standing) in usable().zip(&standings) {
            if standing != best {
                continue;
            }
            // Costs are put together from what was learned: once for each class, not for each lane.
            let class = lane.spec.class;
            let costs = match known {
                Some((of, costs)) if of == class => costs,
                _ => known.insert((class, self.costs(class))).1,
            };
            let id = LaneId(u16::try_from(at).unwrap_or(u16::MAX));
            let hit = hit(waiting, at, self.beliefs);
            let told_tokens = waiting.seen.held_tokens(at);
            let in_flight = hit.hbm_tokens > 0 && lane.computes(waiting.job.chain());
            let candidate = LaneCandidate { id, lane, hit, backlog_s: outlook.backlog_s };
            all.push(Terms { told_tokens, in_flight, ..terms(&asking, &costs, candidate) });
        }
        all
    }

    fn best(&self, waiting: &Waiting, all: &[Terms], tie_break: TieBreak) -> Option<usize> {
        if self.settings.policy == Policy::Predicted {
            let least = all.iter().map(|it| it.score_s).fold(f64::INFINITY, f64::min);
            let most_s = least + tie_s(least);
            let close = || all.iter().enumerate().filter(|(_, it)| it.score_s <= most_s);
            // Among equals the one that has most of it, and most of that in memory of its own, so
            // that a hit too short to count in seconds, or one that a pool spares the others, still
            // draws its like.
            let has = |it: &Terms| (it.hit.any_tokens, it.hit.hbm_tokens);
            let most = close().map(|(_, it)| has(it)).max();
            let tied = || close().filter(|(_, it)| Some(has(it)) == most);
            let turn = usize::try_from(tie_break.turn % tied().count().max(1) as u64).unwrap_or(0);
            return tied().nth(turn).map(|(at, _)| at);
        }
        let candidates: SmallVec<[Candidate; 32]> = all.iter().map(|it| self.candidate(it)).collect();
        let asked = RequestFacts { prompt_tokens: waiting.job.prompt_tokens, session: waiting.job.session };
        if let Some(rule) = self.settings.rule {
            return rule(&candidates, asked, tie_break);
        }
        choose(self.settings.policy, &candidates, asked, tie_break)
    }

    /// Loads that the policies of others look at.
    fn candidate(&self, terms: &Terms) -> Candidate {
        let resident_tokens = self.residents.held_tokens(terms.lane);
        let lane = self.lanes.get(usize::from(terms.lane.0)).and_then(Option::as_ref);
        lane.map_or(Candidate::default(), |lane| Candidate {
            work_tokens: lane.work_tokens(),
            held_tokens: lane.held_tokens,
            requests: lane.requests(),
            hit_tokens: terms.hit.hbm_tokens,
            resident_tokens,
            identity: lane.spec.identity,
            standing: Standing::Good,
        })
    }

    /// Books a prompt on a lane that another gateway chose, by its terms. A lane that is gone gets
    /// nothing.
    pub fn book(&mut self, now: Seconds, given: GivenBooking) -> Commit {
        let GivenBooking { ticket, since_s, job, terms } = given;
        let mut waiting = self.newcomer(NewRequest { since_s, job, tried: &[] });
        waiting.ticket = ticket.unwrap_or(waiting.ticket);
        self.commit(now, &waiting, terms)
    }

    pub(super) fn commit(&mut self, now: Seconds, waiting: &Waiting, best: Terms) -> Commit {
        self.count += 1;
        self.turn = self.turn.wrapping_add(1);
        let number = self.count;
        let stamp = self.residents.enter(best.lane, waiting.job.chain(), waiting.job.chain_tokens());
        if let Some(Some(lane)) = self.lanes.get_mut(usize::from(best.lane.0)) {
            let class_s = best.prefill_s / lane.slowness();
            let (prefill_s, hit, job) = (best.prefill_s, best.hit, waiting.job.clone());
            let tokens = job.prompt_tokens;
            let booked =
                LaneBooking { number, job, tokens, hit, prefill_s, class_s, committed_s: now, stamp };
            lane.commit(booked, best.restore_s, now);
            let step = if self.mean_prefill_s > 0.0 { MEAN_STEP } else { 1.0 };
            self.mean_prefill_s += step * (prefill_s - self.mean_prefill_s);
            self.offered.add(prefill_s);
            self.bookings.insert(number, best.lane);
        }
        self.touch(best.lane);
        Commit {
            ticket: waiting.ticket,
            job: waiting.job.clone(),
            booking: Booking(number),
            tokens: waiting.job.prompt_tokens,
            terms: best,
            others: SmallVec::new(),
            waited_s: now - waiting.since_s,
            waiting: 0,
        }
    }

    /// The first moment at which a lane opens by the passing of time.
    fn next_wake(&self, now: Seconds) -> Option<Seconds> {
        if self.line.len() == 0 {
            return None;
        }
        let open_s = self.settings.open_s;
        let lanes = self.lanes.iter().flatten().filter(|lane| !lane.draining);
        let opens = lanes.filter_map(|lane| {
            let after_s = lane.backlog_s(now) - open_s;
            // What the floor of a backlog keeps closed opens with the end of a prefill, not with
            // time.
            (after_s > 0.0 && lane.backlog_s(now + after_s + 1e-6) < open_s).then_some(now + after_s + 1e-6)
        });
        opens.min_by(f64::total_cmp)
    }
}

pub(super) fn standing(waiting: &Waiting, at: usize, lane: &Lane, now: Seconds) -> Standing {
    if waiting.tried.iter().any(|tried| usize::from(tried.0) == at) {
        Standing::Tried
    } else {
        lane.standing(now, draw(waiting.ticket, at))
    }
}

/// Between 0 and 1, evenly, and the same as long as a request waits.
pub(super) fn draw(ticket: Ticket, at: usize) -> f64 {
    let mixed = xxhash_rust::xxh3::xxh3_64_with_seed(&ticket.0.to_le_bytes(), at as u64);
    mixed as f64 / u64::MAX as f64
}

/// A score so much above the least is equal to it.
pub(super) fn tie_s(least_s: Seconds) -> Seconds {
    TIE_S.max(TIE_SHARE * least_s)
}

/// The best of all but the winner, best first; and the room that all took.
pub(super) fn runners_up(mut all: Vec<Terms>, winner: usize) -> (SmallVec<[Terms; 3]>, Vec<Terms>) {
    all.swap_remove(winner);
    let mut best: SmallVec<[Terms; RUNNERS_UP]> = SmallVec::new();
    for it in &all {
        let at = best.partition_point(|other| other.score_s <= it.score_s);
        if at < RUNNERS_UP {
            best.truncate(RUNNERS_UP - 1);
            best.insert(at, *it);
        }
    }
    (best, all)
}
