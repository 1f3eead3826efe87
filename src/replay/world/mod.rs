//! Gateways, engines and the pool of one run, and the events that happen to them.
//!
//! A request's way: it *arrives* at a gateway, is sent and *reaches* a prefiller, which may
//! *restore* blocks first; steps
//! *end*; the prefiller *answers*; the KV is *handed over*; a decoder's *turns* end answers; the
//! gateway sees it *through*. Or it is sent to a decoder that *appends* to what it has, and whose
//! answer *begins* at the gateway.

mod append;
mod decode;
mod prefill;
mod share;

#[cfg(test)]
mod join;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use super::arrivals::{Arrival, Workload};
use super::decoder::Decoder;
use super::dispatch::{Appending, DecodeLoad, Dispatch};
use super::events::Events;
use super::holders::Holders;
use super::prefiller::Prefiller;
use super::random::Random;
use super::store::Store;
use super::trace::BLOCK_TOKENS;
use super::{Cluster, Faults, Seconds};
use crate::route::{Job, LaneId};
use share::Share;

/// Outcome of one request. Times are since the run's start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Record {
    /// Time at which it came.
    pub came_s: Seconds,
    /// Index of its prefiller.
    pub lane: u16,
    /// Index of its decoder.
    pub decoder: u16,
    /// Tokens of its prompt that were there before: its prefiller had or restored them, or the
    /// decoder had them that computed it.
    pub cached_tokens: u32,
    /// True if its decoder computed the prompt.
    pub is_appended: bool,
    /// Number of prefillers that it failed on.
    pub failures: u16,
    /// Time at which its first token was at the gateway.
    pub first_s: Seconds,
    /// Time at which its last token was there.
    pub last_s: Seconds,
    /// The longest time between two of its tokens.
    pub worst_gap_s: Seconds,
    /// Number of times that it was answered: once.
    pub answers: u16,
}

/// A run that ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// One record per request, in the order of arrival.
    pub records: Vec<Record>,
    /// Seconds that each prefiller computed from the end of the warm-up until the last arrival.
    pub busy_s: Vec<Seconds>,
    /// Seconds of all prefillers in which they had no request while some waited for one.
    pub idle_s: Seconds,
    /// Time at which the last event was.
    pub end_s: Seconds,
}

/// A run that did not end: the decision code did not send everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run is stuck: {served} of {requests} requests served")]
pub struct RunError {
    /// Requests that were answered.
    pub served: usize,
    /// Number of requests.
    pub requests: usize,
}

/// State of a run.
#[derive(Debug)]
pub struct World<'a, D> {
    cluster: &'a Cluster,
    faults: &'a Faults,
    workload: &'a Workload,
    seed: u64,
    now: Seconds,
    events: Events<Event>,
    gateways: Vec<Gateway<D>>,
    flights: Vec<Flight>,
    prefillers: Vec<Prefiller>,
    alive: Vec<bool>,
    /// Requests that each prefiller was given and has not answered.
    given: Vec<u32>,
    hbm: Holders,
    store: Store,
    /// The store as the gateways see it, when that is old.
    seen: Option<Store>,
    decoders: Vec<(Decoder, u64)>,
    /// Prefix caches of the decoders.
    kept: Holders,
    random: Random,
    share: Share,
    /// Requests that came.
    came: usize,
    /// Later turns of a closed loop by the request that they continue.
    followers: HashMap<u32, Vec<u32>>,
    served: usize,
    busy_start_s: Vec<Seconds>,
    run: Run,
}

/// A gateway and what it knows of its requests.
#[derive(Debug)]
struct Gateway<D> {
    dispatch: D,
    waiting: HashMap<u64, u32>,
    decoders: Vec<DecodeLoad>,
    /// Loads that the others had on decoders, as they have told.
    told: Vec<DecodeLoad>,
    wakes_s: Option<Seconds>,
}

/// A request under way.
#[derive(Debug, Default)]
struct Flight {
    job: Option<Arc<Job>>,
    booking: u64,
    /// Its turn at its prefiller.
    turn: u64,
    /// Its prediction on the decoder that computes it.
    appending: Option<Appending>,
    /// Time at which it was handed to its decoder.
    handed_s: Seconds,
    /// Load that its decoder had then, as its gateway knew.
    load: DecodeLoad,
    /// Tokens that its decoder lacked.
    lacks_tokens: u32,
}

impl<D> Gateway<D> {
    /// Loads of the decoders, as far as they are known here.
    fn loads(&self) -> Vec<DecodeLoad> {
        self.decoders.iter().zip(&self.told).map(|(own, told)| own.and(*told)).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Arrives(u32),
    Reaches { request: u32, lane: u16 },
    Restored { request: u32, lane: u16, tokens: u32 },
    StepEnds(u16),
    Answers { request: u32, computed: bool },
    Stored { request: u32, lane: u16 },
    Seen { request: u32, lane: u16 },
    HandedOver(u32),
    Appends(u32),
    Begins(u32),
    Turns { decoder: u16, version: u64 },
    Through(u32),
    Wakes(u16),
    Heard { gateway: u16, message: u64 },
    Beats,
    Rests,
    LoadsTold,
    Closes,
}

/// Events per request beyond which a run is aborted: a hundred times the usual number.
const EVENTS_PER_REQUEST_MAX: usize = 5_000;

/// Between two looks at the clock of a gateway that wants to be woken.
const WAKE_S_MIN: Seconds = 1e-4;

/// The prefiller that faults hit.
const VICTIM: u16 = 0;

impl<'a, D: Dispatch> World<'a, D> {
    /// A cluster at rest with empty caches. `gateways` are the decision makers, one per gateway of
    /// `faults`; `seed` rules what they draw.
    pub fn new(
        cluster: &'a Cluster,
        faults: &'a Faults,
        workload: &'a Workload,
        gateways: Vec<D>,
        seed: u64,
    ) -> World<'a, D> {
        let lanes = usize::from(cluster.prefillers);
        let slowness = |lane: usize| if lane == usize::from(VICTIM) { faults.slowness } else { 1.0 };
        let idle = vec![DecodeLoad::default(); usize::from(cluster.decoders)];
        let gateway = |dispatch| Gateway {
            dispatch,
            waiting: HashMap::new(),
            decoders: idle.clone(),
            told: idle.clone(),
            wakes_s: None,
        };
        let requests = workload.arrivals.len();
        World {
            cluster,
            faults,
            workload,
            seed,
            now: 0.0,
            events: Events::default(),
            gateways: gateways.into_iter().map(gateway).collect(),
            flights: (0..requests).map(|_| Flight::default()).collect(),
            prefillers: (0..lanes).map(|lane| Prefiller::new(slowness(lane))).collect(),
            alive: vec![true; lanes],
            given: vec![0; lanes],
            hbm: Holders::new(lanes, cluster.costs.hbm_tokens / BLOCK_TOKENS),
            store: Store::new(cluster),
            seen: (faults.pool_stale_s > 0.0).then(|| Store::new(cluster)),
            decoders: (0..cluster.decoders).map(|_| (Decoder::default(), 0)).collect(),
            kept: Holders::new(
                usize::from(cluster.decoders),
                append::kept_blocks(cluster.costs.decode_kv_tokens),
            ),
            random: Random::new(seed),
            share: Share::new(seed),
            came: 0,
            followers: followers(workload),
            served: 0,
            busy_start_s: vec![0.0; lanes],
            run: Run {
                records: vec![Record::default(); requests],
                busy_s: vec![0.0; lanes],
                idle_s: 0.0,
                end_s: 0.0,
            },
        }
    }

    /// Lets all requests come and be served.
    ///
    /// # Errors
    /// [`RunError`] if some are never answered.
    pub fn run(mut self) -> Result<Run, RunError> {
        let requests = self.workload.arrivals.len();
        self.plan_beginning(0);
        if self.faults.joins {
            self.drain_newcomer(true);
        }
        if self.faults.share_s.is_some() {
            self.plan(0.0, Event::Beats);
            self.plan(0.0, Event::Rests);
        }
        let mut left = requests.saturating_mul(EVENTS_PER_REQUEST_MAX);
        while self.served < requests && left > 0 {
            let Some((at_s, event)) = self.events.pop() else { break };
            self.pass(at_s);
            self.happen(event);
            left -= 1;
        }
        if self.served < requests {
            return Err(RunError { served: self.served, requests });
        }
        self.run.end_s = self.now;
        Ok(self.run)
    }

    /// Time passes until the next event.
    fn pass(&mut self, at_s: Seconds) {
        if self.gateways.iter().any(|gateway| !gateway.waiting.is_empty()) {
            let idle = self.given.iter().zip(&self.alive).filter(|(given, alive)| **given == 0 && **alive);
            self.run.idle_s += (at_s - self.now) * idle.count() as f64;
        }
        self.now = at_s;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrives(request) => self.arrives(request),
            Event::Reaches { request, lane } => self.reaches(request, lane),
            Event::Restored { request, lane, tokens } => self.restored(request, lane, tokens),
            Event::StepEnds(lane) => self.step_ends(lane),
            Event::Answers { request, computed } => self.answers(request, computed),
            Event::Stored { request, lane } => self.stored(request, lane),
            Event::Seen { request, lane } => self.seen(request, lane),
            Event::HandedOver(request) => self.handed_over(request),
            Event::Appends(request) => self.append_begins(request),
            Event::Begins(request) => self.begins(request),
            Event::Turns { decoder, version } => self.turns(decoder, version),
            Event::Through(request) => self.through(request),
            Event::Wakes(gateway) => self.wakes(gateway),
            Event::Heard { gateway, message } => self.heard(gateway, message),
            Event::Beats => self.beats(),
            Event::Rests => self.rests(),
            Event::LoadsTold => self.loads_told(),
            Event::Closes => self.gateways.iter_mut().for_each(|g| g.dispatch.close(LaneId(VICTIM))),
        }
    }

    /// Plans the first request from this index on that follows none.
    fn plan_beginning(&mut self, from: usize) {
        let mut arrivals = self.workload.arrivals.iter().enumerate().skip(from);
        if let Some((at, next)) = arrivals.find(|(_, arrival)| arrival.after.is_none()) {
            self.plan(next.at_s, Event::Arrives(at as u32));
        }
    }

    /// Nothing is planned for the past.
    fn plan(&mut self, at_s: Seconds, event: Event) {
        self.events.plan(at_s.max(self.now), event);
    }

    fn arrival(&self, request: u32) -> &'a Arrival {
        &self.workload.arrivals[request as usize]
    }

    fn record(&mut self, request: u32) -> &mut Record {
        &mut self.run.records[request as usize]
    }

    /// Requests take the gateways in turn.
    fn gateway_of(&self, request: u32) -> usize {
        request as usize % self.gateways.len().max(1)
    }
}

fn followers(workload: &Workload) -> HashMap<u32, Vec<u32>> {
    let mut followers: HashMap<u32, Vec<u32>> = HashMap::new();
    for (at, arrival) in workload.arrivals.iter().enumerate() {
        if let Some(after) = arrival.after {
            followers.entry(after.request).or_default().push(at as u32);
        }
    }
    followers
}
