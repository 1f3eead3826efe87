//! The gate before every pool: no request waits longer than the deadline, and a pool in trouble is
//! left alone.
//!
//! Equal prompts share one exchange, answers are good for a moment, and the number of exchanges
//! under way is bounded. A question is formed within its exchange, so that neither known answers
//! nor a pool that is left alone cost a hash. An exchange goes on after the deadline for a while:
//! its answer may serve the next request.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::aside::aside;
use super::breaker::{Breaker, Change};
use super::inquiry::Inquiry;
use super::{KvPool, PoolError, Presence, Question};
use crate::util::single_flight::{FlightLeader, PendingOutcome, SingleFlight, Start};

/// Bounds of a [`Gate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateLimits {
    /// The longest that a request waits, for its question to be formed and to be answered.
    pub deadline: Duration,
    /// The longest that a pool is waited for in one exchange.
    pub exchange: Duration,
    /// Time for which an answer is good for.
    pub fresh: Duration,
    /// Most answers kept.
    pub answers: usize,
    /// Most exchanges under way.
    pub in_flight: usize,
    /// Most bytes of all questions under way. One is asked however large it is, and clients hold up
    /// to twice as much again while they write it.
    pub bytes: usize,
}

/// Outcome of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Blocks that the pool has, as far as is known: none, if it gave no answer.
    pub presence: Presence,
    /// Trust in that answer.
    pub verdict: Verdict,
}

/// Ways in which a question ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Every block was asked for.
    Answered,
    /// A long prompt: told from samples.
    Partial,
    /// No answer within the deadline.
    TimedOut,
    /// The pool is being left alone.
    Off,
    /// It can't be reached.
    Unreachable,
    /// It refused, or was not understood.
    Refused,
    /// Too many questions are open.
    Busy,
}

/// Stands in front of one pool.
pub struct Gate {
    shared: Arc<Shared>,
    single_flight: SingleFlight<Outcome>,
    /// Questions that must not be answered by what others brought.
    asked_anew: AtomicU64,
}

/// Outcome of an exchange.
type Outcome = Result<Presence, Verdict>;

/// Parts of the gate that exchanges need.
struct Shared {
    pool: Arc<dyn KvPool>,
    limits: GateLimits,
    born: Instant,
    /// Of prompts' identities.
    seed: u64,
    state: Mutex<State>,
    /// Room for questions, in [`UNIT_BYTES`].
    room: Arc<Semaphore>,
    /// Questions formed beside the runtime, as many at once as there are cores.
    forming: Arc<Semaphore>,
}

/// Questions in a row that are answered by errors before the log says so: a single one may be at
/// fault itself.
const REFUSALS_TOLD: u32 = 3;
/// Room for questions is counted in these.
const UNIT_BYTES: usize = 1 << 10;
/// Most units: 4 TiB.
const MAX_UNITS: usize = u32::MAX as usize;

#[derive(Default)]
struct State {
    breaker: Breaker,
    /// Questions in a row that were answered by an error.
    refusals: u32,
    answers: HashMap<u128, (Instant, Presence)>,
    /// In the order they came, for letting go of them.
    order: VecDeque<(Instant, u128)>,
}

/// Tells the breaker how one exchange went: at most once, and that it was forgotten if nothing else
/// can be said.
struct Judge<'a> {
    shared: &'a Shared,
    judged: bool,
}

impl Verdict {
    /// All of them, for tables.
    pub const ALL: [Self; 7] = [
        Self::Answered,
        Self::Partial,
        Self::TimedOut,
        Self::Off,
        Self::Unreachable,
        Self::Refused,
        Self::Busy,
    ];

    /// True if the pool has answered.
    pub fn is_answer(self) -> bool {
        matches!(self, Self::Answered | Self::Partial)
    }

    /// A short stable name for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Partial => "partial",
            Self::TimedOut => "timed_out",
            Self::Off => "off",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Busy => "busy",
        }
    }
}

impl From<&PoolError> for Verdict {
    fn from(error: &PoolError) -> Self {
        match error {
            PoolError::Unreachable(_) => Self::Unreachable,
            PoolError::Refused(_) | PoolError::Protocol(_) | PoolError::TooLarge(_) => Self::Refused,
            PoolError::Busy => Self::Busy,
        }
    }
}

impl Gate {
    /// Nothing is asked yet.
    pub fn new(pool: Arc<dyn KvPool>, limits: GateLimits) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let shared = Shared {
            pool,
            limits,
            born: Instant::now(),
            seed: RandomState::new().hash_one(0_u8),
            state: Mutex::default(),
            room: Arc::new(Semaphore::new(limits.bytes.div_ceil(UNIT_BYTES).clamp(1, MAX_UNITS))),
            forming: Arc::new(Semaphore::new(cores)),
        };
        let single_flight = SingleFlight::new(limits.in_flight);
        Self { shared: Arc::new(shared), single_flight, asked_anew: AtomicU64::new(0) }
    }

    /// The pool's name.
    pub fn name(&self) -> &'static str {
        self.shared.pool.name()
    }

    /// Asks, within the deadline. Must run inside a tokio runtime.
    pub async fn ask(&self, inquiry: Inquiry) -> Lookup {
        let id = inquiry.identity(self.shared.seed);
        self.ask_as(id, inquiry, |room| self.shared.settle(id, room)).await
    }

    /// The same about what may have changed just now: neither an answer that is there counts, nor
    /// one to a question that was asked before.
    pub async fn ask_anew(&self, inquiry: Inquiry) -> Lookup {
        let id = inquiry.identity(self.shared.seed);
        // A name that no other exchange has.
        let flight = id ^ u128::from(self.asked_anew.fetch_add(1, Ordering::Relaxed) + 1);
        self.ask_as(flight, inquiry, |room| self.shared.admit(&mut lock(&self.shared.state), room)).await
    }

    /// Forgets the answer about this prompt, which has been stored since it was given.
    pub fn forget(&self, inquiry: &Inquiry) {
        let id = inquiry.identity(self.shared.seed);
        lock(&self.shared.state).answers.remove(&id);
    }

    /// Asks in an exchange of this name, unless `settle` has something to say at once.
    async fn ask_as(
        &self,
        name: u128,
        inquiry: Inquiry,
        settle: impl FnOnce(bool) -> Option<Lookup>,
    ) -> Lookup {
        let deadline = Instant::now() + self.shared.limits.deadline;
        if inquiry.tokens.is_empty() {
            return known(Presence { whole: true, ..Presence::default() });
        }
        let coming = match self.single_flight.start(name, settle) {
            Start::Settled(lookup) => return lookup,
            // It does not answer this one either.
            Start::Join(_) if lock(&self.shared.state).breaker.is_open() => return nothing(Verdict::Off),
            Start::Join(coming) => coming,
            Start::Lead(flight, coming) => {
                self.single_flight.run(self.shared.clone().exchange(inquiry, flight));
                coming
            }
        };
        wait(coming, deadline).await
    }
}

async fn wait(coming: PendingOutcome<Outcome>, deadline: Instant) -> Lookup {
    match timeout_at(deadline, coming.outcome()).await {
        Ok(Some(Ok(presence))) => known(presence),
        Ok(Some(Err(verdict))) => nothing(verdict),
        // An exchange that ended without a report: it panicked, or the gateway shuts down.
        Err(_) | Ok(None) => nothing(Verdict::TimedOut),
    }
}

impl Shared {
    /// Answer that can be given at once; `None` = the pool is to be asked.
    fn settle(&self, id: u128, room: bool) -> Option<Lookup> {
        let now = Instant::now();
        let mut state = lock(&self.state);
        state.forget_before(now.checked_sub(self.limits.fresh), self.limits.answers);
        if let Some((_, presence)) = state.answers.get(&id) {
            return Some(known(presence.clone()));
        }
        self.admit(&mut state, room)
    }

    /// True if there is room for a question and the pool may be asked; if not, that is the answer.
    fn admit(&self, state: &mut State, room: bool) -> Option<Lookup> {
        if !room {
            return Some(nothing(Verdict::Busy));
        }
        (!state.breaker.admit(self.now_ms())).then(|| nothing(Verdict::Off))
    }

    async fn exchange(self: Arc<Self>, inquiry: Inquiry, flight: FlightLeader<Outcome>) {
        let id = inquiry.identity(self.seed);
        let mut judge = Judge { shared: &self, judged: false };
        let outcome = match self.formed(inquiry).await {
            Ok((question, _room)) => self.answer(&question, &mut judge).await,
            Err(verdict) => Err(verdict),
        };
        drop(judge);
        if let Ok(presence) = &outcome {
            lock(&self.state).keep(id, presence.clone());
        }
        flight.finish(outcome);
    }

    /// The question, and its share of the room that there is for questions.
    async fn formed(&self, inquiry: Inquiry) -> Result<(Question, OwnedSemaphorePermit), Verdict> {
        let Inquiry { form, aside: beside, .. } = inquiry;
        let forming = async {
            // The closure holds the permit: nothing ends it before it is done.
            let permit = if beside { self.forming.clone().acquire_owned().await.ok() } else { None };
            let formed = aside(beside, move || (form(), permit).0).await;
            formed.and_then(|formed| formed)
        };
        let formed = tokio::time::timeout(self.limits.exchange, forming).await;
        let question = formed.map_err(|_| Verdict::TimedOut)?.map_err(|error| self.verdict(&error))?;
        let units = question.bytes().div_ceil(UNIT_BYTES).min(self.limits.bytes.div_ceil(UNIT_BYTES));
        let units = u32::try_from(units.clamp(1, MAX_UNITS)).unwrap_or(u32::MAX);
        let room = self.room.clone().try_acquire_many_owned(units).map_err(|_| Verdict::Busy)?;
        Ok((question, room))
    }

    /// Asks the pool and waits for its answer. The time is counted from here, since a question that
    /// took long to form says nothing of the pool.
    async fn answer(&self, question: &Question, judge: &mut Judge<'_>) -> Outcome {
        let began = Instant::now();
        let mut coming = self.pool.lookup(question);
        let answer = match timeout_at(began + self.limits.deadline, &mut coming).await {
            Ok(answer) => {
                judge.in_time(&answer);
                answer
            }
            Err(_) => {
                // Late answers serve the next who asks, but a pool that is always late only costs
                // time.
                judge.failed("does not answer in time".to_owned());
                let late = timeout_at(began + self.limits.exchange, coming).await;
                late.map_err(|_| Verdict::TimedOut)?
            }
        };
        answer.map_err(|error| self.verdict(&error))
    }

    fn verdict(&self, error: &PoolError) -> Verdict {
        tracing::debug!(pool = self.pool.name(), %error, "no answer");
        Verdict::from(error)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Judge<'_> {
    fn in_time(&mut self, answer: &Result<Presence, PoolError>) {
        match answer {
            Ok(_) => {
                if self.succeeded(|_| 0) >= REFUSALS_TOLD {
                    tracing::info!(pool = self.shared.pool.name(), "answers without errors again");
                }
            }
            // A pool that refuses is one that answers.
            Err(error @ (PoolError::Refused(_) | PoolError::Protocol(_))) => {
                if self.succeeded(|refusals| refusals.saturating_add(1)) == REFUSALS_TOLD - 1 {
                    let pool = self.shared.pool.name();
                    tracing::warn!(pool, "answers with errors, so that its blocks are not known: {error}");
                }
            }
            Err(PoolError::TooLarge(_)) => {
                self.succeeded(|refusals| refusals);
            }
            // A question that was not sent says nothing of the pool.
            Err(PoolError::Busy) => {}
            Err(error @ PoolError::Unreachable(_)) => self.failed(error.to_string()),
        }
    }

    /// It has answered in time. `count` makes the new number of refusals in a row of the number
    /// before, which is returned.
    fn succeeded(&mut self, count: impl FnOnce(u32) -> u32) -> u32 {
        self.judged = true;
        let mut state = lock(&self.shared.state);
        let (change, before) = (state.breaker.succeeded(), state.refusals);
        state.refusals = count(before);
        drop(state);
        if change == Change::Closed {
            tracing::info!(pool = self.shared.pool.name(), "answers again");
        }
        before
    }

    fn failed(&mut self, why: String) {
        self.judged = true;
        let change = lock(&self.shared.state).breaker.failed(self.shared.now_ms());
        if let Change::Opened(rest_ms) = change {
            tracing::warn!(pool = self.shared.pool.name(), rest_ms, "{why}; not asked for a while");
        }
    }
}

impl Drop for Judge<'_> {
    fn drop(&mut self) {
        if !self.judged {
            lock(&self.shared.state).breaker.forgotten();
        }
    }
}

impl State {
    fn keep(&mut self, id: u128, presence: Presence) {
        let now = Instant::now();
        self.answers.insert(id, (now, presence));
        self.order.push_back((now, id));
    }

    /// Lets go of answers from before `oldest`, and of the oldest beyond `most`.
    fn forget_before(&mut self, oldest: Option<Instant>, most: usize) {
        while let Some((when, id)) = self.order.front().copied() {
            let stale = oldest.is_some_and(|oldest| when < oldest);
            if !stale && self.order.len() <= most {
                break;
            }
            self.order.pop_front();
            // A newer answer to the same question stays.
            if self.answers.get(&id).is_some_and(|(kept, _)| *kept == when) {
                self.answers.remove(&id);
            }
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("pool", &self.name())
            .field("limits", &self.shared.limits)
            .finish_non_exhaustive()
    }
}

fn known(presence: Presence) -> Lookup {
    let verdict = if presence.sampled { Verdict::Partial } else { Verdict::Answered };
    Lookup { presence, verdict }
}

fn nothing(verdict: Verdict) -> Lookup {
    Lookup { presence: Presence::default(), verdict }
}

/// A panic elsewhere leaves these tables whole: every change is one statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
