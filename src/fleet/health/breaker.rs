//! The circuit breaker of an engine: the conditions under which it is left alone, and its way back.
//! Pure: the time is an argument, in ms of any clock that does not go back.
//!
//! ```text
//!            failures in a row, many of the last ones,
//!            unreachable, failing probes
//!   closed ─────────────────────────────────────────────▶ open ◀──┐
//!     ▲ │ a failure: a moment of doubt                      │      │ the trial fails:
//!     │ └──▶ closed                                         │      │ a longer rest
//!     │                              the rest is over, or   ▼      │
//!     └──────────────────────────────── probes succeed ─ half-open ┘
//!        the trial succeeds: closed, its share grows slowly after a long outage
//! ```
//!
//! Open and half-open never mean *never*: an engine that rests is chosen when there is no other.

use super::rules::Rules;
use crate::route::Standing;

/// The rest of an engine that is alive and says that it is busy.
const BUSY_REST_MS: u64 = 100;
/// An engine that has been busy for this time, and has served nobody, while others served, is not
/// busy: bursts are shorter, and a queue that is full serves those in it. vLLM 0.33 answers 503 for
/// ever on a rank that elastic expert parallelism retired.
const BUSY_MAX_MS: u64 = 5_000;
/// So often it must have said so in that time.
const BUSY_ANSWERS: u32 = 5;
/// The longest time for which an engine is spared that says when to come back: what it says may be
/// meant for people.
const SPARED_MAX_MS: u64 = 5_000;
/// A trial that has not ended after this time is not waited for: another one may go.
pub const TRIAL_MS: u64 = 10_000;
/// An engine that trips again within this time after it closed, or within [`CALM_RESTS`] of its
/// last rests, flaps.
const CALM_MS: u64 = 10_000;
const CALM_RESTS: u64 = 4;
/// A rest is doubled so many times at most.
const MAX_LEVEL: u32 = 16;
/// After an outage as long as this an engine has most likely been away, and comes back cold.
const OUTAGE_MS: u64 = 2_000;
/// The share that an engine begins with when it comes back.
const FIRST_SHARE: f64 = 0.1;
/// So many of its last legs are looked at for the share of failures, when there are as many.
const WINDOW: u32 = 20;

/// States of a breaker, named as in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It takes its share.
    Closed,
    /// It takes one request at a time, to see whether it is back.
    HalfOpen,
    /// It is left alone.
    Open,
}

/// Ways in which an engine failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Nobody listens there, or not in time.
    Unreachable,
    /// It was there, and failed.
    Failing,
}

/// Changes of a breaker's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing that anybody has to hear of.
    None,
    /// It is left alone for so long, in ms.
    Opened(u64),
    /// A doubt is over.
    Calmed,
    /// Its rest is over before its time: it may be tried.
    MayTry,
    /// It is back.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Closed { doubt_until_ms: u64 },
    Open { until_ms: u64 },
    HalfOpen { trial_until_ms: u64 },
}

/// One engine's breaker.
#[derive(Debug)]
pub struct Breaker {
    phase: Phase,
    /// Reason why it opened; probes tell something of what they can see, and of that alone.
    cause: Cause,
    failures_in_a_row: u32,
    window: Window,
    /// Trips without calm between them.
    level: u32,
    last_rest_ms: u64,
    closed_ms: Option<u64>,
    /// Since its first failure after a success.
    down_since_ms: Option<u64>,
    warms_since_ms: Option<u64>,
    probes_failed: u32,
    probes_succeeded: u32,
    /// Time at which a refusal last counted as a failure.
    refused_ms: Option<u64>,
    /// Since when it has been busy, and nothing else.
    busy_since_ms: Option<u64>,
    busy_answers: u32,
}

/// The last outcomes, newest in the lowest bit; 1 = failed.
#[derive(Debug, Default)]
struct Window {
    bits: u32,
    len: u32,
}

impl State {
    /// `closed`, `half_open` or `open`.
    pub fn name(self) -> &'static str {
        match self {
            State::Closed => "closed",
            State::HalfOpen => "half_open",
            State::Open => "open",
        }
    }
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker {
            phase: Phase::Closed { doubt_until_ms: 0 },
            cause: Cause::Failing,
            failures_in_a_row: 0,
            window: Window::default(),
            level: 0,
            last_rest_ms: 0,
            closed_ms: None,
            down_since_ms: None,
            warms_since_ms: None,
            probes_failed: 0,
            probes_succeeded: 0,
            refused_ms: None,
            busy_since_ms: None,
            busy_answers: 0,
        }
    }
}

impl Breaker {
    /// Its state at `now_ms`.
    pub fn state(&self, now_ms: u64) -> State {
        match self.phase {
            Phase::Closed { .. } => State::Closed,
            Phase::Open { until_ms } if now_ms < until_ms => State::Open,
            Phase::Open { .. } | Phase::HalfOpen { .. } => State::HalfOpen,
        }
    }

    /// Standing of the engine for a request whose random number is `dice`.
    pub fn standing(&self, now_ms: u64, dice: u64, rules: &Rules) -> Standing {
        if self.rest_ms(now_ms) > 0 {
            return Standing::Resting;
        }
        // exact enough: 53 of 64 bits
        let dice = dice as f64 / u64::MAX as f64;
        if dice > self.share(now_ms, rules) { Standing::Warming } else { Standing::Good }
    }

    /// Time for which it should still be left alone, in ms.
    pub fn rest_ms(&self, now_ms: u64) -> u64 {
        let (Phase::Closed { doubt_until_ms: until_ms }
        | Phase::Open { until_ms }
        | Phase::HalfOpen { trial_until_ms: until_ms }) = self.phase;
        until_ms.saturating_sub(now_ms)
    }

    /// The share of what it would be given that it is given: less than 1 for a time after an
    /// outage.
    pub fn share(&self, now_ms: u64, rules: &Rules) -> f64 {
        match self.warm_ms(now_ms, rules) {
            0 => 1.0,
            left_ms => FIRST_SHARE.max(1.0 - left_ms as f64 / rules.slow_start_ms as f64),
        }
    }

    /// Rest of that time, in ms.
    pub fn warm_ms(&self, now_ms: u64, rules: &Rules) -> u64 {
        let spent_ms = self.warms_since_ms.map(|since_ms| now_ms.saturating_sub(since_ms));
        spent_ms.map_or(0, |spent_ms| rules.slow_start_ms.saturating_sub(spent_ms))
    }

    /// Failures since it last worked.
    pub fn failures(&self) -> u32 {
        self.failures_in_a_row
    }

    /// True if it opened and neither a request nor a probe has been let through since, whether its
    /// rest is over or not.
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open { .. })
    }

    /// Reason why it is not closed.
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// A request was sent to it: while it is half-open, that is the trial.
    pub fn taken(&mut self, now_ms: u64) {
        if self.state(now_ms) == State::HalfOpen && self.rest_ms(now_ms) == 0 {
            self.phase = Phase::HalfOpen { trial_until_ms: now_ms.saturating_add(TRIAL_MS) };
        }
    }

    /// A leg on it failed by its own fault.
    pub fn failed(&mut self, now_ms: u64, cause: Cause, rules: &Rules) -> Change {
        self.down_since_ms.get_or_insert(now_ms);
        match self.state(now_ms) {
            // Failures that come while it rests belong to requests that were sent before; they
            // don't prolong the rest.
            State::Open => Change::None,
            State::HalfOpen => {
                self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
                self.open(now_ms, cause, rules)
            }
            State::Closed => {
                self.window.push(true);
                // A burst of failures is one.
                if self.rest_ms(now_ms) == 0 {
                    self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
                }
                if cause == Cause::Unreachable || self.has_failed_enough(rules) {
                    return self.open(now_ms, cause, rules);
                }
                self.doubt(now_ms, rules.rest_ms);
                Change::None
            }
        }
    }

    /// It has too much to do: others are preferred for a moment, which does not grow, or for as
    /// long as it asks to be spared.
    pub fn busy(&mut self, now_ms: u64, spare_ms: Option<u64>) {
        let rest_ms = spare_ms.unwrap_or(0).clamp(BUSY_REST_MS, SPARED_MAX_MS);
        self.busy_since_ms.get_or_insert(now_ms);
        self.busy_answers = self.busy_answers.saturating_add(1);
        self.step_aside(now_ms, rest_ms);
    }

    /// Since when it has only been busy, if so: no leg on it went well since.
    pub fn busy_since_ms(&self) -> Option<u64> {
        self.busy_since_ms
    }

    /// True if it has said that it is busy so often, and for so long, that an end is not to be
    /// expected.
    pub fn is_busy_without_end(&self, now_ms: u64) -> bool {
        self.busy_answers >= BUSY_ANSWERS
            && self.busy_since_ms.is_some_and(|since_ms| now_ms.saturating_sub(since_ms) >= BUSY_MAX_MS)
    }

    /// It refused a request, perhaps for a reason of its own: others are preferred until another
    /// engine has said the same, or the opposite.
    pub fn refused(&mut self, now_ms: u64, rules: &Rules) {
        self.step_aside(now_ms, rules.rest_ms);
    }

    /// Another engine served what it refused. It rests `at_once`, or when that goes on.
    pub fn contradicted(&mut self, now_ms: u64, at_once: bool, rules: &Rules) -> Change {
        self.down_since_ms.get_or_insert(now_ms);
        match self.state(now_ms) {
            State::Open => return Change::None,
            State::HalfOpen => {}
            State::Closed => {
                self.window.push(true);
                // A burst of refusals is one.
                if self.refused_ms.is_none_or(|at_ms| now_ms.saturating_sub(at_ms) >= rules.rest_ms) {
                    self.refused_ms = Some(now_ms);
                    self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
                }
                if !at_once && !self.has_failed_enough(rules) {
                    self.doubt(now_ms, rules.rest_ms);
                    return Change::None;
                }
            }
        }
        self.open(now_ms, Cause::Failing, rules)
    }

    /// Another engine refused the same: what was held against it is forgotten.
    pub fn acquitted(&mut self, now_ms: u64) {
        match &mut self.phase {
            Phase::Closed { doubt_until_ms } if self.failures_in_a_row == 0 => {
                *doubt_until_ms = now_ms.min(*doubt_until_ms);
            }
            Phase::HalfOpen { trial_until_ms } => *trial_until_ms = now_ms.min(*trial_until_ms),
            Phase::Closed { .. } | Phase::Open { .. } => {}
        }
    }

    /// Since when it fails, in ms; `None` if the last leg went well.
    pub fn down_since_ms(&self) -> Option<u64> {
        self.down_since_ms
    }

    /// A leg on it failed, and it may be another engine's fault: others are preferred for a moment.
    /// It opens only when that goes on for twice as long as a failure that is its own, without a
    /// success in between. Where `nobody_serves`, none of its peers either, each failure counts as
    /// its own.
    pub fn suspected(&mut self, now_ms: u64, nobody_serves: bool, rules: &Rules) -> Change {
        self.down_since_ms.get_or_insert(now_ms);
        match self.state(now_ms) {
            State::Open => Change::None,
            State::HalfOpen => {
                // The next trial need not wait for what this one does not tell.
                self.phase = Phase::HalfOpen { trial_until_ms: now_ms.saturating_add(rules.rest_ms) };
                Change::None
            }
            State::Closed => {
                // A burst of failures is one.
                if nobody_serves || self.rest_ms(now_ms) == 0 {
                    self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
                }
                let most = if nobody_serves { rules.failures } else { rules.failures.saturating_mul(2) };
                if self.failures_in_a_row >= most {
                    return self.open(now_ms, Cause::Failing, rules);
                }
                self.doubt(now_ms, rules.rest_ms);
                Change::None
            }
        }
    }

    fn step_aside(&mut self, now_ms: u64, for_ms: u64) {
        match self.state(now_ms) {
            State::Closed => self.doubt(now_ms, for_ms),
            State::HalfOpen => {
                self.phase = Phase::HalfOpen { trial_until_ms: now_ms.saturating_add(for_ms) };
            }
            State::Open => {}
        }
    }

    fn has_failed_enough(&self, rules: &Rules) -> bool {
        self.failures_in_a_row >= rules.failures
            || self.window.failed_percent().is_some_and(|percent| percent >= rules.failure_percent)
    }

    /// A leg on it went well.
    pub fn succeeded(&mut self, now_ms: u64, rules: &Rules) -> Change {
        self.failures_in_a_row = 0;
        self.probes_failed = 0;
        (self.busy_since_ms, self.busy_answers) = (None, 0);
        if let Phase::Closed { doubt_until_ms } = self.phase {
            self.window.push(false);
            self.down_since_ms = None;
            if doubt_until_ms > now_ms {
                self.phase = Phase::Closed { doubt_until_ms: now_ms };
                return Change::Calmed;
            }
            return Change::None;
        }
        self.close(now_ms, rules)
    }

    /// A probe was answered, or not.
    pub fn probed(&mut self, now_ms: u64, alive: bool, rules: &Rules) -> Change {
        if !alive {
            return self.probe_failed(now_ms, rules);
        }
        self.probes_failed = 0;
        self.probes_succeeded = self.probes_succeeded.saturating_add(1);
        // What fails requests while it answers probes is not seen by them: only requests can tell
        // that it ended.
        if self.state(now_ms) == State::Closed
            || self.cause == Cause::Failing
            || self.probes_succeeded < rules.probe_successes
        {
            return Change::None;
        }
        if self.state(now_ms) == State::HalfOpen {
            // Nobody tried it meanwhile.
            return self.close(now_ms, rules);
        }
        self.probes_succeeded = 0;
        self.phase = Phase::HalfOpen { trial_until_ms: 0 };
        Change::MayTry
    }

    /// True if so many probes in a row failed that it is given up.
    pub fn is_silent(&self, rules: &Rules) -> bool {
        self.probes_failed >= rules.probe_failures
    }

    fn probe_failed(&mut self, now_ms: u64, rules: &Rules) -> Change {
        self.probes_succeeded = 0;
        self.probes_failed = self.probes_failed.saturating_add(1);
        if self.probes_failed < rules.probe_failures {
            return Change::None;
        }
        self.found_away(now_ms, rules)
    }

    /// The connection for a probe was refused: nobody listens there, which one probe shows.
    pub fn probe_refused(&mut self, now_ms: u64, rules: &Rules) -> Change {
        self.probes_succeeded = 0;
        self.probes_failed = self.probes_failed.saturating_add(1);
        self.found_away(now_ms, rules)
    }

    fn found_away(&mut self, now_ms: u64, rules: &Rules) -> Change {
        self.down_since_ms.get_or_insert(now_ms);
        if self.state(now_ms) == State::Open {
            self.cause = Cause::Unreachable;
            return Change::None;
        }
        self.open(now_ms, Cause::Unreachable, rules)
    }

    fn doubt(&mut self, now_ms: u64, for_ms: u64) {
        if let Phase::Closed { doubt_until_ms } = &mut self.phase
            && *doubt_until_ms <= now_ms
        {
            *doubt_until_ms = now_ms.saturating_add(for_ms);
        }
    }

    fn open(&mut self, now_ms: u64, cause: Cause, rules: &Rules) -> Change {
        let calm_ms = CALM_MS.max(self.last_rest_ms.saturating_mul(CALM_RESTS));
        let calm = self.closed_ms.is_none_or(|closed_ms| now_ms.saturating_sub(closed_ms) >= calm_ms);
        let was_closed = matches!(self.phase, Phase::Closed { .. });
        self.level = if was_closed && calm { 0 } else { (self.level + 1).min(MAX_LEVEL) };
        let rest_ms = (rules.rest_ms << self.level).min(rules.rest_max_ms.max(rules.rest_ms));
        self.phase = Phase::Open { until_ms: now_ms.saturating_add(rest_ms) };
        self.cause = cause;
        self.last_rest_ms = rest_ms;
        self.window = Window::default();
        self.probes_succeeded = 0;
        self.warms_since_ms = None;
        Change::Opened(rest_ms)
    }

    fn close(&mut self, now_ms: u64, rules: &Rules) -> Change {
        let down_ms = self.down_since_ms.take().map_or(0, |since_ms| now_ms.saturating_sub(since_ms));
        self.phase = Phase::Closed { doubt_until_ms: 0 };
        self.failures_in_a_row = 0;
        self.closed_ms = Some(now_ms);
        let cold = down_ms >= OUTAGE_MS && rules.slow_start_ms > 0;
        self.warms_since_ms = cold.then_some(now_ms);
        Change::Closed
    }
}

impl Window {
    fn push(&mut self, failed: bool) {
        self.bits = (self.bits << 1 | u32::from(failed)) & ((1 << WINDOW) - 1);
        self.len = (self.len + 1).min(WINDOW);
    }

    /// `None` until there are enough to tell.
    fn failed_percent(&self) -> Option<u32> {
        (self.len == WINDOW).then(|| self.bits.count_ones() * 100 / WINDOW)
    }
}

#[cfg(test)]
mod tests;
