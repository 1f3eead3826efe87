//! What stands in front of every pool: nobody waits longer than the deadline, and a pool in trouble is left alone.
//!
//! Equal questions share one exchange, answers are good for a moment, and so many exchanges are under way at most. An
//! exchange goes on behind the deadline for a while: its answer may serve the next who asks.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use xxhash_rust::xxh3::Xxh3;

use super::breaker::{Breaker, Change};
use super::{KvPool, PoolError, Presence, Question};

/// Bounds of a [`Gate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateLimits {
    /// The longest that a request waits.
    pub deadline: Duration,
    /// The longest that one exchange goes on.
    pub exchange: Duration,
    /// How long an answer is good for.
    pub fresh: Duration,
    /// Most answers kept.
    pub answers: usize,
    /// Most exchanges under way.
    pub in_flight: usize,
}

/// What came of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// What the pool has, as far as is known: nothing, if it gave no answer.
    pub presence: Presence,
    /// How far that can be trusted.
    pub verdict: Verdict,
}

/// How a question ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Every block was asked for.
    Known,
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
    pool: Arc<dyn KvPool>,
    limits: GateLimits,
    born: Instant,
    state: Arc<Mutex<State>>,
    exchanges: Mutex<JoinSet<()>>,
}

/// What an exchange will have brought; `None` while it is under way.
type Outcome = Option<Result<Presence, Verdict>>;

#[derive(Default)]
struct State {
    breaker: Breaker,
    flights: HashMap<u128, watch::Receiver<Outcome>>,
    answers: HashMap<u128, (Instant, Presence)>,
    /// In the order they came, for letting go of them.
    order: VecDeque<(Instant, u128)>,
}

/// One exchange's end of the table; gone from it when it ends, however that is.
struct Flight {
    id: u128,
    state: Arc<Mutex<State>>,
    report: watch::Sender<Outcome>,
    /// The pool was heard of.
    ended: bool,
}

enum Source {
    Answer(Presence),
    Join(watch::Receiver<Outcome>),
    Ask(Flight, watch::Receiver<Outcome>),
}

impl Verdict {
    /// All of them, for tables.
    pub const ALL: [Self; 7] =
        [Self::Known, Self::Partial, Self::TimedOut, Self::Off, Self::Unreachable, Self::Refused, Self::Busy];

    /// A short stable name for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Known => "known",
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
        Self { pool, limits, born: Instant::now(), state: Arc::default(), exchanges: Mutex::default() }
    }

    /// The pool's name.
    pub fn name(&self) -> &'static str {
        self.pool.name()
    }

    /// Asks, within the deadline. Must run inside a tokio runtime.
    pub async fn ask(&self, question: Arc<Question>) -> Lookup {
        if question.hashes.is_empty() && question.tokens.is_empty() {
            return Lookup { presence: Presence::default(), verdict: Verdict::Known };
        }
        let mut coming = match self.source(identity(&question)) {
            Err(verdict) => return nothing(verdict),
            Ok(Source::Answer(presence)) => return known(presence),
            Ok(Source::Join(coming)) => coming,
            Ok(Source::Ask(flight, coming)) => {
                self.launch(question, flight);
                coming
            }
        };
        match tokio::time::timeout(self.limits.deadline, coming.wait_for(Option::is_some)).await {
            Err(_) => nothing(Verdict::TimedOut),
            // An exchange that ended without a report was cut: it took too long, or the gateway shuts down.
            Ok(outcome) => match outcome.ok().and_then(|outcome| outcome.clone()) {
                Some(Ok(presence)) => known(presence),
                Some(Err(verdict)) => nothing(verdict),
                None => nothing(Verdict::TimedOut),
            },
        }
    }

    fn source(&self, id: u128) -> Result<Source, Verdict> {
        let now = Instant::now();
        let mut state = lock(&self.state);
        state.forget_before(now.checked_sub(self.limits.fresh), self.limits.answers);
        if let Some((_, presence)) = state.answers.get(&id) {
            return Ok(Source::Answer(presence.clone()));
        }
        if let Some(coming) = state.flights.get(&id) {
            return Ok(Source::Join(coming.clone()));
        }
        if state.flights.len() >= self.limits.in_flight {
            return Err(Verdict::Busy);
        }
        if !state.breaker.admit(self.now_ms()) {
            return Err(Verdict::Off);
        }
        let (report, coming) = watch::channel(None);
        state.flights.insert(id, coming.clone());
        Ok(Source::Ask(Flight { id, state: self.state.clone(), report, ended: false }, coming))
    }

    fn launch(&self, question: Arc<Question>, flight: Flight) {
        let (pool, limits, began_ms, born) = (self.pool.clone(), self.limits, self.now_ms(), self.born);
        let mut exchanges = lock(&self.exchanges);
        // Those that ended are dropped here, so that the set holds no more than are under way.
        while exchanges.try_join_next().is_some() {}
        exchanges.spawn(async move {
            let answer = tokio::time::timeout(limits.exchange, pool.lookup(&question)).await;
            let now_ms = since(born);
            let late = now_ms.saturating_sub(began_ms) > ms(limits.deadline);
            let outcome = match answer {
                Ok(Ok(presence)) => Ok(presence),
                Ok(Err(error)) => {
                    tracing::debug!(pool = pool.name(), %error, "no answer");
                    Err(Verdict::from(&error))
                }
                Err(_) => Err(Verdict::TimedOut),
            };
            flight.land(pool.name(), now_ms, outcome, late);
        });
    }

    fn now_ms(&self) -> u64 {
        since(self.born)
    }
}

impl Flight {
    /// Keeps the answer, judges the pool, and tells those who wait.
    fn land(mut self, pool: &'static str, now_ms: u64, outcome: Result<Presence, Verdict>, late: bool) {
        self.ended = true;
        {
            let mut state = lock(&self.state);
            if let Ok(presence) = &outcome {
                state.keep(self.id, presence.clone());
            }
            let change = match &outcome {
                // Late answers serve the next who asks, but a pool that is always late only costs time.
                Ok(_) if late => state.breaker.failed(now_ms),
                // A pool that refuses is one that answers.
                Ok(_) | Err(Verdict::Refused) => state.breaker.succeeded(),
                Err(Verdict::Busy) => {
                    state.breaker.forgotten();
                    Change::None
                }
                Err(_) => state.breaker.failed(now_ms),
            };
            match change {
                Change::None => {}
                Change::Opened(rest_ms) => {
                    tracing::warn!(pool, rest_ms, "does not answer in time; not asked for a while");
                }
                Change::Closed => tracing::info!(pool, "answers again"),
            }
        }
        self.report.send_replace(Some(outcome));
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.flights.remove(&self.id);
        if !self.ended {
            state.breaker.forgotten();
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
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Equal prompts have equal last blocks, and pools whose hashes leave something out don't tell the prompts apart either;
/// the length tells prompts apart that differ behind the last full block, and the last key those that differ in what only
/// keys carry, such as LMCache's salt.
fn identity(question: &Question) -> u128 {
    let mut hasher = Xxh3::new();
    match question.hashes.last() {
        Some(last) => hasher.update(last.as_bytes()),
        None => question.tokens.iter().for_each(|token| hasher.update(&token.to_le_bytes())),
    }
    hasher.update(&question.tokens.len().to_le_bytes());
    hasher.update(&question.keys.len().to_le_bytes());
    let last = question.keys.len().checked_sub(1).and_then(|last| question.keys.get(last));
    hasher.update(last.unwrap_or_default().as_bytes());
    hasher.digest128()
}

fn known(presence: Presence) -> Lookup {
    let verdict = if presence.sampled { Verdict::Partial } else { Verdict::Known };
    Lookup { presence, verdict }
}

fn nothing(verdict: Verdict) -> Lookup {
    Lookup { presence: Presence::default(), verdict }
}

fn since(born: Instant) -> u64 {
    ms(born.elapsed())
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A panic elsewhere leaves these tables whole: every change is one statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
