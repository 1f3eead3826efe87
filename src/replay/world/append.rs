//! Prompts whose rest a decoder computes, and what decoders keep of conversations.

use std::sync::Arc;

use super::super::dispatch::{AppendQuestion, Appending, Dispatch};
use super::super::trace::BLOCK_TOKENS;
use super::prefill::{View, skippable, tokens};
use super::{Event, World};
use crate::route::{Append, Job};

impl<D: Dispatch> World<'_, D> {
    /// Sends an arriving request to a decoder alone, if its gateway finds one that had better
    /// compute it. True if it did.
    pub(super) fn appends(&mut self, at: usize, request: u32, job: &Arc<Job>) -> bool {
        if !self.cluster.decode_cache {
            return false;
        }
        let view = View { hbm: &self.hbm, told: self.cluster.kv_events };
        let gateway = &mut self.gateways[at];
        let loads = gateway.loads();
        let question = AppendQuestion { now: self.now, job, loads: &loads, sight: &view };
        let Some(appending) = gateway.dispatch.append(question) else { return false };
        let Append { at: chosen, compute_s, .. } = appending.append;
        let Some(load) = gateway.decoders.get_mut(chosen) else { return false };
        load.take(job);
        load.appends_us += micros(compute_s);
        let flight = &mut self.flights[request as usize];
        (flight.job, flight.appending) = (Some(job.clone()), Some(appending));
        let record = self.record(request);
        (record.decoder, record.is_appended) = (chosen as u16, true);
        self.plan(self.now + self.cluster.costs.hop_s, Event::Appends(request));
        true
    }

    /// A request is at the decoder that computes what it lacks of the prompt.
    pub(super) fn append_begins(&mut self, request: u32) {
        let decoder = self.run.records[request as usize].decoder;
        let arrival = self.arrival(request);
        let have_tokens = tokens(self.kept.leading(usize::from(decoder), skippable(arrival)));
        self.record(request).cached_tokens = have_tokens;
        let (engine, _) = &mut self.decoders[usize::from(decoder)];
        engine.queue_append(request as usize, have_tokens, arrival.prompt_tokens, arrival.output_tokens);
        self.plan_turn(decoder);
    }

    /// Prompts are computed on a decoder, which has their blocks from now on.
    pub(super) fn appended(&mut self, decoder: u16) {
        let (engine, _) = &mut self.decoders[usize::from(decoder)];
        for request in engine.take_computed() {
            self.kept.touch(usize::from(decoder), &self.arrival(request as u32).blocks);
            self.plan(self.now + self.cluster.costs.hop_s, Event::Begins(request as u32));
        }
    }

    /// The first token of a prompt that a decoder has computed is at the gateway.
    pub(super) fn begins(&mut self, request: u32) {
        let at = self.gateway_of(request);
        let decoder = usize::from(self.run.records[request as usize].decoder);
        let Some(Appending { append, .. }) = self.flights[request as usize].appending else { return };
        if let Some(load) = self.gateways[at].decoders.get_mut(decoder) {
            load.appends_us -= micros(append.compute_s);
        }
    }

    /// Tokens of a prompt that its decoder lacks, and keeps from now on.
    pub(super) fn hand_over(&mut self, request: u32) -> u32 {
        let arrival = self.arrival(request);
        let decoder = usize::from(self.run.records[request as usize].decoder);
        if !self.cluster.decode_cache {
            return arrival.prompt_tokens;
        }
        arrival.prompt_tokens - tokens(self.kept.leading(decoder, skippable(arrival)))
    }

    /// A decoder has a prompt's KV.
    pub(super) fn keep_prompt(&mut self, request: u32) {
        let decoder = usize::from(self.run.records[request as usize].decoder);
        if self.cluster.decode_cache {
            self.kept.touch(decoder, &self.arrival(request).blocks);
        }
    }

    /// A decoder has generated an answer, and keeps it with its prompt.
    pub(super) fn keep_answer(&mut self, request: u32) {
        let decoder = usize::from(self.run.records[request as usize].decoder);
        if self.cluster.decode_cache {
            self.kept.touch(decoder, &self.arrival(request).answered_blocks);
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of one prompt")]
fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}

/// Blocks of decoders' KV memory.
pub(super) fn kept_blocks(kv_tokens: u64) -> u32 {
    u32::try_from(kv_tokens / u64::from(BLOCK_TOKENS)).unwrap_or(u32::MAX)
}
