//! Responses that clients ask for again, stop, or go on from: only the engine that made one has it.

use pd_proxy::config::DialectName;
use pd_proxy::sim::{Engine, Fault, FaultKind};
use serde_json::json;

use crate::common::stage::{Script, Stage};

const RESPONSES: &str = "/v1/responses";

async fn keeping() -> Stage {
    keeping_on(Stage::set(Script { decoders: 3, ..Script::default() }).await)
}

/// Each decoder makes responses with an id of its own, and knows no others.
fn keeping_on(stage: Stage) -> Stage {
    for (at, decoder) in stage.decoders.iter().enumerate() {
        let answer =
            json!({"id": format!("resp_{at}"), "object": "response", "status": "queued"}).to_string();
        decoder.inject(
            Fault::always(FaultKind::Status(200, Some(answer.clone().into())))
                .on_path(&format!("{RESPONSES}/resp_{at}")),
        );
        let unknown = Some(r#"{"error":{"code":404}}"#.into());
        decoder.inject(Fault::always(FaultKind::Status(404, unknown)).on_path(&format!("{RESPONSES}/")));
        decoder.inject(Fault::always(FaultKind::Status(200, Some(answer.into()))).on_path(RESPONSES));
    }
    stage
}

#[tokio::test]
async fn a_response_is_asked_for_where_it_is() {
    let stage = keeping().await;
    let mut made = std::collections::BTreeSet::new();
    for _ in 0..6 {
        let new = json!({"model": "sim", "input": "a", "background": true}).to_string();
        let id = stage.post(RESPONSES, &new).await.json()["id"].as_str().unwrap().to_owned();
        for _ in 0..4 {
            let found = stage.get(&format!("{RESPONSES}/{id}")).await;
            assert_eq!((found.status, &found.json()["id"]), (200, &id.as_str().into()));
            let stopped = stage.post(&format!("{RESPONSES}/{id}/cancel"), "").await;
            assert_eq!((stopped.status, &stopped.json()["id"]), (200, &id.as_str().into()));
            assert_eq!(stage.post(RESPONSES, &next(&id)).await.json()["id"], id.as_str());
        }
        made.insert(id);
    }
    assert_eq!(made.len(), 3, "those that go on from none are everywhere: {made:?}");
    assert_eq!(stage.get("/v1/responses/resp_unknown").await.status, 404);
    stage.end().await;
}

/// As of a gateway that was restarted, or is one of several.
#[tokio::test]
async fn a_response_that_somebody_else_has_seen_made_is_looked_for() {
    let stage = keeping().await;
    let asked =
        || stage.decoders.iter().map(|it| it.seen().iter().filter(|one| one.path != "/health").count()).sum();
    for id in ["resp_0", "resp_1", "resp_2"] {
        let path = format!("{RESPONSES}/{id}");
        for most in [4, 1] {
            stage.forget();
            let found = stage.get(&path).await;
            assert_eq!((found.status, &found.json()["id"]), (200, &id.into()));
            let asked: usize = asked();
            assert!(asked <= most, "{asked} of {most}");
        }
    }
    stage.forget();
    let unknown = stage.post(&format!("{RESPONSES}/resp_unknown/cancel"), "").await;
    assert_eq!((unknown.status, asked()), (404, 5), "each once, and two again for their own word");
    stage.end().await;
}

/// More decoders than are asked side by side: nobody is told that there is no such response before
/// each of them has said so.
#[tokio::test]
async fn unknown_response_is_asked_of_all_decoders_of_a_large_fleet() {
    let stage = keeping_on(Stage::set(Script { decoders: 70, ..Script::default() }).await);
    let path = format!("{RESPONSES}/resp_unknown");
    stage.forget();
    assert_eq!(stage.get(&path).await.status, 404);
    let was_asked = |it: &Engine| it.seen().iter().any(|one| one.path == path);
    assert!(stage.decoders.iter().all(was_asked));
    let last = stage.decoders.last().unwrap();
    last.clear_faults();
    let answer = json!({"id": "kept", "object": "response"}).to_string();
    let kept = format!("{RESPONSES}/kept");
    last.inject(Fault::always(FaultKind::Status(200, Some(answer.into()))).on_path(&kept));
    last.inject(Fault::always(FaultKind::Status(500, None)).on_path(RESPONSES));
    assert_eq!(stage.get(&path).await.status, 502, "it may be there");
    let found = stage.get(&kept).await;
    assert_eq!((found.status, &found.json()["id"]), (200, &"kept".into()));
    stage.end().await;
}

fn next(id: &str) -> String {
    json!({"model": "sim", "input": "b", "previous_response_id": id}).to_string()
}

/// Paths that the engines were asked for, probes left out.
fn paths(stage: &Stage) -> Vec<String> {
    let seen = stage.decoders.iter().flat_map(|it| it.seen());
    seen.map(|one| one.path.clone()).filter(|path| path != "/health").collect()
}

/// The same of one that a request goes on from: any other decoder would say that there is no such
/// response.
#[tokio::test]
async fn continued_response_goes_to_its_decoder() {
    let stage = keeping().await;
    for id in ["resp_2", "resp_0", "resp_1"] {
        assert_eq!(stage.post(RESPONSES, &next(id)).await.json()["id"], id);
        stage.forget();
        assert_eq!(stage.post(RESPONSES, &next(id)).await.json()["id"], id);
        assert_eq!(paths(&stage), [RESPONSES], "it is known now");
    }
    // Nobody could have called a response so; elsewhere the member means nothing.
    let chat = json!({"model": "sim", "messages": [{"role": "user", "content": "a"}], "previous_response_id": "resp_9"});
    let asked = [
        (RESPONSES, next("")),
        (RESPONSES, next(&"x".repeat(129))),
        (RESPONSES, next("../models")),
        ("/v1/chat/completions", chat.to_string()),
    ];
    for (path, body) in asked {
        stage.forget();
        assert_eq!(stage.post(path, &body).await.status, 200, "{body}");
        assert_eq!(paths(&stage), [path], "{body}");
    }
    stage.end().await;
}

#[tokio::test]
async fn continued_response_is_asked_of_no_other_engine() {
    for (what, status) in [(FaultKind::Status(503, None), 503), (FaultKind::Status(500, None), 502)] {
        let stage = keeping().await;
        let keeper = &stage.decoders[1];
        keeper.clear_faults();
        keeper.inject(Fault::always(FaultKind::Status(200, None)).on_path(&format!("{RESPONSES}/resp_1")));
        keeper.inject(Fault::always(what.clone()).on_path(RESPONSES));
        for other in [&stage.decoders[0], &stage.decoders[2]] {
            other.inject(Fault::always(FaultKind::Status(404, None)).on_path(RESPONSES));
        }
        for _ in 0..3 {
            assert_eq!(stage.post(RESPONSES, &next("resp_1")).await.status, status, "{what:?}");
        }
        stage.end().await;
    }
}

#[tokio::test]
async fn response_that_no_decoder_looks_up_goes_to_one() {
    let stage = Stage::set(Script { decoders: 3, ..Script::default() }).await;
    for decoder in &stage.decoders {
        let invalid = Some(r#"{"error":{"code":400}}"#.into());
        decoder.inject(Fault::always(FaultKind::Status(400, invalid)).on_path(&format!("{RESPONSES}/")));
        let unknown = Some(r#"{"error":{"code":404}}"#.into());
        decoder.inject(Fault::always(FaultKind::Status(404, unknown)).on_path(RESPONSES));
    }
    let told = stage.post(RESPONSES, &next("foo")).await;
    assert_eq!((told.status, &told.json()["error"]["code"]), (404, &404.into()), "its own word");
    stage.end().await;
}

#[tokio::test]
async fn a_response_that_nobody_can_go_on_from_is_not_looked_for() {
    let mut script = Script { decoders: 3, ..Script::default() };
    script.config.dialect.name = DialectName::Sglang;
    let stage = keeping_on(Stage::set(script).await);
    stage.forget();
    assert_eq!(stage.post(RESPONSES, &next("resp_1")).await.status, 400);
    assert_eq!(paths(&stage), [""; 0]);
    stage.end().await;
}

/// A 404 would be taken for the last word.
#[tokio::test]
async fn a_response_may_be_with_a_decoder_that_does_not_answer() {
    for what in [FaultKind::Status(503, None), FaultKind::ResetBeforeHead, FaultKind::StallBeforeHead] {
        let mut script = Script { decoders: 3, ..Script::default() };
        script.config.timeout.models_ms = 200;
        let stage = keeping_on(Stage::set(script).await);
        stage.decoders[0].clear_faults();
        stage.decoders[0].inject(Fault::always(what.clone()).on_path(&format!("{RESPONSES}/")));
        let lost = stage.get(&format!("{RESPONSES}/resp_0")).await;
        assert_eq!((lost.status, lost.header("x-pd-error")), (502, Some("engine_failed")), "{what:?}");
        let lost = stage.post(RESPONSES, &next("resp_8")).await;
        assert_eq!((lost.status, lost.header("x-pd-error")), (502, Some("engine_failed")), "{what:?}");
        let found = stage.get(&format!("{RESPONSES}/resp_1")).await;
        assert_eq!(found.status, 200, "{what:?}");
        stage.end().await;
    }
}

#[tokio::test]
async fn a_streamed_one_is_found_too() {
    let stage = Stage::set(Script { decoders: 3, ..Script::default() }).await;
    let new = json!({"model": "sim", "input": "a", "stream": true, "max_output_tokens": 4}).to_string();
    for _ in 0..3 {
        stage.forget();
        let told = stage.post(RESPONSES, &new).await;
        let id = told.events()[0]["response"]["id"].as_str().unwrap().to_owned();
        let maker = stage.decoders.iter().position(|it| !it.seen().is_empty()).unwrap();
        let path = format!("{RESPONSES}/{id}");
        for (at, decoder) in stage.decoders.iter().enumerate() {
            let status = if at == maker { 200 } else { 404 };
            decoder.inject(Fault::always(FaultKind::Status(status, Some("{}".into()))).on_path(&path));
        }
        for _ in 0..4 {
            assert_eq!(stage.get(&path).await.status, 200);
        }
        stage.heal();
    }
    stage.end().await;
}
