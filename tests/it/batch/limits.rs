//! Limits of batches: prompts that are asked one by one, the count of a batch, and requests that
//! engines can't serve.

use pd_proxy::config::DialectName;
use pd_proxy::sim::{Connector, EngineSpec};
use serde_json::{Value, json};

use super::{PATH, body, lone, prompts, request, texts};
use crate::common::client;
use crate::common::stage::{Script, Stage, fast};

fn sglang() -> Script {
    let engine = EngineSpec { connector: Connector::Sglang, ..fast() };
    let mut script = Script { engine, ..Script::default() };
    script.config.dialect.name = DialectName::Sglang;
    script
}

#[tokio::test]
async fn more_prompts_than_the_limit_go_to_a_decoder_alone() {
    let mut script = Script::default();
    script.config.limit.prompts = 2;
    let stage = Stage::set(script).await;
    for (count, prefills) in [(2, 2), (3, 0)] {
        stage.forget();
        let got = stage.send(&request("r", &json!(prompts(count)), &json!({}))).await;
        assert_eq!((got.status, texts(&got).len()), (200, count));
        assert_eq!(stage.seen(&stage.prefillers).len(), prefills);
    }
    stage.end().await;
}

#[tokio::test]
async fn many_prompts_are_one_request_to_every_limit() {
    let mut script = Script::default();
    script.config.limit.inflight = 1;
    script.config.limit.queue = 0;
    script.config.limit.prefill_inflight = 1;
    script.config.limit.decode_inflight = 1;
    let (stage, alone) = (Stage::set(script).await, lone().await);
    for stream in [false, true] {
        let asked = request("r", &json!(prompts(100)), &json!({"stream": stream}));
        let want = client::send(alone.addr(), &asked).await;
        let got = stage.send(&asked).await;
        assert_eq!((got.status, got.complete), (200, true), "{}", got.text());
        assert_eq!(texts(&got), texts(&want));
    }
    stage.assert_nothing_left("many").await;
    stage.end().await;
    alone.stop().await;
}

#[tokio::test]
async fn the_answers_of_all_are_bounded_together() {
    let mut script = Script::default();
    script.config.limit.answer_bytes = 4_000;
    let stage = Stage::set(script).await;
    let status = async |count: usize, more: Value| {
        let got = stage.send(&request("r", &json!(prompts(count)), &more)).await;
        (got.status, got.text().contains("limit.answer_bytes"))
    };
    assert_eq!(status(2, json!({})).await, (200, false));
    assert_eq!(status(20, json!({})).await, (502, true));
    assert_eq!(status(20, json!({"stream": true})).await, (200, false));
    stage.assert_nothing_left("too large").await;
    stage.end().await;
}

#[tokio::test]
async fn engines_that_must_meet_are_asked_one_by_one_too() {
    let (stage, alone) = (Stage::set(sglang()).await, lone().await);
    for stream in [false, true] {
        let asked = request("r", &json!(prompts(4)), &json!({"stream": stream}));
        let want = client::send(alone.addr(), &asked).await;
        let got = stage.send(&asked).await;
        assert_eq!((got.status, got.complete), (200, true), "{}", got.text());
        assert_eq!(texts(&got), texts(&want));
    }
    stage.assert_nothing_left("sglang").await;
    stage.end().await;
    alone.stop().await;
}

#[tokio::test]
async fn batch_that_no_single_engine_can_serve_is_refused_with_reason() {
    let mut script = sglang();
    script.config.limit.prompts = 2;
    let stage = Stage::set(script).await;
    let cases = [
        (json!(["a", "b", "c"]), json!({}), "prompt", "limit.prompts"),
        (json!(["a", [1]]), json!({}), "prompt", "one by one"),
        (json!(["a", "b"]), json!({"prompt_embeds": ["x"]}), "prompt_embeds", "embeddings"),
        (json!("a"), json!({"use_beam_search": true, "n": 2}), "use_beam_search", "beam"),
        (json!("a"), json!({"echo": true, "logprobs": 1}), "logprobs", "score"),
        (json!(["a", "b"]), json!({"echo": true, "logprobs": 1}), "logprobs", "score"),
    ];
    for (prompt, more, param, words) in &cases {
        let got = stage.post(PATH, &body(prompt, more).to_string()).await;
        assert_eq!((got.status, got.header("x-pd-error")), (400, Some("invalid_value")), "{}", got.text());
        let error = &got.json()["error"];
        assert_eq!(error["param"], json!(param));
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
    assert!(stage.engines().all(|engine| engine.seen().iter().all(|seen| seen.path != PATH)));
    stage.end().await;
}

#[tokio::test]
async fn a_beam_search_goes_to_a_decoder_alone() {
    let stage = Stage::new().await;
    for prompt in [json!("one"), json!(["one", "two"])] {
        let got =
            stage.post(PATH, &body(&prompt, &json!({"use_beam_search": true, "n": 2})).to_string()).await;
        assert_eq!(got.status, 200, "{}", got.text());
    }
    assert_eq!(stage.seen(&stage.prefillers).len(), 0);
    stage.end().await;
}

/// Each prompt of a list has its own placement under its own id.
#[tokio::test]
async fn the_placement_of_each_prompt_is_remembered() {
    let stage = Stage::new().await;
    assert_eq!(stage.send(&request("told", &json!(prompts(2)), &json!({}))).await.status, 200);
    for (id, status) in [("told-0", 200), ("told-1", 200), ("told-2", 404)] {
        let story = stage.get(&format!("/debug/route/{id}")).await;
        assert_eq!(story.status, status, "{id}");
        if status == 200 {
            assert_eq!(story.json()["placements"].as_array().map(Vec::len), Some(1), "{id}");
        }
    }
    stage.end().await;
}
