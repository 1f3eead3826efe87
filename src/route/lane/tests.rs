use super::*;

fn booked(number: u64, prefill_s: Seconds) -> LaneBooking {
    let job = Arc::new(Job { prompt_tokens: 100, ..Job::default() });
    LaneBooking {
        number,
        job,
        tokens: 100,
        hit: Hit::default(),
        prefill_s,
        class_s: prefill_s,
        committed_s: 0.0,
        stamp: 0,
    }
}

fn lane() -> Lane {
    Lane::new(LaneSpec { class: 0, cache_tokens: 0, identity: 0 })
}

#[test]
fn a_backlog_melts_but_not_to_nothing() {
    let mut lane = lane();
    assert_eq!(lane.backlog_s(5.0), 0.0);
    lane.commit(booked(1, 2.0), 0.0, 10.0);
    lane.commit(booked(2, 1.0), 0.0, 10.5);
    assert!((lane.backlog_s(11.0) - 2.0).abs() < 1e-9);
    assert!((lane.backlog_s(100.0) - 1.2).abs() < 1e-9, "a tenth of the head, and all that is behind it");
    assert_eq!(lane.work_tokens(), 200);
}

#[test]
fn work_of_others_melts_and_then_ours() {
    let mut lane = lane();
    lane.set_external_s(3.0, 10.0);
    assert_eq!([10.0, 12.0, 13.0, 99.0].map(|now| lane.backlog_s(now)), [3.0, 1.0, 0.0, 0.0]);
    assert!((lane.opens_s(0.5).unwrap() - 12.5).abs() < 1e-3 && lane.free_s() == 13.0);
    // Ours begins when theirs is done.
    lane.commit(booked(1, 2.0), 0.0, 11.0);
    let backlogs = [11.0, 13.0, 14.0, 99.0].map(|now| lane.backlog_s(now));
    assert_eq!(backlogs, [4.0, 2.0, 1.0, 0.2]);
    assert!((lane.opens_s(0.5).unwrap() - 14.5).abs() < 1e-3 && lane.free_s() == 15.0);
    // A look while ours is at work: it has used up a second, and theirs is before the rest.
    lane.set_external_s(1.0, 14.0);
    assert_eq!([14.0, 15.0].map(|now| lane.backlog_s(now) + 1.0), [3.0, 2.0]);
    lane.set_external_s(0.0, 15.0);
    assert!(lane.opens_s(0.1).is_none(), "a tenth of the head is left until it ends");
}

#[test]
fn booking_is_given_back_once() {
    let mut lane = lane();
    lane.commit(booked(1, 2.0), 0.5, 10.0);
    lane.commit(LaneBooking { committed_s: 10.5, ..booked(2, 1.0) }, 0.5, 10.5);
    assert!((lane.link_s(10.5) - 0.5).abs() < 1e-9);
    let (_, began_s) = lane.finish(1, 11.5).unwrap();
    assert!(began_s.abs() - 10.0 < 1e-9);
    assert!(lane.finish(1, 11.5).is_none());
    let (_, began_s) = lane.finish(2, 13.0).unwrap();
    assert!((began_s - 11.5).abs() < 1e-9, "it began when the first had ended");
    assert_eq!((lane.backlog_s(13.0), lane.work_tokens(), lane.requests()), (0.0, 0, 0));
}

#[test]
fn prefills_that_end_together_are_one_observation() {
    let mut lane = lane();
    let ends = |lane: &mut Lane, number, began_s, now| {
        lane.computed(&LaneBooking { committed_s: began_s, ..booked(number, 1.0) }, began_s, now, number != 5)
    };
    assert_eq!(ends(&mut lane, 1, 0.0, 2.0), None);
    assert_eq!(ends(&mut lane, 2, 2.0, 2.001), None);
    let told = ends(&mut lane, 3, 2.001, 4.0).unwrap();
    assert_eq!((told.work.prompts, told.work.computed_tokens, told.class_s), (2.0, 200.0, 2.0));
    assert!((told.ended_s - told.began_s - 2.001).abs() < 1e-9);
    assert!(ends(&mut lane, 4, 4.0, 6.0).is_some());
    assert!(ends(&mut lane, 5, 6.0, 6.001).is_none(), "together with 4");
    assert!(
        ends(&mut lane, 6, 6.001, 8.0).is_none(),
        "5 was not as predicted, so what 4 and 5 took tells nothing"
    );
    assert!(ends(&mut lane, 7, 8.0, 9.0).is_some());
}

#[test]
fn prompts_that_share_steps_are_one_observation() {
    let mut lane = lane();
    let came = |committed_s, number| LaneBooking { committed_s, ..booked(number, 1.0) };
    let ends = |lane: &mut Lane, number, now| {
        let (booked, began_s) = lane.finish(number, now).unwrap();
        lane.computed(&booked, began_s, now, true)
    };
    [came(0.0, 1), came(0.5, 2), came(0.6, 3), came(3.5, 4)].into_iter().for_each(|it| {
        let at = it.committed_s;
        lane.commit(it, 0.0, at);
    });
    assert_eq!(ends(&mut lane, 1, 1.0), None);
    assert!(ends(&mut lane, 2, 2.9).is_some(), "the second was not there when the first was begun");
    assert!(ends(&mut lane, 3, 3.0).is_none(), "the third was there when the second was begun");
    let told = ends(&mut lane, 4, 4.0).unwrap();
    assert_eq!((told.work.prompts, told.class_s, told.ended_s - told.began_s), (2.0, 2.0, 2.0));
    // Something of which nobody knows when it ended.
    lane.forget_together();
    lane.commit(came(5.0, 5), 0.0, 5.0);
    assert!(ends(&mut lane, 5, 6.0).is_none());
}

#[test]
fn hanging_prefill_stays_overdue_while_others_finish() {
    let mut lane = lane();
    lane.commit(booked(1, 2.0), 0.0, 0.0);
    lane.commit(booked(2, 2.0), 0.0, 0.0);
    assert!(!lane.is_overdue(9.9));
    lane.finish(2, 9.9).unwrap();
    assert!(lane.is_overdue(10.1));
    lane.finish(1, 10.2).unwrap();
    assert!(!lane.is_overdue(99.0));
}

#[test]
fn returning_prefiller_gets_one_request_at_a_time() {
    let mut lane = lane();
    lane.health = LaneHealth { resting_until_s: 5.0, on_trial: true, ..LaneHealth::default() };
    assert_eq!(lane.standing(4.9, 0.0), Standing::Resting);
    lane.commit(booked(1, 1.0), 0.0, 4.9);
    assert_eq!(lane.standing(5.0, 0.0), Standing::Good, "what was sent before is no trial");
    lane.commit(booked(2, 1.0), 0.0, 5.0);
    assert_eq!(lane.standing(5.0, 0.0), Standing::Resting);
    lane.finish(1, 5.1).unwrap();
    assert_eq!(lane.standing(5.1, 0.0), Standing::Resting);
    lane.finish(2, 5.2).unwrap();
    assert_eq!(lane.standing(5.2, 0.0), Standing::Good);
}

#[test]
fn a_share_grows_with_time() {
    let mut lane = lane();
    lane.health =
        LaneHealth { warm_from_s: 10.0, warm_until_s: 20.0, warm_share: 0.1, ..LaneHealth::default() };
    let lane = &lane;
    let good = |now| (0..100).filter(move |n| lane.standing(now, f64::from(*n) / 100.0) == Standing::Good);
    let counts = [10.0, 11.0, 15.0, 19.0, 20.0].map(|now| good(now).count());
    assert_eq!(counts, [11, 11, 51, 91, 100]);
    assert_eq!(lane.standing(10.0, 0.5), Standing::Warming);
}

#[test]
fn a_slow_one_is_found_out() {
    let mut lane = lane();
    let one = ConcurrentPrefills {
        work: PrefillWork::default(),
        class_s: 1.0,
        began_s: 0.0,
        ended_s: 2.0,
        known: true,
        goes_on: false,
    };
    for _ in 0..60 {
        lane.judge(&one);
    }
    assert!((lane.slowness() - 2.0).abs() < 0.05);
    let service = lane.here(Service { prefill_s: 1.0, restore_s: 1.0 });
    assert!((service.prefill_s - 2.0).abs() < 0.05 && service.restore_s == 1.0);
}
