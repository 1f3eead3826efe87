//! Streams and answers on the wire: cut, split, stalled, slow, abandoned. Never 200 and empty,
//! exactly one terminal event, and nothing left on the engines.

use std::time::Duration;

use pd_proxy::sim::{ConnectionEnd, Engine, EngineSpec, Fault, FaultKind};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::client::{self, Raw};
use crate::common::stage::{Script, Stage, fast, slow};
use crate::common::time::{eventually, pace};

const PATH: &str = "/v1/chat/completions";

fn body(stream: bool, max_tokens: u32) -> String {
    let messages = json!([{"role": "user", "content": "tell me of prefill and decode ".repeat(6)}]);
    json!({"model": "sim", "messages": messages, "max_tokens": max_tokens, "stream": stream,
        "stream_options": stream.then(|| json!({"include_usage": true}))})
    .to_string()
}

/// The prompt differs each time, so that no prefix cache makes it fast.
fn fresh_body(nth: usize, max_tokens: u32) -> String {
    let messages = json!([{"role": "user", "content": format!("{nth} ").repeat(60)}]);
    json!({"model": "sim", "messages": messages, "max_tokens": max_tokens, "stream": true}).to_string()
}

/// The rules for what a client may see of a streamed answer.
fn assert_honest(answer: &Raw, words: &str, when: &str) {
    if answer.status != 200 {
        let code = answer.json()["error"]["code"].clone();
        assert!(answer.complete && code.is_string(), "{when}: {}", answer.text());
        return;
    }
    assert!(!answer.body.is_empty(), "{when}: 200 and empty");
    let errors = answer.events().iter().filter(|e| e.get("error").is_some()).count();
    let terminal = errors + usize::from(answer.done());
    assert_eq!(terminal, 1, "{when}: one terminal event: {}", answer.text());
    assert_eq!(
        answer.complete,
        answer.done(),
        "{when}: only a complete answer ends cleanly: {}",
        answer.text()
    );
    let said = answer.words();
    if answer.done() {
        assert_eq!(said, words, "{when}");
    } else {
        assert!(words.starts_with(&said), "{when}: {said:?} is no beginning of {words:?}");
    }
}

fn hasty() -> Script {
    let mut script = Script { engine: EngineSpec { lease_ms: 1_500, ..fast() }, ..Script::default() };
    script.config.timeout.first_byte_ms = 400;
    script.config.timeout.gap_ms = 300;
    script.tried_at_once()
}

#[tokio::test]
async fn a_decoders_answer_cut_at_any_byte() {
    let stage = Stage::set(hasty()).await;
    let words = stage.post(PATH, &body(false, 8)).await.words();
    let whole = stage.post(PATH, &body(true, 8)).await;
    assert!(whole.done() && whole.words() == words && !words.is_empty());
    let length = whole.body.len() + 400;
    let offsets = (0..length).step_by(23).chain([1, 8, 17]).chain(length - 60..length);
    for bytes in offsets {
        let how = if bytes % 2 == 0 { ConnectionEnd::Reset } else { ConnectionEnd::Close };
        let when = format!("streamed answer cut after {bytes} bytes, {how:?}");
        stage.decoders_fail(&Fault::once(FaultKind::CutAfterBytes { bytes, how }));
        assert_honest(&stage.post(PATH, &body(true, 8)).await, &words, &when);
        stage.heal();
    }
    for bytes in (0..1_200).step_by(29) {
        let how = if bytes % 2 == 0 { ConnectionEnd::Close } else { ConnectionEnd::Reset };
        stage.decoders_fail(&Fault::once(FaultKind::CutAfterBytes { bytes, how }));
        let answer = stage.post(PATH, &body(false, 8)).await;
        let when = format!("whole answer cut after {bytes} bytes");
        assert!(answer.complete, "{when}: never a part of an answer");
        if answer.status == 200 {
            assert_eq!(answer.words(), words, "{when}");
        } else {
            assert_eq!(answer.json()["error"]["code"], "decode_failed", "{when}");
        }
        stage.heal();
    }
    stage.assert_nothing_left("after all cuts").await;
    stage.assert_all_alive("after all cuts");
    stage.end().await;
}

#[tokio::test]
async fn one_cut_before_the_first_byte_is_invisible() {
    let stage = Stage::set(hasty()).await;
    let words = stage.post(PATH, &body(false, 8)).await.words();
    for bytes in [0, 1, 20, 100] {
        assert!(
            stage.decoders[0]
                .inject(Fault::once(FaultKind::CutAfterBytes { bytes, how: ConnectionEnd::Reset }))
        );
        for _ in 0..2 {
            let answer = stage.post(PATH, &body(true, 8)).await;
            assert_eq!(
                (answer.status, answer.done(), answer.words().as_str()),
                (200, true, words.as_str()),
                "{bytes}"
            );
        }
        stage.heal();
    }
    stage.end().await;
}

#[tokio::test]
async fn the_answer_does_not_depend_on_how_it_was_split() {
    let stage = Stage::new().await;
    let with_id = client::post_with(PATH, &[("x-request-id", "same")], body(true, 6).as_bytes());
    let whole = stage.send(&with_id).await;
    assert!(whole.done());
    let without_time = |raw: &Raw| {
        let mut events = raw.events();
        events.iter_mut().for_each(|e| e["created"] = json!(0));
        // Which of the engines answered shows in its fingerprint, and whether it had the prompt
        // before in its usage.
        events.iter_mut().for_each(|e| {
            e.as_object_mut().unwrap().remove("system_fingerprint");
            e.as_object_mut().unwrap().remove("usage");
        });
        events
    };
    for bytes in [1, 2, 3, 5, 7, 11, 64, 200, 211] {
        stage.decoders_fail(&Fault::once(FaultKind::DribbleBytes(bytes)));
        let dribbled = stage.send(&with_id).await;
        assert!(dribbled.done() && dribbled.complete, "{bytes}");
        assert_eq!(without_time(&dribbled), without_time(&whole), "in pieces of {bytes}");
        stage.heal();
    }
    stage.prefillers_fail(&Fault::always(FaultKind::DribbleBytes(1)));
    assert!(stage.send(&with_id).await.done(), "a prefill answer in single bytes");
    stage.end().await;
}

#[tokio::test]
async fn a_stream_that_stops_without_its_end_is_not_passed_off_as_complete() {
    let stage = Stage::set(hasty()).await;
    let words = stage.post(PATH, &body(false, 30)).await.words();
    for what in [FaultKind::CloseWithoutDone, FaultKind::StallAfterBytes(900), FaultKind::ErrorEvent] {
        let when = format!("{what:?}");
        stage.decoders_fail(&Fault::once(what.clone()));
        let answer = stage.post(PATH, &body(true, 30)).await;
        assert_eq!(answer.status, 200, "{when}");
        let errors: Vec<_> = answer.events().into_iter().filter(|e| e.get("error").is_some()).collect();
        assert_eq!(errors.len(), 1, "{when}: {}", answer.text());
        if matches!(what, FaultKind::ErrorEvent) {
            // vLLM's own way to fail, passed on as it is: its error, then its [DONE].
            assert!(answer.done() && answer.complete && errors[0]["error"]["code"].is_u64(), "{when}");
            let metrics = stage.get("/metrics").await.text();
            let failed = |decoder: &Engine| {
                let leg = format!(
                    r#"pd_proxy_leg_failures_total{{role="decode",engine="{}",reason="status"}} 1"#,
                    decoder.addr()
                );
                metrics.contains(&leg)
            };
            assert!(stage.decoders.iter().any(failed), "{when}: nobody is told");
        } else {
            assert_honest(&answer, &words, &when);
            let code = if matches!(what, FaultKind::StallAfterBytes(_)) {
                "decode_timeout"
            } else {
                "decode_failed"
            };
            assert_eq!(errors[0]["error"]["code"], code, "{when}");
        }
        stage.heal();
    }
    stage.assert_nothing_left("at the end").await;
    stage.end().await;
}

#[tokio::test]
async fn clients_that_leave_at_any_moment_leave_nothing_behind() {
    // The lease is far longer than the test: what is freed here was freed by the gateway's doing.
    let stage =
        Stage::set(Script { engine: EngineSpec { lease_ms: 120_000, ..slow() }, ..Script::default() }).await;
    for nth in 0..60 {
        let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
        socket.write_all(&client::post(PATH, &fresh_body(nth, 40))).await.unwrap();
        // From before the prefill to the middle of the stream, in steps of 3 ms.
        pace(Duration::from_millis(nth as u64 * 3)).await;
        drop(socket);
    }
    stage.assert_nothing_left("after 60 clients left").await;
    stage.assert_all_alive("after 60 clients left");
    assert_eq!(stage.expired(), 0, "nothing was left to its lease");
    assert_eq!(stage.post(PATH, &fresh_body(99, 3)).await.status, 200);
    stage.end().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_no_decoder_listens_has_its_handoff_released_later() {
    let mut script = Script { engine: EngineSpec { lease_ms: 120_000, ..slow() }, ..Script::default() };
    script.config.retry.attempts = 1_000;
    script.config.retry.delay_ms = 20.0;
    script.config.retry.delay_max_ms = 20.0;
    let stage = Stage::set(script).await;
    stage.decoders_fail(&Fault::always(FaultKind::Refuse));
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    socket.write_all(&client::post(PATH, &fresh_body(1, 40))).await.unwrap();
    let pinned = async || stage.prefillers.iter().any(|p| p.ledger().pinned_handoffs > 0);
    eventually("the prefiller pins the KV", pinned).await;
    stage.heal();
    drop(socket);
    stage.assert_nothing_left("after the client left").await;
    assert_eq!(stage.expired(), 0);
    stage.end().await;
}

#[tokio::test]
async fn a_slow_reader_slows_the_decoder_and_loses_nothing() {
    let stage = Stage::new().await;
    let request = body(true, 60_000);
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    socket.write_all(&client::post(PATH, &request)).await.unwrap();
    eventually("it starts", async || stage.decoders.iter().any(|d| d.ledger().running > 0)).await;
    // 60 000 events are 13 MB: more than the sockets on the way can hold, so the decoder can't have
    // sent them all.
    pace(Duration::from_millis(300)).await;
    let mut first = vec![0; 100];
    socket.read_exact(&mut first).await.unwrap();
    let rest = client::read_on(&mut socket, first).await;
    assert!(rest.done() && rest.complete);
    assert_eq!(rest.events().last().unwrap()["usage"]["completion_tokens"], 60_000);
    stage.end().await;
}

#[tokio::test]
async fn a_request_in_pieces_and_with_expect_is_understood() {
    let stage = Stage::new().await;
    let request = client::post_with(PATH, &[("expect", "100-continue")], body(false, 3).as_bytes());
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    for piece in request.chunks(7) {
        socket.write_all(piece).await.unwrap();
        socket.flush().await.unwrap();
    }
    let answer = client::read(&mut socket).await;
    assert_eq!((answer.status, answer.complete), (200, true));
    // The same connection serves on.
    socket.write_all(&client::post(PATH, &body(false, 3))).await.unwrap();
    assert_eq!(client::read(&mut socket).await.status, 200);
    stage.end().await;
}
