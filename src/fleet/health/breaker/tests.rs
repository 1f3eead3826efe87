use proptest::prelude::*;

use super::*;

const RULES: Rules = Rules {
    failures: 3,
    failure_percent: 50,
    rest_ms: 500,
    rest_max_ms: 4_000,
    slow_start_ms: 10_000,
    probe_failures: 2,
    probe_successes: 1,
};

/// Fails it until it opens, with the time for a doubt between failures; returns when it opened.
fn trip(breaker: &mut Breaker, mut now_ms: u64) -> u64 {
    while breaker.failed(now_ms, Cause::Failing, &RULES) == Change::None {
        now_ms += RULES.rest_ms;
    }
    now_ms
}

#[test]
fn a_failure_is_a_doubt_and_some_in_a_row_open_it() {
    let mut it = Breaker::default();
    assert_eq!(it.failed(0, Cause::Failing, &RULES), Change::None);
    assert_eq!((it.state(0), it.rest_ms(0)), (State::Closed, 500));
    assert_eq!(it.failed(100, Cause::Failing, &RULES), Change::None, "a burst is one failure");
    assert_eq!((it.failures(), it.rest_ms(100)), (1, 400), "and it does not prolong the doubt");
    assert_eq!(it.failed(600, Cause::Failing, &RULES), Change::None);
    assert_eq!(it.failed(1_200, Cause::Failing, &RULES), Change::Opened(500));
    assert_eq!(it.state(1_200), State::Open);
    assert_eq!(it.failed(1_300, Cause::Failing, &RULES), Change::None, "sent before it opened");
    assert_eq!((it.state(1_699), it.state(1_700)), (State::Open, State::HalfOpen));
}

#[test]
fn a_success_between_failures_begins_the_count_again() {
    let mut it = Breaker::default();
    for n in 0..10 {
        assert_eq!(it.failed(n * 2_000, Cause::Failing, &RULES), Change::None);
        assert_eq!(it.succeeded(n * 2_000 + 1, &RULES), Change::Calmed, "the doubt ends");
        assert_eq!(it.succeeded(n * 2_000 + 2, &RULES), Change::None);
        assert_eq!(it.succeeded(n * 2_000 + 3, &RULES), Change::None);
    }
    assert_eq!(it.state(20_000), State::Closed);
}

#[test]
fn engine_that_fails_every_other_time_is_found_by_its_share() {
    let mut it = Breaker::default();
    let opened = (0..40).find(|n| {
        let now_ms = n * 1_000;
        it.succeeded(now_ms, &RULES);
        it.failed(now_ms + 1, Cause::Failing, &RULES) != Change::None
    });
    assert_eq!(opened, Some(9), "with the twentieth outcome");
}

#[test]
fn unreachable_engine_opens_the_breaker_at_once() {
    let mut it = Breaker::default();
    assert_eq!(it.failed(0, Cause::Unreachable, &RULES), Change::Opened(500));
}

#[test]
fn half_open_takes_one_trial_at_a_time() {
    let mut it = Breaker::default();
    let open_ms = trip(&mut it, 0);
    let now_ms = open_ms + 500;
    assert_eq!(it.standing(now_ms, 0, &RULES), Standing::Good);
    it.taken(now_ms);
    assert_eq!(it.standing(now_ms, 0, &RULES), Standing::Resting);
    assert_eq!(it.state(now_ms + TRIAL_MS - 1), State::HalfOpen);
    assert_eq!(it.standing(now_ms + TRIAL_MS, 0, &RULES), Standing::Good, "a trial that never ends");
    it.taken(now_ms + TRIAL_MS);
    assert_eq!(it.succeeded(now_ms + TRIAL_MS + 5, &RULES), Change::Closed);
    assert_eq!(it.state(now_ms + TRIAL_MS + 5), State::Closed);
}

#[test]
fn rests_grow_with_each_trial_that_fails_up_to_a_limit() {
    let mut it = Breaker::default();
    let mut now_ms = 0;
    let mut rests = Vec::new();
    for _ in 0..6 {
        let Change::Opened(rest_ms) = it.failed(now_ms, Cause::Unreachable, &RULES) else { panic!("closed") };
        rests.push(rest_ms);
        now_ms += rest_ms;
        it.taken(now_ms);
    }
    assert_eq!(rests, [500, 1_000, 2_000, 4_000, 4_000, 4_000]);
}

#[test]
fn flapping_engine_rests_longer_until_calm() {
    let mut it = Breaker::default();
    let mut now_ms = 0;
    for rest_ms in [500, 1_000, 2_000] {
        assert_eq!(it.failed(now_ms, Cause::Unreachable, &RULES), Change::Opened(rest_ms));
        now_ms += rest_ms;
        it.succeeded(now_ms, &RULES);
        now_ms += 3_000;
    }
    now_ms += 10_000;
    assert_eq!(it.failed(now_ms, Cause::Unreachable, &RULES), Change::Opened(500), "calm for long enough");
}

#[test]
fn share_grows_after_an_outage_and_not_after_a_hiccup() {
    let mut it = Breaker::default();
    it.failed(0, Cause::Unreachable, &RULES);
    it.succeeded(600, &RULES);
    assert!((it.share(600, &RULES) - 1.0).abs() < 1e-9, "a hiccup");
    it.failed(100_000, Cause::Unreachable, &RULES);
    it.succeeded(103_000, &RULES);
    let share = |after_ms: u64| it.share(103_000 + after_ms, &RULES);
    for (after_ms, expected) in [(0, 0.1), (500, 0.1), (5_000, 0.5), (9_000, 0.9), (10_000, 1.0)] {
        assert!((share(after_ms) - expected).abs() < 1e-9, "{after_ms}");
    }
    let good = |after_ms: u64| {
        let dice = (0..1_000u64).map(|n| n * (u64::MAX / 1_000) + u64::MAX / 2_000);
        dice.filter(|dice| it.standing(103_000 + after_ms, *dice, &RULES) == Standing::Good).count()
    };
    assert_eq!((good(0), good(5_000), good(10_000)), (100, 500, 1_000));
}

#[test]
fn probes_open_what_nobody_used_and_end_its_rest() {
    let mut it = Breaker::default();
    assert_eq!(it.probed(0, false, &RULES), Change::None);
    assert_eq!(it.probed(1_000, false, &RULES), Change::Opened(500));
    assert_eq!(it.probed(1_600, false, &RULES), Change::Opened(1_000), "the trial was the probe's");
    assert_eq!(it.probed(1_700, true, &RULES), Change::MayTry);
    assert_eq!((it.state(1_700), it.rest_ms(1_700)), (State::HalfOpen, 0));
    assert_eq!(it.probed(2_700, true, &RULES), Change::Closed, "nobody tried it meanwhile");
}

#[test]
fn probes_say_nothing_of_failures_that_they_cannot_see() {
    let mut it = Breaker::default();
    let now_ms = trip(&mut it, 0);
    for after_ms in [10, 20, 600] {
        assert_eq!(it.probed(now_ms + after_ms, true, &RULES), Change::None);
    }
    assert_eq!(it.state(now_ms + 600), State::HalfOpen, "a request is to tell");
    assert_eq!(it.probed(now_ms + 700, false, &RULES), Change::None);
    assert_eq!(it.probed(now_ms + 800, false, &RULES), Change::Opened(1_000));
    assert_eq!(it.cause(), Cause::Unreachable);
}

#[test]
fn a_success_forgives_probes_that_failed() {
    let mut it = Breaker::default();
    it.probed(0, false, &RULES);
    it.succeeded(500, &RULES);
    assert_eq!(it.probed(1_000, false, &RULES), Change::None);
}

#[test]
fn a_busy_engine_rests_briefly_and_is_not_held_to_have_failed() {
    let mut it = Breaker::default();
    it.busy(0, None);
    it.busy(50, None);
    assert_eq!((it.rest_ms(50), it.failures(), it.state(50)), (50, 0, State::Closed));
}

proptest! {
    /// After any sequence of events rests are bounded, and two successes after them close the
    /// breaker.
    #[test]
    fn breaker_always_closes_again(steps in proptest::collection::vec((0u8..6, 0u64..3_000), 0..200)) {
        let mut it = Breaker::default();
        let mut now_ms = 0;
        for (what, after_ms) in steps {
            now_ms += after_ms;
            match what {
                0 => { it.failed(now_ms, Cause::Failing, &RULES); }
                1 => { it.failed(now_ms, Cause::Unreachable, &RULES); }
                2 => { it.succeeded(now_ms, &RULES); }
                3 => it.busy(now_ms, None),
                4 => it.taken(now_ms),
                _ => { it.probed(now_ms, after_ms % 2 == 0, &RULES); }
            }
            prop_assert!(it.rest_ms(now_ms) <= TRIAL_MS.max(RULES.rest_max_ms));
        }
        now_ms += TRIAL_MS;
        it.taken(now_ms);
        it.succeeded(now_ms, &RULES);
        prop_assert_eq!((it.state(now_ms), it.rest_ms(now_ms)), (State::Closed, 0));
        prop_assert!((it.share(now_ms + RULES.slow_start_ms, &RULES) - 1.0).abs() < 1e-9);
    }
}

/// Nobody listens there: further probes would tell nothing new.
#[test]
fn a_refused_connection_opens_it_at_once() {
    let mut it = Breaker::default();
    assert_eq!(it.probe_refused(0, &RULES), Change::Opened(500));
    assert_eq!(it.probe_refused(100, &RULES), Change::None, "it rests already");
    assert_eq!(it.probe_refused(600, &RULES), Change::Opened(1_000), "the trial was the probe's");
    assert_eq!(it.probed(700, true, &RULES), Change::MayTry);
    assert!(!it.is_silent(&RULES), "one that refuses is not silent");
}
