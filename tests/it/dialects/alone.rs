//! Requests that two engines would not serve alike are served by one: the answer is that of an
//! engine which had all of it.

use std::net::SocketAddr;

use pd_proxy::sim::{Engine, EngineSpec, Role};
use serde_json::{Value, json};

use super::{SPOKEN, script};
use crate::common::client;
use crate::common::stage::{Stage, fast};

const RESPONSES: &str = "/v1/responses";

/// The text of a whole answer.
fn text(answer: &client::Raw) -> Value {
    let answer = answer.json();
    let places = ["/choices/0/text", "/choices/0/message/content", "/output/0/content/0/text"];
    places.iter().find_map(|place| answer.pointer(place)).cloned().unwrap_or(answer)
}

/// The room for a prompt is what `max_tokens` leaves of the context, and a prefiller has another
/// `max_tokens`: cut there, the prompt would be other tokens than the decoder's.
#[tokio::test]
async fn a_prompt_that_is_cut_to_fit_is_cut_by_one_engine() {
    let long = "a prompt that is longer than the context of the engines, ".repeat(40);
    let messages = json!([{"role": "user", "content": long}]);
    let cases = [
        ("/v1/completions", json!({"prompt": long, "max_tokens": 150, "truncate_prompt_tokens": -1})),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 150, "truncate_prompt_tokens": -1}),
        ),
        (RESPONSES, json!({"input": long, "max_output_tokens": 150, "truncation": "auto"})),
    ];
    let spec = EngineSpec { max_model_len: 400, ..fast() };
    let alone = EngineSpec { role: Role::Both, ..spec.clone() };
    let alone = Engine::start(alone, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    for spoken in SPOKEN.into_iter().take(3) {
        let mut script = script(spoken);
        script.engine.max_model_len = spec.max_model_len;
        let stage = Stage::set(script).await;
        for (path, body) in &cases {
            let right = client::send(alone.addr(), &client::post(path, &body.to_string())).await;
            assert_eq!(right.status, 200, "{}", right.text());
            let answer = stage.post(path, &body.to_string()).await;
            assert_eq!(answer.status, 200, "{spoken:?} {path}: {}", answer.text());
            assert_eq!(text(&answer), text(&right), "{spoken:?} {path}");
        }
        stage.assert_nothing_left(&format!("{spoken:?}")).await;
        stage.assert_all_alive(&format!("{spoken:?}"));
        stage.end().await;
    }
    alone.stop().await;
}

/// Each of several answers would fetch the KV of a hand-off, which the prefiller keeps until the
/// first one has it.
#[tokio::test]
async fn several_answers_are_made_by_one_engine() {
    let prompt = "a prompt of a few blocks ".repeat(8);
    let body = json!({"prompt": prompt, "max_tokens": 12, "n": 3, "temperature": 0.7, "seed": 3}).to_string();
    let texts = |answer: &client::Raw| -> Vec<Value> {
        let answer = answer.json();
        answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect()
    };
    let alone = EngineSpec { role: Role::Both, ..fast() };
    let alone = Engine::start(alone, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let right = client::send(alone.addr(), &client::post("/v1/completions", &body)).await;
    assert_eq!(texts(&right).len(), 3);
    for spoken in SPOKEN.into_iter().take(3) {
        let stage = Stage::set(script(spoken)).await;
        for _ in 0..2 {
            let answer = stage.post("/v1/completions", &body).await;
            assert_eq!(answer.status, 200, "{spoken:?}: {}", answer.text());
            assert_eq!(texts(&answer), texts(&right), "{spoken:?}");
        }
        assert!(stage.seen(&stage.prefillers).is_empty(), "{spoken:?}");
        stage.assert_nothing_left(&format!("{spoken:?}")).await;
        stage.end().await;
    }
    alone.stop().await;
}

/// Engines name responses themselves, so two of them never find each other by that name.
#[tokio::test]
async fn responses_are_answered_whoever_names_them() {
    let body = json!({"input": "a question of a few blocks ".repeat(8), "max_output_tokens": 12}).to_string();
    for spoken in SPOKEN.into_iter().take(3) {
        let stage = Stage::set(script(spoken)).await;
        // What is learned of a prefiller with the first one changes how the second is asked.
        for _ in 0..2 {
            let answer = stage.post(RESPONSES, &body).await;
            assert_eq!(answer.status, 200, "{spoken:?}: {}", answer.text());
        }
        stage.assert_nothing_left(&format!("{spoken:?}")).await;
        stage.end().await;
    }
}
