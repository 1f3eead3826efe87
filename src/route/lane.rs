//! One prefiller as the scheduler sees it: what was committed to it and has not been seen finished.

mod external;

use std::collections::VecDeque;
use std::sync::Arc;

use super::choose::Standing;
use super::cost::{PrefillCosts, Service};
use super::job::{Hit, Job, Seconds};
use super::learn::PrefillWork;
use super::scheduler::Reported;
use external::ExternalWork;

/// A backlog never counts for less than this share of what the oldest commitment was expected to
/// take.
const LEAST_OF_HEAD: f64 = 0.1;
/// Range of an instance's speed relative to its class, either way.
const SPEED_RANGE: f64 = 5.0;
/// Weight of one observation of that.
const SPEED_STEP: f64 = 0.1;
/// A prefill is overdue when it takes this long, and so many times what was predicted.
const OVERDUE_S: Seconds = 5.0;
const OVERDUE_FACTOR: f64 = 5.0;
/// Lanes without a request are free since then: before all moments that callers count.
const IDLE_SINCE_S: Seconds = -1e9;
/// Differences of speed up to this factor are noise, and not acted on.
const SPEED_NOISE: f64 = 1.25;
/// A trial that has not ended after this time is not waited for: another one may go.
const TRIAL_S: Seconds = 10.0;
/// Tolerance between predicted and reported cache hits: the largest block that is in use.
const LARGEST_BLOCK_TOKENS: u64 = 256;
/// Prefills that end within this time of each other ended in the same step of the engine.
const STEP_S: Seconds = 0.01;
/// Prompts that are one observation at most, however many more share steps with the last of them:
/// by then the part of it that was computed in a step of the others hardly counts.
const MOST_TOGETHER: f64 = 8.0;

/// Facts of a prefiller when it joins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneSpec {
    /// Class of prefillers that it belongs to: those of a class share what is learned of their
    /// costs.
    pub class: u16,
    /// Tokens that fit into its prefix cache.
    pub cache_tokens: u64,
    /// Something that stays its own when others come and go, for policies that hash.
    pub identity: u64,
}

/// Health of a prefiller. The default is a good one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneHealth {
    /// It is chosen last until then.
    pub resting_until_s: Seconds,
    /// After that it takes one request at a time, until it is told that this went well.
    pub on_trial: bool,
    /// Its share grows from `warm_share` to all in this time.
    pub warm_from_s: Seconds,
    /// Time at which it takes its whole share again.
    pub warm_until_s: Seconds,
    /// The least share meanwhile, 0 to 1.
    pub warm_share: f64,
}

/// State of one prefiller.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) spec: LaneSpec,
    pub(super) draining: bool,
    pub(super) health: LaneHealth,
    /// The booking that tries whether it is back, and until when it is waited for.
    trial: Option<(u64, Seconds)>,
    /// It tells what it holds.
    pub(super) tells: bool,
    booked: VecDeque<LaneBooking>,
    booked_s: Seconds,
    booked_tokens: u64,
    /// Tokens of prompts that it holds for a decoder.
    pub(super) held_tokens: u64,
    /// Time at which the oldest commitment began.
    head_since_s: Seconds,
    /// Time that it waited since for the work of others, as earlier looks told.
    head_delayed_s: Seconds,
    link_until_s: Seconds,
    /// Work that others committed, as the engine's own metrics told.
    external: ExternalWork,
    /// Prefills that shared steps, until one ends that did not: an engine computes prompts
    /// together, the last of a step in part, and only the time of all of them tells anything.
    together: Option<ConcurrentPrefills>,
    /// Seconds that it takes for one second of its class.
    slowness: f64,
}

/// Prefills that ended together, or shared steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ConcurrentPrefills {
    /// All that was to do.
    pub(super) work: PrefillWork,
    /// Predicted time of that, in its class.
    pub(super) class_s: Seconds,
    began_s: Seconds,
    ended_s: Seconds,
    /// All that was to do is known.
    known: bool,
    /// The next prompt was there before the last of these was begun, so that a part of it may have
    /// been computed with that one.
    goes_on: bool,
}

/// One commitment of the scheduler.
#[derive(Clone, Debug)]
pub(super) struct LaneBooking {
    pub(super) number: u64,
    pub(super) job: Arc<Job>,
    /// Tokens of its prompt, as known now.
    pub(super) tokens: u32,
    pub(super) hit: Hit,
    /// Predicted compute time, here.
    pub(super) prefill_s: Seconds,
    /// Predicted, of its class.
    pub(super) class_s: Seconds,
    pub(super) committed_s: Seconds,
    /// Of the entry among the residents.
    pub(super) stamp: u32,
}

impl Lane {
    pub(super) fn new(spec: LaneSpec) -> Self {
        Self {
            spec,
            draining: false,
            health: LaneHealth::default(),
            trial: None,
            tells: false,
            booked: VecDeque::new(),
            booked_s: 0.0,
            booked_tokens: 0,
            held_tokens: 0,
            head_since_s: 0.0,
            head_delayed_s: 0.0,
            link_until_s: 0.0,
            external: ExternalWork::default(),
            together: None,
            slowness: 1.0,
        }
    }

    /// Predicted seconds until it can begin with something new.
    pub(super) fn backlog_s(&self, now: Seconds) -> Seconds {
        self.booked_left_s(now) + self.external.left_s(now)
    }

    /// Predicted seconds of what is left of its commitments.
    pub(super) fn booked_left_s(&self, now: Seconds) -> Seconds {
        self.booked.front().map_or(0.0, |head| {
            // A head that takes longer than predicted uses up its own seconds, not those of who
            // stands behind it. Meanwhile the work of others uses up only its own.
            let spent_s = now - self.head_since_s - self.delayed_s(now);
            let spent_s = spent_s.clamp(0.0, (1.0 - LEAST_OF_HEAD) * head.prefill_s);
            (self.booked_s - spent_s).max(LEAST_OF_HEAD * head.prefill_s)
        })
    }

    /// Predicted seconds of its commitments other than the oldest one.
    pub(super) fn queued_s(&self) -> Seconds {
        self.booked.front().map_or(0.0, |head| (self.booked_s - head.prefill_s).max(0.0))
    }

    /// Others have given it so many seconds of work, as was seen at `now`.
    pub(super) fn set_external_s(&mut self, seconds: Seconds, now: Seconds) {
        self.head_delayed_s = self.delayed_s(now);
        self.external = ExternalWork { seconds: seconds.max(0.0), seen_s: now };
    }

    /// Time by which the work of others delays its oldest commitment until `now`.
    fn delayed_s(&self, now: Seconds) -> Seconds {
        self.head_delayed_s + self.external.taken_s(self.head_since_s, now)
    }

    /// The oldest commitment is another one.
    fn begin_head(&mut self, now: Seconds) {
        (self.head_since_s, self.head_delayed_s) = (now, 0.0);
    }

    /// The first moment at which its backlog is below `open_s`, if time alone leads to that: past
    /// ones for one that has nothing to do.
    pub(super) fn opens_s(&self, open_s: Seconds) -> Option<Seconds> {
        let Some(head) = self.booked.front() else {
            return Some(match self.external.seconds < open_s {
                true => Seconds::NEG_INFINITY,
                false => self.external.until_s() - open_s + 1e-6,
            });
        };
        let least_s =
            (self.booked_s - (1.0 - LEAST_OF_HEAD) * head.prefill_s).max(LEAST_OF_HEAD * head.prefill_s);
        let after_s = (self.booked_s + self.delayed_s(Seconds::INFINITY) - open_s).max(0.0);
        (least_s < open_s).then_some(self.head_since_s + after_s + 1e-6)
    }

    /// The moment at which it is expected to be free. Without a request it is: of such lanes the
    /// one stands first that others gave nothing, or have given nothing for longest, and that is
    /// fastest.
    pub(super) fn free_s(&self) -> Seconds {
        match self.booked.is_empty() {
            true if self.external.seconds > 0.0 => self.external.until_s(),
            true => IDLE_SINCE_S + self.slowness(),
            false => self.head_since_s + self.booked_s + self.delayed_s(Seconds::INFINITY),
        }
    }

    /// Standing for a request whose random number, 0 to 1, is `draw`.
    pub(super) fn standing(&self, now: Seconds, draw: f64) -> Standing {
        let tried = self.health.on_trial && self.trial.is_some_and(|(_, until_s)| now < until_s);
        if self.health.resting_until_s > now || tried || self.is_overdue(now) {
            Standing::Resting
        } else if draw > self.health.share(now) {
            Standing::Warming
        } else {
            Standing::Good
        }
    }

    /// True if its oldest commitment takes so much longer than predicted that nobody should wait
    /// for it.
    pub(super) fn is_overdue(&self, now: Seconds) -> bool {
        let allowed_s = |head: &LaneBooking| OVERDUE_S.max(OVERDUE_FACTOR * head.prefill_s);
        self.booked.front().is_some_and(|head| now - self.head_since_s > allowed_s(head))
    }

    /// Seconds until what is being fetched is here.
    pub(super) fn link_s(&self, now: Seconds) -> Seconds {
        (self.link_until_s - now).max(0.0)
    }

    pub(super) fn requests(&self) -> u32 {
        u32::try_from(self.booked.len()).unwrap_or(u32::MAX)
    }

    /// True if a prompt that begins alike is being computed here.
    pub(super) fn computes(&self, blocks: &[u64]) -> bool {
        let first = blocks.first();
        first.is_some() && self.booked.iter().any(|booked| booked.job.chain().first() == first)
    }

    /// Tokens to be computed.
    pub(super) fn work_tokens(&self) -> u64 {
        self.booked_tokens
    }

    /// Time that a service of its class takes here.
    pub(super) fn here(&self, class: Service) -> Service {
        Service { prefill_s: class.prefill_s * self.slowness(), restore_s: class.restore_s }
    }

    pub(super) fn commit(&mut self, booked: LaneBooking, restore_s: Seconds, now: Seconds) {
        if self.health.on_trial && self.health.resting_until_s <= now {
            self.trial = Some((booked.number, now + TRIAL_S));
        }
        if self.booked.is_empty() {
            self.begin_head(now);
        }
        if restore_s > 0.0 {
            self.link_until_s = now + self.link_s(now) + restore_s;
        }
        self.booked_s += booked.prefill_s;
        self.booked_tokens += booked.work_tokens();
        self.booked.push_back(booked);
    }

    /// Takes a commitment back, with the moment of it, or of the end of the one before it.
    pub(super) fn finish(&mut self, number: u64, now: Seconds) -> Option<(LaneBooking, Seconds)> {
        let at = self.booked.iter().position(|it| it.number == number)?;
        self.trial = self.trial.filter(|(trial, _)| *trial != number);
        let booked = self.booked.remove(at)?;
        let began_s = self.head_since_s.max(booked.committed_s);
        // The end of another one says nothing about how far the oldest is.
        if at == 0 {
            self.begin_head(now);
        }
        self.booked_tokens = self.booked_tokens.saturating_sub(booked.work_tokens());
        // Sums of differences drift; an empty lane has nothing to do.
        self.booked_s =
            if self.booked.is_empty() { 0.0 } else { (self.booked_s - booked.prefill_s).max(0.0) };
        Some((booked, began_s))
    }

    /// A prefill that began at `began_s` is computed. Returns what shared no step with it and ended
    /// before, whose time is known now. Nothing where an engine found another part of a prompt in
    /// its caches than was predicted, for then nobody knows what that time was spent on.
    pub(super) fn computed(
        &mut self,
        booked: &LaneBooking,
        began_s: Seconds,
        now: Seconds,
        as_predicted: bool,
    ) -> Option<ConcurrentPrefills> {
        let goes_on = self.booked.front().is_some_and(|next| next.committed_s <= began_s);
        let this = ConcurrentPrefills {
            work: booked.work(),
            class_s: booked.class_s,
            began_s,
            ended_s: now,
            known: as_predicted,
            goes_on,
        };
        let shares_step = |before: &ConcurrentPrefills| {
            now - before.ended_s < STEP_S || (before.goes_on && before.work.prompts < MOST_TOGETHER)
        };
        match &mut self.together {
            Some(before) if shares_step(before) => {
                before.work = before.work.and(this.work);
                before.class_s += this.class_s;
                before.ended_s = now;
                before.known &= as_predicted;
                before.goes_on = goes_on;
                None
            }
            before => before.replace(this).filter(|before| before.known),
        }
    }

    /// A prefill ended of whose time nobody knows: that of those with which it shared steps tells
    /// nothing either.
    pub(super) fn forget_together(&mut self) {
        self.together = None;
    }

    /// Learns the lane's speed from `together`. Returns its seconds as of its class.
    pub(super) fn judge(&mut self, together: &ConcurrentPrefills) -> Seconds {
        let (seconds, class_s) = (together.ended_s - together.began_s, together.class_s);
        let as_of_class = seconds / self.slowness();
        if class_s > 0.0 {
            let seen = (seconds / class_s).clamp(1.0 / SPEED_RANGE, SPEED_RANGE);
            let slowness = self.slowness * (seen / self.slowness).powf(SPEED_STEP);
            self.slowness = slowness.clamp(1.0 / SPEED_RANGE, SPEED_RANGE);
        }
        as_of_class
    }

    /// Seconds that it takes for one second of its class, where that is clear.
    pub(super) fn slowness(&self) -> f64 {
        let noise = 1.0 / SPEED_NOISE..=SPEED_NOISE;
        if noise.contains(&self.slowness) { 1.0 } else { self.slowness }
    }

    /// As measured, for the mean of a class.
    pub(super) fn measured_slowness(&self) -> f64 {
        self.slowness
    }

    /// Slownesses are relative: when a whole class drifts, that is its costs'.
    pub(super) fn scale_slowness(&mut self, factor: f64) {
        self.slowness = (self.slowness * factor).clamp(1.0 / SPEED_RANGE, SPEED_RANGE);
    }
}

impl Default for LaneHealth {
    fn default() -> Self {
        let long_ago_s = Seconds::NEG_INFINITY;
        Self {
            resting_until_s: long_ago_s,
            on_trial: false,
            warm_from_s: long_ago_s,
            warm_until_s: long_ago_s,
            warm_share: 1.0,
        }
    }
}

impl LaneHealth {
    fn share(&self, now: Seconds) -> f64 {
        if now >= self.warm_until_s {
            return 1.0;
        }
        let spent = (now - self.warm_from_s) / (self.warm_until_s - self.warm_from_s);
        spent.max(self.warm_share)
    }
}

impl LaneBooking {
    fn work_tokens(&self) -> u64 {
        u64::from(self.job.prompt_tokens - self.hit.any_tokens.min(self.job.prompt_tokens))
    }

    /// True if its engine found about as much of it in its caches as was predicted, or does not
    /// say. Engines count whole blocks, which may be larger or smaller than ours.
    pub(super) fn came_true(&self, reported: Reported) -> bool {
        let Some(cached_tokens) = reported.cached_tokens else { return true };
        let predicted = self.job.in_engine_tokens(u64::from(self.hit.any_tokens), reported);
        let slack = u64::from(self.job.block_tokens).max(LARGEST_BLOCK_TOKENS);
        cached_tokens.abs_diff(predicted) <= slack
    }

    /// The prompt was as long as `tokens`, and not as was estimated when it was committed.
    pub(super) fn correct(&mut self, tokens: u32, costs: &PrefillCosts) {
        let most = tokens.saturating_sub(1);
        let Hit { hbm_tokens, near_tokens, any_tokens } = &mut self.hit;
        for hit in [hbm_tokens, near_tokens, any_tokens] {
            *hit = (*hit).min(most);
        }
        self.tokens = tokens;
        self.class_s = costs.service(tokens, self.hit).prefill_s;
    }

    /// Work of the prefill.
    pub(super) fn work(&self) -> PrefillWork {
        let Hit { hbm_tokens, near_tokens, any_tokens } = self.hit;
        let (n, h) = (f64::from(self.tokens), f64::from(any_tokens));
        PrefillWork {
            computed_tokens: n - h,
            squares: n * n - h * h,
            near_tokens: f64::from(near_tokens) - f64::from(hbm_tokens),
            far_tokens: h - f64::from(near_tokens),
            prompts: 1.0,
        }
    }
}

#[cfg(test)]
mod tests;
