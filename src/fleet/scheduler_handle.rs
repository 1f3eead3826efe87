//! Lock, clock and wake-ups around the pure scheduler.
//!
//! The scheduler runs at each arrival, each end of a prefill, each change of the fleet, and each
//! second while requests wait ([`SchedulerHandle::tick`]). Decisions are made under a short lock;
//! their receivers are woken outside of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::fleet::HostNames;
use crate::fleet::instance::{Instance, InstanceId, Rank};
use crate::fleet::member::Member;
use crate::fleet::reservation::Reservation;
use crate::fleet::waiting::{InLine, Waiting};
use crate::route::{
    Beliefs, Booking, CacheView, Commit, Done, Job, LaneHealth, LaneId, LaneSpec, NewRequest,
    PrefillScheduler, Reported, SchedulerSettings, Seconds, Terms, Ticket,
};

/// Time between looks at all lanes while requests wait: rests end without notice.
const RECHECK: Duration = Duration::from_secs(1);

/// Lock, clock and wake-ups around the pure scheduler.
#[derive(Debug)]
pub struct SchedulerHandle {
    /// The scheduler's seconds are counted from then.
    born: Instant,
    state: Mutex<State>,
    /// Somebody waits, or the next moment to look is another.
    news: Notify,
}

struct State {
    board: PrefillScheduler,
    /// Members by their lane.
    members: Vec<Option<Member>>,
    waiters: HashMap<Ticket, oneshot::Sender<Placement>>,
    cache_reports: Option<Arc<dyn CacheReports>>,
    hosts: HostNames,
    /// Of the random numbers.
    seed: u64,
}

/// Source of what each prefiller holds in memory of its own (KV events).
pub trait CacheReports: Send + Sync {
    /// Leading tokens of a prompt that each reporting engine holds, ordered by instance and rank.
    fn held(&self, job: &Job) -> Vec<Holding>;
}

/// Blocks that one rank of a prefiller says that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Identity of the prefiller.
    pub instance: InstanceId,
    /// Its rank, 0 where it has no others.
    pub rank: u32,
    /// Leading tokens of the prompt.
    pub tokens: u32,
}

/// Reports of prefillers' memory, by lane.
struct ByLane<'a> {
    cache_reports: &'a dyn CacheReports,
    members: &'a [Option<Member>],
}

/// Conditions under which an instance is used from now on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recovery {
    /// Nothing for so long, if there are others.
    pub(super) rest: Duration,
    /// After that one request at a time.
    pub(super) on_trial: bool,
    /// It has its whole share after this time.
    pub(super) warm: Duration,
    /// The least share meanwhile.
    pub(super) share: f64,
}

/// A place on a prefiller.
#[derive(Debug)]
pub struct Placement {
    /// It is reserved.
    pub reservation: Reservation,
    /// Reason why it was chosen.
    pub choice: Choice,
}

/// A decision, to be explained and to be compared with what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The winner's terms.
    pub terms: Terms,
    /// The next best, best first, and who they are.
    pub others: SmallVec<[(Member, Terms); 3]>,
    /// Time for which the request waited for it.
    pub waited: Duration,
    /// Number of other requests that waited then.
    pub waiting: usize,
}

/// A commitment on the scheduler, for the reservation that stands for it.
#[derive(Debug)]
pub(super) struct Commitment {
    scheduler: Arc<SchedulerHandle>,
    booking: Booking,
    lane: LaneId,
    /// Tokens of the prompt.
    tokens: i64,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("board", &self.board).finish_non_exhaustive()
    }
}

impl SchedulerHandle {
    pub(super) fn new(settings: SchedulerSettings, seed: u64) -> SchedulerHandle {
        let state = State {
            board: PrefillScheduler::new(settings),
            members: Vec::new(),
            waiters: HashMap::new(),
            cache_reports: None,
            hosts: HostNames::new(),
            seed,
        };
        SchedulerHandle { born: Instant::now(), state: Mutex::new(state), news: Notify::new() }
    }

    /// Sets the source of what prefillers hold. Without one the scheduler believes its own history.
    pub fn set_cache_reports(&self, cache_reports: Arc<dyn CacheReports>) {
        self.lock().cache_reports = Some(cache_reports);
    }

    /// A pool calls hosts by these names.
    pub fn name_hosts(&self, hosts: HostNames) {
        self.lock().hosts = hosts;
    }

    /// The prefillers on what a pool calls a host.
    pub fn lanes_on(&self, host: &str) -> SmallVec<[LaneId; 2]> {
        let state = self.lock();
        let host = state.hosts.get(host).map_or(host, String::as_str);
        let members = (0u16..).zip(&state.members);
        let here =
            members.filter(|(_, it)| it.as_ref().is_some_and(|it| it.instance.endpoint().host == host));
        here.map(|(lane, _)| LaneId(lane)).collect()
    }

    pub(super) fn join(self: &Arc<Self>, instance: &Arc<Instance>, rank: Option<Rank>, spec: LaneSpec) {
        {
            let mut state = self.lock();
            let Some(lane) = state.board.join(spec) else { return };
            let at = usize::from(lane.0);
            if state.members.len() <= at {
                state.members.resize(at + 1, None);
            }
            state.members[at] = Some(Member { instance: instance.clone(), rank });
        }
        self.pump();
    }

    pub(super) fn leave(self: &Arc<Self>, id: InstanceId) {
        self.with(id, |state, lane| {
            state.board.close(lane);
            state.members[usize::from(lane.0)] = None;
        });
    }

    pub(super) fn drain(self: &Arc<Self>, id: InstanceId, draining: bool) {
        self.with(id, |state, lane| state.board.drain(lane, draining));
    }

    /// Takes over the health of an instance, as far as its legs and probes tell.
    pub(super) fn health(self: &Arc<Self>, id: InstanceId, how: &Recovery) {
        let now = self.now();
        let health = LaneHealth {
            resting_until_s: now + how.rest.as_secs_f64(),
            on_trial: how.on_trial,
            warm_from_s: now,
            warm_until_s: now + how.warm.as_secs_f64(),
            warm_share: how.share,
        };
        self.with(id, |state, lane| state.board.health(lane, health));
    }

    /// Its cache is empty.
    pub fn emptied(self: &Arc<Self>, id: InstanceId) {
        self.with(id, |state, lane| state.board.emptied(lane));
    }

    /// Others gave one of its ranks, or all of it, so many requests, as its own metrics tell.
    pub fn set_external_requests(self: &Arc<Self>, id: InstanceId, rank: Option<Rank>, requests: f64) {
        self.with(id, |state, lane| {
            if state.rank(lane) == rank {
                state.board.set_external_requests(lane, requests);
            }
        });
    }

    /// Sources of predictions that are used now.
    pub fn beliefs(&self) -> Beliefs {
        self.lock().board.beliefs()
    }

    /// Sets the sources of predictions that are used from now on.
    pub fn believe(&self, beliefs: Beliefs) {
        self.lock().board.believe(beliefs);
    }

    /// Changes all lanes of a prefiller.
    fn with(self: &Arc<Self>, id: InstanceId, mut change: impl FnMut(&mut State, LaneId)) {
        {
            let mut state = self.lock();
            for lane in state.lanes(id) {
                change(&mut state, lane);
            }
        }
        self.pump();
    }

    /// Gives a prefiller to who finds nobody in line and one about to be free; others stand in
    /// line. `since` is when the request came; it is not placed on those it has `tried` unless
    /// there are no others. None when there is no prefiller.
    pub fn place(self: &Arc<Self>, job: Arc<Job>, since: Instant, tried: &[InstanceId]) -> Option<Waiting> {
        let now = self.now();
        let in_line = {
            let mut state = self.lock();
            if !state.serves() {
                return None;
            }
            let since_s = since.saturating_duration_since(self.born).as_secs_f64();
            let tried: SmallVec<[LaneId; 4]> = tried.iter().flat_map(|id| state.lanes(*id)).collect();
            match state.try_assign(NewRequest { since_s, job, tried: &tried }, now) {
                Ok(commit) => return Some(Waiting::Placed(self.placed(&state, commit))),
                Err(ticket) => {
                    let (waiter, placed) = oneshot::channel();
                    state.waiters.insert(ticket, waiter);
                    InLine { scheduler: self.clone(), ticket, placed }
                }
            }
        };
        self.pump();
        Some(Waiting::InLine(in_line))
    }

    /// Costs of a request on each prefiller, best first.
    pub fn explain(&self, job: &Arc<Job>) -> Vec<(String, Terms)> {
        let now = self.now();
        let state = self.lock();
        let all = match &state.cache_reports {
            Some(cache_reports) => {
                let sight = ByLane { cache_reports: cache_reports.as_ref(), members: &state.members };
                state.board.explain(now, job, &sight)
            }
            None => state.board.explain(now, job, &()),
        };
        all.into_iter().map(|terms| (state.name(terms.lane), terms)).collect()
    }

    /// Predicted seconds until a request that comes now has a prefiller, the line included.
    pub fn wait_s(&self) -> Option<Seconds> {
        let now = self.now();
        let state = self.lock();
        let lanes = (0u16..)
            .zip(&state.members)
            .filter(|(_, it)| it.as_ref().is_some_and(|it| !it.instance.draining()));
        let backlogs = lanes.filter_map(|(lane, _)| Some(state.board.load(LaneId(lane), now)?.0));
        Some(backlogs.reduce(f64::min)? + state.board.line_s())
    }

    /// Predicted seconds until a request that comes now would be begun, and seconds of its own, on
    /// the prefiller where its first token would come soonest. None when there is no prefiller.
    pub fn predict(&self, job: &Arc<Job>) -> Option<(Seconds, Seconds)> {
        let line_s = self.lock().board.line_s();
        let all = self.explain(job);
        let each = all.iter().map(|(_, terms)| (terms.wait_s, terms.prefill_s + terms.restore_s));
        let (wait_s, own_s) = each.min_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1)))?;
        Some((wait_s + line_s, own_s))
    }

    /// Predicted seconds until each prefiller, or each rank of one, could begin with something new.
    pub fn backlogs(&self) -> Vec<(InstanceId, Seconds)> {
        let (now, state) = (self.now(), self.lock());
        let lanes = (0u16..).zip(state.members.iter().map(Option::as_ref));
        let ends_in = |(lane, it): (u16, Option<&Member>)| {
            Some((it?.instance.id(), state.board.load(LaneId(lane), now)?.0))
        };
        lanes.filter_map(ends_in).collect()
    }

    /// Number of requests that are with prefillers, as far as the scheduler knows.
    pub fn booked(&self) -> u32 {
        let now = self.now();
        let state = self.lock();
        let lanes = (0u16..).map(LaneId).take(state.members.len());
        lanes.filter_map(|lane| state.board.load(lane, now)).map(|(_, requests)| requests).sum()
    }

    /// Number of requests that wait.
    pub fn waiting(&self) -> usize {
        self.lock().board.waiting()
    }

    /// Schedules whenever time alone may have opened a place, and never returns.
    pub async fn tick(self: Arc<Self>) {
        loop {
            let wait = {
                let state = self.lock();
                let wake_s = state.board.wake_s().map(|wake_s| wake_s - self.now());
                (state.board.waiting() > 0).then(|| {
                    wake_s
                        .map_or(RECHECK, |s| Duration::try_from_secs_f64(s).unwrap_or_default())
                        .min(RECHECK)
                })
            };
            match wait {
                None => self.news.notified().await,
                Some(wait) => {
                    let _ = tokio::time::timeout(wait, self.news.notified()).await;
                }
            }
            // It knows who is left: told of it, it would do nothing else.
            self.serve();
        }
    }

    fn pump(self: &Arc<Self>) {
        if self.serve() {
            self.news.notify_one();
        }
    }

    /// Gives each request that can be placed its prefiller. True if requests are left.
    fn serve(self: &Arc<Self>) -> bool {
        let now = self.now();
        let mut served: SmallVec<[(oneshot::Sender<Placement>, Placement); 4]> = SmallVec::new();
        let mut left: Vec<oneshot::Sender<Placement>> = Vec::new();
        // A reservation is returned under the lock: none may be dropped while it is held.
        let mut unclaimed: Vec<Placement> = Vec::new();
        let waiting = {
            let mut state = self.lock();
            for commit in state.pump(now) {
                let waiter = state.waiters.remove(&commit.ticket);
                match (waiter, self.placed(&state, commit)) {
                    (Some(waiter), Some(placed)) => served.push((waiter, placed)),
                    (waiter, placed) => {
                        left.extend(waiter);
                        unclaimed.extend(placed);
                    }
                }
            }
            if !state.serves() {
                // No prefiller will serve them: the end of their channels says so.
                let gone: Vec<Ticket> = state.waiters.keys().copied().collect();
                for ticket in gone {
                    state.board.cancel(ticket);
                    left.extend(state.waiters.remove(&ticket));
                }
            }
            state.board.waiting() > 0
        };
        drop((left, unclaimed));
        for (waiter, placed) in served {
            // A request that has left gives its reservation back here, outside the lock.
            let _ = waiter.send(placed);
        }
        waiting
    }

    fn placed(self: &Arc<Self>, state: &State, commit: Commit) -> Option<Placement> {
        let Commit { booking, terms, others, waited_s, waiting, tokens, .. } = commit;
        let Member { instance, rank } = state.member(terms.lane)?.clone();
        let booked =
            Commitment { scheduler: self.clone(), booking, lane: terms.lane, tokens: i64::from(tokens) };
        let reservation = Reservation::booked(instance, rank, u64::from(tokens), booked);
        let others = others.into_iter().filter_map(|terms| Some((state.member(terms.lane)?.clone(), terms)));
        let others = others.collect();
        let waited = Duration::try_from_secs_f64(waited_s).unwrap_or_default();
        Some(Placement { reservation, choice: Choice { terms, others, waited, waiting } })
    }

    fn done(self: &Arc<Self>, booked: &Commitment, done: Done, at: Instant) {
        {
            let at_s = at.saturating_duration_since(self.born).as_secs_f64();
            let mut state = self.lock();
            state.board.done(at_s, booked.booking, done);
        }
        self.pump();
    }

    /// Somebody does not wait any more.
    pub(super) fn cancel(&self, ticket: Ticket) {
        let mut state = self.lock();
        state.board.cancel(ticket);
        state.waiters.remove(&ticket);
    }

    fn now(&self) -> Seconds {
        self.born.elapsed().as_secs_f64()
    }

    /// A panic elsewhere leaves the scheduler usable: at worst a booking too many.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn lanes(&self, id: InstanceId) -> SmallVec<[LaneId; 2]> {
        let members = (0u16..).zip(&self.members);
        let its = members.filter(|(_, member)| member.as_ref().is_some_and(|it| it.instance.id() == id));
        its.map(|(lane, _)| LaneId(lane)).collect()
    }

    fn member(&self, lane: LaneId) -> Option<&Member> {
        self.members.get(usize::from(lane.0))?.as_ref()
    }

    fn rank(&self, lane: LaneId) -> Option<Rank> {
        self.member(lane)?.rank
    }

    fn name(&self, lane: LaneId) -> String {
        self.member(lane).map_or_else(String::new, Member::name)
    }

    fn serves(&self) -> bool {
        self.members.iter().flatten().any(|member| !member.instance.draining())
    }

    fn pump(&mut self, now: Seconds) -> Vec<Commit> {
        self.decide(|board, sight, random| board.pump(now, sight, random))
    }

    fn try_assign(&mut self, new_request: NewRequest<'_>, now: Seconds) -> Result<Commit, Ticket> {
        self.decide(|board, sight, random| board.try_assign(new_request, now, sight, random))
    }

    /// Has the scheduler decide, by what is told of caches and with dice.
    fn decide<T>(
        &mut self,
        decision: impl FnOnce(&mut PrefillScheduler, &dyn CacheView, &mut dyn FnMut() -> u64) -> T,
    ) -> T {
        let State { board, cache_reports, members, seed, .. } = self;
        let mut random = || {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *seed >> 16
        };
        match cache_reports {
            Some(cache_reports) => {
                decision(board, &ByLane { cache_reports: cache_reports.as_ref(), members }, &mut random)
            }
            None => decision(board, &(), &mut random),
        }
    }
}

impl CacheView for ByLane<'_> {
    fn hbm_tokens(&self, job: &Job, out: &mut [Option<u32>]) {
        let told = self.cache_reports.held(job);
        for (place, member) in out.iter_mut().zip(self.members) {
            let Some(Member { instance, rank }) = member else { continue };
            let first = told.partition_point(|it| it.instance < instance.id());
            let its = told[first..].iter().take_while(|it| it.instance == instance.id());
            // Of an engine that chooses among its ranks itself, the one that holds most counts.
            let those = its.filter(|it| rank.is_none_or(|rank| u32::from(rank) == it.rank));
            *place = those.map(|it| it.tokens).max();
        }
    }
}

impl Commitment {
    /// The prompt was computed then, its KV is held for a decoder.
    pub(super) fn computed(&self, at: Instant, reported: Reported) {
        self.scheduler.lock().board.hold(self.lane, self.tokens);
        self.scheduler.done(self, Done::Computed(reported), at);
    }

    /// The prompt is computed, nobody knows since when, and nothing is held.
    pub(super) fn computed_unseen(&self) {
        self.scheduler.done(self, Done::Unseen, Instant::now());
    }

    /// The prefill ended without an answer.
    pub(super) fn failed(&self) {
        self.scheduler.done(self, Done::Failed, Instant::now());
    }

    /// Records that the KV was given back.
    pub(super) fn let_go(&self) {
        self.scheduler.lock().board.hold(self.lane, -self.tokens);
    }
}
