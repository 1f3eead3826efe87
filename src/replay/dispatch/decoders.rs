//! Decisions about decoders: the one that a computed prompt is handed to, and the one that computes
//! the rest of a prompt itself.

use super::{AppendQuestion, DecodeLoad, Director};
use crate::replay::{Cluster, Seconds};
use crate::route::links::{self, SeenTransfer};
use crate::route::{
    Append, AppendCosts, AppendGrounds, AppendRules, DecodeCandidate, DecodeMemory, HeldPrompt, Job, LaneId,
    Standing,
};

/// A request whose prompt is computed, and that is to be handed to a decoder.
#[derive(Clone, Copy, Debug)]
pub struct DecodeQuestion<'a> {
    /// Time of the question.
    pub now: Seconds,
    /// The prefiller that has its KV.
    pub lane: LaneId,
    /// The request, as the scheduler sees it.
    pub job: &'a Job,
    /// Loads of the decoders.
    pub loads: &'a [DecodeLoad],
    /// A random number.
    pub random: u64,
}

/// A hand-over whose first token has come.
#[derive(Clone, Copy, Debug)]
pub struct HandedOver {
    /// Time at which its gateway is told.
    pub now: Seconds,
    /// The prefiller that had the KV.
    pub lane: LaneId,
    /// The decoder that fetched it.
    pub decoder: usize,
    /// Tokens that the decoder lacked.
    pub tokens: u32,
    /// Seconds from the hand-over to the first token.
    pub first_s: Seconds,
    /// Load of the decoder when it was chosen, the request included.
    pub load: DecodeLoad,
}

/// A decoder that computes a prompt, as predicted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Appending {
    /// Its prediction for the prompt.
    pub append: Append,
    /// Belief about what it holds of the prompt.
    pub held: HeldPrompt,
}

/// A decode leg that is over.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredLeg<'a> {
    /// The decoder that it was on.
    pub decoder: usize,
    /// Facts of the request.
    pub job: &'a Job,
    /// Belief about what the decoder held of its prompt when it was chosen.
    pub held: HeldPrompt,
    /// Tokens of the prompt that it found in its cache; `None` = the prompt was handed to it.
    pub cached_tokens: Option<u32>,
    /// Tokens of its answer.
    pub output_tokens: u32,
}

/// Beliefs about decoders, and the rules by which they compute prompts.
#[derive(Debug)]
pub(super) struct DecoderMemory {
    pub(super) beliefs: DecodeMemory,
    rules: AppendRules,
}

impl DecoderMemory {
    pub(super) fn new(cluster: &Cluster) -> DecoderMemory {
        let mut beliefs = DecodeMemory::default();
        for decoder in 0..cluster.decoders {
            beliefs.open(LaneId(decoder), cluster.costs.decode_kv_tokens);
        }
        DecoderMemory { beliefs, rules: cluster.append }
    }
}

/// The number of a decoder, as beliefs have it.
fn lane(decoder: usize) -> LaneId {
    LaneId(u16::try_from(decoder).unwrap_or(u16::MAX))
}

impl Director {
    /// The decoders, with what each holds of a prompt as far as that is remembered and trusted.
    pub(super) fn decoders(&mut self, loads: &[DecodeLoad], job: &Job) -> Vec<DecodeCandidate> {
        let held = self.held(job);
        let mut decoders = self.supposed_decoders(loads, &held);
        if self.memory.as_ref().is_some_and(|memory| !memory.beliefs.is_trusted()) {
            decoders.iter_mut().for_each(|decoder| decoder.held_tokens = 0);
        }
        decoders
    }

    /// Belief about what each decoder holds of a prompt.
    fn held(&mut self, job: &Job) -> Vec<HeldPrompt> {
        let mut held = Vec::new();
        if let Some(memory) = &mut self.memory {
            memory.beliefs.held(job, &mut held);
        }
        held
    }

    /// The decoders, with what each is believed to hold.
    fn supposed_decoders(&self, loads: &[DecodeLoad], held: &[HeldPrompt]) -> Vec<DecodeCandidate> {
        let candidate = |(at, load): (usize, &DecodeLoad)| DecodeCandidate {
            running: load.requests,
            kv_tokens: load.context_tokens,
            kv_capacity_tokens: self.decoder_kv_tokens,
            held_tokens: held.get(at).map_or(0, |held| held.tokens),
            appends_s: load.appends_us as f64 / 1e6,
            late_s: 0.0,
            identity: at as u64,
            standing: Standing::Good,
        };
        loads.iter().enumerate().map(candidate).collect()
    }

    /// The same, with the time by which the KV comes later where a slow link leads.
    pub(super) fn reached_decoders(&mut self, question: &DecodeQuestion<'_>) -> Vec<DecodeCandidate> {
        let DecodeQuestion { now, lane: LaneId(lane), job, loads, .. } = *question;
        let mut decoders = self.decoders(loads, job);
        let slow = self.links.as_ref().map(|links| links.slow(now, u64::from(lane))).unwrap_or_default();
        for it in &mut decoders {
            it.late_s = links::extra_s(&slow, it.identity, job.prompt_tokens.saturating_sub(it.held_tokens));
        }
        decoders
    }

    /// Learns from a first token how long its KV has taken.
    pub(super) fn learn_link(&mut self, handed_over: &HandedOver) {
        let HandedOver { now, lane: LaneId(lane), decoder, tokens, first_s, load } = *handed_over;
        let step_s = self.decode_costs.step(f64::from(load.requests), load.context_tokens as f64);
        let (producer, consumer) = (u64::from(lane), decoder as u64);
        if let Some(links) = &mut self.links {
            links.learn(now, &SeenTransfer { producer, consumer, tokens, first_s, step_s });
        }
    }

    /// The decoder that gives a request's first token sooner than a hand-over does.
    pub(super) fn soonest_append(&mut self, question: AppendQuestion<'_>) -> Option<Appending> {
        let (rules, job) = (self.memory.as_ref()?.rules, question.job);
        let held = self.held(job);
        let decoders = self.supposed_decoders(question.loads, &held);
        let costs = AppendCosts { prefill: self.board.board().costs(0), decode: self.decode_costs };
        let grounds = AppendGrounds { rules, costs, policy: self.policy };
        let append = grounds.weigh(&decoders, job, || self.prefilled_s(question))?;
        let may = append.is_worth_it() && self.memory.as_mut()?.beliefs.allows_append();
        may.then(|| Appending { append, held: held.get(append.at).copied().unwrap_or_default() })
    }

    /// Compares a belief with what the decoder found, and remembers prompt and answer: both when
    /// the leg is over, as the server does.
    pub(super) fn remember(&mut self, leg: &AnsweredLeg<'_>) {
        let Some(memory) = &mut self.memory else { return };
        let at = lane(leg.decoder);
        if let Some(cached_tokens) = leg.cached_tokens.filter(|_| leg.held.tokens > 0) {
            memory.beliefs.learn(at, leg.job, leg.held, Some(u64::from(cached_tokens)));
        }
        memory.beliefs.enter(at, leg.job);
        memory.beliefs.answer(at, leg.job, leg.output_tokens);
    }

    /// Predicted seconds until a prefiller has computed a prompt.
    fn prefilled_s(&self, AppendQuestion { now, job, sight, .. }: AppendQuestion<'_>) -> Seconds {
        let board = self.board.board();
        let each = board.weigh(now, job, sight).into_iter().map(|it| it.wait_s + it.prefill_s);
        board.line_s() + each.fold(f64::INFINITY, f64::min)
    }
}
