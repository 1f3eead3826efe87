//! The prefill scheduler: requests that wait for a prefiller, and the work of each prefiller.
//!
//! Requests are bound late: they wait here, not in an engine's queue, until the place that is best
//! for them is about to be free. Then the newest knowledge decides, short requests need not stand
//! behind long ones, and nothing is regretted. A request whose best place is busy keeps a place
//! planned there and takes no worse one. [`Bind::Arrival`] sends each request on at once, by the
//! same scores.
//!
//! The order is by slack (`slack`): short ones go first, those that are due soon go sooner, and
//! everybody's turn comes.

mod done;
mod large;
mod line;
mod pump;
mod sight;
mod slack;
mod workload;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use smallvec::SmallVec;

use super::choose::{Policy, Rule};
use super::cost::PrefillCosts;
use super::job::{Job, LaneId, MAX_LANES, Seconds};
use super::lane::{Lane, LaneHealth, LaneSpec};
use super::learn::PrefillLearner;
use super::popular::Popularity;
use super::resident::Residents;
use super::saturation::WorkSum;
use super::score::Terms;
use large::LargeFleet;
use line::{HeldByLanes, Line, Waiting};
use sight::hit;

pub use done::{Done, Reported};
pub use line::Ticket;
pub use workload::Workload;

/// Within this time engines have told what they computed.
const TELLING_S: Seconds = 2.0;
/// The longest time by which a request is put back in the line for its own work. A prompt of some
/// ten thousand tokens is put back by as much as its work says; one of a million would be by more
/// than the longest time limit, and stand at the end of a line that never empties.
const MOST_PUT_BACK_S: Seconds = 30.0;

/// Moments at which a request is bound to a prefiller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bind {
    /// As soon as its best prefiller is about to be free.
    #[default]
    Late,
    /// At the arrival of the request.
    Arrival,
}

/// Settings of the scheduler.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerSettings {
    /// By what prefillers are compared. Only [`Policy::Predicted`] can bind late.
    pub policy: Policy,
    /// Chooses among prefillers in place of a policy other than [`Policy::Predicted`]: the replay
    /// has rules for comparison that nobody serves with.
    pub rule: Option<Rule>,
    /// Moment of binding.
    pub bind: Bind,
    /// A prefiller is about to be free when its backlog is below this: a round trip and some
    /// jitter.
    pub open_s: Seconds,
    /// So many tokens to compute it takes at any rate: engines compute short prompts together.
    pub batch_tokens: u64,
    /// Each second of a request's own work puts it back in the line by so many seconds.
    pub aging: f64,
    /// But by no more than half of its own work and so many times that of a request on average:
    /// long prompts pay for short ones, but the longest don't pay for all.
    pub aging_means: f64,
    /// And by no more than this: who comes later than that does not pass it, however long the line
    /// is, and however much work it is.
    pub most_put_back_s: Seconds,
    /// Costs of prefills that are assumed until more is known.
    pub costs: PrefillCosts,
    /// Time after which others' views of caches are asked again.
    pub sight_s: Seconds,
}

/// A commitment's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Booking(pub u64);

/// A request that wants a prefiller.
#[derive(Clone, Debug)]
pub struct NewRequest<'a> {
    /// Time at which it came first.
    pub since_s: Seconds,
    /// Facts of the request.
    pub job: Arc<Job>,
    /// Lanes on which it failed.
    pub tried: &'a [LaneId],
}

/// A request that another gateway placed.
#[derive(Clone, Debug)]
pub struct GivenBooking {
    /// Ticket under which it waited here, if it did.
    pub ticket: Option<Ticket>,
    /// Time at which it came.
    pub since_s: Seconds,
    /// Facts of the request.
    pub job: Arc<Job>,
    /// Terms of the lane, as the other gateway saw them.
    pub terms: Terms,
}

/// A request goes to a prefiller.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Ticket of the request.
    pub ticket: Ticket,
    /// Facts of the request.
    pub job: Arc<Job>,
    /// To be reported as [`PrefillScheduler::done`].
    pub booking: Booking,
    /// Tokens of its prompt.
    pub tokens: u32,
    /// The winner's terms.
    pub terms: Terms,
    /// The next best, best first.
    pub others: SmallVec<[Terms; 3]>,
    /// Time for which it stood in the line.
    pub waited_s: Seconds,
    /// Number of others that stood there.
    pub waiting: usize,
}

/// Sources of predicted hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beliefs {
    /// The pool's answers and KV events, which name blocks as engines do.
    pub named: bool,
    /// The history of what was sent where.
    pub history: bool,
}

/// Other parties' view of prefillers' own memory.
pub trait CacheView {
    /// Sets `out[lane]` to the leading tokens that a lane tells it holds, and leaves the others
    /// alone: of them the scheduler believes its own history.
    fn hbm_tokens(&self, job: &Job, out: &mut [Option<u32>]);

    /// True if it may be asked about a request again, whose answer is old. Not where a look takes
    /// so long that others do it ahead.
    fn asks_again(&self) -> bool {
        true
    }
}

/// No view: nobody tells.
impl CacheView for () {
    fn hbm_tokens(&self, _: &Job, _: &mut [Option<u32>]) {}
}

/// State of the scheduler.
#[derive(Debug)]
pub struct PrefillScheduler {
    settings: SchedulerSettings,
    lanes: Vec<Option<Lane>>,
    line: Line,
    /// State that a fleet of many lanes needs.
    large: Option<Box<LargeFleet>>,
    bookings: HashMap<u64, LaneId>,
    residents: Residents,
    popularity: Popularity,
    /// One in most fleets: found sooner by looking than by hashing.
    classes: Vec<(u16, PrefillLearner)>,
    /// The last ticket or booking.
    count: u64,
    turn: u64,
    wake_s: Option<Seconds>,
    /// Of what was committed.
    mean_prefill_s: Seconds,
    /// Requests beside the first that waited for each prefiller when the line was looked at last.
    waiting_each: f64,
    /// Predicted work of what was committed, and of what was refused for want of time.
    offered: WorkSum,
    beliefs: Beliefs,
    /// Observations of speed since they were last brought around one.
    uncentered: usize,
    /// Time at which it was last noted who tells what it holds.
    tells_s: Seconds,
    /// Answers of a view, by lane: room that is used again.
    told: Vec<Option<u32>>,
    /// Beliefs that others have taken over by then.
    fading: VecDeque<(Seconds, LaneId, Arc<Job>, u32)>,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        Self {
            policy: Policy::Predicted,
            rule: None,
            bind: Bind::Late,
            open_s: 0.05,
            batch_tokens: 2048,
            aging: 4.0,
            aging_means: 3.0,
            most_put_back_s: MOST_PUT_BACK_S,
            costs: PrefillCosts::default(),
            sight_s: 0.25,
        }
    }
}

impl PrefillScheduler {
    /// Nobody waits, and there is nobody to wait for.
    pub fn new(settings: SchedulerSettings) -> Self {
        Self {
            settings,
            lanes: Vec::new(),
            line: Line::default(),
            large: None,
            bookings: HashMap::new(),
            residents: Residents::default(),
            popularity: Popularity::default(),
            classes: Vec::new(),
            count: 0,
            turn: 0,
            wake_s: None,
            mean_prefill_s: 0.0,
            waiting_each: 0.0,
            offered: WorkSum::default(),
            beliefs: Beliefs { named: true, history: true },
            uncentered: 0,
            tells_s: Seconds::NEG_INFINITY,
            told: Vec::new(),
            fading: VecDeque::new(),
        }
    }

    /// A prefiller joins, in the first free place. None if there are [`MAX_LANES`] already.
    pub fn join(&mut self, spec: LaneSpec) -> Option<LaneId> {
        let at = self.lanes.iter().position(Option::is_none).unwrap_or(self.lanes.len());
        let lane = LaneId(u16::try_from(at).ok().filter(|_| at < MAX_LANES)?);
        self.open(lane, spec);
        Some(lane)
    }

    /// A prefiller joins, in a place of the caller's choice.
    pub fn open(&mut self, lane: LaneId, spec: LaneSpec) {
        let at = usize::from(lane.0);
        if self.lanes.len() <= at {
            self.lanes.resize_with(at + 1, || None);
        }
        self.residents.open(lane, spec.cache_tokens);
        self.lanes[at] = Some(Lane::new(spec));
        if self.learner(spec.class).is_none() {
            self.classes.push((spec.class, PrefillLearner::new(self.settings.costs)));
        }
        self.touch(lane);
    }

    /// A prefiller is gone, with what was committed to it.
    pub fn close(&mut self, lane: LaneId) {
        if let Some(place) = self.lanes.get_mut(usize::from(lane.0)) {
            *place = None;
        }
        self.touch(lane);
        self.residents.close(lane);
        self.bookings.retain(|_, whose| *whose != lane);
    }

    /// Prefillers, and the facts with which they joined.
    pub fn lane_specs(&self) -> impl Iterator<Item = (LaneId, LaneSpec)> {
        let lanes = (0u16..).zip(&self.lanes);
        lanes.filter_map(|(at, lane)| Some((LaneId(at), lane.as_ref()?.spec)))
    }

    /// Asks a view what each prefiller holds of a prompt.
    pub fn told(&self, job: &Job, view: &dyn CacheView) -> Vec<Option<u32>> {
        let mut told = vec![None; self.lanes.len()];
        view.hbm_tokens(job, &mut told);
        told
    }

    /// A prefiller takes no new requests, or does so again.
    pub fn drain(&mut self, lane: LaneId, draining: bool) {
        if let Some(lane) = self.lane_mut(lane) {
            lane.draining = draining;
        }
    }

    /// A prefiller is chosen last until then.
    pub fn rest(&mut self, lane: LaneId, until_s: Seconds) {
        if let Some(lane) = self.lane_mut(lane) {
            lane.health.resting_until_s = until_s;
        }
    }

    /// Takes over a prefiller's health, as far as its legs and probes tell.
    pub fn health(&mut self, lane: LaneId, health: LaneHealth) {
        if let Some(lane) = self.lane_mut(lane) {
            lane.health = health;
        }
    }

    /// A prefiller was sent so many requests by others. They are taken to be as long as ours are on
    /// average, and to be done as time passes.
    pub fn set_external_requests(&mut self, now: Seconds, lane: LaneId, requests: f64) {
        let each_s = self.mean_prefill_s;
        if let Some(lane) = self.lane_mut(lane) {
            lane.set_external_s(requests * each_s, now);
        }
    }

    /// So many more tokens are held by a prefiller for a decoder, or so many fewer.
    pub fn hold(&mut self, lane: LaneId, tokens: i64) {
        if let Some(Some(lane)) = self.lanes.get_mut(usize::from(lane.0)) {
            lane.held_tokens = lane.held_tokens.saturating_add_signed(tokens);
        }
    }

    /// Sources of predictions that are used now.
    pub fn beliefs(&self) -> Beliefs {
        self.beliefs
    }

    /// Sets the sources of predictions that are used from now on.
    pub fn believe(&mut self, beliefs: Beliefs) {
        self.beliefs = beliefs;
    }

    /// A prefiller was restarted, or its cache was emptied.
    pub fn emptied(&mut self, lane: LaneId) {
        if let Some(spec) = self.lane_mut(lane).map(|lane| lane.spec) {
            self.residents.open(lane, spec.cache_tokens);
        }
    }

    /// A request comes. It waits until [`pump`](Self::pump) commits it.
    pub fn arrive(&mut self, now: Seconds, job: Arc<Job>) -> Ticket {
        self.return_to_line(now, job, &[])
    }

    /// A request comes back from lanes on which it failed; it stands where it would stand had it
    /// waited all the time.
    pub fn return_to_line(&mut self, since_s: Seconds, job: Arc<Job>, tried: &[LaneId]) -> Ticket {
        let waiting = self.newcomer(NewRequest { since_s, job, tried });
        self.enqueue(waiting)
    }

    /// Someone who has no place in the line yet. Only who comes for the first time makes its
    /// beginning more popular.
    fn newcomer(&mut self, NewRequest { since_s, job, tried }: NewRequest<'_>) -> Waiting {
        let shared_prefixes = match self.settings.policy {
            Policy::Predicted if tried.is_empty() => self.popularity.note(&job, since_s),
            _ => SmallVec::new(),
        };
        self.count += 1;
        let (ticket, tried, seen) = (Ticket(self.count), tried.into(), HeldByLanes::default());
        Waiting { ticket, job, since_s, tried, shared_prefixes, seen, place: None }
    }

    fn enqueue(&mut self, mut waiting: Waiting) -> Ticket {
        let own_s = match &self.large {
            Some(large) => self.least_service_of_many(large, &waiting),
            None => {
                self.look(&mut waiting);
                self.least_service_s(&waiting)
            }
        };
        let own_s = if own_s.is_finite() { own_s } else { 0.0 };
        let put_back_s = self.put_back_s(own_s, waiting.job.ttft_slo_s);
        let (ticket, key) = (waiting.ticket, waiting.since_s + put_back_s);
        let turn = self.line.join(key, waiting);
        if let Some(large) = &mut self.large {
            large.joined(turn);
        }
        ticket
    }

    /// It does not wait any more.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let Some(turn) = self.line.turn(ticket) else { return false };
        let place = self.line.leave(ticket).and_then(|gone| gone.place);
        if let Some(large) = &mut self.large {
            large.left(turn, place);
        }
        true
    }

    /// Known costs of a class.
    pub fn costs(&self, class: u16) -> PrefillCosts {
        self.learner(class).map_or(self.settings.costs, PrefillLearner::costs)
    }

    fn learner(&self, class: u16) -> Option<&PrefillLearner> {
        self.classes.iter().find(|(of, _)| *of == class).map(|(_, learner)| learner)
    }

    /// Time at which to pump though nothing happens until then; None = not before something
    /// happens.
    pub fn wake_s(&self) -> Option<Seconds> {
        self.wake_s
    }

    /// Predicted seconds of work of those who wait, for each prefiller.
    pub fn line_s(&self) -> Seconds {
        let lanes = self.lanes.iter().flatten().filter(|lane| !lane.draining).count();
        self.line.len() as f64 * self.mean_prefill_s / lanes.max(1) as f64
    }

    /// Number of requests that wait.
    pub fn waiting(&self) -> usize {
        self.line.len()
    }

    /// Number of requests that wait before this one.
    pub fn position(&self, ticket: Ticket) -> Option<usize> {
        self.line.position(ticket)
    }

    /// A prefiller's predicted seconds of work, and requests.
    pub fn load(&self, lane: LaneId, now: Seconds) -> Option<(Seconds, u32)> {
        let lane = self.lanes.get(usize::from(lane.0))?.as_ref()?;
        Some((lane.backlog_s(now), lane.requests()))
    }

    /// Costs of a request on each prefiller, best first, without committing anything.
    pub fn explain(&self, now: Seconds, job: &Arc<Job>, sight: &dyn CacheView) -> Vec<Terms> {
        let mut all = self.weigh(now, job, sight);
        all.sort_by(|a, b| a.score_s.total_cmp(&b.score_s));
        all
    }

    /// The same in no order.
    pub fn weigh(&self, now: Seconds, job: &Arc<Job>, sight: &dyn CacheView) -> Vec<Terms> {
        let ticket = Ticket(0);
        let (tried, shared_prefixes) = (SmallVec::new(), SmallVec::new());
        let mut waiting = Waiting {
            ticket,
            job: job.clone(),
            since_s: now,
            tried,
            shared_prefixes,
            seen: HeldByLanes::default(),
            place: None,
        };
        let mut told = vec![None; self.lanes.len()];
        sight.hbm_tokens(&waiting.job, &mut told);
        waiting.seen.take(&told, true, now);
        self.look(&mut waiting);
        self.all_terms(&waiting, now, &self.outlooks(now), self.line.len())
    }

    /// Something about a lane changes.
    fn touch(&mut self, lane: LaneId) {
        if let Some(large) = &mut self.large {
            large.touch(lane);
        }
    }

    /// A lane, to change something about it.
    fn lane_mut(&mut self, lane: LaneId) -> Option<&mut Lane> {
        self.touch(lane);
        self.lanes.get_mut(usize::from(lane.0)).and_then(Option::as_mut)
    }

    fn least_service_s(&self, waiting: &Waiting) -> Seconds {
        let each = self.lanes.iter().enumerate().filter_map(|(at, lane)| {
            let lane = lane.as_ref().filter(|lane| !lane.draining)?;
            let costs = self.learner(lane.spec.class)?.costs();
            let hit = hit(waiting, at, self.beliefs);
            let service = lane.here(costs.service(waiting.job.prompt_tokens, hit));
            Some(service.prefill_s + service.restore_s)
        });
        each.fold(f64::INFINITY, f64::min)
    }
}

#[cfg(test)]
mod tests;
