use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::time::Instant;

use super::{KeyBudget, SliceGrant, SliceRequest};

const MINUTE_S: f64 = 60.0;

/// The store's bucket, by the rules of its script.
#[derive(Debug, Default)]
struct Store(Option<(f64, Instant)>);

impl Store {
    fn exchange(&mut self, request: SliceRequest, now: Instant) -> SliceGrant {
        let SliceRequest { per_minute, returned, wanted, parts, level } = request;
        let filled = self.0.map_or(level, |(level, at)| {
            level + now.saturating_duration_since(at).as_secs_f64() * per_minute / MINUTE_S
        });
        let level = (filled.min(per_minute) + returned).min(per_minute);
        let slice = wanted.min(level / parts).max(0.0);
        self.0 = Some((level - slice, now));
        SliceGrant { slice, level: level - slice }
    }
}

/// End of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Whole,
    AnswerLost,
    NeverArrived,
}

/// Gateways with one key, and their store.
struct World {
    now: Instant,
    began: Instant,
    store: Store,
    gateways: Vec<KeyBudget>,
    /// Exchanges under way: the answer, if the store gave one, and when it was asked.
    under_way: Vec<Option<(Option<SliceGrant>, Instant)>>,
    per_minute: u64,
    granted: f64,
}

impl World {
    fn new(gateways: usize, per_minute: u64) -> World {
        let now = Instant::now();
        let mut all: Vec<KeyBudget> = (0..gateways).map(|_| KeyBudget::full(per_minute)).collect();
        all.iter_mut().for_each(|budget| budget.join(gateways as u32, now));
        let under_way = vec![None; gateways];
        let store = Store::default();
        World { now, began: now, store, gateways: all, under_way, per_minute, granted: 0.0 }
    }

    fn take(&mut self, at: usize, tokens: u64) -> bool {
        let taken = self.gateways[at].take(tokens, self.now).is_ok();
        self.granted += if taken { tokens as f64 } else { 0.0 };
        taken
    }

    fn settle(&mut self, at: usize, reserved: u64, used: u64) {
        self.gateways[at].settle(reserved, used, self.now);
        self.granted += used as f64 - reserved as f64;
    }

    fn begin(&mut self, at: usize, end: End) {
        let Some(request) = self.gateways[at].next_exchange(self.now) else { return };
        let answer = (end != End::NeverArrived).then(|| self.store.exchange(request, self.now));
        self.under_way[at] = Some((answer.filter(|_| end == End::Whole), self.now));
    }

    /// Ends what is under way. A gateway whose exchange got no answer takes the store for gone, and
    /// finds it again.
    fn end(&mut self, at: usize) {
        match self.under_way[at].take() {
            Some((Some(grant), asked)) => self.gateways[at].end_exchange(grant, asked),
            Some((None, _)) => {
                self.gateways[at].leave(self.now);
                self.join(at);
            }
            None => {}
        }
    }

    fn exchange(&mut self, at: usize, end: End) {
        self.begin(at, end);
        self.end(at);
    }

    fn join(&mut self, at: usize) {
        let gateways = self.gateways.len() as u32;
        self.gateways[at].join(gateways, self.now);
    }

    fn leave_all(&mut self) {
        self.under_way.iter_mut().for_each(|it| *it = None);
        self.gateways.iter_mut().for_each(|budget| budget.leave(self.now));
    }

    fn join_all(&mut self) {
        (0..self.gateways.len()).for_each(|at| self.join(at));
    }

    fn pass(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }

    /// Tokens of a full bucket, and those that came since the start.
    fn budget(&self) -> f64 {
        let per_minute = self.per_minute as f64;
        per_minute + (self.now - self.began).as_secs_f64() * per_minute / MINUTE_S
    }

    /// The share of the budget by which more or less was granted than it has.
    fn error(&self) -> f64 {
        (self.granted / self.budget() - 1.0).abs()
    }
}

/// Requests of ten times the budget for some seconds, each gateway in turn, with an exchange of
/// each every 20 ms.
fn overload(world: &mut World, seconds: u64, lost_every: usize) {
    let gateways = world.gateways.len();
    for step in 0..seconds * 50 {
        for at in 0..gateways {
            let tokens = 60 + 30 * ((step as usize + at) % 4) as u64;
            for _ in 0..1 + 10 * world.per_minute / 60 / 50 / 100 / gateways as u64 {
                if world.take(at, tokens + 200) {
                    world.settle(at, tokens + 200, tokens);
                }
            }
            let nth = step as usize * gateways + at;
            let end = match lost_every {
                0 => End::Whole,
                every if nth.is_multiple_of(every) => [End::AnswerLost, End::NeverArrived][nth / every % 2],
                _ => End::Whole,
            };
            world.exchange(at, end);
        }
        world.pass(20);
    }
}

#[test]
fn overload_at_four_gateways_gets_the_budget_of_one() {
    for gateways in [1, 2, 4, 8] {
        let mut world = World::new(gateways, 100_000);
        overload(&mut world, 180, 0);
        assert!(world.error() < 0.01, "{gateways}: {}", world.error());
    }
}

#[test]
fn lost_exchanges_cost_some_of_the_budget_and_grant_nothing_more() {
    let mut world = World::new(4, 100_000);
    overload(&mut world, 180, 200);
    assert!(world.granted < 1.01 * world.budget() && world.error() < 0.03, "{}", world.error());
}

#[test]
fn store_that_is_away_for_a_minute_changes_no_budget() {
    let mut world = World::new(4, 100_000);
    overload(&mut world, 60, 0);
    world.leave_all();
    overload(&mut world, 60, 0);
    assert!(world.error() < 0.02, "each goes on with a quarter: {}", world.error());
    world.join_all();
    overload(&mut world, 60, 0);
    assert!(world.error() < 0.02, "{}", world.error());
}

#[test]
fn store_that_comes_back_empty_refills_no_bucket() {
    let mut world = World::new(4, 100_000);
    overload(&mut world, 60, 0);
    world.store = Store::default();
    overload(&mut world, 60, 0);
    assert!(world.error() < 0.01, "flushed: {}", world.error());
    world.leave_all();
    world.store = Store::default();
    overload(&mut world, 10, 0);
    world.join_all();
    overload(&mut world, 60, 0);
    assert!(world.error() < 0.02, "started anew: {}", world.error());
}

#[test]
fn one_gateway_alone_can_spend_all_that_is_left() {
    let mut world = World::new(4, 100_000);
    assert!(world.take(0, 60_000), "larger than any slice, and the budget has it");
    assert!(!world.take(0, 30_000), "not before that one is paid");
    world.exchange(0, End::Whole);
    assert!(world.take(0, 30_000));
    world.exchange(0, End::Whole);
    assert!(!world.take(0, 20_000), "10 000 are left");
    assert_eq!(world.gateways[0].level(world.now).remaining, 10_000);
    world.settle(0, 60_000, 100);
    assert!(world.take(0, 20_000), "what was not used is there at once");
}

#[test]
fn slices_shrink_with_the_budget_and_go_back_when_idle() {
    let mut world = World::new(2, 80_000);
    let slice = |world: &World| {
        let (level, _) = world.store.0.unwrap();
        80_000.0 - level - world.granted
    };
    assert!(world.take(0, 10_000));
    world.exchange(0, End::Whole);
    assert!((slice(&world) - 70_000.0 / 4.0).abs() < 1.0, "a quarter of what is left");
    for _ in 0..3 {
        assert!(world.take(0, 16_000));
        world.exchange(0, End::Whole);
    }
    assert!((slice(&world) - 22_000.0 / 4.0).abs() < 1.0, "of less, less");
    world.exchange(0, End::Whole);
    assert_eq!(world.gateways[0].next_exchange(world.now), None, "nothing happened since");
    world.pass(2_000);
    let request = world.gateways[0].next_exchange(world.now).unwrap();
    assert!(request.returned > 5_000.0 && request.wanted == 0.0, "{request:?}");
}

#[test]
fn gateway_without_a_store_has_the_whole_budget_and_then_a_part() {
    let now = Instant::now();
    let mut budget = KeyBudget::full(60_000);
    assert_eq!(budget.take(60_000, now), Ok(()));
    assert_eq!(budget.take(1_000, now), Err(Duration::from_secs(1)));
    budget.join(3, now);
    let request = budget.next_exchange(now).unwrap();
    assert_eq!(request.returned, -60_000.0, "what was taken before is a debt");
    budget.end_exchange(SliceGrant { slice: 0.0, level: 30_000.0 }, now);
    budget.leave(now);
    let level = budget.level(now);
    assert_eq!((level.limit, level.remaining), (60_000, 10_000), "a third of what was left");
    assert_eq!(budget.take(11_000, now), Err(Duration::from_secs(3)), "it fills by a third, too");
    budget.set_per_minute(6_000);
    assert_eq!(budget.level(now).remaining, 2_000);
}

/// A step of many.
#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Take(usize, u64),
    Settle(usize, u64),
    Begin(usize, End),
    End(usize),
    Away(u64),
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = || 0_usize..4;
    let end = prop_oneof![8 => Just(End::Whole), 1 => Just(End::AnswerLost), 1 => Just(End::NeverArrived)];
    let step = prop_oneof![
        20 => (1_u64..400).prop_map(Step::Pass),
        40 => (at(), 1_u64..4_000).prop_map(|(at, tokens)| Step::Take(at, tokens)),
        10 => (at(), 0_u64..4_000).prop_map(|(at, used)| Step::Settle(at, used)),
        30 => (at(), end).prop_map(|(at, end)| Step::Begin(at, end)),
        30 => at().prop_map(Step::End),
        1 => (0_u64..20_000).prop_map(Step::Away),
        1 => Just(Step::Flush),
    ];
    vec(step, 1..600)
}

proptest! {
    /// A slice is at most an eighth of the bucket, and no request is as large. A gateway may hold
    /// one slice and owe another. What it knows of the store may be old when that is lost: each
    /// goes on with its part of a bucket, and one that was flushed has what the first one knows.
    #[test]
    fn four_gateways_grant_at_most_a_slice_each_above_the_budget(steps in steps()) {
        let (mut world, mut reserved) = (World::new(4, 40_000), Vec::new());
        let (mut was_away, mut flushed) = (0.0, 0.0);
        for step in steps {
            match step {
                Step::Pass(ms) => world.pass(ms),
                Step::Take(at, tokens) => if world.take(at, tokens) { reserved.push((at, tokens)) },
                Step::Settle(nth, used) => if nth < reserved.len() {
                    let (at, tokens) = reserved.swap_remove(nth);
                    world.settle(at, tokens, used.min(tokens));
                },
                Step::Begin(at, end) => if world.under_way[at].is_none() { world.begin(at, end) },
                Step::End(at) => world.end(at),
                Step::Away(ms) => {
                    was_away = 1.0;
                    world.leave_all();
                    world.pass(ms);
                    world.join_all();
                }
                Step::Flush => {
                    flushed += 1.0;
                    world.store = Store::default();
                }
            }
            let above = world.granted - world.budget();
            let allowed = 4.0 * 2.0 * 5_000.0 + (was_away + flushed) * 40_000.0;
            prop_assert!(above <= allowed, "{above} above, {allowed} allowed");
        }
    }
}
