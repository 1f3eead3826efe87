//! A reservation on an instance, given back when it is dropped.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::fleet::Fleet;
use crate::fleet::commitment::Commitment;
use crate::fleet::decoder_memory::{DecodeCounts, FoundByDecoder, LegMemory, PromptOnDecoder};
use crate::fleet::instance::{Instance, InstanceId, Load, Rank};
use crate::fleet::member::Member;
use crate::fleet::occupancy::{Occupancy, Total};
use crate::route::learn::{DecodeLearner, LearnedSteps};
use crate::route::links::SeenTransfer;
use crate::route::saturation::WorkSum;
use crate::route::{DecodeCosts, Reported, Seconds};

/// Room on one instance for one leg.
#[derive(Debug)]
pub struct Reservation {
    instance: Arc<Instance>,
    /// Place where the gateway chooses among an engine's ranks.
    rank: Option<Rank>,
    tokens: u64,
    phase: Phase,
    /// Its part in the scheduler's plan; `None` if another choice than the scheduler's placed it.
    booked: Option<Commitment>,
    /// Observation of a decoder's pace, to learn from.
    pace: Option<Pace>,
    /// The prompt, for a decoder that is to be remembered to hold it.
    memory: Option<Box<LegMemory>>,
    /// Predicted time of computing the prompt between a decoder's streams, in µs, until it is done.
    appends_us: u64,
    /// The prefiller whose KV a decoder fetches, and the number of tokens.
    fetch: Option<(InstanceId, u32)>,
}

/// Records of what decoders did, which reservations add to.
#[derive(Debug)]
pub(super) struct DecodeRecord {
    /// Costs of steps.
    pub(super) learner: Arc<Mutex<DecodeLearner>>,
    /// Times from reservations to their ends.
    pub(super) stays: Arc<Mutex<WorkSum>>,
}

/// The load of a decoder when the reservation was taken, and who learns from what came of it.
#[derive(Debug)]
struct Pace {
    record: DecodeRecord,
    began: Instant,
    requests: f64,
    context_tokens: f64,
    /// Load over time until then, or until the first token of a stream.
    before: Total,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// The engine computes for us.
    Working,
    /// The engine has answered and keeps KV for us.
    Holding,
}

impl Fleet {
    /// Reserves tokens on a decoder, whose pace is learned.
    pub(super) fn paced(&self, decoder: &Arc<Instance>, rank: Option<Rank>, tokens: u64) -> Reservation {
        let record = DecodeRecord { learner: self.decode_learner.clone(), stays: self.loads.stays.clone() };
        Reservation::paced(decoder.clone(), rank, tokens, record)
    }

    /// Known costs of decode steps.
    pub fn decode_costs(&self) -> DecodeCosts {
        self.learner().costs()
    }

    /// The same, with what they were learned from.
    pub(super) fn decode_steps(&self) -> LearnedSteps {
        self.learner().steps()
    }

    fn learner(&self) -> MutexGuard<'_, DecodeLearner> {
        self.decode_learner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    /// Reserves `tokens` of work.
    pub(super) fn take(instance: Arc<Instance>, rank: Option<Rank>, tokens: u64) -> Reservation {
        let reservation = Reservation {
            instance,
            rank,
            tokens,
            phase: Phase::Working,
            booked: None,
            pace: None,
            memory: None,
            appends_us: 0,
            fetch: None,
        };
        for load in reservation.loads() {
            load.work_tokens.fetch_add(tokens, Ordering::Relaxed);
            load.requests.fetch_add(1, Ordering::Relaxed);
        }
        reservation
    }

    /// The same, for a place that the scheduler has decided on.
    pub(super) fn booked(
        instance: Arc<Instance>,
        rank: Option<Rank>,
        tokens: u64,
        booked: Commitment,
    ) -> Reservation {
        let mut reservation = Reservation::take(instance, rank, tokens);
        reservation.booked = Some(booked);
        reservation
    }

    /// The same on a decoder, whose pace is learned.
    pub(super) fn paced(
        instance: Arc<Instance>,
        rank: Option<Rank>,
        tokens: u64,
        record: DecodeRecord,
    ) -> Reservation {
        let mut reservation = Reservation::take(instance, rank, tokens);
        let (requests, context_tokens) = reservation.load();
        let began = Instant::now();
        for load in reservation.loads() {
            load.occupancy.enter(began, tokens);
        }
        let before = reservation.occupancy().total(began);
        reservation.pace = Some(Pace { record, began, requests, context_tokens, before });
        reservation
    }

    /// The same, to be remembered.
    pub(super) fn remembered(mut self, memory: Option<LegMemory>) -> Reservation {
        self.memory = memory.map(Box::new);
        self
    }

    /// The same, for a prompt of which a decoder fetches what it lacks. If it is believed to have
    /// most of it, a wrong belief would say more about the time than the link does.
    pub(super) fn fetching(mut self, producer: Option<InstanceId>, leg: &PromptOnDecoder<'_>) -> Reservation {
        let PromptOnDecoder { job, held } = leg;
        let lacks_tokens = job.prompt_tokens.saturating_sub(held.tokens);
        self.fetch = producer.filter(|_| lacks_tokens > held.tokens).map(|it| (it, lacks_tokens));
        self
    }

    /// The transfer to the decoder, whose first token came so long after the hand-off.
    pub(super) fn fetched_within(&self, took: Duration) -> Option<SeenTransfer> {
        let ((producer, tokens), pace) = (self.fetch?, self.pace.as_ref()?);
        let costs = pace.record.learner.lock().unwrap_or_else(PoisonError::into_inner).costs();
        let step_s = costs.step(pace.requests, pace.context_tokens);
        let (producer, consumer) = (producer.0, self.instance.id().0);
        Some(SeenTransfer { producer, consumer, tokens, first_s: took.as_secs_f64(), step_s })
    }

    /// The same, for a prompt that the decoder computes in so many seconds.
    pub(super) fn appending(mut self, compute_s: Seconds) -> Reservation {
        let micros = Duration::try_from_secs_f64(compute_s).unwrap_or_default().as_micros();
        self.appends_us = u64::try_from(micros).unwrap_or(u64::MAX);
        for load in self.loads() {
            load.appends_us.fetch_add(self.appends_us, Ordering::Relaxed);
        }
        self
    }

    /// The decoder's answer has begun: the prompt is there.
    pub fn begin_answer(&mut self) {
        self.memory.iter_mut().for_each(|memory| memory.begin());
        self.end_append();
    }

    /// The first token of a stream is there: the steps that are observed begin.
    pub fn begin_steps(&mut self) {
        let before = self.occupancy().total(Instant::now());
        self.pace.iter_mut().for_each(|pace| pace.before = before);
    }

    /// The decoder's answer is complete. Returns the comparison of what it found of the prompt with
    /// what it was believed to hold.
    pub fn end_answer(&mut self, counts: DecodeCounts) -> Option<FoundByDecoder> {
        self.memory.take().and_then(|memory| memory.end(counts))
    }

    fn end_append(&mut self) {
        let micros = std::mem::take(&mut self.appends_us);
        for load in self.loads() {
            load.appends_us.fetch_sub(micros, Ordering::Relaxed);
        }
    }

    /// Place where it counts: on its instance, and on its rank.
    fn loads(&self) -> impl Iterator<Item = &Load> {
        let of_rank = self.rank.map(|rank| self.instance.load_of(Some(rank)));
        std::iter::once(self.instance.load()).chain(of_rank)
    }

    /// Requests and tokens of context in its batch, itself included.
    fn load(&self) -> (f64, f64) {
        let load = self.instance.load_of(self.rank);
        (f64::from(load.requests()), load.work_tokens() as f64)
    }

    /// The decoder took so long per token, from the first to the last.
    pub fn observe(&self, per_token: Duration) {
        let Some(pace) = &self.pace else { return };
        let Some(mean) = self.occupancy().total(Instant::now()).mean_since(pace.before) else { return };
        pace.record.learner.lock().unwrap_or_else(PoisonError::into_inner).learn(
            mean.requests,
            mean.context_tokens,
            per_token.as_secs_f64(),
        );
    }

    /// Load over time of its batch.
    fn occupancy(&self) -> &Occupancy {
        &self.instance.load_of(self.rank).occupancy
    }

    /// Place where the reservation is.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// Rank of the instance that it is on, where the gateway chooses among ranks.
    pub fn rank(&self) -> Option<Rank> {
        self.rank
    }

    /// Both, for who tells of it later.
    pub fn member(&self) -> Member {
        Member { instance: self.instance.clone(), rank: self.rank }
    }

    /// The prefiller has answered then, and has said this: its compute is free, its KV is still
    /// ours.
    pub fn hold(&mut self, answered: Instant, reported: Reported) {
        if self.phase == Phase::Working {
            self.phase = Phase::Holding;
            for load in self.loads() {
                load.held_tokens.fetch_add(self.tokens, Ordering::Relaxed);
                load.work_tokens.fetch_sub(self.tokens, Ordering::Relaxed);
                load.leases.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(booked) = &self.booked {
                booked.computed(answered, reported);
            }
        }
    }

    /// The prompt is computed, nobody knows since when: its engine has its blocks, and goes on with
    /// the request on another reservation.
    pub fn computed_unseen(mut self) {
        if let Some(booked) = self.booked.take() {
            booked.computed_unseen();
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // The scheduler's part first: an instance that drains leaves the scheduler as soon as no
        // request counts, and its lane may be another's by the time that something is given back
        // there.
        match (&self.booked, self.phase) {
            (Some(booked), Phase::Working) => booked.failed(),
            (Some(booked), Phase::Holding) => booked.let_go(),
            (None, _) => {}
        }
        self.end_append();
        for load in self.loads() {
            let counter = match self.phase {
                Phase::Working => &load.work_tokens,
                Phase::Holding => &load.held_tokens,
            };
            counter.fetch_sub(self.tokens, Ordering::Relaxed);
            if self.phase == Phase::Holding {
                load.leases.fetch_sub(1, Ordering::Relaxed);
            }
            load.requests.fetch_sub(1, Ordering::Release);
        }
        if let Some(Pace { record, began, .. }) = &self.pace {
            let now = Instant::now();
            for load in self.loads() {
                load.occupancy.leave(now, self.tokens);
            }
            let mut stays = record.stays.lock().unwrap_or_else(PoisonError::into_inner);
            stays.add(began.elapsed().as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, OnceLock};
    use std::time::Duration;

    use tokio::time::Instant;

    use crate::endpoint::Endpoint;
    use crate::fleet::{CacheReports, Fleet, Holding, Instance, Need, Role};
    use crate::route::{Job, Policy, Reported};

    /// Looks at what counts on an instance each time that the scheduler is pumped.
    #[derive(Default)]
    struct Witness {
        instance: OnceLock<Arc<Instance>>,
        requests: AtomicU32,
    }

    impl CacheReports for Witness {
        fn held(&self, _: &Job) -> Vec<Holding> {
            if let Some(instance) = self.instance.get() {
                self.requests.store(instance.load().requests(), Ordering::Relaxed);
            }
            Vec::new()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn scheduler_booking_ends_before_the_instance_is_swept() {
        let fleet = Fleet::new(Policy::Predicted);
        fleet.add(Role::Prefill, Endpoint::new("p", 1));
        let witness = Arc::new(Witness::default());
        fleet.scheduler().set_cache_reports(witness.clone());
        let long = Arc::new(Job { prompt_tokens: 1 << 20, ..Job::default() });
        let place = || fleet.scheduler().place(long.clone(), Instant::now(), &[]).unwrap();
        let placed = place().await.unwrap();
        let _next = place();
        let _ = witness.instance.set(placed.reservation.instance().clone());
        assert_eq!((fleet.scheduler().waiting(), witness.requests.load(Ordering::Relaxed)), (1, 0));
        // What was told is old by then, so that it is asked for again when the scheduler runs.
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(placed);
        assert_eq!(witness.requests.load(Ordering::Relaxed), 1, "it counted while the board was told");
    }

    #[test]
    fn reserved_load_is_given_back_in_every_phase() {
        let fleet = Fleet::new(Policy::LeastWork);
        fleet.add(Role::Prefill, Endpoint::new("p", 1));
        let load = |f: &Fleet| {
            let i = f.members(Role::Prefill)[0].clone();
            (i.load().work_tokens(), i.load().held_tokens(), i.load().requests(), i.load().leases())
        };
        let mut reservation = fleet.pick(Role::Prefill, Need { tokens: 7, ..Need::default() }).unwrap();
        assert_eq!(load(&fleet), (7, 0, 1, 0));
        reservation.hold(Instant::now(), Reported::default());
        reservation.hold(Instant::now(), Reported::default());
        assert_eq!(load(&fleet), (0, 7, 1, 1));
        drop(reservation);
        assert_eq!(load(&fleet), (0, 0, 0, 0));
    }
}
