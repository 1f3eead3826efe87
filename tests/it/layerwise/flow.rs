//! Requests to each side, and the KV that comes of them.

use pd_proxy::config::DialectName;
use pd_proxy::sim::{Engine, EngineSpec, Role};
use serde_json::{Value, json};

use super::{CALLBACK, COMPLETIONS, body, prompt, script, sent};
use crate::common::client::{Raw, post, post_with, send};
use crate::common::stage::{Stage, fast};

/// Requests that one engine alone answers.
async fn alone(path: &str, body: &Value) -> Raw {
    let spec = EngineSpec { role: Role::Both, ..fast() };
    let engine = Engine::start(spec, ([127, 0, 0, 1], 0).into()).await.unwrap();
    let answer = send(engine.addr(), &post(path, &body.to_string())).await;
    engine.stop().await;
    answer
}

/// Bodies of each API that a decoder calls back for, and the beginning of its answers' ids.
fn requests() -> Vec<(&'static str, &'static str, Value)> {
    let messages = json!([{"role": "user", "content": prompt()}]);
    vec![
        (COMPLETIONS, "cmpl-", json!({"model": "sim", "prompt": prompt(), "max_tokens": 12})),
        (
            "/v1/chat/completions",
            "chatcmpl-",
            json!({"model": "sim", "messages": messages, "max_completion_tokens": 12}),
        ),
        ("/v1/messages", "chatcmpl-", json!({"model": "sim", "messages": messages, "max_tokens": 12})),
    ]
}

/// The prefill body that belongs to a client's body, but for its parameters.
fn prefill_of(path: &str, body: &Value) -> Value {
    let mut expected = body.clone();
    expected["stream"] = json!(false);
    expected["max_tokens"] = json!(1);
    if path != "/v1/messages" {
        expected["min_tokens"] = json!(1);
    }
    if body.get("max_completion_tokens").is_some() {
        expected["max_completion_tokens"] = json!(1);
    }
    expected
}

#[tokio::test]
async fn the_decoder_is_asked_first_and_its_answer_is_that_of_one_engine_alone() {
    let stage = Stage::set(script()).await;
    let url = format!("http://{}{CALLBACK}", stage.gateway);
    for (path, prefix, mut body) in requests() {
        for stream in [false, true] {
            body["stream"] = json!(stream);
            stage.forget();
            let when = format!("{path} stream {stream}");
            let request = post_with(path, &[("x-request-id", "mine")], body.to_string().as_bytes());
            let answer = stage.send(&request).await;
            assert_eq!((answer.status, answer.complete), (200, true), "{when}: {}", answer.text());
            assert_eq!(answer.words(), alone(path, &body).await.words(), "{when}");
            assert_eq!(answer.header("x-request-id"), Some("mine"));

            let (prefills, decodes) = (stage.seen(&stage.prefillers), stage.seen(&stage.decoders));
            assert_eq!((prefills.len(), decodes.len()), (1, 1), "{when}");
            let ((prefill_id, mut prefill), (decode_id, decode)) = (sent(&prefills[0]), sent(&decodes[0]));
            assert_eq!(prefill_id, decode_id, "both engines know the request by one name");
            assert!(decode_id.len() == 32 && decode_id != "mine", "{decode_id}");
            assert!(answer.text().contains(&format!("{prefix}{decode_id}")), "{when}: {}", answer.text());

            let mut expected = body.clone();
            expected["kv_transfer_params"] =
                json!({"do_remote_decode": false, "do_remote_prefill": true, "metaserver": url});
            assert_eq!(decode, expected, "{when}");
            let params = prefill.as_object_mut().unwrap().remove("kv_transfer_params").unwrap();
            assert_eq!(prefill, prefill_of(path, &body), "{when}");
            let name = if path == COMPLETIONS {
                format!("cmpl-{decode_id}-0")
            } else {
                format!("{prefix}{decode_id}")
            };
            assert_eq!(params["request_id"], json!(name), "{when}");
            assert_eq!((&params["do_remote_decode"], &params["token_ids"]), (&json!(true), &json!([])));
            let decoder = stage.decoders.iter().find(|d| json!(d.addr().port()) == params["remote_port"]);
            assert!(decoder.is_some(), "{when}: {params}");
        }
    }
    let heard: Vec<u16> = stage.decoders.iter().flat_map(Engine::heard).collect();
    assert_eq!(heard, [200; 6]);
    stage.assert_nothing_left("after all requests").await;
    stage.assert_all_alive("after all requests");
    stage.end().await;
}

#[tokio::test]
async fn prefiller_cached_tokens_are_reported() {
    let mut script = script();
    (script.prefillers, script.decoders) = (1, 2);
    script.config.route.policy = pd_proxy::config::Policy::RoundRobin;
    let stage = Stage::set(script).await;
    // Each time another decoder, which has nothing; the prefiller has all from the second time on.
    let first = stage.post(COMPLETIONS, &body(false).to_string()).await.json();
    let second = stage.post(COMPLETIONS, &body(false).to_string()).await.json();
    let cached =
        |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    assert_eq!(cached(&first), 0, "{first}");
    assert!(cached(&second) > 0, "{second}");
    stage.end().await;
}

#[tokio::test]
async fn ids_are_not_made_of_what_clients_send_and_are_never_used_twice() {
    let stage = Stage::set(script()).await;
    let mut ids = std::collections::HashSet::new();
    for _ in 0..20 {
        let request = post_with(COMPLETIONS, &[("x-request-id", "a-1")], body(false).to_string().as_bytes());
        assert_eq!(stage.send(&request).await.status, 200);
    }
    for seen in stage.seen(&stage.decoders) {
        let (id, _) = sent(&seen);
        assert!(!id.contains("a-1") && uuid::Uuid::parse_str(&id).unwrap().get_version_num() == 4, "{id}");
        assert!(ids.insert(id));
    }
    assert_eq!(ids.len(), 20);
    stage.end().await;
}

#[tokio::test]
async fn a_list_of_prompts_is_one_prefill_where_prefillers_understand_lists() {
    // More prompts than a decoder has threads to call with: those that come first must not wait for
    // the last.
    let prompts: Vec<String> = (0..40).map(|n| format!("{n} {}", prompt())).collect();
    let body = json!({"model": "sim", "prompt": prompts, "max_tokens": 4});
    let texts = |answer: &Raw| -> Vec<Value> {
        answer.json()["choices"].as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect()
    };
    let wanted = texts(&alone(COMPLETIONS, &body).await);
    for batch in [true, false] {
        let mut script = script();
        script.config.dialect.batch = batch;
        let stage = Stage::set(script).await;
        let answer = stage.post(COMPLETIONS, &body.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(texts(&answer), wanted, "batch {batch}");
        let prefills = stage.seen(&stage.prefillers);
        assert_eq!(prefills.len(), if batch { 1 } else { 40 }, "else each is asked by itself");
        if let Some(prefill) = prefills.first().filter(|_| batch) {
            let (id, prefill) = sent(prefill);
            let all = prefill["kv_transfer_params"]["batch_kv_transfer_params"].as_object().unwrap();
            assert_eq!(all.len(), 40);
            assert_eq!(all[&format!("cmpl-{id}-39")]["request_id"], json!(format!("cmpl-{id}-39")));
            assert_eq!(prefill["kv_transfer_params"]["request_id"], json!(format!("cmpl-{id}-0")));
        }
        stage.assert_nothing_left("after a list").await;
        stage.end().await;
    }
}

#[tokio::test]
async fn requests_without_callback_are_computed_by_the_decoder() {
    let stage = Stage::set(script()).await;
    let several = json!({"model": "sim", "prompt": prompt(), "max_tokens": 4, "n": 2});
    let response = json!({"model": "sim", "input": prompt(), "max_output_tokens": 4});
    for (path, body) in [(COMPLETIONS, several), ("/v1/responses", response)] {
        let answer = stage.post(path, &body.to_string()).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    assert!(stage.seen(&stage.prefillers).is_empty());
    let metrics = stage.get("/metrics").await.text();
    for reason in ["several_choices", "unknown_names"] {
        assert!(
            metrics.contains(&format!("pd_proxy_prefill_bypassed_total{{reason=\"{reason}\"}}")),
            "{reason}"
        );
    }
    stage.end().await;
}

#[tokio::test]
async fn without_the_dialect_nobody_is_called_back() {
    let mut script = script();
    script.config.dialect.name = DialectName::KvTransfer;
    let stage = Stage::set(script).await;
    let answer = stage.post(CALLBACK, r#"{"request_id":"x","do_remote_decode":true}"#).await;
    assert_eq!(answer.status, 404, "{}", answer.text());
    stage.end().await;
}
