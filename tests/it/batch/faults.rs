//! Faults of one of several prompts.

use std::time::Duration;

use pd_proxy::sim::{EngineSpec, Fault, FaultKind, Match};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{Own, lone, prompts, request, texts};
use crate::common::client;
use crate::common::stage::{Script, Stage, fast, slow};
use crate::common::time::{eventually, pace};

/// Hits the next request about this prompt, on whichever engine it comes to.
fn about(prompt: &str, times: u32, what: FaultKind) -> Fault {
    Fault { on: Match { contains: Some(prompt.to_owned()), ..Match::default() }, times, what }
}

#[tokio::test]
async fn one_prompts_engine_that_fails_is_not_noticed() {
    // What a decoder failed with is left to its lease.
    let script = Script { engine: EngineSpec { lease_ms: 500, ..fast() }, ..Script::default() };
    let (stage, alone) = (Stage::set(script).await, lone().await);
    for stream in [false, true] {
        for prefills in [true, false] {
            for what in
                [FaultKind::ResetBeforeHead, FaultKind::Status(500, None), FaultKind::Status(503, None)]
            {
                let prompts = prompts(4);
                let asked = request("r", &json!(prompts), &json!({"stream": stream}));
                let want = texts(&client::send(alone.addr(), &asked).await);
                let engines = if prefills { &stage.prefillers } else { &stage.decoders };
                assert!(engines[0].inject(about(&prompts[2], 1, what.clone())));
                assert!(engines[1].inject(about(&prompts[1], 1, what.clone())));
                let got = stage.send(&asked).await;
                assert_eq!((got.status, got.complete), (200, true), "{what:?}: {}", got.text());
                assert_eq!(texts(&got), want, "{stream} {prefills} {what:?}");
                stage.heal();
            }
        }
    }
    stage.assert_nothing_left("one fails").await;
    stage.end().await;
    alone.stop().await;
}

#[tokio::test]
async fn refusal_of_one_prompt_is_the_answer() {
    let script =
        Script { engine: EngineSpec { max_model_len: 400, lease_ms: 60_000, ..slow() }, ..Script::default() };
    let own = Own::stage("batch-refused", script).await;
    let stage = &own.stage;
    for stream in [false, true] {
        let mut prompts = prompts(4);
        prompts[2] = "far too long ".repeat(400);
        let got = stage.send(&own.request("r", &json!(prompts), &json!({"stream": stream}))).await;
        assert_eq!((got.status, got.complete), (400, true), "{}", got.text());
        assert!(got.text().contains("maximum context length"), "{}", got.text());
    }
    assert_eq!((own.ended("refused").await, own.all().await), (2, 2));
    assert_eq!(own.tokens("prompt").await, 0, "nothing was delivered");
    stage.assert_nothing_left("refused").await;
    stage.assert_all_alive("refused");
    own.stage.end().await;
}

#[tokio::test]
async fn a_prompt_that_nobody_answers_fails_all() {
    // What a decoder failed with is left to its lease.
    let script = Script { engine: EngineSpec { lease_ms: 500, ..fast() }, ..Script::default() };
    let own = Own::stage("batch-failed", script).await;
    let stage = &own.stage;
    for stream in [false, true] {
        let prompts = prompts(3);
        stage.decoders_fail(&about(&prompts[1], u32::MAX, FaultKind::Status(500, None)));
        let got = stage.send(&own.request("r", &json!(prompts), &json!({"stream": stream}))).await;
        assert_eq!((got.status, got.header("x-pd-error")), (502, Some("decode_failed")), "{}", got.text());
        stage.heal();
    }
    assert_eq!((own.ended("failed").await, own.all().await), (2, 2));
    stage.assert_nothing_left("failed").await;
    own.stage.end().await;
}

#[tokio::test]
async fn one_stream_that_breaks_breaks_the_answer_off_once() {
    let script = Script { engine: EngineSpec { tpot_ms: 5.0, ..fast() }, ..Script::default() };
    let own = Own::stage("batch-broken", script).await;
    let stage = &own.stage;
    let prompts = prompts(3);
    stage.decoders_fail(&about(&prompts[1], u32::MAX, FaultKind::EndAfterEvents(3)));
    let got =
        stage.send(&own.request("r", &json!(prompts), &json!({"stream": true, "max_tokens": 500}))).await;
    assert_eq!((got.status, got.complete, got.done()), (200, false, false));
    let errors = got.events().iter().filter(|event| event.get("error").is_some()).count();
    assert_eq!((errors, got.events().last().unwrap().get("error").is_some()), (1, true));
    assert_eq!((own.ended("failed").await, own.all().await), (1, 1));
    stage.assert_nothing_left("the others are hung up on").await;
    own.stage.end().await;
}

#[tokio::test]
async fn an_engines_own_error_ends_the_answer_at_once() {
    let script = Script { engine: EngineSpec { tpot_ms: 20.0, ..fast() }, ..Script::default() };
    let stage = Stage::set(script).await;
    let prompts = prompts(3);
    stage.decoders_fail(&about(&prompts[1], u32::MAX, FaultKind::ErrorEvent));
    let asked = request("r", &json!(prompts), &json!({"stream": true, "max_tokens": 500}));
    // The others would go on for ten seconds.
    let got = tokio::time::timeout(Duration::from_secs(4), stage.send(&asked)).await;
    let got = got.expect("nobody waits for what is not read any more");
    assert_eq!((got.status, got.complete, got.done()), (200, true, true), "{}", got.text());
    assert!(got.events().last().unwrap().get("error").is_some(), "{}", got.text());
    stage.assert_nothing_left("the others are hung up on").await;
    stage.end().await;
}

#[tokio::test]
async fn streams_go_on_elsewhere_each_for_itself() {
    let mut script = Script::default();
    script.config.retry.resume = true;
    let (stage, alone) = (Stage::set(script).await, lone().await);
    for cut in 1..8 {
        let prompts = prompts(3);
        let options = json!({"include_usage": true});
        let more = json!({"stream": true, "max_tokens": 12, "stream_options": options});
        let asked = request("r", &json!(prompts), &more);
        let want = client::send(alone.addr(), &asked).await;
        // A continuation has a list of tokens as prompt, which this does not hit.
        for at in [0, 2] {
            let fault = about(&prompts[at], 1, FaultKind::EndAfterEvents(cut));
            stage.decoders_fail(&fault);
        }
        let got = stage.send(&asked).await;
        assert!(got.done() && got.complete, "{cut}: {}", got.text());
        assert_eq!(texts(&got), texts(&want), "{cut}");
        assert_eq!(got.events().last().unwrap()["usage"], want.events().last().unwrap()["usage"], "{cut}");
        stage.heal();
    }
    assert!(stage.seen(&stage.decoders).len() > 7 * 3, "continuations are requests of their own");
    stage.assert_nothing_left("resumed").await;
    stage.end().await;
    alone.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_leaves_nothing() {
    let script = Script { engine: EngineSpec { lease_ms: 60_000, ..slow() }, ..Script::default() };
    let own = Own::stage("batch-left", script).await;
    let stage = &own.stage;
    let mut left = 0;
    for stream in [false, true] {
        for after_ms in [0, 5, 15, 30, 45, 60, 90, 140] {
            let asked = own.request("r", &json!(prompts(5)), &json!({"stream": stream, "max_tokens": 200}));
            let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
            socket.write_all(&asked).await.unwrap();
            pace(Duration::from_millis(after_ms)).await;
            drop(socket);
            left += 1;
            eventually("the request is over", async || own.ended("client_gone").await == left).await;
            stage.assert_nothing_left(&format!("left after {after_ms} ms")).await;
        }
    }
    assert_eq!(own.all().await, left);
    assert_eq!(stage.expired(), 0);
    stage.assert_all_alive("all clients left");
    own.stage.end().await;
}
