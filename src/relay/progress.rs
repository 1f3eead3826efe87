//! Legs that wait for an engine which does nothing with them.
//!
//! The limits of `[timeout]` allow for the slowest legs that are right: minutes. An engine that
//! hangs would keep its clients waiting for as long. So while a leg has no byte it is looked at now
//! and then, and given up, to be tried elsewhere, when its engine does not answer probes any more,
//! or when it has begun no answer for longer than its peers need, while they begin answers: since
//! the leg was sent, or since its last answer, where it hangs at work. A fleet that is slow as a
//! whole is waited for.
//!
//! A decoder may also wait for KV that never comes, and be well otherwise. So a leg that is to read
//! another engine's KV is given up after twice that time when answers to others have begun since.
//! It counts as a hand-off that failed: whose fault it is follows from the others.
//!
//! A client may be alone, so that nobody else is answered meanwhile. A leg whose engine has nothing
//! else to do is given up by what legs of its kind took before, once for each request.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::fleet::health::State;
use crate::fleet::{Instance, Pace};
use crate::relay::Relay;
use crate::relay::failure::{Failure, FailureKind};
use crate::relay::idle_timeout::CUT;
use crate::upstream::Written;

/// Between looks at an engine whose leg has no byte yet. A leg that is answered sooner costs
/// nothing.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// Time without a byte that is never taken for a hang: a pause of Python's garbage collector, a
/// compilation.
const LEAST: Duration = Duration::from_secs(5);
/// A leg may take so many times what legs on its engine, or on one of its peers, take.
const TIMES_USUAL: u32 = 4;
/// A leg whose engine answers others, or answered some since it was sent, may take so many times
/// longer than one on an engine that answers nobody: it may only stand in that engine's line.
const TIMES_IN_LINE: u64 = 2;
/// So may a leg that tries the only engine of its role, after that has failed, and one of whose
/// kind none was seen yet: the first after a start may find an engine compiling.
const TIMES_ON_TRIAL: u64 = 4;
/// Time per token of an answer that is not streamed: its engine shows no byte before its end. A
/// slow engine's pace.
const PER_TOKEN: Duration = Duration::from_millis(100);
/// The length of such an answer, where the client does not bound it and none was seen yet.
const UNBOUNDED_TOKENS: u64 = 4_096;
/// Lengths of answers have a long tail: one may take so many times what the longest before it took.
const TIMES_LONGEST: u32 = 4;
/// And this at the least: an answer of a few hundred tokens where only shorter ones were seen.
const LEAST_WHOLE: Duration = Duration::from_secs(30);
/// And this where none was seen: some thousand tokens.
const FIRST_WHOLE: Duration = Duration::from_secs(60);

/// A leg that waits for its first byte, or, where it is not streamed, for its last one.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    /// The engine that has the leg.
    pub engine: &'a Arc<Instance>,
    /// The engine whose KV it is to read; `None` = it reads none, or none that is there yet.
    pub producer: Option<&'a Arc<Instance>>,
    /// Time at which that engine had computed what is to be read, in ms of the fleet's clock, once
    /// it has; `None` = before the leg was sent.
    pub computed_ms: Option<&'a OnceLock<u64>>,
    /// With which legs of its peers it can be compared; `None` = with none: only probes tell.
    pub pace: Option<Pace>,
    /// Tokens that have to be computed, or fetched, before the first byte.
    pub tokens: u64,
    /// The longest answer that the client wants, if it says.
    pub most_tokens: Option<u64>,
    /// The request was taken from another engine before, which did nothing with it: it may be long,
    /// or all engines slow.
    pub is_moved: bool,
}

impl<'a> Waiting<'a> {
    /// A leg on `engine` that reads no other engine's KV.
    pub fn on(engine: &'a Arc<Instance>, pace: Option<Pace>, tokens: u64) -> Waiting<'a> {
        Waiting {
            engine,
            producer: None,
            computed_ms: None,
            pace,
            tokens,
            most_tokens: None,
            is_moved: false,
        }
    }
}

impl Relay {
    /// Runs `work` until `limit`, or until its engine makes no progress while its peers do.
    ///
    /// # Errors
    /// The failure of `work`; [`FailureKind::Timeout`] at the limit, and where the leg alone makes
    /// no progress; [`FailureKind::Stuck`] where its engine makes none.
    pub async fn within<T>(
        &self,
        limit: Duration,
        waiting: Waiting<'_>,
        written: &Written,
        mut work: Pin<&mut impl Future<Output = Result<T, Failure>>>,
    ) -> Result<T, Failure> {
        let (sent, sent_ms) = (Instant::now(), self.fleet.now_ms());
        let end = sent + limit.min(self.settings.now().total.saturating_mul(2));
        loop {
            let look = end.min(Instant::now() + LOOK);
            if let Ok(outcome) = timeout_at(look, work.as_mut()).await {
                return outcome;
            }
            if Instant::now() >= end {
                return Err(Failure::new(
                    FailureKind::Timeout,
                    written.get(),
                    format!("no answer within {limit:?}"),
                ));
            }
            if self.fleet.is_cut() {
                return Err(Failure::new(FailureKind::Timeout, written.get(), CUT.to_owned()));
            }
            if !written.get() {
                continue;
            }
            if let Some(why) = self.stuck(waiting, sent_ms) {
                return Err(Failure {
                    since_ms: Some(sent_ms),
                    ..Failure::new(FailureKind::Stuck, true, why)
                });
            }
            let since_ms = waiting.computed_ms.map_or(Some(sent_ms), |at| at.get().copied());
            if let Some(failure) = since_ms.and_then(|since_ms| self.late(waiting, since_ms)) {
                return Err(failure);
            }
        }
    }

    /// Reason why nothing more is expected of an engine that was sent a leg at `sent_ms`, if so.
    /// One that nobody could stand in for is waited for, unless it is on trial.
    fn stuck(&self, waiting: Waiting<'_>, sent_ms: u64) -> Option<String> {
        let Waiting { engine, pace, .. } = waiting;
        let (fleet, health) = (&self.fleet, engine.health());
        if !fleet.has_other(engine.role(), &[engine.id()]) {
            return self.tried_in_vain(waiting, sent_ms);
        }
        if health.is_silent() {
            return Some("it does not answer probes".to_owned());
        }
        let pace = pace?;
        let quiet_ms = quiet_since_ms(engine, sent_ms);
        let times = if quiet_ms > sent_ms { TIMES_IN_LINE } else { 1 };
        let allowed_ms = self.allowed_ms(waiting, pace).min(self.learned_ms(waiting, pace));
        let allowed_ms = allowed_ms.saturating_mul(times);
        let waited_ms = fleet.now_ms().saturating_sub(quiet_ms);
        if waited_ms >= allowed_ms / 2 {
            // By what others do until then it is judged.
            fleet.watch_handoffs();
        }
        // A decoder that is full does not call before others of its requests have ended.
        let may_be_full = pace == Pace::Call && !engine.has_only_uncalled();
        let is_stuck = waited_ms >= allowed_ms && !may_be_full && fleet.peers_serve_since(engine, quiet_ms);
        is_stuck.then(|| format!("no byte within {waited_ms} ms, in which other engines answered"))
    }

    /// Reason why a leg is given up that tries the only engine of its role, which rests since it
    /// failed. A prompt may be long, and nobody else answers, so it has a multiple of what the
    /// engine, or one that was there before, needed.
    fn tried_in_vain(&self, waiting: Waiting<'_>, sent_ms: u64) -> Option<String> {
        let Waiting { engine, pace, .. } = waiting;
        let (now_ms, pace, health) = (self.fleet.now_ms(), pace?, engine.health());
        let is_known = !self.usual(engine, pace).is_zero();
        let waited_ms = now_ms.saturating_sub(quiet_since_ms(engine, sent_ms));
        let is_in_vain = is_known
            && waited_ms >= self.allowed_ms(waiting, pace).saturating_mul(TIMES_ON_TRIAL)
            && health.state(now_ms) != State::Closed;
        is_in_vain.then(|| format!("no byte within {waited_ms} ms of an engine that failed before"))
    }

    /// The time that legs on an engine, or on the slowest of its peers, take.
    fn usual(&self, engine: &Instance, pace: Pace) -> Duration {
        self.fleet.pace_of_peers(engine, pace).max(engine.paces().mean(pace))
    }

    /// The failure of a leg that could be served since `since_ms`, if it is late for what its
    /// engine does otherwise. Where nobody could stand in for the engines that it needs it is
    /// waited for.
    pub(super) fn late(&self, waiting: Waiting<'_>, since_ms: u64) -> Option<Failure> {
        self.left_behind(waiting, since_ms).or_else(|| self.alone_in_vain(waiting, since_ms))
    }

    /// The failure of a leg that could have its KV since `since_ms`, if it is late though answers
    /// to others have begun.
    fn left_behind(&self, waiting: Waiting<'_>, since_ms: u64) -> Option<Failure> {
        let Waiting { engine, producer, pace, .. } = waiting;
        let (fleet, producer) = (&self.fleet, producer?);
        let waited_ms = fleet.now_ms().saturating_sub(since_ms);
        let pace = pace?;
        let allowed_ms = self.allowed_ms(waiting, pace).saturating_mul(TIMES_IN_LINE);
        if waited_ms >= allowed_ms / TIMES_IN_LINE / 2 {
            fleet.watch_handoffs();
        }
        let others_begin =
            || engine.health().served_ms() > since_ms || fleet.peers_serve_since(engine, since_ms);
        let is_left = waited_ms >= allowed_ms
            && others_begin()
            && [engine, producer].iter().any(|it| fleet.has_other(it.role(), &[it.id()]));
        is_left.then(|| {
            let detail = format!("no byte within {waited_ms} ms in which it could have had its KV");
            Failure { since_ms: Some(since_ms), ..Failure::new(FailureKind::Timeout, true, detail) }
        })
    }

    /// The failure of a leg whose engine has nothing else to do, as far as is known, if it takes
    /// longer than legs of its kind did. A request is moved for that once: the engines may be slow
    /// as a whole.
    fn alone_in_vain(&self, waiting: Waiting<'_>, since_ms: u64) -> Option<Failure> {
        let Waiting { engine, producer, pace, is_moved, .. } = waiting;
        let (fleet, pace) = (&self.fleet, pace?);
        let waited_ms = fleet.now_ms().saturating_sub(quiet_since_ms(engine, since_ms));
        let is_only = engine.load().working() <= 1 || pace == Pace::Call && engine.has_only_uncalled();
        let may_move = || {
            [Some(engine), producer].into_iter().flatten().any(|it| fleet.has_other(it.role(), &[it.id()]))
        };
        let is_in_vain = !is_moved
            && waited_ms >= self.alone_ms(waiting, pace)
            && is_only
            && engine.external_load().0 == 0
            && may_move();
        is_in_vain.then(|| {
            // Without KV of others there is nobody else whose fault it could be.
            let why = if producer.is_some() { FailureKind::Timeout } else { FailureKind::Stuck };
            let detail = format!("no byte within {waited_ms} ms of an engine that has nothing else to do");
            Failure { since_ms: Some(since_ms), ..Failure::new(why, true, detail) }
        })
    }

    /// The time after which a leg without a byte is too late on an engine that has no other.
    fn alone_ms(&self, waiting: Waiting<'_>, pace: Pace) -> u64 {
        let is_known = !self.usual(waiting.engine, pace).is_zero();
        let is_answer = matches!(pace, Pace::Streamed | Pace::Whole | Pace::Alone);
        // Prompts differ more than first bytes do, and a decoder may be full of what others sent.
        let times = if is_known && is_answer { TIMES_IN_LINE } else { TIMES_ON_TRIAL };
        let allowed_ms = self.allowed_ms(waiting, pace).saturating_mul(times);
        let longest_ms = match pace {
            Pace::Whole | Pace::Alone if is_known => self.learned_ms(waiting, pace),
            Pace::Whole | Pace::Alone => self.whole_ms(waiting, FIRST_WHOLE),
            Pace::Streamed | Pace::Prompt | Pace::Call => u64::MAX,
        };
        allowed_ms.min(longest_ms)
    }

    /// The time until the last byte of an answer that takes so long once its prompt is computed.
    fn whole_ms(&self, waiting: Waiting<'_>, answer: Duration) -> u64 {
        let allowed = self.settings.now().computing(LEAST, waiting.tokens).saturating_add(answer);
        u64::try_from(allowed.as_millis()).unwrap_or(u64::MAX)
    }

    /// The time after which a leg without a byte is too late, if its engine does nothing else
    /// either.
    fn allowed_ms(&self, waiting: Waiting<'_>, pace: Pace) -> u64 {
        let Waiting { engine, tokens, most_tokens, .. } = waiting;
        let usual = self.usual(engine, pace);
        let before = self.settings.now().computing(LEAST, tokens);
        let answer = match pace {
            Pace::Whole | Pace::Alone => {
                let tokens = most_tokens.unwrap_or(UNBOUNDED_TOKENS).min(u64::from(u32::MAX));
                PER_TOKEN.saturating_mul(u32::try_from(tokens).unwrap_or(u32::MAX))
            }
            Pace::Streamed | Pace::Prompt | Pace::Call => Duration::ZERO,
        };
        let allowed = before.saturating_add(usual.saturating_mul(TIMES_USUAL)).saturating_add(answer);
        u64::try_from(allowed.as_millis()).unwrap_or(u64::MAX)
    }

    /// The time after which an answer without a byte is longer than any before it is likely to be,
    /// on an engine that has done nothing else meanwhile. An answer that was moved for that is not
    /// moved again: it may be the first of its length.
    fn learned_ms(&self, waiting: Waiting<'_>, pace: Pace) -> u64 {
        let Waiting { engine, is_moved, .. } = waiting;
        let longest = match pace {
            Pace::Whole | Pace::Alone if !is_moved => self.fleet.longest_pace(engine, pace),
            _ => Duration::ZERO,
        };
        if longest.is_zero() {
            return u64::MAX;
        }
        self.whole_ms(waiting, longest.saturating_mul(TIMES_LONGEST).max(LEAST_WHOLE))
    }
}

/// Time since which an engine has begun no answer that a leg could have waited for which was sent
/// at `since_ms`.
fn quiet_since_ms(engine: &Instance, since_ms: u64) -> u64 {
    since_ms.max(engine.health().served_ms())
}
