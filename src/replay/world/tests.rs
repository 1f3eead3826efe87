use proptest::prelude::*;

use super::super::dispatch::{AppendQuestion, DecodeQuestion, PrefillDispatch, Returned};
use super::super::outcome::{Measures, Slo};
use super::super::{Costs, Follow, PoolKind};
use super::*;
use crate::route::shared::message::{Numbered, ReplicaId};
use crate::route::{Append, CacheView};

/// Sends each request at once, or after a pause of its own; to the lanes in turn, or to that with
/// the fewest requests.
#[derive(Debug)]
struct Simple {
    lanes: Vec<Option<u32>>,
    least: bool,
    pause_s: f64,
    waiting: Vec<(f64, u64, Option<LaneId>)>,
    booked: HashMap<u64, LaneId>,
    count: u64,
    /// Lets the first decoder compute all prompts but the first one.
    appends: bool,
}

impl Simple {
    fn new(lanes: u16, least: bool, pause_s: f64) -> Simple {
        let lanes = vec![Some(0); usize::from(lanes)];
        let (waiting, booked) = (Vec::new(), HashMap::new());
        Simple { lanes, least, pause_s, waiting, booked, count: 0, appends: false }
    }

    fn lane(&self, failed: Option<LaneId>) -> LaneId {
        let usable = |lane: &usize| self.lanes[*lane].is_some() && failed != Some(LaneId(*lane as u16));
        let open: Vec<usize> = (0..self.lanes.len()).filter(usable).collect();
        let nth = open[self.count as usize % open.len()];
        let least = open.into_iter().min_by_key(|lane| self.lanes[*lane]).unwrap();
        LaneId(if self.least { least } else { nth } as u16)
    }
}

impl Dispatch for Simple {
    fn arrive(&mut self, now: Seconds, _: Arc<Job>, _: &dyn CacheView) -> u64 {
        self.count += 1;
        self.waiting.push((now + self.pause_s * (self.count % 7) as f64, self.count, None));
        self.count
    }

    fn again(&mut self, _: Seconds, returned: Returned, _: &dyn CacheView) -> u64 {
        self.count += 1;
        self.waiting.push((returned.since_s, self.count, Some(returned.failed)));
        self.count
    }

    fn pump(&mut self, now: Seconds, _: &dyn CacheView, _: &mut dyn FnMut() -> u64) -> Vec<PrefillDispatch> {
        let due = |waiting: &mut (f64, u64, Option<LaneId>)| waiting.0 <= now;
        let due: Vec<_> = self.waiting.extract_if(.., due).collect();
        let send = |(_, ticket, failed)| {
            let lane = self.lane(failed);
            self.count += 1;
            self.booked.insert(self.count, lane);
            *self.lanes[usize::from(lane.0)].as_mut().unwrap() += 1;
            PrefillDispatch { ticket, booking: self.count, lane }
        };
        due.into_iter().map(send).collect()
    }

    fn wake_s(&self) -> Option<Seconds> {
        self.waiting.iter().map(|(due, _, _)| *due).min_by(f64::total_cmp)
    }

    fn done(&mut self, _: Seconds, booking: u64, _: Option<u32>) {
        let lane = self.booked.remove(&booking).expect("booked once, done once");
        if let Some(requests) = &mut self.lanes[usize::from(lane.0)] {
            *requests -= 1;
        }
    }

    fn hear(&mut self, _: Seconds, _: ReplicaId, _: &Numbered) {}

    fn beat(&mut self, _: Seconds) {}

    fn tell_rest(&mut self) {}

    fn messages(&mut self) -> Vec<Numbered> {
        Vec::new()
    }

    fn hold(&mut self, _: LaneId, _: i64) {}

    fn close(&mut self, lane: LaneId) {
        self.lanes[usize::from(lane.0)] = None;
    }

    fn decoder(&mut self, question: DecodeQuestion<'_>) -> usize {
        if self.appends { 0 } else { question.random as usize % question.loads.len() }
    }

    fn append(&mut self, _: AppendQuestion<'_>) -> Option<Appending> {
        let append = Append { compute_s: 0.1, ..Append::default() };
        (self.appends && self.count > 0).then_some(Appending { append, ..Appending::default() })
    }
}

/// Conversations: turn t of conversation c has the blocks of the turns before, and some more.
fn workload(count: usize, per_s: f64, seed: u64) -> Workload {
    let mut random = Random::new(seed);
    let mut turns: HashMap<u64, u64> = HashMap::new();
    let mut at_s = 0.0;
    let mut arrival = |_| {
        at_s += -(1.0 - random.unit()).ln() / per_s;
        let conversation = random.word() % (1 + count as u64 / 4);
        let turn = turns.entry(conversation).or_default();
        *turn += 1;
        let blocks: Arc<[u64]> = (0..4 * *turn).map(|block| conversation * 1_000 + block).collect();
        let prompt_tokens = blocks.len() as u32 * BLOCK_TOKENS + (random.word() % 512) as u32;
        let output_tokens = 1 + (random.word() % 300) as u32;
        Arrival {
            at_s,
            after: None,
            prompt_tokens,
            output_tokens,
            answered_blocks: blocks.clone(),
            is_later_turn: *turn > 1,
            blocks,
            session: Some(conversation),
        }
    };
    let arrivals: Vec<Arrival> = (0..count).map(&mut arrival).collect();
    Workload { arrivals, mean_output_tokens: 150, rate_per_s: per_s, warm_up: count / 5 }
}

fn run(cluster: &Cluster, faults: &Faults, workload: &Workload, (least, pause_s): (bool, f64)) -> Run {
    let gateways = (0..faults.gateways).map(|_| Simple::new(cluster.prefillers, least, pause_s)).collect();
    World::new(cluster, faults, workload, gateways, 1).run().unwrap()
}

fn small(pool: PoolKind) -> Cluster {
    let costs = Costs { hbm_tokens: 64 * BLOCK_TOKENS, pool_tokens: 1024 * BLOCK_TOKENS, ..Costs::default() };
    Cluster { prefillers: 3, decoders: 2, pool, kv_events: true, costs, ..Cluster::default() }
}

#[test]
fn a_lone_request_takes_what_its_parts_take() {
    let mut workload = workload(1, 1.0, 1);
    let arrival = &mut workload.arrivals[0];
    (arrival.prompt_tokens, arrival.output_tokens) = (2_100, 3);
    let at_s = arrival.at_s;
    let cluster = small(PoolKind::None);
    let costs = cluster.costs;
    let run = run(&cluster, &Faults::default(), &workload, (true, 0.0));
    let handoff_s = costs.handoff_s + 2_100.0 * costs.handoff_token_s;
    let first_s = at_s + costs.prefill(2_100, 0) + handoff_s + costs.decode(1, 2_100) + 4.0 * costs.hop_s;
    assert!((run.records[0].first_s - first_s).abs() < 1e-9);
    assert!((run.records[0].last_s - first_s - costs.decode(1, 2_101) - costs.decode(1, 2_102)).abs() < 1e-9);
    assert!((run.records[0].worst_gap_s - costs.decode(1, 2_102)).abs() < 1e-9);
}

#[test]
fn a_turn_comes_when_its_user_has_thought() {
    let mut workload = workload(40, 50.0, 7);
    // All of them one conversation: each answer is waited for.
    for at in 1..40 {
        workload.arrivals[at].after = Some(Follow { request: at as u32 - 1, think_s: 0.25 * at as f64 });
    }
    let cluster = small(PoolKind::None);
    let one = run(&cluster, &Faults::default(), &workload, (true, 0.0));
    assert_eq!(one, run(&cluster, &Faults::default(), &workload, (true, 0.0)));
    assert_eq!(one.records[0].came_s, workload.arrivals[0].at_s);
    for (at, pair) in one.records.windows(2).enumerate() {
        let think_s = 0.25 * (at + 1) as f64;
        assert!((pair[1].came_s - pair[0].last_s - think_s).abs() < 1e-9, "{pair:?}");
    }
}

#[test]
fn a_decoder_computes_what_it_has_not_kept() {
    let mut workload = workload(3, 1.0, 1);
    // Two turns of a conversation, and the second one's blocks with another end.
    let blocks: Arc<[u64]> = (0..9).collect();
    let tokens = [(2_100, 4), (4_700, 9), (4_100, 8)];
    for (at, (tokens, end)) in tokens.into_iter().enumerate() {
        let arrival = &mut workload.arrivals[at];
        (arrival.prompt_tokens, arrival.output_tokens) = (tokens, 600);
        arrival.blocks = blocks[..end].into();
        arrival.answered_blocks = blocks[..end.max(5)].into();
        arrival.after = at.checked_sub(1).map(|before| Follow { request: before as u32, think_s: 1.0 });
    }
    let cluster = Cluster { decode_cache: true, ..small(PoolKind::None) };
    let gateway = Simple { appends: true, ..Simple::new(3, true, 0.0) };
    let run = World::new(&cluster, &Faults::default(), &workload, vec![gateway], 1).run().unwrap();
    let costs = cluster.costs;
    let as_prefiller = Costs { chunk_tokens: costs.decode_chunk_tokens, ..costs };
    // Five blocks with the answer, and all eight whole ones of the second prompt.
    for (at, held) in [(1, 5), (2, 8)] {
        let (record, (tokens, _)) = (run.records[at], tokens[at]);
        let held_tokens = held * BLOCK_TOKENS;
        assert_eq!((record.cached_tokens, record.is_appended), (held_tokens, true));
        let first_s = record.came_s + as_prefiller.prefill(tokens, held_tokens) + 2.0 * costs.hop_s;
        assert!((record.first_s - first_s).abs() < 1e-9, "{record:?} {first_s}");
    }
    assert!(!run.records[0].is_appended && run.records[0].cached_tokens == 0);
}

#[test]
fn only_what_a_decoder_lacks_is_transferred() {
    let first = |decode_cache| {
        let mut workload = workload(2, 1.0, 1);
        for (arrival, (tokens, end)) in workload.arrivals.iter_mut().zip([(8_200, 16), (8_700, 16)]) {
            (arrival.prompt_tokens, arrival.blocks) = (tokens, (0..end).collect());
        }
        workload.arrivals[1].after = Some(Follow { request: 0, think_s: 1.0 });
        let cluster = Cluster { decoders: 1, decode_cache, ..small(PoolKind::None) };
        let run = run(&cluster, &Faults::default(), &workload, (true, 0.0));
        run.records[1].first_s - run.records[1].came_s
    };
    let spared_s = first(false) - first(true);
    assert!((spared_s - 16.0 * 512.0 * Costs::default().handoff_token_s).abs() < 1e-9, "{spared_s}");
}

#[test]
fn a_pool_saves_what_the_caches_forgot() {
    let workload = workload(400, 2.0, 2);
    let hits = |pool| {
        let cluster = small(pool);
        let run = run(&cluster, &Faults::default(), &workload, (false, 0.0));
        Measures::of(&run, &workload, &cluster, &Slo::default()).hit_share
    };
    let [none, local, mixed, shared] =
        [PoolKind::None, PoolKind::Local, PoolKind::Mixed, PoolKind::Shared].map(hits);
    assert!(none < local && local < mixed && mixed <= shared + 0.01, "{none} {local} {mixed} {shared}");
}

#[test]
fn a_dead_prefiller_s_requests_are_served_by_others() {
    let workload = workload(300, 4.0, 3);
    let faults = Faults { dies: true, ..Faults::default() };
    for pool in [PoolKind::None, PoolKind::Shared] {
        let run = run(&small(pool), &faults, &workload, (false, 0.0));
        assert!(run.records.iter().any(|record| record.failures > 0));
        let middle_s = workload.arrivals[150].at_s + 1.0;
        let late = workload.arrivals.iter().zip(&run.records).filter(|(arrival, _)| arrival.at_s > middle_s);
        assert!(late.clone().count() > 100);
        late.for_each(|(_, record)| assert_ne!(record.lane, VICTIM));
    }
}

#[test]
fn a_slow_prefiller_is_busier() {
    let workload = workload(300, 1.0, 4);
    let faults = Faults { slowness: 2.0, ..Faults::default() };
    let run = run(&small(PoolKind::Shared), &faults, &workload, (false, 0.0));
    assert!(run.busy_s[0] > 1.4 * run.busy_s[1].max(run.busy_s[2]));
}

#[test]
fn far_link_delays_what_goes_over_it_and_nothing_else() {
    let workload = workload(40, 0.01, 4);
    let cluster = |far_links| Cluster { far_links, ..small(PoolKind::None) };
    let [near, far] =
        [1.0, 10.0].map(|factor| run(&cluster(factor), &Faults::default(), &workload, (false, 0.0)));
    let mut went_far = 0;
    for ((near, far), arrival) in near.records.iter().zip(&far.records).zip(&workload.arrivals) {
        let goes_far = cluster(10.0).is_far(far.lane, far.decoder);
        let takes_s = f64::from(arrival.prompt_tokens) * Costs::default().handoff_token_s;
        let later_s = if goes_far { 9.0 * takes_s } else { 0.0 };
        assert!((far.first_s - near.first_s - later_s).abs() < 1e-9, "{far:?}");
        went_far += u32::from(goes_far);
    }
    assert!((10..30).contains(&went_far), "{went_far}");
}

#[test]
fn without_the_pool_s_answers_engines_still_restore() {
    let workload = workload(200, 1.0, 5);
    let cluster = small(PoolKind::Shared);
    let [told, untold, stale] = [(0.0, 0.0), (1.0, 0.0), (0.0, 1e9)].map(|(pool_missing, pool_stale_s)| {
        let faults = Faults { pool_missing, pool_stale_s, ..Faults::default() };
        run(&cluster, &faults, &workload, (false, 0.0))
    });
    assert_eq!(told, untold, "round robin does not care");
    assert_eq!(told.records, stale.records);
}

#[test]
fn gateway_that_never_sends_is_an_error() {
    let workload = workload(5, 1.0, 6);
    let cluster = small(PoolKind::None);
    let lazy = Simple::new(3, true, f64::INFINITY);
    let mistake = World::new(&cluster, &Faults::default(), &workload, vec![lazy], 1).run().unwrap_err();
    assert_eq!((mistake.served < 5, mistake.requests), (true, 5));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_request_is_served_once_and_never_too_early(
        seed in 0u64..1_000,
        per_s in 0.2f64..20.0,
        pool in prop::sample::select(vec![PoolKind::None, PoolKind::Shared, PoolKind::Local, PoolKind::Mixed]),
        (least, pause_s) in (proptest::bool::ANY, prop::sample::select(vec![0.0, 0.3])),
        (dies, gateways, stale) in (proptest::bool::ANY, 1u16..4, prop::sample::select(vec![0.0, 5.0])),
    ) {
        let workload = workload(120, per_s, seed);
        let cluster = small(pool);
        let faults = Faults { dies, gateways, pool_stale_s: stale, pool_missing: 0.1, slowness: 1.5, ..Faults::default() };
        let one = run(&cluster, &faults, &workload, (least, pause_s));
        prop_assert_eq!(&one, &run(&cluster, &faults, &workload, (least, pause_s)), "the seed says it all");
        let costs = &cluster.costs;
        for (arrival, record) in workload.arrivals.iter().zip(&one.records) {
            prop_assert_eq!(record.answers, 1);
            prop_assert!(record.cached_tokens < arrival.prompt_tokens);
            let least_s = costs.prefill(arrival.prompt_tokens, record.cached_tokens);
            prop_assert!(record.first_s >= arrival.at_s + least_s, "{:?} {:?}", arrival, record);
            let steps = f64::from(arrival.output_tokens - 1);
            prop_assert!(record.last_s >= record.first_s + steps * costs.decode_step_s);
            prop_assert!(record.last_s <= one.end_s);
            prop_assert!((record.worst_gap_s > 0.0) == (arrival.output_tokens > 1));
        }
        // A step that is on at either end may reach out of the time that is looked at.
        let looked_s = workload.arrivals[119].at_s - workload.arrivals[workload.warm_up].at_s;
        let step_s = 1.5 * costs.prefill(costs.chunk_tokens, 0) + 100.0;
        one.busy_s.iter().for_each(|busy_s| assert!(*busy_s <= looked_s + step_s));
        let measures = Measures::of(&one, &workload, &cluster, &Slo::default());
        prop_assert!((0.0..=1.0).contains(&measures.slo_share) && (0.0..=1.0).contains(&measures.hit_share));
        prop_assert!(measures.imbalance >= 1.0 && measures.imbalance <= 3.0);
    }
}
