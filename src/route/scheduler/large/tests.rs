use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::route::cost::PrefillCosts;
use crate::route::job::Job;
use crate::route::lane::{LaneHealth, LaneSpec};
use crate::route::scheduler::{
    Booking, Done, MOST_PUT_BACK_S, NewRequest, Reported, SchedulerSettings, Ticket,
};

const COMPUTED: Done =
    Done::Computed(Reported { prompt_tokens: None, cached_tokens: None, estimate_tokens: None });

/// One second per thousand tokens, nothing else.
fn settings() -> SchedulerSettings {
    let costs =
        PrefillCosts { base_s: 1e-6, per_token_s: 1e-3, per_square_s: 1e-15, ..PrefillCosts::default() };
    SchedulerSettings { costs, batch_tokens: 0, ..SchedulerSettings::default() }
}

fn board(lanes: usize) -> PrefillScheduler {
    let mut board = PrefillScheduler::new(settings());
    for identity in 0..lanes as u64 {
        assert!(board.join(LaneSpec { class: 0, cache_tokens: 10_000, identity }).is_some());
    }
    board
}

/// A prompt of blocks of ten tokens, half of them those of everybody with that seed.
fn job(seed: u64, own: u64, blocks: u32) -> Arc<Job> {
    let block = |at: u32| u64::from(at) + 1_000 * if at < blocks / 2 { seed + 1 } else { own + 100 };
    let prompt_tokens = blocks * 10;
    Arc::new(Job {
        prompt_tokens,
        blocks: (0..blocks).map(block).collect(),
        block_tokens: 10,
        ..Job::default()
    })
}

fn pump(board: &mut PrefillScheduler, now: Seconds) -> Vec<Commit> {
    board.pump(now, &(), &mut || 7)
}

/// Pumps until a pass has left nothing to the next one.
fn pump_all(board: &mut PrefillScheduler, now: Seconds) -> Vec<Commit> {
    let mut all = Vec::new();
    for _ in 0..1_000 {
        all.extend(pump(board, now));
        if board.large.as_ref().is_none_or(|large| !large.is_unfinished(now)) {
            return all;
        }
    }
    panic!("it never ends");
}

/// Asserts that each who waits has one place, or none and is to be planned, and nobody else has
/// one.
fn check_places(board: &PrefillScheduler) {
    let Some(large) = &board.large else { return };
    let turns: Vec<Turn> = board.line.turns().collect();
    let placed = turns.iter().filter(|turn| {
        let place = board.line.get(**turn).and_then(|waiting| waiting.place);
        let has = place.is_some_and(|lane| large.places.turns(lane).any(|its| its == **turn));
        assert!(has != large.unplaced.contains(*turn), "{turn:?} {place:?}");
        has
    });
    let placed = placed.count();
    let kept: usize = (0u16..100).map(|lane| large.places.turns(LaneId(lane)).count()).sum();
    assert_eq!((placed, turns.len()), (kept, kept + large.unplaced.len()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// After any sequence each request is committed at most once, none is lost, and in the end
    /// nothing is reserved, also where the fleet becomes a small one and a large one again.
    #[test]
    fn every_request_is_served_once_among_many_lanes(
        steps in proptest::collection::vec((0u8..14, 1u32..300, 0u64..40), 1..250),
    ) {
        let mut board = board(30);
        let (mut waiting, mut running, mut now) = (HashSet::new(), Vec::<Booking>::new(), 0.0);
        for (what, blocks, seed) in steps {
            now += 0.01;
            let lane = LaneId(u16::try_from(seed).unwrap());
            match what {
                0..=6 => { waiting.insert(board.arrive(now, job(seed % 4, u64::from(blocks), blocks))); }
                7 => if let Some(ticket) = waiting.iter().next().copied() {
                    prop_assert!(board.cancel(ticket));
                    waiting.remove(&ticket);
                },
                8 => board.rest(lane, now + f64::from(blocks % 3)),
                9 => board.drain(lane, blocks % 2 == 0),
                10 => board.close(lane),
                11 => { board.join(LaneSpec { class: 0, cache_tokens: 10_000, identity: seed }); }
                _ => if !running.is_empty() {
                    let done = if what == 12 { Done::Failed } else { COMPUTED };
                    board.done(now, running.remove(blocks as usize % running.len()), done);
                }
            }
            for commit in pump(&mut board, now) {
                prop_assert!(waiting.remove(&commit.ticket), "committed twice, or never came");
                running.push(commit.booking);
            }
            check_places(&board);
            prop_assert_eq!(board.waiting(), waiting.len());
        }
        for identity in 0..60 {
            board.join(LaneSpec { class: 0, cache_tokens: 10_000, identity });
        }
        let mut turns = 0;
        while !(waiting.is_empty() && running.is_empty()) {
            turns += 1;
            prop_assert!(turns < 1000);
            now += 0.5;
            running.drain(..).for_each(|booking| board.done(now, booking, COMPUTED));
            for commit in pump_all(&mut board, now) {
                prop_assert!(waiting.remove(&commit.ticket));
                running.push(commit.booking);
            }
        }
        prop_assert!(board.bookings.is_empty());
    }

    /// Nobody waits who would have its first token sooner on a lane that has nothing to do.
    #[test]
    fn no_lane_is_idle_while_somebody_would_be_sooner_there(
        lanes in 17usize..60,
        comers in proptest::collection::vec((0u64..6, 1u32..300, 0u8..3, 0.0f64..0.2), 1..60),
        speeds in proptest::collection::vec(0.5f64..3.0, 60),
    ) {
        let mut board = board(lanes);
        let (mut now, mut ends) = (0.0, Vec::<(Seconds, Booking)>::new());
        let take = |commits: Vec<Commit>, ends: &mut Vec<(Seconds, Booking)>, now: Seconds| {
            let takes_s = |it: &Commit| it.terms.prefill_s * speeds[usize::from(it.terms.lane.0)];
            ends.extend(commits.iter().map(|it| (now + takes_s(it), it.booking)));
        };
        for (seed, blocks, many, pause_s) in comers {
            now += pause_s * f64::from(many);
            ends.sort_by(|a, b| b.0.total_cmp(&a.0));
            while let Some((end_s, booking)) = ends.pop_if(|(end_s, _)| *end_s <= now) {
                board.done(end_s, booking, COMPUTED);
                let commits = pump_all(&mut board, end_s);
                take(commits, &mut ends, end_s);
            }
            for own in 0..8 * u64::from(many) {
                board.arrive(now, job(seed, own, blocks));
            }
            let commits = pump_all(&mut board, now);
            take(commits, &mut ends, now);
        }
        // Plans are refreshed from time to time: all of them have been by then.
        for _ in 0..3 * REFRESH_PASSES as usize * (board.waiting() + 1) {
            let commits = pump_all(&mut board, now);
            take(commits, &mut ends, now);
        }
        let large = board.large.as_ref().unwrap();
        let idle = (0..lanes as u16).map(LaneId).filter(|lane| board.load(*lane, now) == Some((0.0, 0)));
        let idle: Vec<LaneId> = idle.collect();
        for turn in board.line.turns() {
            let waiting = board.line.get(turn).unwrap();
            let way = board.residents.way(&waiting.job.blocks);
            let first_token_s = |lane| {
                let planned_s = large.places.before_s(lane, turn);
                board.terms_of_many(now, waiting, &way, PlannedLane { id: lane, planned_s }).unwrap().first_token_s()
            };
            let place = waiting.place.unwrap();
            for lane in &idle {
                let (here_s, there_s) = (first_token_s(*lane), first_token_s(place));
                prop_assert!(here_s >= there_s - 1e-9, "{:?} at {:?} {} but {:?} {}", turn, place, there_s, lane, here_s);
            }
        }
    }

    /// The lanes that are compared have the best of all among them.
    #[test]
    fn candidates_are_enough(
        lanes in 17usize..200,
        before in proptest::collection::vec((0u64..9, 0u64..3, 1u32..200), 1..120),
    ) {
        let mut board = board(lanes);
        let mut now = 0.0;
        for (seed, own, blocks) in before {
            now += 0.003;
            let job = job(seed, own, blocks);
            let scores: Vec<f64> = board.weigh(now, &job, &()).iter().map(|it| it.score_s).collect();
            let least_s = scores.iter().copied().fold(f64::INFINITY, f64::min);
            let new_request = NewRequest { since_s: now, job, tried: &[] };
            match board.try_assign(new_request, now, &(), &mut || 7) {
                Ok(commit) => prop_assert!(commit.terms.score_s <= least_s + tie_s(least_s) + 1e-9),
                Err(ticket) => prop_assert!(board.cancel(ticket)),
            }
        }
    }
}

#[test]
fn one_pass_is_bounded_and_the_next_goes_on() {
    let mut board = board(20);
    (0..20).for_each(|lane| board.drain(LaneId(lane), true));
    let waiting: Vec<Ticket> = (0..500).map(|own| board.arrive(0.0, job(1, own, 50))).collect();
    assert!(pump_all(&mut board, 0.0).is_empty());
    for identity in 0..300 {
        board.join(LaneSpec { class: 0, cache_tokens: 10_000, identity });
    }
    let first = pump(&mut board, 1.0);
    assert!(first.len() <= PASS_REQUESTS, "{}", first.len());
    assert!(board.wake_s().is_some_and(|wake_s| wake_s < 1.001));
    let rest = pump_all(&mut board, 1.0);
    assert_eq!(first.len() + rest.len(), 300);
    assert_eq!(board.waiting(), waiting.len() - 300);
}

#[test]
fn lanes_that_rest_or_hang_are_nobodys_choice_while_others_exist() {
    let mut board = board(40);
    (0..30).for_each(|lane| board.rest(LaneId(lane), 100.0));
    let mut lanes = HashSet::new();
    for own in 0..10 {
        board.arrive(0.0, job(1, own, 200));
        lanes.extend(pump_all(&mut board, 0.0).iter().map(|commit| commit.terms.lane.0));
    }
    assert_eq!(lanes, (30..40).collect(), "those that do not rest");
    // All of these hang: after a while they are overdue, and as good as those that rest.
    board.arrive(60.0, job(2, 99, 200));
    assert!(pump_all(&mut board, 60.0).iter().all(|commit| commit.terms.lane.0 < 30));
    assert_eq!(board.waiting(), 0);
    board.arrive(101.0, job(3, 99, 200));
    assert!(pump_all(&mut board, 101.0)[0].terms.lane.0 < 30, "their rest is over");
}

#[test]
fn failed_request_goes_elsewhere_and_warm_lanes_take_their_share() {
    let mut board = board(20);
    let tried: Vec<LaneId> = (0..19).map(LaneId).collect();
    board.return_to_line(0.0, job(1, 1, 100), &tried);
    assert_eq!(pump_all(&mut board, 0.0)[0].terms.lane, LaneId(19));
    let warm = LaneHealth { warm_from_s: 0.0, warm_until_s: 100.0, warm_share: 0.1, ..LaneHealth::default() };
    (0..10).for_each(|lane| board.health(LaneId(lane), warm));
    let lanes: Vec<u16> = (0..9)
        .flat_map(|own| {
            board.arrive(0.0, job(2, own, 100));
            pump_all(&mut board, 0.0).into_iter().map(|commit| commit.terms.lane.0)
        })
        .collect();
    assert!(lanes.iter().filter(|lane| **lane < 10).count() < 5, "{lanes:?}");
}

#[test]
fn prompt_of_any_length_has_its_turn_among_many_lanes() {
    let mut board = board(20);
    let short = |board: &mut PrefillScheduler, now, numbers: Range<u64>| {
        for own in numbers {
            board.arrive(now, job(own, own, 100));
        }
    };
    short(&mut board, 0.0, 0..400);
    let long = board.arrive(0.0, job(900, 900, 100_000));
    let (mut now, mut running) = (0.0, Vec::<Commit>::new());
    while running.iter().all(|commit| commit.ticket != long) {
        assert!(now <= 2.0 * MOST_PUT_BACK_S + 5.0, "it waits for ever");
        running.drain(..).for_each(|commit| board.done(now, commit.booking, COMPUTED));
        // Forty of a second come each second, and twenty of them can be served.
        let first = 1_000 + 40 * now as u64;
        short(&mut board, now, first..first + 40);
        running.extend(pump_all(&mut board, now));
        now += 1.0;
    }
}
