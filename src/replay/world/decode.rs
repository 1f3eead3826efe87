//! From the answer of a prefiller to the last token.

use super::super::dispatch::{AnsweredLeg, DecodeQuestion, Dispatch, HandedOver};
use super::{Event, Flight, Record, World};
use crate::route::LaneId;

impl<D: Dispatch> World<'_, D> {
    /// A prefiller's answer is at the gateway, which chooses a decoder; that fetches the KV.
    pub(super) fn answers(&mut self, request: u32, computed: bool) {
        let at = self.gateway_of(request);
        let booking = self.flights[request as usize].booking;
        let Record { cached_tokens, lane, .. } = self.run.records[request as usize];
        self.given[usize::from(lane)] -= 1;
        self.gateways[at].dispatch.done(self.now, booking, computed.then_some(cached_tokens));
        if computed {
            let decoder = self.choose_decoder(at, request);
            self.record(request).decoder = decoder;
            let lacks_tokens = self.hand_over(request);
            self.flights[request as usize].lacks_tokens = lacks_tokens;
            let costs = &self.cluster.costs;
            let arrival = self.arrival(request);
            self.gateways[at].dispatch.hold(LaneId(lane), i64::from(arrival.prompt_tokens));
            let takes_s = f64::from(lacks_tokens) * costs.handoff_token_s;
            let far = self.cluster.is_far(lane, decoder).then_some(self.cluster.far_links);
            let prefiller = &mut self.prefillers[usize::from(lane)];
            let end_s = prefiller.hand_over(self.now + costs.hop_s, takes_s, far);
            self.plan(end_s + costs.handoff_s, Event::HandedOver(request));
        } else {
            self.fails(request);
        }
        self.pump(at);
    }

    fn choose_decoder(&mut self, at: usize, request: u32) -> u16 {
        let random = self.random.word();
        let gateway = &mut self.gateways[at];
        let flight = &mut self.flights[request as usize];
        let Some(job) = &flight.job else { return 0 };
        let loads = gateway.loads();
        let lane = LaneId(self.run.records[request as usize].lane);
        let question = DecodeQuestion { now: self.now, lane, job, loads: &loads, random };
        let chosen = gateway.dispatch.decoder(question);
        if let Some(load) = gateway.decoders.get_mut(chosen) {
            load.take(job);
            (flight.handed_s, flight.load) = (self.now, *load);
        }
        chosen as u16
    }

    pub(super) fn handed_over(&mut self, request: u32) {
        let arrival = self.arrival(request);
        let Record { lane, decoder, .. } = self.run.records[request as usize];
        let at = self.gateway_of(request);
        self.gateways[at].dispatch.hold(LaneId(lane), -i64::from(arrival.prompt_tokens));
        let (engine, _) = &mut self.decoders[usize::from(decoder)];
        engine.queue(request as usize, arrival.prompt_tokens, arrival.output_tokens);
        self.keep_prompt(request);
        self.plan_turn(decoder);
    }

    /// A decoder that changed has another next turn; the one planned before is void.
    pub(super) fn plan_turn(&mut self, decoder: u16) {
        let (engine, version) = &mut self.decoders[usize::from(decoder)];
        *version += 1;
        let version = *version;
        if let Some(at_s) = engine.next(self.now, &self.cluster.costs) {
            self.plan(at_s, Event::Turns { decoder, version });
        }
    }

    pub(super) fn turns(&mut self, decoder: u16, version: u64) {
        let (engine, current) = &mut self.decoders[usize::from(decoder)];
        if version != *current {
            return;
        }
        let hop_s = self.cluster.costs.hop_s;
        for answer in engine.turn(self.now, &self.cluster.costs) {
            let request = answer.request as u32;
            let record = self.record(request);
            record.first_s = answer.first_s + hop_s;
            record.last_s = answer.last_s + hop_s;
            record.worst_gap_s = answer.worst_gap_s;
            record.answers += 1;
            self.keep_answer(request);
            self.plan(self.now + hop_s, Event::Through(request));
        }
        self.appended(decoder);
        self.plan_turn(decoder);
    }

    /// The gateway has passed on a request's last token.
    pub(super) fn through(&mut self, request: u32) {
        let at = self.gateway_of(request);
        let record = self.run.records[request as usize];
        let decoder = usize::from(record.decoder);
        let output_tokens = self.arrival(request).output_tokens;
        let gateway = &mut self.gateways[at];
        if !record.is_appended {
            let Flight { handed_s, load, lacks_tokens, .. } = self.flights[request as usize];
            let (now, lane, first_s) = (self.now, LaneId(record.lane), record.first_s - handed_s);
            let tokens = lacks_tokens;
            gateway.dispatch.handed_over(HandedOver { now, lane, decoder, tokens, first_s, load });
        }
        if let (Some(load), Some(job)) =
            (gateway.decoders.get_mut(decoder), self.flights[request as usize].job.take())
        {
            load.give_back(&job);
            let appending = self.flights[request as usize].appending.take();
            gateway.dispatch.answered(AnsweredLeg {
                decoder,
                job: &job,
                held: appending.unwrap_or_default().held,
                cached_tokens: appending.map(|_| record.cached_tokens),
                output_tokens,
            });
        }
        self.served += 1;
        for next in self.followers.remove(&request).unwrap_or_default() {
            let think_s = self.arrival(next).after.map_or(0.0, |after| after.think_s);
            self.plan(self.now + think_s, Event::Arrives(next));
        }
    }
}
