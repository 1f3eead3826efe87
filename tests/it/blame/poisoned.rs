//! A prefiller whose KV nobody can load, in every dialect: in each order of legs, by an error at
//! once and by KV that never comes.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use pd_proxy::fleet::Role;
use pd_proxy::fleet::health::State;
use pd_proxy::sim::{Engine, Fault, FaultKind, Match};
use tokio::time::Instant;

use super::{DIALECTS, ask, breakers, failed, in_dialect, steady};
use crate::common::memory::Memory;
use crate::common::time::pass;
use crate::dialects::Spoken;

/// Requests of so many clients, each of which has one at a time: the statuses, and the decoders
/// whose breaker was not closed at the end of one of them.
async fn watched(memory: &Memory, clients: usize, numbers: Range<usize>) -> (Vec<u16>, BTreeSet<usize>) {
    let one = async |n| {
        let status = ask(memory, n).await;
        let states = breakers(memory, Role::Decode).into_iter().enumerate();
        (status, states.filter(|(_, state)| *state != State::Closed).map(|(at, _)| at).collect::<Vec<_>>())
    };
    let all: Vec<_> = stream::iter(numbers).map(one).buffer_unordered(clients).collect().await;
    let (statuses, resting): (Vec<u16>, Vec<Vec<usize>>) = all.into_iter().unzip();
    (statuses, resting.into_iter().flatten().collect())
}

fn assert_found(memory: &Memory, (statuses, resting): &(Vec<u16>, BTreeSet<usize>), when: &str) {
    let states = breakers(memory, Role::Prefill);
    assert!(
        failed(statuses) * 50 <= statuses.len(),
        "{when}: {} of {} failed",
        failed(statuses),
        statuses.len()
    );
    assert!(resting.is_empty(), "{when}: decoders {resting:?} rested, which do well with others");
    assert_ne!(states[0], State::Closed, "{when}: it rests");
    assert_eq!(states[1..], [State::Closed; 3], "{when}");
}

#[tokio::test(start_paused = true)]
async fn one_of_four_costs_few_requests_rests_and_comes_back() {
    for spoken in DIALECTS {
        let (memory, _listening) = in_dialect(spoken, 4).await;
        assert!(memory.prefillers[0].inject(Fault::unreadable_kv()));
        let when = format!("{spoken:?}");
        assert_found(&memory, &watched(&memory, 8, 0..200).await, &when);
        memory.prefillers.iter().for_each(Engine::clear_faults);
        let end = Instant::now() + Duration::from_secs(60);
        while breakers(&memory, Role::Prefill)[0] != State::Closed {
            assert_eq!(failed(&steady(&memory, Duration::from_millis(500)).await), 0, "{when}");
            assert!(Instant::now() < end, "{when}: it does not come back");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_alone_loses_no_request_after_the_first() {
    for spoken in DIALECTS {
        let (memory, _listening) = in_dialect(spoken, 4).await;
        assert_eq!(failed(&watched(&memory, 1, 0..24).await.0), 0, "{spoken:?}: before");
        assert!(memory.prefillers[0].inject(Fault::unreadable_kv()));
        let (statuses, resting) = watched(&memory, 1, 100..160).await;
        assert_eq!(failed(&statuses[1..]), 0, "{spoken:?}: {statuses:?}");
        assert!(resting.is_empty(), "{spoken:?}: decoders {resting:?} rested");
    }
}

/// Has every decoder wait for ever with what the first prefiller hands over.
fn swallow(memory: &Memory) {
    let from = memory.prefillers[0].addr().ip().to_string();
    let on = Match { path: Some("/v1/".into()), contains: Some(from), ..Match::default() };
    for decoder in &memory.decoders {
        assert!(decoder.inject(Fault { on: on.clone(), ..Fault::always(FaultKind::StallBeforeHead) }));
    }
}

/// Dialects in which a decoder is told from where to fetch, or by whom it is sent its KV, and in
/// which a prefill ends without it.
const FETCHING: [Spoken; 4] = [DIALECTS[0], DIALECTS[1], DIALECTS[2], DIALECTS[4]];

#[tokio::test(start_paused = true)]
async fn kv_that_never_comes_is_waited_for_no_longer_than_others_need() {
    for spoken in FETCHING {
        let (memory, _listening) = in_dialect(spoken, 4).await;
        assert_eq!(failed(&watched(&memory, 8, 0..100).await.0), 0, "{spoken:?}: before");
        swallow(&memory);
        let began = Instant::now();
        assert_found(&memory, &watched(&memory, 8, 100..300).await, &format!("{spoken:?}"));
        assert!(began.elapsed().as_secs() < 60, "{spoken:?}: it took {:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn nor_by_a_client_that_is_alone() {
    for spoken in FETCHING {
        let (memory, _listening) = in_dialect(spoken, 4).await;
        assert_eq!(failed(&watched(&memory, 1, 0..24).await.0), 0, "{spoken:?}: before");
        swallow(&memory);
        let began = Instant::now();
        let (statuses, resting) = watched(&memory, 1, 100..140).await;
        assert_eq!(failed(&statuses), 0, "{spoken:?}: {statuses:?}");
        assert!(resting.is_empty(), "{spoken:?}: decoders {resting:?} rested");
        assert!(began.elapsed().as_secs() < 90, "{spoken:?}: it took {:?}", began.elapsed());
    }
}

/// With SGLang a prefill does not end before its decoder has the KV: both legs hang, and the
/// prefiller looks as busy as the decoder.
#[tokio::test(start_paused = true)]
async fn a_prefill_that_does_not_end_is_held_against_the_prefiller() {
    let (memory, _listening) = in_dialect(DIALECTS[3], 4).await;
    assert_eq!(failed(&steady(&memory, Duration::from_secs(5)).await), 0, "before");
    swallow(&memory);
    let (mut rested, mut resting) = (false, BTreeSet::new());
    for round in 0..40 {
        let began = Instant::now();
        assert_eq!(failed(&steady(&memory, Duration::from_secs(2)).await), 0, "round {round}");
        assert!(began.elapsed().as_secs() < 20, "round {round} took {:?}", began.elapsed());
        let prefillers = breakers(&memory, Role::Prefill);
        rested |= prefillers[0] != State::Closed;
        assert_eq!(prefillers[1..], [State::Closed; 3], "round {round}");
        let decoders = breakers(&memory, Role::Decode).into_iter().enumerate();
        resting.extend(decoders.filter(|(_, state)| *state != State::Closed).map(|(at, _)| at));
    }
    assert!(rested, "the prefiller rests");
    assert!(resting.is_empty(), "decoders {resting:?} rested");
}

#[tokio::test(start_paused = true)]
async fn so_is_one_of_a_client_that_is_alone() {
    let (memory, _listening) = in_dialect(DIALECTS[3], 4).await;
    assert_eq!(failed(&watched(&memory, 1, 0..24).await.0), 0, "before");
    swallow(&memory);
    let (mut rested, mut longest) = (false, Duration::ZERO);
    let mut slow = Vec::new();
    for n in 100..200 {
        let sent = Instant::now();
        assert_eq!(ask(&memory, n).await, 200, "{n} after {:?}", sent.elapsed());
        longest = longest.max(sent.elapsed());
        if sent.elapsed().as_secs() > 1 {
            slow.push((n, sent.elapsed().as_secs()));
        }
        // In step with the pauses of breakers the same two engines would always meet.
        pass(Duration::from_millis(37 * (n as u64 % 5))).await;
        rested |= breakers(&memory, Role::Prefill)[0] != State::Closed;
        assert_eq!(breakers(&memory, Role::Prefill)[1..], [State::Closed; 3], "{n}");
        assert_eq!(breakers(&memory, Role::Decode), [State::Closed; 4], "{n}: decoders do well with others");
    }
    assert!(rested, "the prefiller rests: {slow:?}");
    assert!(longest.as_secs() < 60, "one waited {longest:?}");
}
