//! Decisions about decoders: the one that a computed prompt is handed to, and the one that computes
//! the rest of a prompt itself.

use super::{AppendQuestion, DecodeLoad, Director};
use crate::replay::{Cluster, Seconds};
use crate::route::{
    Append, AppendCosts, AppendRules, DecodeCandidate, DecodeMemory, Job, LaneId, Standing, TieBreak,
    choose_append, choose_decoder, handoff_s,
};

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
pub(super) fn lane(decoder: usize) -> LaneId {
    LaneId(u16::try_from(decoder).unwrap_or(u16::MAX))
}

impl Director {
    /// The decoders, with what each holds of a prompt as far as that is remembered.
    pub(super) fn decoders(&mut self, loads: &[DecodeLoad], job: &Job) -> Vec<DecodeCandidate> {
        let mut held_tokens = Vec::new();
        if let Some(memory) = &mut self.memory {
            memory.beliefs.held_tokens(job, &mut held_tokens);
        }
        let candidate = |(at, load): (usize, &DecodeLoad)| DecodeCandidate {
            running: load.requests,
            kv_tokens: load.context_tokens,
            kv_capacity_tokens: self.decoder_kv_tokens,
            held_tokens: held_tokens.get(at).copied().unwrap_or(0),
            appends_s: load.appends_us as f64 / 1e6,
            identity: at as u64,
            standing: Standing::Good,
        };
        loads.iter().enumerate().map(candidate).collect()
    }

    /// The decoder that gives a request's first token sooner than a hand-over does.
    pub(super) fn soonest_append(&mut self, question: AppendQuestion<'_>) -> Option<Append> {
        let (rules, job) = (self.memory.as_ref()?.rules, question.job);
        let decoders = self.decoders(question.loads, job);
        let costs = AppendCosts { prefill: self.board.board().costs(0), decode: self.decode_costs };
        let append = choose_append(&rules, &costs, &decoders, job)?;
        let handed_over_s = self.handed_over_s(question, &decoders);
        append.is_worth_it(handed_over_s).then_some(append)
    }

    /// Predicted seconds until a request's first token by prefiller, transfer and decoder.
    fn handed_over_s(&self, question: AppendQuestion<'_>, decoders: &[DecodeCandidate]) -> Seconds {
        let AppendQuestion { now, job, sight, .. } = question;
        let board = self.board.board();
        let each = board.weigh(now, job, sight).into_iter().map(|it| it.wait_s + it.prefill_s);
        let prefilled_s = board.line_s() + each.fold(f64::INFINITY, f64::min);
        let chosen = choose_decoder(self.policy, &self.decode_costs, decoders, job, TieBreak::default());
        let decoder = chosen.and_then(|at| decoders.get(at)).copied().unwrap_or_default();
        let running = f64::from(decoder.running);
        let step_s = self.decode_costs.step(running, decoder.kv_tokens as f64);
        let joins_s = if decoder.running > 0 { 0.5 * step_s } else { 0.0 };
        prefilled_s + handoff_s(job.prompt_tokens, decoder.held_tokens) + joins_s + step_s
    }
}
