//! Refusals under status 200, whole or as the first event of a stream: they are no more service
//! than those that have a status of their own, and nothing that was computed for them is kept.
//!
//! vLLM answers so when a request fails after its generator has begun
//! (`create_streaming_error_response`), and TensorRT-LLM and older servers for whole answers.

use std::time::Duration;

use pd_proxy::fleet::Role;
use pd_proxy::fleet::health::State;
use pd_proxy::sim::{EngineSpec, Fault, FaultKind, Ledger, Match};
use serde_json::json;

use super::{DIALECTS, breakers, config, exchange, failed, in_dialect, taken, working};
use crate::common::memory::Memory;
use crate::common::time::pass;

/// The engine's words for a refusal with this code.
fn words(code: u16) -> String {
    json!({"error": {"message": "no", "type": "x", "param": null, "code": code}}).to_string()
}

/// Refuses with this code under a 200.
fn refuses_late(code: u16, stream: bool) -> Fault {
    let words = words(code);
    let kind = match stream {
        true => FaultKind::Events(format!("data: {words}\n\ndata: [DONE]\n\n").into()),
        false => FaultKind::Status(200, Some(words.into())),
    };
    Fault::always(kind).on_path("/v1/")
}

/// `count` requests of eight clients; their statuses.
async fn load(memory: &Memory, count: usize, stream: bool) -> Vec<u16> {
    use futures_util::{StreamExt, stream as streams};
    let asked = streams::iter(0..count).map(|n| async move { exchange(memory, n, stream).await.0 });
    asked.buffer_unordered(8).collect().await
}

/// Waits until releases have had their time; asserts that no prefiller keeps anything, and that
/// nothing was left to its lease.
async fn assert_released(memory: &Memory, when: &str) {
    pass(Duration::from_secs(2)).await;
    for engine in &memory.prefillers {
        let Ledger { pinned_handoffs, expired, .. } = engine.ledger();
        assert_eq!((pinned_handoffs, expired), (0, 0), "{when}: {}", engine.addr());
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_four_decoders_that_refuses_late_fails_one_request_at_most() {
    for stream in [false, true] {
        for code in [400, 401, 404, 422, 429] {
            let when = format!("{code}, stream {stream}");
            let memory = Memory::set(4, &working(), config()).await;
            assert_eq!(failed(&load(&memory, 16, stream).await), 0, "{when}");
            let before = taken(&memory.decoders[0]);
            assert!(memory.decoders[0].inject(refuses_late(code, stream)));
            let failures = failed(&load(&memory, 80, stream).await);
            // An engine that has served is believed once.
            let believed = usize::from(matches!(code, 400 | 422));
            assert!(failures <= believed, "{when}: {failures} of 80");
            let drawn = taken(&memory.decoders[0]) - before;
            assert!(drawn <= 30, "{when}: it draws the traffic: {drawn} of 80");
            assert_released(&memory, &when).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_refusal_of_a_lone_decoder_is_the_answer_with_its_status() {
    for code in [400, 404] {
        let memory = Memory::set(1, &working(), config()).await;
        assert!(memory.decoders[0].inject(refuses_late(code, true)));
        for n in 0..3 {
            assert_eq!(exchange(&memory, n, true).await, (code, words(code)));
        }
        assert_eq!(breakers(&memory, Role::Decode), [State::Closed]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_refusal_is_no_service_in_any_dialect() {
    for spoken in DIALECTS {
        for (code, stream) in [(404, false), (404, true), (429, true)] {
            let (memory, _listening) = in_dialect(spoken, 3).await;
            assert!(memory.decoders[0].inject(refuses_late(code, stream)));
            let statuses = load(&memory, 24, stream).await;
            assert_eq!(failed(&statuses), 0, "{spoken:?}, {code}, stream {stream}: {statuses:?}");
        }
    }
}

/// Otherwise what no decoder fetched would count as freed.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_refused_late_releases_nothing() {
    let memory = Memory::set(2, &working(), config()).await;
    for decoder in &memory.decoders {
        assert!(decoder.inject(refuses_late(400, false)));
    }
    assert_eq!(exchange(&memory, 0, false).await.0, 400);
    pass(Duration::from_secs(10)).await;
    // Either has refused the request, each with KV of its own, and both pieces of KV after it.
    assert_eq!(memory.decoders.iter().map(taken).collect::<Vec<_>>(), [3, 3]);
}

/// vLLM ends all that it has so when it is paused, put to sleep or stopped.
#[tokio::test(start_paused = true)]
async fn a_prefiller_that_aborts_what_it_gets_is_no_prefiller() {
    let aborted = json!({"choices": [{"index": 0, "text": "", "finish_reason": "abort"}], "usage": {}, "kv_transfer_params": null});
    let memory = Memory::set(3, &EngineSpec { ..working() }, config()).await;
    let fault = Fault::always(FaultKind::Status(200, Some(aborted.to_string().into())));
    assert!(memory.prefillers[0].inject(fault.on_path("/v1/")));
    assert_eq!(failed(&load(&memory, 60, true).await), 0);
    assert!(taken(&memory.prefillers[0]) <= 15, "it draws the traffic: {}", taken(&memory.prefillers[0]));
    let metrics = memory.get("/metrics").await.1;
    let value = |name: &str| {
        let found = metrics.lines().find_map(|line| line.strip_prefix(name)?.split_once("} "));
        found.map_or(0.0, |(_, text)| text.parse().unwrap())
    };
    assert_eq!(value("pd_proxy_prefills_without_handoff_total{"), 0.0, "decoders computed nothing");
    assert!(
        value("pd_proxy_leg_failures_total{role=\"prefill\",engine=\"10.0.0.1:8000\"") > 0.0,
        "{metrics}"
    );
}

/// Decoders accept a request whose prefiller did, unless it is the KV that they refuse.
#[tokio::test(start_paused = true)]
async fn a_prefiller_whose_kv_all_decoders_refuse_is_found() {
    for (status, late) in [(400, false), (422, false), (400, true)] {
        let when = format!("{status}, late {late}");
        let memory = Memory::set(4, &working(), config()).await;
        assert_eq!(failed(&load(&memory, 16, false).await), 0, "{when}");
        let fault =
            if late { refuses_late(status, false) } else { Fault::always(FaultKind::Status(status, None)) };
        for decoder in &memory.decoders {
            let contains = Some(r#""remote_host":"10.0.0.1""#.to_owned());
            assert!(decoder.inject(Fault { on: Match { contains, ..Match::default() }, ..fault.clone() }));
        }
        let failures = failed(&load(&memory, 200, false).await);
        assert!(failures <= 4, "{when}: {failures} of 200");
        assert_ne!(breakers(&memory, Role::Prefill)[0], State::Closed, "{when}: it rests");
        assert_eq!(breakers(&memory, Role::Decode), [State::Closed; 4], "{when}");
    }
}

/// Otherwise the next stream that it begins would speak for it.
#[tokio::test(start_paused = true)]
async fn a_decoder_that_breaks_its_streams_off_rests() {
    for what in [FaultKind::EndAfterEvents(2), FaultKind::CloseWithoutDone, FaultKind::ErrorEvent] {
        for clients in [1, 8] {
            let when = format!("{what:?}, {clients} clients");
            let memory = Memory::set(4, &working(), config()).await;
            assert!(memory.decoders[0].inject(Fault::always(what.clone()).on_path("/v1/")));
            let broken = broken_streams(&memory, clients, 120).await;
            // Streams that have begun when the first ones break are lost, too.
            assert!(broken <= 5 + clients, "{when}: {broken} of 120 broke");
            memory.decoders[0].clear_faults();
            pass(Duration::from_secs(40)).await;
            broken_streams(&memory, clients, 120).await;
            assert_eq!(breakers(&memory, Role::Decode), [State::Closed; 4], "{when}: it is back");
        }
    }
}

/// Streams without a last event, of `count` by so many clients.
async fn broken_streams(memory: &Memory, clients: usize, count: usize) -> usize {
    use futures_util::{StreamExt, stream};
    let one = |n| async move { !exchange(memory, n, true).await.1.contains("data: [DONE]") };
    stream::iter(0..count)
        .map(one)
        .buffer_unordered(clients)
        .filter(|broken| std::future::ready(*broken))
        .count()
        .await
}

/// No engine of today answers so, but proxies before them do.
#[tokio::test(start_paused = true)]
async fn a_200_with_nothing_in_it_is_no_service() {
    for nothing in ["{}", r#"{"detail":"x"}"#, r#"{"choices":[]}"#] {
        for prefills in [true, false] {
            let memory = Memory::set(4, &working(), config()).await;
            let bad = if prefills { &memory.prefillers[0] } else { &memory.decoders[0] };
            assert!(bad.inject(Fault::always(FaultKind::Status(200, Some(nothing.into()))).on_path("/v1/")));
            assert_eq!(failed(&load(&memory, 80, false).await), 0, "{nothing}, prefills {prefills}");
            assert!(taken(bad) <= 20, "{nothing}, prefills {prefills}: it draws the traffic: {}", taken(bad));
        }
    }
}
