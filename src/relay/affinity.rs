//! Checks that the predictions of routing come true: they are compared after every prefill,
//! counted, and acted on.
//!
//! Two sources of predictions are judged apart. The *names* are the pool's answers and KV events:
//! wrong hashes or keys make them useless. The *history* is what the gateway itself sent where:
//! engines without a prefix cache make it useless. A source whose predictions don't come true does
//! not steer until they do again ([`Trust`]).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::dialect::usage::Usage;
use crate::fleet::{DecodeCounts, SchedulerHandle};
use crate::obs::Meters;
use crate::route::trust::{Change, MissReason, Trust, Verdict};
use crate::route::{Beliefs, Job, Reported, Terms};

/// Compares predictions with what prefillers report.
#[derive(Debug)]
pub struct Affinity {
    scheduler: Arc<SchedulerHandle>,
    meters: Arc<Meters>,
    /// Largest age of a pool's answer.
    fresh: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    names: Trust,
    history: Trust,
    /// The names have predicted a hit that came true.
    names_ever_hit: bool,
    /// Nothing that prefillers stored is found by its names.
    names_implausible: bool,
    /// Time at which it was last held against a pool that it lacked what an engine has.
    lacked: Option<Instant>,
    /// A prefiller has reported cached tokens: from then on one that reports none found none, as
    /// vLLM leaves out a zero.
    reported_ever: bool,
    /// The same of decoders that computed a prompt themselves.
    decoders_report: bool,
}

/// Of prompts whose blocks only the gateway names, a predicted hit is judged from this length on:
/// engines' blocks may be larger than ours, and estimates of short texts are rough.
const JUDGED_TOKENS: u64 = 512;

impl Affinity {
    /// Nothing is known yet, and everything is believed. A pool's answers may be as old as `fresh`.
    pub fn new(scheduler: Arc<SchedulerHandle>, meters: Arc<Meters>, fresh: Duration) -> Self {
        meters.source_trusted("history", true);
        Self { scheduler, meters, fresh, state: Mutex::default() }
    }

    /// A prefill of `job`, placed for these `terms`, was reported so. Returns the cached tokens
    /// that were predicted, in the engine's measure.
    pub fn prefilled(&self, job: &Job, terms: &Terms, reported: Reported) -> u64 {
        if job.blocks.is_empty() {
            return 0;
        }
        let block_tokens = u64::from(job.block_tokens);
        let predicted = job.in_engine_tokens(u64::from(terms.hit.any_tokens), reported);
        let reported = reported.cached_tokens;
        let verdict = Verdict::of(predicted, reported, block_tokens);
        let changes = self.judge(job, terms, reported, verdict);
        let why = if verdict == Verdict::Miss { self.why(terms).name() } else { "" };
        self.meters.predicted(verdict.name(), why, predicted, reported);
        if changes.iter().any(Option::is_some) {
            self.act(changes);
        }
        predicted
    }

    /// A prefiller's report about its caches, from its counts: no count means zero, once it is
    /// known that it reports.
    pub fn reported(&self, usage: Usage) -> Reported {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.reported_ever |= usage.cached.is_some_and(|tokens| tokens > 0);
        let cached_tokens = usage.cached.or(state.reported_ever.then_some(0));
        Reported { prompt_tokens: usage.prompt, cached_tokens, estimate_tokens: None }
    }

    /// The counts of a decoder that computed a prompt: no count of cached tokens means zero, once
    /// it is known that decoders report.
    pub fn counted_by_decoder(&self, counts: DecodeCounts) -> DecodeCounts {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.decoders_report |= counts.cached_tokens.is_some_and(|tokens| tokens > 0);
        let is_counted = counts.output_tokens.is_some() && state.decoders_report;
        DecodeCounts { cached_tokens: counts.cached_tokens.or(is_counted.then_some(0)), ..counts }
    }

    fn judge(
        &self,
        job: &Job,
        terms: &Terms,
        reported: Option<u64>,
        verdict: Verdict,
    ) -> [Option<Change>; 2] {
        let block_tokens = u64::from(job.block_tokens);
        let told = terms.told_tokens;
        let named = u64::from(told.unwrap_or(0).max(job.pool.of(terms.lane)));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let names = if named >= block_tokens {
            let verdict = Verdict::of(named, reported, block_tokens);
            state.names_ever_hit |= verdict == Verdict::Hit;
            state.names.learn(verdict)
        } else if reported.is_some_and(|tokens| tokens >= 2 * block_tokens)
            && state.unheard_of(terms, job, self.fresh)
        {
            state.names.learn(Verdict::Miss)
        } else {
            None
        };
        let believed = u64::from(terms.hit.hbm_tokens) > u64::from(told.unwrap_or(0));
        let long = job.named || u64::from(terms.hit.hbm_tokens) >= JUDGED_TOKENS;
        let history =
            if believed && long && named < block_tokens { state.history.learn(verdict) } else { None };
        [names, history]
    }

    fn why(&self, terms: &Terms) -> MissReason {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.named() || !state.history.holds() {
            MissReason::Profile
        } else if terms.hit.any_tokens > terms.hit.hbm_tokens {
            MissReason::Pool
        } else if terms.in_flight {
            MissReason::InFlight
        } else {
            MissReason::Evicted
        }
    }

    /// Has names steer only while blocks that prefillers stored are found by them.
    pub fn set_names_plausible(&self, plausible: bool) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).names_implausible = !plausible;
        let beliefs = self.believe();
        self.meters.source_trusted("names", beliefs.named);
    }

    /// Tells the scheduler what steers.
    fn believe(&self) -> Beliefs {
        let beliefs = {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            Beliefs { named: state.named(), history: state.history.holds() }
        };
        self.scheduler.believe(beliefs);
        beliefs
    }

    fn act(&self, [names, history]: [Option<Change>; 2]) {
        let beliefs = self.believe();
        for (source, change, steers) in
            [("names", names, beliefs.named), ("history", history, beliefs.history)]
        {
            if change.is_some() {
                self.meters.source_trusted(source, steers);
            }
        }
        match names {
            Some(Change::Lost) => tracing::warn!(
                "what the pool and KV events say of prompts does not come true: it does not steer any more. Most likely \
                 [hash] (seed, algorithm, block size) or the chat template is not the engines'"
            ),
            Some(Change::Regained) => tracing::info!("what the pool and KV events say comes true again"),
            None => {}
        }
        match history {
            Some(Change::Lost) => tracing::warn!(
                "prefillers don't find what was sent to them before: history does not steer any more. Is their prefix \
                 cache on, and route.cache_tokens right?"
            ),
            Some(Change::Regained) => tracing::info!("prefillers find again what was sent to them before"),
            None => {}
        }
    }
}

impl State {
    /// True if names steer.
    fn named(&self) -> bool {
        self.names.holds() && !self.names_implausible
    }

    /// True if it speaks against the names that they know nothing of what an engine has. Events
    /// tell of all that an engine holds itself; once names have come true, it may as well have
    /// loaded the rest from a store of which nobody told. A pool may lack what an engine has, but
    /// not always. Both count once for each time in which the pool's answers grow old, or a burst
    /// of equal prompts would be believed twenty times: between so many of these, names that are
    /// right come true.
    fn unheard_of(&mut self, terms: &Terms, job: &Job, fresh: Duration) -> bool {
        let told = terms.told_tokens.is_some();
        if told && (terms.in_flight || !self.names_ever_hit) {
            return !terms.in_flight;
        }
        let due = self.lacked.is_none_or(|last| last.elapsed() >= fresh);
        let counts = due && (told || job.pool.asked && !self.names_ever_hit);
        if counts {
            self.lacked = Some(Instant::now());
        }
        counts
    }
}
