//! A refusal is an engine's word only when another engine of its role says the same.

use std::time::Duration;

use pd_proxy::config::Policy;
use pd_proxy::fleet::Role;
use pd_proxy::fleet::health::State;
use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind};

use super::{DIALECTS, ask, breakers, config, failed, in_dialect, load, post, steady, taken, working};
use crate::common::memory::Memory;
use crate::common::time::pass;
use crate::dialects::SPOKEN;

const POLICIES: [Policy; 3] = [Policy::Predicted, Policy::LeastRequests, Policy::PowerOfTwo];
const DOUBTFUL: [u16; 7] = [401, 403, 404, 405, 407, 408, 421];
/// Statuses that speak of a request's content.
const OF_CONTENT: [u16; 8] = [400, 409, 410, 413, 415, 422, 426, 451];

fn refuses(status: u16) -> Fault {
    Fault::always(FaultKind::Status(status, None)).on_path("/v1/")
}

/// The engines of one role.
fn side(memory: &Memory, prefills: bool) -> &[Engine] {
    if prefills { &memory.prefillers } else { &memory.decoders }
}

fn role(prefills: bool) -> Role {
    if prefills { Role::Prefill } else { Role::Decode }
}

#[tokio::test(start_paused = true)]
async fn one_of_four_that_refuses_costs_no_request_whatever_the_policy() {
    for policy in POLICIES {
        for (prefills, status) in [(true, 401), (false, 404), (false, 429)] {
            let mut config = config();
            config.route.policy = policy;
            let memory = Memory::set(4, &working(), config).await;
            let engines = side(&memory, prefills);
            assert!(engines[0].inject(refuses(status)));
            let when =
                format!("{policy:?}, {status} by a {}", if prefills { "prefiller" } else { "decoder" });
            let statuses = load(&memory, 8, 40).await;
            assert_eq!(failed(&statuses), 0, "{when}");
            assert!(taken(&engines[0]) <= 20, "{when}: it draws the traffic: {}", taken(&engines[0]));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_status_that_may_be_one_engines_trouble_is_tried_elsewhere() {
    for status in DOUBTFUL {
        for prefills in [true, false] {
            let memory = Memory::set(4, &working(), config()).await;
            let engines = side(&memory, prefills);
            assert!(engines[1].inject(refuses(status)));
            assert_eq!(failed(&load(&memory, 1, 12).await), 0, "{status}");
        }
    }
}

/// A smaller `--max-model-len`, another version, or a proxy before one engine: what it refuses its
/// peers serve.
#[tokio::test(start_paused = true)]
async fn one_of_four_that_refuses_all_content_fails_one_request_at_most() {
    for status in OF_CONTENT {
        for prefills in [true, false] {
            for served_before in [false, true] {
                let when = format!("{status}, prefills {prefills}, served before {served_before}");
                let memory = Memory::set(4, &working(), config()).await;
                if served_before {
                    assert_eq!(failed(&load(&memory, 4, 24).await), 0, "{when}");
                }
                let engine = &side(&memory, prefills)[0];
                let before = taken(engine);
                assert!(engine.inject(refuses(status)));
                let failures = failed(&load(&memory, 8, 80).await);
                assert!(failures <= usize::from(served_before), "{when}: {failures} of 80");
                let drawn = taken(engine) - before;
                assert!(drawn <= 30, "{when}: it draws the traffic: {drawn} of 80");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_clients_own_mistake_is_asked_of_one_engine_that_serves_and_rests_nobody() {
    let memory = Memory::set(4, &working(), config()).await;
    let bad = r#"{"model":"sim","prompt":"a","max_tokens":3,"temperature":-1}"#;
    for n in 0..10 {
        assert_eq!(failed(&load(&memory, 4, 16).await), 0);
        let before: usize = memory.prefillers.iter().map(taken).sum();
        let (status, _) = post(&memory, super::COMPLETIONS, bad.to_owned()).await;
        assert_eq!(status, 400);
        assert_eq!(memory.prefillers.iter().map(taken).sum::<usize>() - before, 1, "mistake {n}");
    }
    for _ in 0..40 {
        assert_eq!(post(&memory, super::COMPLETIONS, bad.to_owned()).await.0, 400, "mistakes alone");
    }
    assert_eq!(breakers(&memory, Role::Prefill), [State::Closed; 4]);
}

#[tokio::test(start_paused = true)]
async fn two_of_four_that_refuse_are_not_taken_for_each_others_witnesses() {
    for policy in [Policy::Predicted, Policy::LeastRequests] {
        let mut config = config();
        config.route.policy = policy;
        let memory = Memory::set(4, &working(), config).await;
        for engine in &memory.decoders[..2] {
            assert!(engine.inject(refuses(404)));
        }
        assert_eq!(failed(&load(&memory, 8, 160).await), 0, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn refusal_shared_by_engines_is_the_answer_and_blames_none() {
    let memory = Memory::set(4, &working(), config()).await;
    assert_eq!(failed(&load(&memory, 4, 40).await), 0);
    let unknown = r#"{"model":"nobody has it","prompt":"a","max_tokens":3}"#;
    for _ in 0..10 {
        let before: usize = memory.prefillers.iter().map(taken).sum();
        let (status, text) = post(&memory, super::COMPLETIONS, unknown.to_owned()).await;
        assert_eq!(status, 404);
        assert!(text.contains("does not exist"), "the engine's own words: {text}");
        let asked = memory.prefillers.iter().map(taken).sum::<usize>() - before;
        assert!((2..=3).contains(&asked), "{asked} were asked");
    }
    assert!(breakers(&memory, Role::Prefill).iter().all(|it| *it == State::Closed));
    assert_eq!(ask(&memory, 1_000).await, 200);
}

#[tokio::test(start_paused = true)]
async fn the_word_of_a_lone_engine_counts() {
    for (status, prefills) in [(401, true), (404, true), (403, false), (404, false)] {
        let memory = Memory::set(1, &working(), config()).await;
        let engines = side(&memory, prefills);
        assert!(engines[0].inject(refuses(status)));
        assert_eq!(ask(&memory, 0).await, status);
        assert_eq!(taken(&engines[0]), 1);
        assert_eq!(breakers(&memory, role(prefills)), [State::Closed]);
    }
}

#[tokio::test(start_paused = true)]
async fn no_dialect_takes_a_refusal_for_service() {
    for (name, connector) in SPOKEN {
        for prefills in [true, false] {
            for status in [401, 429] {
                let mut config = config();
                config.dialect.name = name;
                let spec = EngineSpec { connector, ..working() };
                let memory = Memory::set(3, &spec, config).await;
                let engines = side(&memory, prefills);
                assert!(engines[0].inject(refuses(status)));
                let statuses = load(&memory, 4, 12).await;
                assert_eq!(failed(&statuses), 0, "{name:?}, {status}, prefills {prefills}: {statuses:?}");
            }
        }
    }
}

/// A pool, whose legs know nothing of each other, and decoders that are asked first.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_not_service_where_nothing_is_handed_over_nor_where_decoders_come_first() {
    for spoken in [DIALECTS[5], DIALECTS[6]] {
        for prefills in [true, false] {
            for status in DOUBTFUL.into_iter().chain([429]) {
                let (memory, _listening) = in_dialect(spoken, 4).await;
                let refuser = &side(&memory, prefills)[0];
                assert!(refuser.inject(refuses(status)));
                let when = format!("{spoken:?}, {status}, prefills {prefills}");
                assert_eq!(failed(&load(&memory, 8, 40).await), 0, "{when}");
                assert_eq!(failed(&steady(&memory, Duration::from_secs(2)).await), 0, "{when}");
                // One that is busy is asked again soon.
                let (drawn, most) = (taken(refuser), if status == 429 { 40 } else { 20 });
                assert!(drawn <= most, "{when}: it draws the traffic: {drawn}");
                let states = breakers(&memory, role(prefills));
                assert_eq!(states[1..], [State::Closed; 3], "{when}");
                assert!(status == 429 || states[0] != State::Closed, "{when}: it rests");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_busy_for_ever_rests_in_those_dialects_too() {
    for spoken in [DIALECTS[5], DIALECTS[6]] {
        for prefills in [true, false] {
            let (memory, _listening) = in_dialect(spoken, 4).await;
            assert!(side(&memory, prefills)[0].inject(Fault::always(FaultKind::Retired)));
            let when = format!("{spoken:?}, prefills {prefills}");
            assert_eq!(failed(&load(&memory, 1, 12).await), 0, "{when}");
            assert_eq!(failed(&steady(&memory, Duration::from_secs(12)).await), 0, "{when}");
            let states = breakers(&memory, role(prefills));
            assert_ne!(states[0], State::Closed, "{when}: it rests");
            assert_eq!(states[1..], [State::Closed; 3], "{when}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn routes_that_one_engine_answers_alone_are_no_exception() {
    for status in [400, 401, 404, 413, 429, 421] {
        let memory = Memory::set(3, &working(), config()).await;
        assert!(memory.prefillers[0].inject(refuses(status)));
        for n in 0..12 {
            let body = format!(r#"{{"model":"sim","input":"text {n}"}}"#);
            let (got, text) = post(&memory, "/v1/embeddings", body).await;
            assert_eq!(got, 200, "{status}: {text}");
        }
        for engine in &memory.prefillers {
            engine.clear_faults();
            assert!(engine.inject(refuses(404)));
        }
        let (got, text) = post(&memory, "/v1/embeddings", r#"{"model":"sim","input":"a"}"#.into()).await;
        assert_eq!(got, 404, "all say so: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_busy_for_ever_rests_while_others_serve() {
    for prefills in [true, false] {
        let memory = Memory::set(3, &working(), config()).await;
        let retired = &side(&memory, prefills)[0];
        assert!(retired.inject(Fault::always(FaultKind::Retired)));
        assert_eq!(failed(&steady(&memory, Duration::from_secs(12)).await), 0);
        assert_eq!(breakers(&memory, role(prefills))[1..], [State::Closed; 2]);
        assert_ne!(breakers(&memory, role(prefills))[0], State::Closed, "prefills {prefills}: it rests");
        let before = taken(retired);
        assert_eq!(failed(&steady(&memory, Duration::from_secs(10)).await), 0);
        let tried = taken(retired) - before;
        assert!(tried <= 10, "prefills {prefills}: {tried} requests in ten seconds to an engine that rests");
    }
}

#[tokio::test(start_paused = true)]
async fn engines_that_are_all_busy_are_not_taken_for_broken() {
    let memory = Memory::set(2, &working(), config()).await;
    for decoder in &memory.decoders {
        assert!(decoder.inject(Fault::always(FaultKind::Retired)));
    }
    let statuses = steady(&memory, Duration::from_secs(12)).await;
    assert!(statuses.iter().all(|status| *status == 503), "{statuses:?}");
    assert_eq!(breakers(&memory, Role::Decode), [State::Closed; 2], "no other engine serves");
    memory.decoders.iter().for_each(Engine::clear_faults);
    pass(Duration::from_secs(1)).await;
    assert_eq!(failed(&steady(&memory, Duration::from_secs(2)).await), 0);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_refuses_rests_and_has_its_share_again_when_it_stops() {
    for status in DOUBTFUL {
        for prefills in [true, false] {
            let when = format!("{status}, prefills {prefills}");
            let memory = Memory::set(3, &working(), config()).await;
            let refuser = &side(&memory, prefills)[0];
            assert!(refuser.inject(refuses(status)));
            assert_eq!(failed(&steady(&memory, Duration::from_secs(8)).await), 0, "{when}");
            assert_ne!(breakers(&memory, role(prefills))[0], State::Closed, "{when}: it rests");
            refuser.clear_faults();
            assert_eq!(failed(&steady(&memory, Duration::from_secs(60)).await), 0, "{when}");
            assert_eq!(breakers(&memory, role(prefills))[0], State::Closed, "{when}: it is back");
            let before = taken(refuser);
            assert_eq!(failed(&steady(&memory, Duration::from_secs(4)).await), 0, "{when}");
            assert!(taken(refuser) - before > 10, "{when}: it has its share");
        }
    }
}
