//! Legs that fail: who is tried again, who is hung up on, and what the client reads in the end.

use pd_proxy::sim::{Engine, Fault, FaultKind};
use serde_json::json;

use super::{COMPLETIONS, begin, body, script, sent, slow_prefills, stranded};
use crate::common::client::read;
use crate::common::stage::{Script, Stage};
use crate::common::time::eventually;

fn hasty() -> Script {
    let mut script = script();
    script.config.timeout.prefill_ms = 400;
    script.config.timeout.first_byte_ms = 400;
    script.config.timeout.answer_ms = 400;
    script
}

#[tokio::test]
async fn a_prefiller_that_never_began_is_replaced_while_the_decoder_waits() {
    for what in [FaultKind::Refuse, FaultKind::Status(503, None)] {
        let stage = Stage::set(hasty()).await;
        assert!(stage.prefillers[0].inject(Fault::always(what.clone())));
        for stream in [false, true] {
            for _ in 0..2 {
                let answer = stage.post(COMPLETIONS, &body(stream).to_string()).await;
                assert_eq!((answer.status, answer.complete), (200, true), "{what:?}: {}", answer.text());
            }
        }
        assert_eq!(stage.seen(&stage.decoders).len(), 4, "{what:?}: one decode leg each");
        stage.assert_nothing_left("with one prefiller").await;
        stage.end().await;
    }
}

#[tokio::test]
async fn a_prefiller_that_may_have_written_costs_a_fresh_pair() {
    for what in [FaultKind::ResetBeforeHead, FaultKind::StallBeforeHead, FaultKind::Status(500, None)] {
        let stage = Stage::set(hasty()).await;
        assert!(stage.prefillers[0].inject(Fault::always(what.clone())));
        for stream in [false, true] {
            for _ in 0..2 {
                let answer = stage.post(COMPLETIONS, &body(stream).to_string()).await;
                assert_eq!((answer.status, answer.complete), (200, true), "{what:?}: {}", answer.text());
            }
        }
        let mut ids: Vec<String> = stage.seen(&stage.decoders).iter().map(|seen| sent(seen).0).collect();
        let legs = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), legs, "each pair has an id of its own");
        assert!(legs > 4, "{what:?}: some prefill failed");
        let (all, heard) =
            (legs - 4, stage.decoders.iter().flat_map(Engine::heard).filter(|s| *s == 502).count());
        assert_eq!(heard, all, "{what:?}: who called for it was told");
        // What vLLM keeps for a transfer that will not end.
        assert_eq!(stranded(&stage), all, "{what:?}");
        stage.assert_all_alive("at the end");
        stage.end().await;
    }
}

#[tokio::test]
async fn failed_prefill_is_reported_and_stops_the_decoder() {
    for (what, status, code) in [
        (FaultKind::Refuse, 502, "prefill_failed"),
        (FaultKind::ResetBeforeHead, 502, "prefill_failed"),
        (FaultKind::StallBeforeHead, 504, "prefill_timeout"),
        (FaultKind::Status(503, None), 503, "overloaded"),
    ] {
        let stage = Stage::set(hasty()).await;
        stage.prefillers_fail(&Fault::always(what.clone()));
        let answer = stage.post(COMPLETIONS, &body(true).to_string()).await;
        assert_eq!((answer.status, answer.header("x-pd-error")), (status, Some(code)), "{what:?}");
        eventually("the decoders are idle", async || {
            stage.decoders.iter().all(|engine| engine.ledger().running + engine.ledger().waiting == 0)
        })
        .await;
        assert!(stage.decoders.iter().flat_map(Engine::heard).all(|status| status == 502), "{what:?}");
        stage.end().await;
    }
}

#[tokio::test]
async fn a_prefillers_refusal_is_the_answer() {
    let stage = Stage::set(script()).await;
    // Prefillers that serve are believed.
    eventually("each prefiller has served", async || {
        assert_eq!(stage.post(COMPLETIONS, &body(false).to_string()).await.status, 200);
        stage.prefillers.iter().all(|prefiller| !prefiller.seen().is_empty())
    })
    .await;
    stage.forget();
    let refusal = r#"{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}"#;
    stage.prefillers_fail(&Fault::always(FaultKind::Status(400, Some(refusal.into()))));
    let answer = stage.post(COMPLETIONS, &body(false).to_string()).await;
    assert_eq!((answer.status, answer.text().as_str()), (400, refusal));
    assert_eq!(stage.seen(&stage.prefillers).len(), 1, "it is not asked again");
    stage.end().await;
}

#[tokio::test]
async fn a_decoder_that_fails_before_it_calls_is_replaced() {
    for what in [
        FaultKind::Refuse,
        FaultKind::ResetBeforeHead,
        FaultKind::StallBeforeHead,
        FaultKind::Status(500, None),
        FaultKind::Status(503, None),
    ] {
        let stage = Stage::set(hasty()).await;
        assert!(stage.decoders[0].inject(Fault::always(what.clone())));
        for stream in [false, true] {
            for _ in 0..2 {
                let answer = stage.post(COMPLETIONS, &body(stream).to_string()).await;
                assert_eq!((answer.status, answer.complete), (200, true), "{what:?}: {}", answer.text());
            }
        }
        assert_eq!(stage.seen(&stage.prefillers).len(), 4, "{what:?}: no prefill for who never called");
        stage.assert_nothing_left("with one decoder").await;
        stage.end().await;
    }
}

#[tokio::test]
async fn a_decoder_that_dies_while_it_waits_takes_its_prefill_along_and_another_pair_serves() {
    let stage = Stage::set(slow_prefills(400.0)).await;
    let mut client = begin(stage.gateway, &body(false)).await;
    eventually("the prefill", async || stage.prefillers.iter().any(|engine| engine.ledger().running == 1))
        .await;
    let dying = stage.decoders.iter().find(|engine| engine.ledger().waiting == 1).unwrap();
    dying.kill().await;
    let answer = read(&mut client).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(stage.seen(&stage.prefillers).len(), 2, "a fresh prefill");
    let left =
        |engine: &Engine| engine.ledger().running + engine.ledger().waiting + engine.ledger().pinned_handoffs;
    let alive = || stage.engines().filter(|engine| engine.addr() != dying.addr());
    eventually("nothing is left", async || alive().map(left).sum::<usize>() == 0).await;
    stage.end().await;
}

#[tokio::test]
async fn a_decoder_that_refuses_is_not_called_for() {
    let stage = Stage::set(script()).await;
    let answer =
        stage.post(COMPLETIONS, &json!({"model": "sim", "prompt": "x", "temperature": -1}).to_string()).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(stage.seen(&stage.prefillers).is_empty());
    stage.assert_nothing_left("after a refusal").await;
    stage.end().await;
}

#[tokio::test]
async fn a_stream_that_breaks_goes_on_with_another_pair_under_the_id_that_the_client_knows() {
    let mut script = script();
    script.config.retry.resume = true;
    let stage = Stage::set(script).await;
    let whole = stage.post(COMPLETIONS, &body(true).to_string()).await.words();
    assert!(stage.decoders[0].inject(Fault::once(FaultKind::EndAfterEvents(4))));
    assert!(stage.decoders[1].inject(Fault::once(FaultKind::EndAfterEvents(4))));
    let answer = stage.post(COMPLETIONS, &body(true).to_string()).await;
    assert!(answer.done() && answer.complete, "{}", answer.text());
    assert_eq!(answer.words(), whole);
    let ids: std::collections::HashSet<String> =
        answer.events().iter().map(|event| event["id"].to_string()).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    stage.assert_nothing_left("after a stream in three parts").await;
    stage.end().await;
}
