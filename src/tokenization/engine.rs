//! The tokens of a prompt by an engine's `/tokenize`, for models whose tokenizer or template is not
//! done here.
//!
//! Equal questions share one exchange, answers are kept, and nobody waits longer than the budget.
//! An exchange that takes longer goes on by itself, and its answer is there for the next request.
//! Engines of one model tokenise alike, so it does not matter which of them was asked. It matters
//! when: templates may print the date, so an answer is good for the quarter of an hour that it was
//! asked in, wherever the engines' midnight is.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::answers::Answers;
use super::exchange::{AskError, Asker};
use super::tokenize_request::{TokenizeRequest, tokenize_request};
use crate::codec::json::Object;
use crate::dialect::Api;
use crate::endpoint::Endpoint;
use crate::prompt::Reason;
use crate::util::single_flight::{FlightLeader, SingleFlight, Start};

/// Default of [`EngineLimits::budget`].
pub const BUDGET: Duration = Duration::from_millis(100);
/// Default of [`EngineLimits::in_flight`]: an engine tokenises on few threads, beside its requests.
pub const IN_FLIGHT: usize = 64;
/// Default of [`EngineLimits::cache_entries`].
pub const CACHE_ENTRIES: usize = 16_384;
/// Default of [`EngineLimits::cache_tokens`]: 64 MiB of token ids.
pub const CACHE_TOKENS: usize = 16 << 20;

/// Bounds of an [`EngineTokenizer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// The longest that a caller waits.
    pub budget: Duration,
    /// Most exchanges under way at once.
    pub in_flight: usize,
    /// Most answers kept.
    pub cache_entries: usize,
    /// Most token ids kept (4 bytes each).
    pub cache_tokens: usize,
}

/// Counters of an [`EngineTokenizer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Number of exchanges begun.
    pub asked: u64,
    /// Questions that joined an exchange under way.
    pub joined: u64,
    /// Questions answered from the cache.
    pub cached: u64,
    /// Token ids kept now.
    pub held_tokens: usize,
}

/// Tokenises by asking engines. Dropping it ends the exchanges under way.
pub struct EngineTokenizer {
    asker: Asker,
    limits: EngineLimits,
    /// Of the questions' hash, so that nobody outside can construct two with one key.
    seed: u64,
    state: Arc<Mutex<State>>,
    single_flight: SingleFlight<Outcome>,
}

/// Outcome of an exchange.
type Outcome = Result<Arc<[u32]>, Reason>;

struct State {
    answers: Answers,
    stats: EngineStats,
}

impl Default for EngineLimits {
    fn default() -> Self {
        Self {
            budget: BUDGET,
            in_flight: IN_FLIGHT,
            cache_entries: CACHE_ENTRIES,
            cache_tokens: CACHE_TOKENS,
        }
    }
}

impl EngineTokenizer {
    /// Nothing is asked yet. `seed` should differ from process to process.
    pub fn new(asker: Asker, limits: EngineLimits, seed: u64) -> Self {
        let state = State {
            answers: Answers::new(limits.cache_entries, limits.cache_tokens),
            stats: EngineStats::default(),
        };
        let single_flight = SingleFlight::new(limits.in_flight);
        Self { asker, limits, seed, state: Arc::new(Mutex::new(state)), single_flight }
    }

    /// The prompt of a request as `engine` tokenises it; `quarter` counts the quarters of an hour.
    /// Must run inside a tokio runtime.
    ///
    /// # Errors
    /// The reason for which the prompt can't be asked for ([`tokenize_request`]), or
    /// [`Reason::EngineSlow`], [`Reason::EngineBusy`], [`Reason::EngineRefused`],
    /// [`Reason::EngineUnreachable`].
    pub async fn tokens(
        &self,
        engine: &Endpoint,
        api: Api,
        body: &Object,
        quarter: u64,
    ) -> Result<Arc<[u32]>, Reason> {
        self.answer(engine, tokenize_request(api, body)?, quarter).await
    }

    /// The same for a question that has been formed already: that takes CPU time in proportion to
    /// the body.
    ///
    /// # Errors
    /// Fails as [`EngineTokenizer::tokens`] does.
    pub async fn answer(
        &self,
        engine: &Endpoint,
        question: TokenizeRequest,
        quarter: u64,
    ) -> Result<Arc<[u32]>, Reason> {
        let body = match question {
            TokenizeRequest::Known(ids) => return Ok(ids),
            TokenizeRequest::Ask(body) => body,
        };
        let key = self.key(&body, quarter);
        let coming = match self.single_flight.start(key, |room| self.settle(key, room)) {
            Start::Settled(outcome) => return outcome,
            Start::Join(coming) => {
                lock(&self.state).stats.joined += 1;
                coming
            }
            Start::Lead(flight, coming) => {
                self.launch(engine, body, key, flight);
                coming
            }
        };
        match tokio::time::timeout(self.limits.budget, coming.outcome()).await {
            Err(_) => Err(Reason::EngineSlow),
            // The exchange ended without a report: the runtime is shutting down.
            Ok(outcome) => outcome.unwrap_or(Err(Reason::EngineUnreachable)),
        }
    }

    /// Counters so far.
    pub fn stats(&self) -> EngineStats {
        let state = lock(&self.state);
        EngineStats { held_tokens: state.answers.held_tokens(), ..state.stats }
    }

    fn key(&self, body: &[u8], quarter: u64) -> u128 {
        xxh3_128_with_seed(body, self.seed.wrapping_add(quarter))
    }

    /// Answer that can be given at once; `None` = an engine is to be asked.
    fn settle(&self, key: u128, room: bool) -> Option<Outcome> {
        let mut state = lock(&self.state);
        if let Some(tokens) = state.answers.get(key) {
            state.stats.cached += 1;
            return Some(Ok(tokens));
        }
        if !room {
            return Some(Err(Reason::EngineBusy));
        }
        state.stats.asked += 1;
        None
    }

    fn launch(&self, engine: &Endpoint, body: Bytes, key: u128, flight: FlightLeader<Outcome>) {
        let (asker, engine, state) = (self.asker.clone(), engine.clone(), self.state.clone());
        self.single_flight.run(async move {
            let answer = asker.ask(&engine, body).await;
            if let Err(error) = &answer {
                tracing::debug!(%engine, %error, "no tokens");
            }
            let outcome: Outcome = answer.map(Arc::from).map_err(|error| reason(&error));
            if let Ok(tokens) = &outcome {
                // Before the flight is over, so that no equal question falls between the two.
                lock(&state).answers.put(key, tokens.clone());
            }
            flight.finish(outcome);
        });
    }
}

impl fmt::Debug for EngineTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineTokenizer").field("limits", &self.limits).field("stats", &self.stats()).finish()
    }
}

fn reason(error: &AskError) -> Reason {
    match error {
        AskError::Refused(_) => Reason::EngineRefused,
        AskError::Unreachable(_) | AskError::BadAnswer => Reason::EngineUnreachable,
    }
}

/// A panic elsewhere leaves these tables whole: every change is one statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer(seed: u64) -> EngineTokenizer {
        let asker = Asker {
            client: crate::tls::http().build().unwrap(),
            authorization: None,
            time: BUDGET,
            answer_bytes: 1,
        };
        EngineTokenizer::new(asker, EngineLimits::default(), seed)
    }

    #[test]
    fn an_answer_is_for_its_question_and_its_time() {
        let (one, other) = (tokenizer(1), tokenizer(9));
        let keys = [one.key(b"a", 4), one.key(b"b", 4), one.key(b"a", 5), other.key(b"a", 4)];
        assert!(keys.iter().all(|key| keys.iter().filter(|other| *other == key).count() == 1), "{keys:?}");
        assert_eq!(one.key(b"a", 4), keys[0]);
    }

    #[test]
    fn handlers_on_any_thread_may_wait() {
        fn sendable<T: Send>(_: &T) {}
        let tokenizer = tokenizer(1);
        let engine = Endpoint::new("localhost", 1);
        sendable(&tokenizer.answer(&engine, TokenizeRequest::Known(Arc::default()), 0));
        assert_eq!(tokenizer.stats(), EngineStats::default());
    }
}
