use super::*;
use crate::route::cost::DecodeCosts;
use crate::util::splitmix::mix;

/// Seconds of work of one piece, by a number from 0 to 1.
type Service = fn(f64) -> f64;

/// Kinds of work: all alike; as of Markov; one in ten takes 19 times as long as the others.
const KINDS: [(&str, Service); 3] = [
    ("alike", |_| 0.5),
    ("exponential", |unit| -0.5 * (1.0 - unit).ln()),
    ("mixed", |unit| if unit < 0.9 { 0.25 } else { 4.75 }),
];

/// Repeatable numbers from 0 up to 1.
pub(crate) struct Units(pub(crate) u64);

impl Units {
    pub(crate) fn next(&mut self) -> f64 {
        self.0 += 1;
        (mix(self.0) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A first-come first-served queue, played piece by piece: the share of pieces that wait longer
/// than `wait_s`. Each piece takes the server that is free first.
fn played_late_share(servers: u32, busy: f64, service: Service, wait_s: f64) -> f64 {
    const PIECES: u32 = 60_000;
    let mut units = Units(7);
    let mean_s = (0..10_000).map(|_| service(units.next())).sum::<f64>() / 10_000.0;
    let mut free_s = vec![0.0f64; servers as usize];
    let (mut now, mut late) = (0.0, 0u32);
    for _ in 0..PIECES {
        now -= (1.0 - units.next()).ln() * mean_s / busy;
        let first = free_s.iter_mut().min_by(|a, b| a.total_cmp(b)).unwrap();
        late += u32::from(*first - now > wait_s);
        *first = first.max(now) + service(units.next());
    }
    f64::from(late) / f64::from(PIECES)
}

/// The least number of servers with which enough pieces of a played queue are in time.
pub(crate) fn played_servers(busy: f64, service: fn(f64) -> f64, wait_s: f64) -> u32 {
    let borne = |servers| played_late_share(servers, busy, service, wait_s) <= LATE_SHARE;
    (busy as u32 + 1..).find(|servers| borne(*servers)).unwrap()
}

fn sum_of(service: Service) -> WorkSum {
    let (mut sum, mut units) = (WorkSum::default(), Units(1));
    (0..20_000).for_each(|_| sum.add(service(units.next())));
    sum
}

#[test]
fn probability_of_waiting_is_erlangs() {
    // Known values of Erlang's C: two servers with a load of one, ten with one of eight.
    for (servers, busy, waits) in [(1, 0.5, 0.5), (2, 1.0, 1.0 / 3.0), (10, 8.0, 0.4092)] {
        let load = QueueLoad { busy, residual_s: 1.0, wait_s: 0.0 };
        assert!((load.late_share(servers) - waits).abs() < 1e-4, "{}", load.late_share(servers));
    }
    // One server with exponential work: exp(-(1 - busy) t / mean) of those that wait, exactly.
    let load = QueueLoad { busy: 0.8, residual_s: 1.0, wait_s: 3.0 };
    assert!((load.late_share(1) - 0.8 * (-0.2f64 * 3.0).exp()).abs() < 1e-12);
}

#[test]
fn servers_needed_are_those_of_a_played_queue() {
    for (kind, service) in KINDS {
        let residual_s = sum_of(service).residual_s();
        for (busy, wait_s) in [(0.3, 0.5), (1.7, 1.0), (6.0, 0.5), (6.0, 3.0), (20.0, 1.0)] {
            let found = QueueLoad { busy, residual_s, wait_s }.servers_needed();
            let played = played_servers(busy, service, wait_s);
            assert!(found.abs_diff(played) <= 1, "{kind}, {busy} busy, {wait_s} s: {found}, played {played}");
        }
    }
}

#[test]
fn saturation_is_one_where_a_played_queue_is_just_borne() {
    for (kind, service) in KINDS {
        let residual_s = sum_of(service).residual_s();
        for servers in [1, 4, 16] {
            let (mut borne, mut too_much) = (0.0, f64::from(servers));
            while too_much - borne > 0.01 * f64::from(servers) {
                let busy = f64::midpoint(borne, too_much);
                let is_borne = played_late_share(servers, busy, service, 1.0) <= LATE_SHARE;
                *(if is_borne { &mut borne } else { &mut too_much }) = busy;
            }
            let found = QueueLoad { busy: borne, residual_s, wait_s: 1.0 }.saturation(servers);
            assert!((found - 1.0).abs() < 0.1, "{kind}, {servers} servers bear {borne}: {found}");
        }
    }
}

#[test]
fn saturation_and_servers_needed_agree_and_grow_with_load() {
    let load = |busy| QueueLoad { busy, residual_s: 0.7, wait_s: 1.0 };
    let mut last = (0, 0.0);
    for tenth in 0..300 {
        let busy = f64::from(tenth) / 10.0;
        let (needed, saturation) = (load(busy).servers_needed(), load(busy).saturation(8));
        assert_eq!(needed <= 8, saturation <= 1.0 + 1e-9, "{busy}: {needed} {saturation}");
        assert!(needed >= last.0 && saturation >= last.1, "{busy}");
        last = (needed, saturation);
    }
    assert_eq!((load(0.0).servers_needed(), load(0.0).saturation(0)), (0, 0.0));
    assert!(load(f64::NAN).saturation(3).is_finite() && load(f64::NAN).servers_needed() == 0);
    let endless = QueueLoad { residual_s: 0.0, wait_s: 0.0, busy: 1e9 };
    assert_eq!(endless.servers_needed(), MAX_SERVERS);
}

#[test]
fn work_sums_are_those_of_what_came_in_between() {
    let mut sum = WorkSum::default();
    (0..10).for_each(|_| sum.add(2.0));
    let before = sum;
    assert_eq!((sum.mean_s(), sum.residual_s()), (2.0, 1.0));
    [1.0, 3.0, f64::NAN, f64::INFINITY, -1.0].into_iter().for_each(|seconds| sum.add(seconds));
    let since = sum.since(before);
    assert_eq!((since.pieces, since.mean_s(), since.residual_s()), (2.0, 2.0, 1.25));
    assert_eq!((WorkSum::default().mean_s(), WorkSum::default().residual_s()), (0.0, 0.0));
}

/// Steps whose split is known.
fn known(costs: DecodeCosts) -> LearnedSteps {
    LearnedSteps { costs, split_known: 1.0 }
}

const COSTS: DecodeCosts = DecodeCosts { base_s: 0.02, per_request_s: 1e-4, per_token_s: 5e-8 };

fn place(streams: f64) -> DecodePlace {
    DecodePlace { streams, kv_tokens: streams * 2_000.0, ..DecodePlace::default() }
}

/// Streams on one of `places` decoders in a steady state: tokens come at this rate, evenly, and a
/// decoder with r streams gives r / step(r) of them per second.
fn steady_streams(tokens_per_s: f64, places: f64) -> f64 {
    let rate = tokens_per_s / places;
    let each_s = COSTS.per_request_s + COSTS.per_token_s * 2_000.0;
    rate * COSTS.base_s / (1.0 - rate * each_s)
}

#[test]
fn decoders_needed_are_those_whose_steps_keep_the_target() {
    // 10 000 tokens per second at 40 ms a token: at most 100 streams each, 2 500 tokens per second.
    for places in [4u32, 5, 8, 20] {
        let streams = steady_streams(10_000.0, f64::from(places));
        let all = vec![place(streams); places as usize];
        let load = DecodeLoad::of(&all, &known(COSTS), 0.04);
        assert!((load.places_needed - 4.0).abs() < 1e-6, "{places} with {streams}: {load:?}");
    }
    let step_s = COSTS.step(100.0, 100.0 * 2_000.0);
    assert!((step_s - 0.04).abs() < 1e-12, "the target is met by four: {step_s}");
}

#[test]
fn decoder_is_full_by_memory_and_by_its_own_word() {
    let of = |place| DecodeLoad::of(&[place], &known(COSTS), 0.04).streams_in_places;
    assert!((of(place(50.0)) - 0.5).abs() < 1e-9);
    // 90 % of 100 000 tokens are 45 contexts.
    let small = DecodePlace { kv_capacity_tokens: 100_000.0, ..place(45.0) };
    assert!((of(small) - 1.0).abs() < 1e-9);
    assert!((of(DecodePlace { most_streams: Some(25.0), ..place(50.0) }) - 2.0).abs() < 1e-9);
    // More streams than the target allows: so many more places are needed, not fewer.
    assert!((DecodeLoad::of(&[place(300.0)], &known(COSTS), 0.04).places_needed - 3.0).abs() < 1e-9);
    // One alone is too slow, as it is on more places: one of 20.2 ms and 25 % more is the target,
    // which 26.25 streams keep.
    let slow = DecodeLoad::of(&[place(26.25)], &known(COSTS), 0.001);
    assert!((slow.places_needed - 1.0).abs() < 1e-9, "{slow:?}");
    assert_eq!(DecodeLoad::of(&[place(0.0)], &known(COSTS), 0.04), DecodeLoad::default());
    assert_eq!(DecodeLoad::of(&[], &known(COSTS), 0.04), DecodeLoad::default());
}

/// Places that so many streams on two decoders need at 50 ms a step, where a step of one alone
/// takes `lone_s`, of which each stream's part is `share`.
fn places_needed(streams: f64, lone_s: f64, share: f64) -> f64 {
    let costs =
        DecodeCosts { base_s: lone_s * (1.0 - share), per_request_s: lone_s * share, per_token_s: 0.0 };
    DecodeLoad::of(&[place(streams / 2.0), place(streams / 2.0)], &known(costs), 0.05).places_needed
}

proptest::proptest! {
    #[test]
    fn decoders_needed_do_not_jump_where_a_lone_step_passes_the_target(
        streams in 2u32..1_000,
        share in 0.0f64..0.5,
        lone_s in 0.03f64..0.08,
    ) {
        let streams = f64::from(streams);
        // A step that is 4 % longer, as from 49 to 51 ms, and 200 ms, which no number can mend.
        let needed = |lone_s| places_needed(streams, lone_s, share);
        let (before, after) = (needed(lone_s), needed(lone_s * 1.04));
        let grows = after / before;
        proptest::prop_assert!((0.99..1.3).contains(&grows), "{before} to {after}");
        let (at_target, far) = (needed(0.05), needed(0.2));
        proptest::prop_assert!(far <= at_target * 1.01, "{at_target} to {far}");
    }
}

#[test]
fn decoders_of_slow_steps_are_not_one_per_stream() {
    // Two decoders with eight streams, whose steps take 52 ms whoever is in them, bear them.
    let needed = places_needed(8.0, 0.052, 0.005);
    assert!(needed < 1.0, "{needed}");
    assert!(places_needed(500.0, 0.052, 0.005) < 16.0);
}

/// The guide for operators has a table of what is computed here.
#[test]
fn table_of_the_guide_is_what_is_computed() {
    let guide = include_str!("../../../docs/autoscaling.md");
    let row = |begins: &str| -> Vec<f64> {
        let line = guide.lines().find(|line| line.starts_with(begins)).unwrap();
        line.split('|').filter_map(|cell| cell.trim().parse().ok()).collect()
    };
    for (begins, wait_s) in [("| needed, `wait_ms` 1000", 1.0), ("| needed, `wait_ms` 100 ", 0.1)] {
        let needed = |busy| f64::from(QueueLoad { busy, residual_s: 0.5, wait_s }.servers_needed());
        let expected: Vec<f64> = row("| Busy").into_iter().map(needed).collect();
        assert_eq!(row(begins), expected);
        assert_eq!(expected.len(), 7);
    }
}

/// Places that 20 streams need on one decoder, where steps of 20 take `step_s` and those of one
/// alone perhaps `lone_s`; 50 ms a token are the target.
fn needed_of_20(step_s: f64, lone_s: f64, split_known: f64) -> f64 {
    let each_s = (step_s - lone_s) / 19.0;
    let costs = DecodeCosts { base_s: lone_s - each_s, per_request_s: each_s, per_token_s: 0.0 };
    DecodeLoad::of(&[place(20.0)], &LearnedSteps { costs, split_known }, 0.05).places_needed
}

#[test]
fn a_split_that_nothing_has_shown_hides_no_missed_target() {
    for lone_s in [0.01, 0.03, 0.045, 0.058] {
        let needed = needed_of_20(0.06, lone_s, 0.0);
        assert!((needed - 1.2).abs() < 0.02, "{lone_s}: {needed}");
    }
    // It is one at the target, whatever the split.
    for lone_s in [0.01, 0.03, 0.045, 0.049] {
        let [below, above] = [0.0499, 0.0501].map(|step_s| needed_of_20(step_s, lone_s, 0.0));
        assert!((0.9..1.0).contains(&below) && (1.0..1.01).contains(&above), "{lone_s}: {below} {above}");
    }
    // Once it is known, a step alone is too long, or it is not.
    let (slow, crowded) = (needed_of_20(0.06, 0.058, 1.0), needed_of_20(0.06, 0.01, 1.0));
    assert!(slow < 0.5 && crowded > 1.2, "{slow} {crowded}");
    // In between there is no jump.
    let all: Vec<f64> = (0..=10).map(|n| needed_of_20(0.06, 0.058, 0.1 * f64::from(n))).collect();
    assert!(all.windows(2).all(|pair| pair[1] < pair[0] && pair[1] > pair[0] - 0.15), "{all:?}");
}
