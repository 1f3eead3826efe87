//! Continuations are bounded: by room for token ids, by the retry budget, by the request's time.

use std::time::Duration;

use pd_proxy::sim::{Fault, FaultKind};
use serde_json::json;

use super::{CHAT, COMPLETIONS, bodies, metric, normal, request, resuming};
use crate::common::client;
use crate::common::stage::{Script, Stage};

#[tokio::test]
async fn ids_take_no_more_room_than_there_is() {
    let mut script = resuming();
    script.config.limit.resume_tokens = 20;
    let stage = Stage::set(script).await;
    let whole = normal(&stage.send(&request(COMPLETIONS, 12, &json!({}))).await);
    stage.decoders_fail(&Fault::once(FaultKind::EndAfterEvents(10)));
    let answer = stage.send(&request(COMPLETIONS, 12, &json!({}))).await;
    assert_eq!(answer.events().pop().unwrap()["error"]["code"], "decode_failed");
    let text = stage.get("/metrics").await.text();
    assert!(metric(&text, "pd_proxy_continuations_total", &["refused", "memory"]) >= 1);
    // A short one finds room, since the others have given theirs back.
    stage.heal();
    stage.decoders_fail(&Fault::once(FaultKind::EndAfterEvents(3)));
    let short = request(COMPLETIONS, 6, &json!({"prompt": "short"}));
    let answer = stage.send(&short).await;
    assert!(answer.done(), "{}", answer.text());
    assert!(whole.contains("[DONE]"));
    stage.end().await;
}

#[tokio::test]
async fn retries_are_a_share_of_the_traffic() {
    let mut script = Script::default();
    script.config.retry.budget = 0.5;
    script.config.retry.budget_floor_per_s = 0;
    script.config.retry.attempts = 5;
    // Decoders that rest are another matter.
    script.config.health.failures = 1_000;
    let stage = Stage::set(script).await;
    stage.decoders_fail(&Fault::always(FaultKind::ResetBeforeHead));
    for _ in 0..12 {
        let answer = stage.send(&request(COMPLETIONS, 4, &json!({}))).await;
        assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (502, Some("decode_failed")));
    }
    assert_eq!(bodies(&stage, &stage.decoders).len(), 12 + 6);
    let text = stage.get("/metrics").await.text();
    assert!(metric(&text, "pd_proxy_retries_denied_total", &["decode"]) >= 6);
    stage.end().await;
}

#[tokio::test]
async fn so_are_further_engines_for_what_one_engine_answers() {
    let asked = client::post("/tokenize", r#"{"prompt":"Hello"}"#);
    for (budget, engines) in [(0.0, 1), (1.0, 2)] {
        let mut script = Script::default();
        script.config.retry.budget = budget;
        script.config.retry.budget_floor_per_s = 0;
        let stage = Stage::set(script).await;
        let fault = Fault::always(FaultKind::Status(500, None));
        stage.prefillers_fail(&fault);
        stage.decoders_fail(&fault);
        let answer = stage.send(&asked).await;
        assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (502, Some("engine_failed")));
        let seen = stage.seen(&stage.prefillers).len() + stage.seen(&stage.decoders).len();
        assert_eq!(seen, engines, "with a budget of {budget}");
        stage.end().await;
    }
}

#[tokio::test]
async fn continuations_are_retries() {
    let mut script = resuming();
    script.config.retry.budget = 0.0;
    script.config.retry.budget_floor_per_s = 0;
    let stage = Stage::set(script).await;
    stage.decoders_fail(&Fault::once(FaultKind::EndAfterEvents(5)));
    let answer = stage.send(&request(CHAT, 12, &json!({}))).await;
    assert_eq!(answer.events().pop().unwrap()["error"]["code"], "decode_failed");
    stage.end().await;
}

#[tokio::test]
async fn the_total_time_holds_while_another_pair_is_looked_for() {
    let mut script = resuming();
    script.config.timeout.total_ms = 500;
    let stage = Stage::set(script).await;
    let asked = request(CHAT, 12, &json!({}));
    stage.decoders_fail(&Fault::once(FaultKind::EndAfterEvents(5)));
    stage.prefillers_fail(
        &Fault { times: u32::MAX, ..Fault::once(FaultKind::StallBeforeHead) }.on_path("/v1/completions"),
    );
    let answer = tokio::time::timeout(Duration::from_secs(5), stage.send(&asked)).await.unwrap();
    assert_eq!(answer.events().pop().unwrap()["error"]["code"], "decode_failed");
    stage.heal();
    stage.assert_nothing_left("after the time was over").await;
    stage.end().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_another_pair_is_looked_for_leaves_nothing_behind() {
    let stage = Stage::set(resuming()).await;
    let asked = request(CHAT, 12, &json!({}));
    for wait_ms in [0, 20, 60, 120] {
        stage.heal();
        stage.decoders_fail(&Fault::once(FaultKind::EndAfterEvents(5)));
        let slow = FaultKind::Delay(Duration::from_millis(50));
        stage.prefillers_fail(&Fault::always(slow).on_path("/v1/completions"));
        let left = tokio::time::timeout(Duration::from_millis(wait_ms), stage.send(&asked)).await;
        assert!(left.is_err() || left.unwrap().done());
    }
    stage.heal();
    stage.assert_nothing_left("after the client left").await;
    stage.assert_all_alive("after the client left");
    stage.end().await;
}
