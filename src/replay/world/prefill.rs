//! From a request's arrival to the answer of its prefiller.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::super::dispatch::{Dispatch, Returned};
use super::super::holders::Holders;
use super::super::random::Random;
use super::super::trace::BLOCK_TOKENS;
use super::{Event, VICTIM, WAKE_S_MIN, World};
use crate::replay::arrivals::Arrival;
use crate::route::{CacheView, Job, LaneId, PoolHits};
use crate::util::splitmix::mix;

/// Gateways' view of prefix caches.
pub(super) struct View<'a> {
    pub(super) hbm: &'a Holders,
    pub(super) told: bool,
}

impl CacheView for View<'_> {
    fn hbm_tokens(&self, job: &Job, out: &mut [Option<u32>]) {
        if self.told {
            out.fill(Some(0));
            self.hbm.each_leading(&job.blocks, |lane, blocks| {
                if let Some(tokens) = out.get_mut(lane) {
                    *tokens = Some(blocks as u32 * BLOCK_TOKENS);
                }
            });
        }
    }
}

/// The blocks of a prompt that need not be computed if they are there: engines compute the last
/// token at any rate, and with it its block.
pub(super) fn skippable(arrival: &Arrival) -> &[u64] {
    let whole = (arrival.prompt_tokens.saturating_sub(1) / BLOCK_TOKENS) as usize;
    arrival.blocks.get(..whole).unwrap_or(&arrival.blocks)
}

pub(super) fn tokens(blocks: usize) -> u32 {
    blocks as u32 * BLOCK_TOKENS
}

impl<D: Dispatch> World<'_, D> {
    pub(super) fn arrives(&mut self, request: u32) {
        let at = request as usize;
        let requests = self.workload.arrivals.len();
        if self.faults.dies && self.came == requests / 2 {
            self.dies();
        }
        if self.faults.joins && self.came == requests / 2 {
            self.drain_newcomer(false);
        }
        if self.came == self.workload.warm_up {
            self.busy_start_s = self.prefillers.iter().map(|prefiller| prefiller.busy_s()).collect();
        }
        self.came += 1;
        if self.came == requests {
            let busy = self.prefillers.iter().zip(&self.busy_start_s);
            self.run.busy_s = busy.map(|(prefiller, start)| prefiller.busy_s() - start).collect();
        }
        if self.arrival(request).after.is_none() {
            self.plan_beginning(at + 1);
        }
        self.record(request).came_s = self.now;
        let job = Arc::new(self.job(request));
        let gateway = self.gateway_of(request);
        if self.appends(gateway, request, &job) {
            return;
        }
        let view = View { hbm: &self.hbm, told: self.cluster.kv_events };
        let ticket = self.gateways[gateway].dispatch.arrive(self.now, job.clone(), &view);
        self.gateways[gateway].waiting.insert(ticket, request);
        self.flights[at].job = Some(job);
        self.pump(gateway);
    }

    /// Facts about an arriving request that a gateway knows.
    fn job(&self, request: u32) -> Job {
        let arrival = self.arrival(request);
        // The same requests for every policy.
        let luck = Random::new(mix(self.seed) ^ u64::from(request)).unit();
        let pool = if luck < self.faults.pool_missing {
            PoolHits::default()
        } else {
            self.seen.as_ref().unwrap_or(&self.store).hits(&arrival.blocks)
        };
        Job {
            named: true,
            exact: true,
            prefix_tokens: 0,
            prompt_tokens: arrival.prompt_tokens,
            output_tokens: self.workload.mean_output_tokens,
            blocks: arrival.blocks.clone(),
            block_tokens: BLOCK_TOKENS,
            history: None,
            pool,
            session: arrival.session,
            ttft_slo_s: None,
        }
    }

    /// Sends what a gateway wants to send, and plans when to ask it again.
    pub(super) fn pump(&mut self, at: usize) {
        let view = View { hbm: &self.hbm, told: self.cluster.kv_events };
        let Some(gateway) = self.gateways.get_mut(at) else { return };
        let random = &mut self.random;
        let sent = gateway.dispatch.pump(self.now, &view, &mut || random.word());
        for sent in sent {
            let Some(request) = self.gateways[at].waiting.remove(&sent.ticket) else { continue };
            self.flights[request as usize].booking = sent.booking;
            self.record(request).lane = sent.lane.0;
            self.given[usize::from(sent.lane.0)] += 1;
            self.plan(self.now + self.cluster.costs.hop_s, Event::Reaches { request, lane: sent.lane.0 });
        }
        self.send_messages(at);
        let gateway = &mut self.gateways[at];
        let Some(wake_s) = gateway.dispatch.wake_s().filter(|wake_s| wake_s.is_finite()) else { return };
        let wake_s = wake_s.max(self.now + WAKE_S_MIN);
        if gateway.wakes_s.is_none_or(|planned| wake_s < planned) {
            gateway.wakes_s = Some(wake_s);
            self.plan(wake_s, Event::Wakes(at as u16));
        }
    }

    pub(super) fn wakes(&mut self, gateway: u16) {
        let planned = &mut self.gateways[usize::from(gateway)].wakes_s;
        // One that was planned before an earlier one was is not expected any more.
        if *planned == Some(self.now) {
            *planned = None;
            self.pump(usize::from(gateway));
        }
    }

    /// A prefill leg is at its engine, which asks the pool for what its prefix cache lacks.
    pub(super) fn reaches(&mut self, request: u32, lane: u16) {
        if !self.alive[usize::from(lane)] {
            self.plan(self.now + self.cluster.costs.hop_s, Event::Answers { request, computed: false });
            return;
        }
        let arrival = self.arrival(request);
        self.flights[request as usize].turn = self.prefillers[usize::from(lane)].turn();
        let blocks = skippable(arrival);
        let have = tokens(self.hbm.leading(usize::from(lane), blocks));
        let (restored, takes_s) = self.store.restore(usize::from(lane), blocks, have);
        if restored > have {
            let end_s = self.prefillers[usize::from(lane)].inward.send(self.now, takes_s);
            let end_s = end_s + self.cluster.costs.restore_s;
            self.plan(end_s, Event::Restored { request, lane, tokens: restored });
        } else {
            self.ready(request, lane, 0);
        }
    }

    pub(super) fn restored(&mut self, request: u32, lane: u16, tokens: u32) {
        if !self.alive[usize::from(lane)] {
            self.plan(self.now + self.cluster.costs.hop_s, Event::Answers { request, computed: false });
            return;
        }
        let count = (tokens / BLOCK_TOKENS) as usize;
        if let Some(blocks) = self.arrival(request).blocks.get(..count) {
            self.hbm.touch(usize::from(lane), blocks);
        }
        self.ready(request, lane, tokens);
    }

    fn ready(&mut self, request: u32, lane: u16, have_tokens: u32) {
        let prompt_tokens = self.arrival(request).prompt_tokens;
        let turn = self.flights[request as usize].turn;
        self.prefillers[usize::from(lane)].queue(request as usize, turn, prompt_tokens, have_tokens);
        self.step(lane);
    }

    fn step(&mut self, lane: u16) {
        let (hbm, arrivals) = (&self.hbm, &self.workload.arrivals);
        let known = |request: usize| tokens(hbm.leading(usize::from(lane), skippable(&arrivals[request])));
        if let Some(takes_s) = self.prefillers[usize::from(lane)].begin(&self.cluster.costs, known) {
            self.plan(self.now + takes_s, Event::StepEnds(lane));
        }
    }

    pub(super) fn step_ends(&mut self, lane: u16) {
        if !self.alive[usize::from(lane)] {
            return;
        }
        let costs = &self.cluster.costs;
        for computed in self.prefillers[usize::from(lane)].end() {
            let request = computed.request as u32;
            self.record(request).cached_tokens = computed.cached_tokens;
            let blocks = &self.arrival(request).blocks;
            self.hbm.touch(usize::from(lane), blocks);
            self.plan(self.now + costs.store_s, Event::Stored { request, lane });
            self.plan(self.now + costs.hop_s, Event::Answers { request, computed: true });
        }
        self.step(lane);
    }

    /// A prompt's blocks are in the pool; those that it restored have been used.
    pub(super) fn stored(&mut self, request: u32, lane: u16) {
        if !self.alive[usize::from(lane)] {
            return;
        }
        self.store.touch(usize::from(lane), &self.arrival(request).blocks);
        if self.seen.is_some() {
            self.plan(self.now + self.faults.pool_stale_s, Event::Seen { request, lane });
        }
    }

    pub(super) fn seen(&mut self, request: u32, lane: u16) {
        let blocks = &self.arrival(request).blocks;
        if let Some(seen) = &mut self.seen {
            seen.touch(usize::from(lane), blocks);
        }
    }

    /// The prefiller that joins later is given nothing, or is given requests from now on.
    pub(super) fn drain_newcomer(&mut self, draining: bool) {
        self.gateways.iter_mut().for_each(|it| it.dispatch.drain(LaneId(VICTIM), draining));
    }

    /// The first prefiller dies. Gateways notice when connections break; KV that is being handed
    /// over still arrives.
    fn dies(&mut self) {
        self.alive[usize::from(VICTIM)] = false;
        self.hbm.clear(usize::from(VICTIM));
        self.store.lose(usize::from(VICTIM));
        let noticed_s = self.now + self.cluster.costs.hop_s;
        self.plan(noticed_s, Event::Closes);
        for request in self.prefillers[usize::from(VICTIM)].die() {
            self.plan(noticed_s, Event::Answers { request: request as u32, computed: false });
        }
    }

    /// A prefiller failed a request: it goes back.
    pub(super) fn fails(&mut self, request: u32) {
        let gateway = self.gateway_of(request);
        let flight = &self.flights[request as usize];
        let Some(job) = flight.job.clone() else { return };
        let record = &mut self.run.records[request as usize];
        record.failures += 1;
        let failed = LaneId(record.lane);
        let since_s = record.came_s;
        let returned = Returned { since_s, job, failed };
        let view = View { hbm: &self.hbm, told: self.cluster.kv_events };
        let ticket = self.gateways[gateway].dispatch.again(self.now, returned, &view);
        match self.gateways[gateway].waiting.entry(ticket) {
            Entry::Vacant(place) => drop(place.insert(request)),
            Entry::Occupied(_) => debug_assert!(false, "a ticket came twice"),
        }
    }
}
