//! Lock, clock and wake-ups around the pure scheduler.
//!
//! The scheduler runs at each arrival, each end of a prefill, each change of the fleet, and each
//! second while requests wait ([`SchedulerHandle::tick`]). Decisions are made under a short lock;
//! their receivers are woken outside of it. Of those who want it to run at the same time, one runs
//! it for all. What engines told of their caches is looked up before the lock is taken.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::fleet::HostNames;
use crate::fleet::commitment::Commitment;
use crate::fleet::instance::{Instance, InstanceId, Rank};
use crate::fleet::lane_members::{AskedAhead, LaneMembers};
use crate::fleet::member::Member;
use crate::fleet::peers::PeerSender;
use crate::fleet::reservation::Reservation;
use crate::fleet::turns::Turns;
use crate::fleet::waiting::{InLine, Waiting};
use crate::route::shared::{SharedScheduler, Sources};
use crate::route::{
    Beliefs, Booking, Commit, Done, Job, LaneHealth, LaneId, LaneSpec, MAX_LANES, NewRequest, PrefillCosts,
    SchedulerSettings, Seconds, Terms, Ticket,
};

/// Time between looks at all lanes while requests wait: rests end without notice.
const RECHECK: Duration = Duration::from_secs(1);
/// Requests that wait of which is asked again, each time that the scheduler runs, what engines
/// hold.
const REFRESHED: usize = 8;

/// Lock, clock and wake-ups around the pure scheduler.
#[derive(Debug)]
pub struct SchedulerHandle {
    /// The scheduler's seconds are counted from then.
    born: Instant,
    state: Mutex<State>,
    members: ArcSwap<LaneMembers>,
    cache_reports: OnceLock<Arc<dyn CacheReports>>,
    /// Way to the other gateways of the fleet, if there are any.
    pub(super) peers: OnceLock<PeerSender>,
    /// Turns of those who run the scheduler.
    turns: Turns,
    /// The next moment to look is earlier than it was.
    news: Notify,
}

pub(super) struct State {
    pub(super) board: SharedScheduler,
    waiters: HashMap<Ticket, oneshot::Sender<Placement>>,
    /// The moment until which [`SchedulerHandle::tick`] sleeps, if it does not sleep for good.
    looks_s: Option<Seconds>,
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

impl State {
    /// The next moment at which time alone may change something for those who wait.
    fn wakes_s(&self) -> Option<Seconds> {
        let wakes = self.board.board().wake_s().into_iter().chain(self.board.next_pass_s());
        wakes.min_by(f64::total_cmp)
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("board", &self.board).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for dyn CacheReports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CacheReports")
    }
}

impl SchedulerHandle {
    pub(super) fn new(settings: SchedulerSettings, seed: u64) -> SchedulerHandle {
        let board = SharedScheduler::new(settings);
        let state = State { board, waiters: HashMap::new(), looks_s: None, seed };
        SchedulerHandle {
            born: Instant::now(),
            state: Mutex::new(state),
            members: ArcSwap::default(),
            cache_reports: OnceLock::new(),
            peers: OnceLock::new(),
            turns: Turns::default(),
            news: Notify::new(),
        }
    }

    /// Sets the source of what prefillers hold, once. Without one the scheduler believes its own
    /// history.
    pub fn set_cache_reports(&self, cache_reports: Arc<dyn CacheReports>) {
        let _ = self.cache_reports.set(cache_reports);
    }

    /// A pool calls hosts by these names.
    pub fn name_hosts(&self, hosts: HostNames) {
        let _state = self.lock();
        self.change_members(|members| members.host_names = hosts);
    }

    /// The prefillers on what a pool calls a host.
    pub fn lanes_on(&self, host: &str) -> SmallVec<[LaneId; 2]> {
        self.members.load().on(host).into()
    }

    pub(super) fn join(self: &Arc<Self>, instance: &Arc<Instance>, rank: Option<Rank>, spec: LaneSpec) {
        {
            let mut state = self.lock();
            let Some(lane) = state.board.join(spec) else {
                return tracing::warn!(engine = %instance.place_name(rank), "more than {MAX_LANES} lanes: it is not used");
            };
            let member = Member { instance: instance.clone(), rank };
            self.change_members(|members| members.put(lane, member));
        }
        self.pump();
    }

    /// Changes the members, under the lock of the state.
    fn change_members(&self, change: impl FnOnce(&mut LaneMembers)) {
        let mut members = LaneMembers::clone(&self.members.load());
        change(&mut members);
        self.members.store(Arc::new(members));
    }

    pub(super) fn leave(self: &Arc<Self>, id: InstanceId) {
        let mut state = self.lock();
        self.members.load().of(id).iter().for_each(|lane| state.board.close(*lane));
        self.change_members(|members| members.remove(id));
        drop(state);
        self.pump();
    }

    pub(super) fn drain(self: &Arc<Self>, id: InstanceId, draining: bool) {
        self.with(id, |state, lane| state.board.board_mut().drain(lane, draining));
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
        self.with(id, |state, lane| state.board.board_mut().health(lane, health));
    }

    /// Its cache is empty.
    pub fn emptied(self: &Arc<Self>, id: InstanceId) {
        self.with(id, |state, lane| state.board.board_mut().emptied(lane));
    }

    /// Others gave one of its ranks, or all of it, so many requests, as its own metrics tell.
    pub fn set_external_requests(self: &Arc<Self>, id: InstanceId, rank: Option<Rank>, requests: f64) {
        let (now, members) = (self.now(), self.members.load());
        self.with(id, |state, lane| {
            if members.get(lane).is_some_and(|its| its.rank == rank) {
                state.board.set_external_requests(now, lane, requests);
            }
        });
    }

    /// True if there is a prefiller that may be given requests.
    pub fn serves(&self) -> bool {
        self.members.load().serves()
    }

    /// Sources of predictions that are used now.
    pub fn beliefs(&self) -> Beliefs {
        self.lock().board.board().beliefs()
    }

    /// Sets the sources of predictions that are used from now on.
    pub fn believe(&self, beliefs: Beliefs) {
        self.lock().board.board_mut().believe(beliefs);
    }

    /// Changes all lanes of a prefiller.
    fn with(self: &Arc<Self>, id: InstanceId, mut change: impl FnMut(&mut State, LaneId)) {
        {
            let mut state = self.lock();
            for lane in self.members.load().of(id) {
                change(&mut state, *lane);
            }
        }
        self.pump();
    }

    /// Gives a prefiller to who finds nobody in line and one about to be free; others stand in
    /// line. `since` is when the request came; it is not placed on those it has `tried` unless
    /// there are no others. None when there is no prefiller.
    pub fn place(self: &Arc<Self>, job: Arc<Job>, since: Instant, tried: &[InstanceId]) -> Option<Waiting> {
        let now = self.now();
        let members = self.members.load();
        if !members.serves() {
            return None;
        }
        let told = self.cache_reports.get().map(|reports| members.told(reports.as_ref(), &job));
        let since_s = since.saturating_duration_since(self.born).as_secs_f64();
        let tried: SmallVec<[LaneId; 4]> = tried.iter().flat_map(|id| members.of(*id)).copied().collect();
        let in_line = {
            let mut state = self.lock();
            let new_request = NewRequest { since_s, job, tried: &tried };
            let State { board, seed, .. } = &mut *state;
            let random = &mut || random(seed);
            let assigned = match &told {
                Some(view) => board.try_assign(new_request, Sources { now, view, random }),
                None => board.try_assign(new_request, Sources { now, view: &(), random }),
            };
            self.tell_peers(board);
            match assigned {
                Ok(commit) => return Some(Waiting::Placed(self.placed(&members, commit))),
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
        let members = self.members.load();
        let name = |lane| members.get(lane).map_or_else(String::new, Member::name);
        let mut all = self.weigh(job, &members);
        all.sort_by(|a, b| a.score_s.total_cmp(&b.score_s));
        all.into_iter().map(|terms| (name(terms.lane), terms)).collect()
    }

    fn weigh(&self, job: &Arc<Job>, members: &LaneMembers) -> Vec<Terms> {
        let told = self.cache_reports.get().map(|reports| members.told(reports.as_ref(), job));
        let (now, state) = (self.now(), self.lock());
        match &told {
            Some(told) => state.board.board().weigh(now, job, told),
            None => state.board.board().weigh(now, job, &()),
        }
    }

    /// Predicted seconds until a request that comes now has a prefiller, the line included.
    pub fn wait_s(&self) -> Option<Seconds> {
        let members = self.members.load();
        let lanes = members.lanes().filter(|(_, it)| !it.instance.draining());
        let (now, state) = (self.now(), self.lock());
        let backlogs = lanes.filter_map(|(lane, _)| Some(state.board.board().load(lane, now)?.0));
        Some(backlogs.reduce(f64::min)? + state.board.line_s())
    }

    /// Predicted seconds until a request that comes now would be begun, and seconds of its own, on
    /// the prefiller where its first token would come soonest. None when there is no prefiller.
    pub fn predict(&self, job: &Arc<Job>) -> Option<(Seconds, Seconds)> {
        let line_s = self.lock().board.line_s();
        let all = self.weigh(job, &self.members.load());
        let each = all.iter().map(|terms| (terms.wait_s, terms.prefill_s + terms.restore_s));
        let (wait_s, own_s) = each.min_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1)))?;
        Some((wait_s + line_s, own_s))
    }

    /// Known costs of computing prompts.
    pub(super) fn costs(&self) -> PrefillCosts {
        self.lock().board.board().costs(0)
    }

    /// Predicted seconds until each prefiller, or each rank of one, could begin with something new.
    pub fn backlogs(&self) -> Vec<(InstanceId, Seconds)> {
        let (now, members, state) = (self.now(), self.members.load(), self.lock());
        let ends_in =
            |(lane, it): (LaneId, &Member)| Some((it.instance.id(), state.board.board().load(lane, now)?.0));
        members.lanes().filter_map(ends_in).collect()
    }

    /// Number of requests that are with prefillers, as far as the scheduler knows.
    pub fn booked(&self) -> u32 {
        let (now, members, state) = (self.now(), self.members.load(), self.lock());
        let loads = members.lanes().filter_map(|(lane, _)| state.board.board().load(lane, now));
        loads.map(|(_, requests)| requests).sum()
    }

    /// Number of requests that wait.
    pub fn waiting(&self) -> usize {
        self.lock().board.waiting()
    }

    /// Schedules whenever time alone may have opened a place, and never returns.
    pub async fn tick(self: Arc<Self>) {
        loop {
            let wait = {
                let mut state = self.lock();
                let now = self.now();
                let waits = state.board.waiting() > 0;
                let most_s = now + RECHECK.as_secs_f64();
                state.looks_s = waits.then(|| state.wakes_s().map_or(most_s, |wakes_s| wakes_s.min(most_s)));
                state.looks_s.map(|looks_s| Duration::try_from_secs_f64(looks_s - now).unwrap_or_default())
            };
            // Whoever gives news has run the scheduler: only the next moment is another.
            let is_time = match wait {
                None => {
                    self.news.notified().await;
                    false
                }
                Some(wait) => tokio::time::timeout(wait, self.news.notified()).await.is_err(),
            };
            if is_time {
                self.run();
            }
        }
    }

    /// Runs the scheduler, or leaves it to who does so already.
    pub(super) fn pump(self: &Arc<Self>) {
        if self.run() {
            self.news.notify_one();
        }
    }

    /// Does the same. True if the next moment to look is earlier than [`tick`](Self::tick) thinks.
    fn run(self: &Arc<Self>) -> bool {
        let mut sooner = false;
        self.turns.take(|| sooner = self.serve());
        sooner
    }

    /// Asks again what engines hold of the prompts of those in front, outside of the lock.
    fn refresh(&self) {
        let Some(reports) = self.cache_reports.get() else { return };
        let stale = self.lock().board.board().stale(self.now(), REFRESHED);
        if stale.is_empty() {
            return;
        }
        let members = self.members.load();
        let told = stale.into_iter().map(|(ticket, job)| (ticket, members.told(reports.as_ref(), &job)));
        let told: SmallVec<[_; REFRESHED]> = told.collect();
        let (now, mut state) = (self.now(), self.lock());
        told.iter().for_each(|(ticket, told)| state.board.board_mut().tell(*ticket, now, told));
    }

    /// Gives each request that can be placed its prefiller. True if requests are left, and the next
    /// moment to look is earlier than was thought.
    fn serve(self: &Arc<Self>) -> bool {
        self.refresh();
        let now = self.now();
        let mut served: SmallVec<[(oneshot::Sender<Placement>, Placement); 4]> = SmallVec::new();
        let mut left: Vec<oneshot::Sender<Placement>> = Vec::new();
        // A reservation is returned under the lock: none may be dropped while it is held.
        let mut unclaimed: Vec<Placement> = Vec::new();
        let sooner = {
            let mut state = self.lock();
            let members = self.members.load();
            let State { board, seed, .. } = &mut *state;
            let random = &mut || random(seed);
            board.pass(now);
            let commits = match self.cache_reports.get() {
                Some(_) => board.pump(Sources { now, view: &AskedAhead, random }),
                None => board.pump(Sources { now, view: &(), random }),
            };
            self.tell_peers(board);
            for commit in commits {
                let waiter = state.waiters.remove(&commit.ticket);
                match (waiter, self.placed(&members, commit)) {
                    (Some(waiter), Some(placed)) => served.push((waiter, placed)),
                    (waiter, placed) => {
                        left.extend(waiter);
                        unclaimed.extend(placed);
                    }
                }
            }
            if !members.serves() {
                // No prefiller will serve them: the end of their channels says so.
                let gone: Vec<Ticket> = state.waiters.keys().copied().collect();
                for ticket in gone {
                    state.board.cancel(ticket);
                    left.extend(state.waiters.remove(&ticket));
                }
            }
            let wakes_s = state.wakes_s().unwrap_or(f64::INFINITY);
            state.board.waiting() > 0 && state.looks_s.is_none_or(|looks_s| wakes_s < looks_s)
        };
        drop((left, unclaimed));
        for (waiter, placed) in served {
            // A request that has left gives its reservation back here, outside the lock.
            let _ = waiter.send(placed);
        }
        sooner
    }

    fn placed(self: &Arc<Self>, members: &LaneMembers, commit: Commit) -> Option<Placement> {
        let Commit { booking, terms, others, waited_s, waiting, tokens, .. } = commit;
        let Member { instance, rank } = members.get(terms.lane)?.clone();
        let booked =
            Commitment { scheduler: self.clone(), booking, lane: terms.lane, tokens: i64::from(tokens) };
        let reservation = Reservation::booked(instance, rank, u64::from(tokens), booked);
        let others = others.into_iter().filter_map(|terms| Some((members.get(terms.lane)?.clone(), terms)));
        let others = others.collect();
        let waited = Duration::try_from_secs_f64(waited_s).unwrap_or_default();
        Some(Placement { reservation, choice: Choice { terms, others, waited, waiting } })
    }

    /// A prefill ended, then.
    pub(super) fn done(self: &Arc<Self>, booking: Booking, done: Done, at: Instant) {
        {
            let at_s = at.saturating_duration_since(self.born).as_secs_f64();
            let mut state = self.lock();
            state.board.done(at_s, booking, done);
            self.tell_peers(&mut state.board);
        }
        self.pump();
    }

    /// Somebody does not wait any more.
    pub(super) fn cancel(&self, ticket: Ticket) {
        let mut state = self.lock();
        state.board.cancel(ticket);
        self.tell_peers(&mut state.board);
        state.waiters.remove(&ticket);
    }

    pub(super) fn now(&self) -> Seconds {
        self.born.elapsed().as_secs_f64()
    }

    /// A panic elsewhere leaves the scheduler usable: at worst a booking too many.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next random number.
fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 16
}
