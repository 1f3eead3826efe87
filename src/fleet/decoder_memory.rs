//! Beliefs about decoders' caches behind a lock, and what a reservation on a decoder tells them.
//!
//! A request's prompt and answer are entered when its leg is over: only then does the next turn of
//! its conversation come, and engines count the use of blocks from then, too.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::fleet::instance::{Instance, Rank};
use crate::fleet::scheduler_handle::{CacheReports, Holding};
use crate::route::{DecodeMemory, HeldPrompt, HeldVerdict, Job, LaneId, MAX_LANES};

/// Beliefs about all decoders, or their ranks where the gateway chooses among these.
#[derive(Debug, Default)]
pub(super) struct DecoderMemory {
    state: Mutex<State>,
    /// Source of what decoders themselves tell that they hold.
    reports: OnceLock<Arc<dyn CacheReports>>,
}

#[derive(Debug, Default)]
struct State {
    beliefs: DecodeMemory,
    /// Places that somebody has.
    taken: Vec<bool>,
}

/// The places of a decoder: one for each rank, or one.
#[derive(Debug, Default)]
pub(super) struct DecoderLanes(Box<[LaneId]>);

/// Tokens of one prompt that decoders are believed to hold, by place, and those that they tell,
/// ordered by instance.
#[derive(Debug, Default)]
pub(super) struct HeldByDecoders {
    believed: Vec<HeldPrompt>,
    /// True if beliefs are acted on.
    are_trusted: bool,
    told: Vec<Holding>,
}

/// Counts of a decode leg that is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeCounts {
    /// Tokens of its answer, if they are known.
    pub output_tokens: Option<u64>,
    /// Tokens of the prompt that the decoder found in its caches, if it says so.
    pub cached_tokens: Option<u64>,
    /// True if it computed the prompt: what was handed to it counts as cached else.
    pub is_alone: bool,
}

/// Comparison of what a decoder found of a prompt with what it was believed to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundByDecoder {
    /// Outcome of the comparison.
    pub verdict: HeldVerdict,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of it that it was believed to hold.
    pub held_tokens: u32,
}

/// The prompt of a leg on a decoder, to be remembered when the leg is over.
#[derive(Debug)]
pub(super) struct LegMemory {
    memory: Arc<DecoderMemory>,
    lane: LaneId,
    job: Arc<Job>,
    held: HeldPrompt,
    /// The answer has begun, so that the prompt is there.
    has_begun: bool,
}

impl DecoderLanes {
    fn of(&self, rank: Option<Rank>) -> Option<LaneId> {
        self.0.get(rank.map_or(0, usize::from)).copied()
    }
}

impl HeldByDecoders {
    /// Belief about a decoder, or one of its ranks: what it tells, else what it was given, if that
    /// is trusted.
    pub(super) fn of(&self, instance: &Instance, rank: Option<Rank>) -> HeldPrompt {
        let held = self.supposed(instance, rank);
        HeldPrompt { tokens: if self.is_trusted(instance, rank) { held.tokens } else { 0 }, ..held }
    }

    /// True if that is acted on: what a decoder tells always is.
    pub(super) fn is_trusted(&self, instance: &Instance, rank: Option<Rank>) -> bool {
        self.are_trusted || self.told_of(instance, rank).is_some()
    }

    /// The same, trusted or not.
    pub(super) fn supposed(&self, instance: &Instance, rank: Option<Rank>) -> HeldPrompt {
        if let Some(tokens) = self.told_of(instance, rank) {
            return HeldPrompt { prompt_tokens: tokens, answered_tokens: tokens, tokens };
        }
        let lane = instance.decoder_lanes().and_then(|lanes| lanes.of(rank));
        lane.and_then(|lane| self.believed.get(usize::from(lane.0))).copied().unwrap_or_default()
    }

    /// Tokens that it tells. If the engine chooses among its ranks itself, nobody knows which one
    /// it takes: the one that holds least counts.
    fn told_of(&self, instance: &Instance, rank: Option<Rank>) -> Option<u32> {
        let first = self.told.partition_point(|it| it.instance < instance.id());
        let its = self.told.get(first..).unwrap_or_default().iter();
        let its = its.take_while(|it| it.instance == instance.id());
        its.filter(|it| rank.is_none_or(|rank| u32::from(rank) == it.rank)).map(|it| it.tokens).min()
    }
}

impl DecoderMemory {
    /// A decoder comes, with room for so many tokens. Beyond [`MAX_LANES`] nothing is remembered.
    pub(super) fn join(&self, instance: &Instance, cache_tokens: u64) {
        let mut state = self.lock();
        let lanes = instance.ranks().map_while(|_| state.open(cache_tokens)).collect();
        instance.set_decoder_lanes(DecoderLanes(lanes));
    }

    /// A decoder is gone.
    pub(super) fn leave(&self, instance: &Instance) {
        let mut state = self.lock();
        for lane in instance.decoder_lanes().map_or(&[][..], |lanes| &lanes.0) {
            state.beliefs.close(*lane);
            if let Some(taken) = state.taken.get_mut(usize::from(lane.0)) {
                *taken = false;
            }
        }
    }

    /// A decoder's cache is empty.
    pub(super) fn emptied(&self, instance: &Instance, cache_tokens: u64) {
        let mut state = self.lock();
        for lane in instance.decoder_lanes().map_or(&[][..], |lanes| &lanes.0) {
            state.beliefs.open(*lane, cache_tokens);
        }
    }

    /// Beliefs about a prompt.
    pub(super) fn held(&self, job: &Job) -> HeldByDecoders {
        let told = self.reports.get().map(|reports| reports.held(job)).unwrap_or_default();
        let mut believed = Vec::new();
        let mut state = self.lock();
        if !job.chain().is_empty() {
            state.beliefs.held(job, &mut believed);
        }
        HeldByDecoders { believed, told, are_trusted: state.beliefs.is_trusted() }
    }

    /// True if a decoder computes the rest of a prompt by a belief that is not trusted.
    pub(super) fn tries_append(&self) -> bool {
        self.lock().beliefs.allows_append()
    }

    /// Sets the source of what decoders tell that they hold, once.
    pub(super) fn set_reports(&self, reports: Arc<dyn CacheReports>) {
        let _ = self.reports.set(reports);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn open(&mut self, cache_tokens: u64) -> Option<LaneId> {
        let at = self.taken.iter().position(|taken| !taken).unwrap_or(self.taken.len());
        let lane = LaneId(u16::try_from(at).ok().filter(|_| at < MAX_LANES)?);
        if self.taken.len() == at {
            self.taken.push(false);
        }
        self.taken[at] = true;
        self.beliefs.open(lane, cache_tokens);
        Some(lane)
    }
}

impl LegMemory {
    /// Of a leg for this prompt, of which the decoder is believed to hold so much.
    pub(super) fn new(
        memory: &Arc<DecoderMemory>,
        instance: &Instance,
        rank: Option<Rank>,
        leg: PromptOnDecoder<'_>,
    ) -> Option<LegMemory> {
        let lane = instance.decoder_lanes()?.of(rank)?;
        let PromptOnDecoder { job, held } = leg;
        let (memory, job) = (memory.clone(), job.clone());
        (!job.chain().is_empty()).then(|| LegMemory { memory, lane, job, held, has_begun: false })
    }

    /// The answer has begun.
    pub(super) fn begin(&mut self) {
        self.has_begun = true;
    }

    /// The leg is over. Returns the comparison of what the decoder found with the belief, where it
    /// was for the decoder to find.
    pub(super) fn end(mut self, counts: DecodeCounts) -> Option<FoundByDecoder> {
        self.has_begun = false;
        let DecodeCounts { output_tokens, cached_tokens, is_alone } = counts;
        let (lane, job, held) = (self.lane, &self.job, self.held);
        let beliefs = &mut self.memory.lock().beliefs;
        let judged = is_alone && job.exact && held.tokens > 0;
        let found = judged.then(|| FoundByDecoder {
            verdict: beliefs.learn(lane, job, held, cached_tokens),
            prompt_tokens: job.prompt_tokens,
            held_tokens: held.tokens,
        });
        beliefs.enter(lane, job);
        if let Some(tokens) = output_tokens {
            // The last token was chosen, and its KV never computed.
            let computed = u32::try_from(tokens.saturating_sub(1)).unwrap_or(u32::MAX);
            beliefs.answer(lane, job, computed);
        }
        found
    }
}

/// A prompt, and what a decoder is believed to hold of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PromptOnDecoder<'a> {
    pub(super) job: &'a Arc<Job>,
    pub(super) held: HeldPrompt,
}

impl Drop for LegMemory {
    /// Of an answer that broke off, the prompt is there all the same.
    fn drop(&mut self) {
        if self.has_begun {
            self.memory.lock().beliefs.enter(self.lane, &self.job);
        }
    }
}
