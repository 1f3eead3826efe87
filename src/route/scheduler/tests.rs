use proptest::prelude::*;

use super::*;
use crate::route::job::Hit;

/// By an engine that says nothing of its cache.
const COMPUTED: Done =
    Done::Computed(Reported { prompt_tokens: None, cached_tokens: None, estimate_tokens: None });

fn spec(identity: u64) -> LaneSpec {
    LaneSpec { class: 0, cache_tokens: 10_000, identity }
}

/// One second per thousand tokens, nothing else.
fn settings() -> SchedulerSettings {
    let costs = PrefillCosts {
        base_s: 1e-6,
        per_token_s: 1e-3,
        per_square_s: 1e-15,
        near_token_s: 1e-4,
        far_token_s: 2e-4,
    };
    SchedulerSettings { costs, batch_tokens: 0, ..SchedulerSettings::default() }
}

fn board(lanes: u64, settings: SchedulerSettings) -> PrefillScheduler {
    let mut board = PrefillScheduler::new(settings);
    (0..lanes).for_each(|identity| assert!(board.join(spec(identity)).is_some()));
    board
}

/// A prompt of so many blocks of ten tokens; the first `shared` of them are those of everybody with
/// that seed.
fn job(seed: u64, shared: usize, own: u64, blocks: usize) -> Arc<Job> {
    let block =
        |at: usize| if at < shared { seed * 1000 + at as u64 } else { (own + 1) * 1_000_000 + at as u64 };
    Arc::new(Job {
        prompt_tokens: u32::try_from(blocks * 10).unwrap(),
        output_tokens: 10,
        blocks: (0..blocks).map(block).collect(),
        block_tokens: 10,
        ..Job::default()
    })
}

fn plain(tokens: u32) -> Arc<Job> {
    Arc::new(Job { prompt_tokens: tokens, output_tokens: 1, ..Job::default() })
}

#[test]
fn a_prompt_of_any_length_has_its_turn_in_a_line_that_never_empties() {
    let mut board = board(1, settings());
    let mut now = 0.0;
    let ends = |board: &mut PrefillScheduler, now: Seconds, commits: Vec<Commit>| {
        commits.into_iter().for_each(|commit| board.done(now, commit.booking, COMPUTED));
    };
    let long = board.arrive(now, plain(1_000_000));
    let mut running = Vec::new();
    let served_s = loop {
        // Two of a second come each second, and one of them can be served.
        for _ in 0..2 {
            board.arrive(now, plain(1_000));
        }
        running.extend(pump(&mut board, now));
        if running.iter().any(|commit: &Commit| commit.ticket == long) {
            break now;
        }
        now += 1.0;
        ends(&mut board, now, std::mem::take(&mut running));
        assert!(now < 1_000.0, "it waits for ever");
    };
    assert!(served_s <= 2.0 * MOST_PUT_BACK_S + 5.0, "{served_s}");
    assert!(served_s > 5.0, "short ones go first: {served_s}");
}

#[test]
fn engines_count_corrects_what_is_learned_of_a_prompt_with_media() {
    let mut board = board(2, settings());
    // Of an image that was taken for 1 000 tokens, and has 4 000: it takes four seconds.
    let mut now = 0.0;
    for _ in 0..40 {
        board.arrive(now, plain(1_000));
        let [commit] = &pump(&mut board, now)[..] else { panic!("both are free") };
        now += 4.0;
        let reported =
            Reported { prompt_tokens: Some(4_000), cached_tokens: None, estimate_tokens: Some(4_000) };
        board.done(now, commit.booking, Done::Computed(reported));
        now += 1.0;
    }
    let second = board.costs(0).service(1_000, Hit::default()).prefill_s;
    assert!((second - 1.0).abs() < 0.05, "a thousand tokens of text take {second} s");
    let each = board.explain(now, &plain(1_000), &());
    assert!(each.iter().all(|terms| (terms.prefill_s - 1.0).abs() < 0.1), "{each:?}");
}

fn pump(board: &mut PrefillScheduler, now: Seconds) -> Vec<Commit> {
    board.pump(now, &(), &mut || 7)
}

proptest! {
    /// A new request is decided on as if it and everybody had stood in line.
    #[test]
    fn immediate_decision_equals_a_queued_one(
        comers in proptest::collection::vec((0u64..4, 1usize..60, 0u8..5, 0.0f64..0.3), 1..60),
        lanes in 1u64..4,
        late in proptest::bool::ANY,
    ) {
        let bind = if late { Bind::Late } else { Bind::Arrival };
        let [mut skips, mut stands] = [(); 2].map(|()| board(lanes, SchedulerSettings { bind, ..settings() }));
        let (mut now, mut running) = (0.0, Vec::new());
        for (seed, blocks, what, pause_s) in comers {
            now += pause_s;
            let (job, tried) = (job(seed, 20, blocks as u64, blocks), [LaneId(0)]);
            let tried = if what == 0 { &tried[..] } else { &[] };
            let came = skips.try_assign(NewRequest { since_s: now, job: job.clone(), tried }, now, &(), &mut || 7);
            let mut one: Vec<Commit> = came.into_iter().collect();
            one.extend(pump(&mut skips, now));
            stands.return_to_line(now, job, tried);
            let other = pump(&mut stands, now);
            prop_assert_eq!(format!("{one:?}"), format!("{other:?}"));
            running.extend(one.into_iter().map(|commit| commit.booking));
            if what == 1 && !running.is_empty() {
                let ended = running.remove(0);
                [&mut skips, &mut stands].into_iter().for_each(|board| board.done(now, ended, COMPUTED));
                prop_assert_eq!(format!("{:?}", pump(&mut skips, now)), format!("{:?}", pump(&mut stands, now)));
            }
            prop_assert_eq!((skips.waiting(), skips.wake_s()), (stands.waiting(), stands.wake_s()));
        }
    }
}

#[test]
fn equals_rotate_and_busy_ones_are_not_taken() {
    let mut board = board(3, settings());
    let mut lanes = Vec::new();
    for _ in 0..5 {
        board.arrive(0.0, plain(400));
        lanes.extend(pump(&mut board, 0.0).iter().map(|commit| commit.terms.lane.0));
    }
    lanes.sort_unstable();
    assert_eq!(lanes, [0, 1, 2], "the others wait");
    assert_eq!(board.waiting(), 2);
    let wake_s = board.wake_s().unwrap();
    assert!((wake_s - 0.35).abs() < 0.01, "{wake_s}");
    assert_eq!(pump(&mut board, wake_s).len(), 2);
}

#[test]
fn bound_on_arrival_nobody_waits() {
    let mut board = board(2, SchedulerSettings { bind: Bind::Arrival, ..settings() });
    for _ in 0..6 {
        board.arrive(0.0, plain(1000));
    }
    let lanes: Vec<u16> = pump(&mut board, 0.0).iter().map(|commit| commit.terms.lane.0).collect();
    assert_eq!(lanes.iter().filter(|lane| **lane == 0).count(), 3, "{lanes:?}");
    assert_eq!(board.waiting(), 0);
}

#[test]
fn short_ones_go_first_but_long_ones_have_their_turn() {
    let mut board = board(1, settings());
    board.arrive(0.0, plain(1000));
    let first = pump(&mut board, 0.0)[0].booking;
    let long = board.arrive(0.0, plain(2000));
    let short = board.arrive(1.0, plain(100));
    board.done(1.0, first, Done::Failed);
    assert_eq!(pump(&mut board, 1.0)[0].ticket, short);
    // Four times its two seconds later nobody goes before it.
    let late = board.arrive(8.5, plain(100));
    assert!(board.position(long) < board.position(late));
}

#[test]
fn a_prefix_draws_its_like_and_waits_for_its_place() {
    let mut board = board(2, settings());
    let open = |board: &mut PrefillScheduler, now, job| {
        let ticket = board.arrive(now, job);
        (ticket, pump(board, now))
    };
    let (_, first) = open(&mut board, 0.0, job(1, 90, 1, 100));
    let home = first[0].terms.lane;
    // The other one is free, but computing it all again takes longer than waiting does.
    let (ticket, none) = open(&mut board, 0.5, job(1, 90, 2, 100));
    assert!(none.is_empty());
    board.done(1.0, first[0].booking, COMPUTED);
    let then = pump(&mut board, 1.0);
    assert_eq!((then[0].ticket, then[0].terms.lane, then[0].terms.hit.hbm_tokens), (ticket, home, 900));
    // What the first place can't have soon goes elsewhere.
    let (_, third) = open(&mut board, 1.0, job(2, 0, 3, 100));
    assert_ne!(third[0].terms.lane, home);
}

#[test]
fn a_hot_prefix_spreads() {
    let mut board = board(4, settings());
    let mut now = 0.0;
    let mut lanes = std::collections::HashSet::new();
    let mut running: Vec<(Seconds, Booking)> = Vec::new();
    for own in 0..200 {
        now += 0.05;
        board.arrive(now, job(1, 50, own, 60));
        running.retain(|(end_s, booking)| {
            let over = *end_s <= now;
            if over {
                board.done(*end_s, *booking, COMPUTED);
            }
            !over
        });
        for commit in pump(&mut board, now) {
            lanes.insert(commit.terms.lane);
            running.push((now + commit.terms.prefill_s, commit.booking));
        }
    }
    assert_eq!(lanes.len(), 4, "two copies' worth of work would burn one node");
    assert!(board.waiting() < 10, "{}", board.waiting());
}

#[test]
fn the_pool_is_nearer_than_computing_and_near_is_nearer_than_far() {
    let mut board = board(3, settings());
    let mut asked = job(1, 0, 1, 100).as_ref().clone();
    asked.pool = crate::route::PoolHits {
        asked: true,
        anywhere_tokens: 800,
        near: SmallVec::from_slice(&[(LaneId(2), 800)]),
    };
    let asked = Arc::new(asked);
    let all = board.explain(0.0, &asked, &());
    assert_eq!(all.iter().map(|it| it.lane.0).collect::<Vec<_>>(), [2, 0, 1]);
    assert!((all[0].restore_s - 0.08).abs() < 1e-6 && (all[1].restore_s - 0.16).abs() < 1e-6);
    board.arrive(0.0, asked);
    assert_eq!(pump(&mut board, 0.0)[0].terms.lane, LaneId(2));
}

#[test]
fn reported_cache_counts() {
    struct TestCaches;
    impl CacheView for TestCaches {
        fn hbm_tokens(&self, _: &Job, out: &mut [Option<u32>]) {
            out[1] = Some(500);
        }
    }
    let mut board = board(3, settings());
    board.arrive(0.0, job(1, 0, 1, 100));
    let commits = board.pump(0.0, &TestCaches, &mut || 0);
    assert_eq!((commits[0].terms.lane, commits[0].terms.hit.hbm_tokens), (LaneId(1), 500));
}

#[test]
fn pooled_prompt_goes_to_the_prefiller_with_it_in_memory() {
    let settings = settings();
    let costs = PrefillCosts { near_token_s: 1e-7, ..settings.costs };
    let mut board = board(3, SchedulerSettings { costs, ..settings });
    board.arrive(0.0, job(1, 0, 1, 100));
    let first = pump(&mut board, 0.0).remove(0);
    board.done(1.0, first.booking, COMPUTED);
    let pool = crate::route::PoolHits {
        asked: true,
        anywhere_tokens: 1000,
        near: (0..3).map(|at| (LaneId(at), 1000)).collect(),
    };
    for now in [2.0, 4.0, 6.0, 8.0] {
        board.arrive(now, Arc::new(Job { pool: pool.clone(), ..job(1, 0, 1, 100).as_ref().clone() }));
        let again = pump(&mut board, now).remove(0);
        assert_eq!(again.terms.lane, first.terms.lane, "fetching is too short to count");
        board.done(now + 1.0, again.booking, COMPUTED);
    }
}

#[test]
fn resting_draining_or_failed_prefiller_is_skipped_while_others_exist() {
    let mut board = board(3, settings());
    board.rest(LaneId(0), 10.0);
    board.drain(LaneId(1), true);
    let first = |board: &mut PrefillScheduler, now| pump(board, now).first().map(|commit| commit.terms.lane);
    board.arrive(0.0, plain(10));
    assert_eq!(first(&mut board, 0.0), Some(LaneId(2)));
    board.return_to_line(0.0, plain(10), &[LaneId(2)]);
    assert_eq!(first(&mut board, 1.0), Some(LaneId(0)), "one that rests is better than one where it failed");
    board.close(LaneId(0));
    board.close(LaneId(2));
    board.arrive(1.0, plain(10));
    assert_eq!(first(&mut board, 1.0), None);
    board.drain(LaneId(1), false);
    assert_eq!(first(&mut board, 1.0), Some(LaneId(1)));
}

#[test]
fn a_failed_prefill_left_nothing_behind() {
    let mut board = board(2, settings());
    board.arrive(0.0, job(1, 100, 1, 100));
    let commit = pump(&mut board, 0.0).remove(0);
    board.done(1.0, commit.booking, Done::Failed);
    let all = board.explain(1.0, &job(1, 100, 1, 100), &());
    assert!(all.iter().all(|it| it.hit == Hit::default()), "{all:?}");
}

#[test]
fn costs_are_learned_from_prefills() {
    let mut board = board(2, settings());
    let mut now = 0.0;
    for turn in 0..200u32 {
        board.arrive(now, plain(200 + 37 * (turn % 50)));
        let commit = pump(&mut board, now).remove(0);
        // Twice as long as it was thought at first.
        now += 2e-3 * f64::from(200 + 37 * (turn % 50));
        board.done(now, commit.booking, COMPUTED);
    }
    let costs = board.costs(0);
    assert!((costs.span(0, 1000) - 2.0).abs() < 0.1, "{costs:?}");
}

/// An engine computes a thousand tokens in a step: a short prompt and most of a long one, and the
/// rest of that in the next. By itself each says something else, and more than once the costs of a
/// class were taken for a fifth of what they are.
#[test]
fn prompts_that_share_steps_teach_what_they_take_together() {
    let mut board = board(2, SchedulerSettings { bind: Bind::Arrival, ..settings() });
    for round in 0..20 {
        let now = f64::from(round) * 10.0;
        for tokens in [250, 250, 900, 900] {
            board.arrive(now, plain(tokens));
        }
        for commit in pump(&mut board, now) {
            board.done(now + if commit.tokens == 250 { 1.0 } else { 1.15 }, commit.booking, COMPUTED);
        }
    }
    let per_token_s = board.costs(0).per_token_s;
    assert!((0.95e-3..1.05e-3).contains(&per_token_s), "{per_token_s}");
}

#[test]
fn prompts_share_a_step_that_is_about_to_begin_where_many_wait() {
    let costs = PrefillCosts { base_s: 0.1, ..settings().costs };
    let sent = |waiting: usize, now| {
        let mut board = board(1, SchedulerSettings { costs, batch_tokens: 200, ..settings() });
        board.arrive(0.0, plain(300));
        assert_eq!(pump(&mut board, 0.0).len(), 1);
        for _ in 0..waiting {
            board.arrive(0.1, plain(100));
        }
        pump(&mut board, now).len()
    };
    assert_eq!([1, 6, 20].map(|waiting| sent(waiting, 0.36)), [1, 6, 13], "1 600 tokens are enough");
    assert_eq!(sent(5, 0.2), 0, "that step begins later");
}

#[test]
fn time_that_went_into_what_was_evicted_teaches_nothing() {
    let costs_after = |cached_tokens| {
        let mut board = board(1, settings());
        let mut now = 0.0;
        for own in 0..6 {
            board.arrive(now, job(1, 90, own, 100));
            let commit = pump(&mut board, now).remove(0);
            assert_eq!(commit.terms.hit.hbm_tokens, if own == 0 { 0 } else { 900 });
            // All of it is computed each time.
            now += 1.0;
            let cached_tokens = if own == 0 { Some(0) } else { cached_tokens };
            board.done(
                now,
                commit.booking,
                Done::Computed(Reported { cached_tokens, ..Reported::default() }),
            );
            now += 10.0;
        }
        board.costs(0).span(0, 1000)
    };
    let told = costs_after(Some(0));
    assert!((told - 1.0).abs() < 0.05, "{told}");
    let untold = costs_after(None);
    assert!(untold > 3.0, "who does not say so is believed to have computed a tenth: {untold}");
}

#[test]
fn unseen_prefill_is_believed_cached() {
    let mut board = board(2, settings());
    board.arrive(0.0, job(1, 100, 1, 100));
    let commit = pump(&mut board, 0.0).remove(0);
    let before = board.costs(0);
    board.done(9.0, commit.booking, Done::Unseen);
    board.arrive(20.0, job(1, 100, 1, 100));
    let again = pump(&mut board, 20.0).remove(0);
    assert_eq!((again.terms.lane, again.terms.hit.hbm_tokens), (commit.terms.lane, 999));
    assert_eq!(board.costs(0), before, "of its time nothing is learned");
}

proptest! {
    /// After any sequence each request is committed at most once, none is lost, and in the end
    /// nothing is reserved.
    #[test]
    fn every_request_is_served_once_and_nothing_stays_reserved(
        steps in proptest::collection::vec((0u8..10, 1u32..3000, 0u64..4), 1..150),
        late in any::<bool>(),
    ) {
        let bind = if late { Bind::Late } else { Bind::Arrival };
        let mut board = board(3, SchedulerSettings { bind, ..settings() });
        let mut waiting = std::collections::HashSet::new();
        let mut running: Vec<Commit> = Vec::new();
        let mut now = 0.0;
        for (what, tokens, seed) in steps {
            now += 0.01;
            match what {
                0..=4 => { waiting.insert(board.arrive(now, job(seed, 5, u64::from(tokens), tokens as usize / 10))); }
                5 => if let Some(ticket) = waiting.iter().next().copied() {
                    prop_assert!(board.cancel(ticket));
                    waiting.remove(&ticket);
                },
                6 => board.rest(LaneId(u16::try_from(seed).unwrap()), now + 0.1),
                _ => if !running.is_empty() {
                    let commit = running.remove(tokens as usize % running.len());
                    let done = match what {
                        7 => Done::Failed,
                        8 => Done::Unseen,
                        _ => COMPUTED,
                    };
                    board.done(now, commit.booking, done);
                }
            }
            for commit in pump(&mut board, now) {
                prop_assert!(waiting.remove(&commit.ticket), "committed twice, or never came");
                running.push(commit);
            }
            prop_assert_eq!(board.waiting(), waiting.len());
        }
        // No starvation: with everything finished again and again, all are served.
        let mut turns = 0;
        while !(waiting.is_empty() && running.is_empty()) {
            turns += 1;
            prop_assert!(turns < 1000);
            now += 0.2;
            running.drain(..).for_each(|commit| board.done(now, commit.booking, COMPUTED));
            for commit in pump(&mut board, now) {
                prop_assert!(waiting.remove(&commit.ticket));
                running.push(commit);
            }
        }
        for lane in 0..3 {
            prop_assert_eq!(board.load(LaneId(lane), now), Some((0.0, 0)));
        }
        prop_assert!(board.bookings.is_empty());
    }

    #[test]
    fn the_same_history_makes_the_same_decisions(seeds in proptest::collection::vec((0u64..5, 1usize..80), 1..60)) {
        let run = || {
            let mut board = board(4, settings());
            let mut made = Vec::new();
            for (turn, (seed, blocks)) in seeds.iter().enumerate() {
                let now = turn as f64 * 0.07;
                board.arrive(now, job(*seed, 30, turn as u64, *blocks));
                made.extend(pump(&mut board, now).iter().map(|it| (it.ticket, it.terms)));
            }
            made
        };
        prop_assert_eq!(run(), run());
    }

    /// More work there never makes an instance more attractive, more hits never less.
    #[test]
    fn scores_are_monotone(work in 1u32..5000, more in 1u32..5000, shared in 1usize..90) {
        let with = |tokens: u32, shared: usize| {
            let mut board = board(2, SchedulerSettings { bind: Bind::Arrival, ..settings() });
            board.arrive(0.0, job(1, shared, 1, 90));
            pump(&mut board, 0.0);
            board.arrive(0.0, plain(tokens));
            pump(&mut board, 0.0);
            let mut all = board.explain(0.0, &job(1, 90, 2, 90), &());
            all.sort_by_key(|it| it.lane.0);
            all.iter().map(|it| it.score_s).collect::<Vec<_>>()
        };
        let (less, greater) = (with(work, shared), with(work + more, shared));
        prop_assert!(greater.iter().zip(&less).all(|(greater, less)| greater >= less));
        let (short, long) = (with(work, shared), with(work, shared + 1));
        prop_assert!(long[0].min(long[1]) <= short[0].min(short[1]) + 1e-9);
    }
}

/// Without a request a prefiller that rests is open, and nobody's choice: the line is not looked
/// through for it.
#[test]
fn resting_prefiller_triggers_no_scheduling_pass() {
    let mut board = board(2, settings());
    board.rest(LaneId(1), 100.0);
    let mut looked = 0;
    for _ in 0..50 {
        board.arrive(0.0, plain(1000));
        board.pump(0.0, &(), &mut || {
            looked += 1;
            7
        });
    }
    assert_eq!((board.waiting(), looked), (49, 1));
    board.rest(LaneId(0), 100.0);
    assert_eq!(pump(&mut board, 0.0).len(), 1, "where all rest, one without a request is asked");
}
