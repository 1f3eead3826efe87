//! A stream that can't be continued exactly ends with an honest error event.

use pd_proxy::sim::{Fault, FaultKind};
use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, bodies, metric, request, resuming};
use crate::common::client::Raw;
use crate::common::stage::{Script, Stage};

/// A stream that broke, and whose client knows.
fn assert_broken(answer: &Raw, when: &str) {
    assert_eq!(answer.status, 200, "{when}");
    let last = answer.events().pop().unwrap();
    assert_eq!(last["error"]["code"], "decode_failed", "{when}: {}", answer.text());
    assert!(!answer.done() && !answer.complete, "{when}");
}

#[tokio::test]
async fn every_reason_is_told() {
    let mut script = resuming();
    // Engines take the next request whatever the last ones came to.
    script.config.health.rest_ms = 1;
    script.config.health.failure_percent = 100;
    let stage = Stage::set(script).await;
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]);
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    let cases: Vec<(&str, &str, Value)> = vec![
        ("choices", CHAT, json!({"n": 2})),
        ("choices", COMPLETIONS, json!({"best_of": 2})),
        ("beam", COMPLETIONS, json!({"use_beam_search": true})),
        ("structured", CHAT, json!({"response_format": {"type": "json_object"}})),
        ("structured", COMPLETIONS, json!({"guided_regex": "a+"})),
        ("structured", CHAT, json!({"structured_outputs": {"choice": ["a"]}})),
        ("tools", CHAT, json!({"tools": tool})),
        ("reasoning", CHAT, json!({"include_reasoning": false})),
        ("stop", CHAT, json!({"stop": ["never in the text"]})),
        ("stop", COMPLETIONS, json!({"stop": "never in the text"})),
        ("penalty", CHAT, json!({"presence_penalty": 0.1})),
        ("penalty", COMPLETIONS, json!({"frequency_penalty": -1})),
        ("seed", CHAT, json!({"seed": 1})),
        ("seed", CHAT, json!({"seed": 1, "temperature": 0.1})),
        ("echo", COMPLETIONS, json!({"echo": true})),
        ("prompt", COMPLETIONS, json!({"prompt": ["a", [16_777_313]]})),
        ("prompt", CHAT, json!({"messages": image})),
        ("logprobs", CHAT, json!({"logprobs": true})),
        ("member", CHAT, json!({"something_new": 1})),
    ];
    for (reason, path, more) in cases {
        let when = format!("{reason} {path} {more}");
        stage.heal();
        let count = async || {
            let text = stage.get("/metrics").await.text();
            metric(&text, "pd_proxy_continuations_total", &["refused", &format!("\"{reason}\"")])
        };
        let before = count().await;
        stage.forget();
        stage.decoders_fail(&Fault::always(FaultKind::EndAfterEvents(5)));
        assert_broken(&stage.send(&request(path, 20, &more)).await, &when);
        assert_eq!(count().await - before, 1, "{when}");
        assert!(
            bodies(&stage, &stage.decoders).iter().all(|b| b.get("return_token_ids").is_none()),
            "{when}"
        );
    }
    stage.heal();
    stage.assert_nothing_left("at the end").await;
    stage.end().await;
}

#[tokio::test]
async fn continuation_is_allowed_for_neutral_members() {
    let stage = Stage::set(resuming()).await;
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    for (path, more) in [
        (
            CHAT,
            json!({"n": 1, "tools": tool, "tool_choice": "none", "response_format": {"type": "text"}, "stop": []}),
        ),
        (
            CHAT,
            json!({"seed": 1, "temperature": 0, "presence_penalty": 0, "frequency_penalty": 0.0, "n": null}),
        ),
        (CHAT, json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]})),
        (COMPLETIONS, json!({"best_of": 1, "use_beam_search": false, "echo": false, "ignore_eos": true})),
        (
            COMPLETIONS,
            json!({"kv_transfer_params": {"x": 1}, "repetition_penalty": 1.1, "stop_token_ids": [1]}),
        ),
    ] {
        stage.heal();
        let whole = super::normal(&stage.send(&request(path, 20, &more)).await);
        stage.decoders_fail(&Fault::once(FaultKind::EndAfterEvents(5)));
        let got = super::normal(&stage.send(&request(path, 20, &more)).await);
        super::assert_same(&got, &whole, &format!("{path} {more}"));
    }
    stage.end().await;
}

#[tokio::test]
async fn before_the_answer_has_begun_everything_is_sent_again() {
    let stage = Stage::set(resuming()).await;
    // Only the role has gone out.
    for more in [json!({"stop": ["never"], "logprobs": true}), json!({"seed": 3, "return_token_ids": true})] {
        stage.heal();
        let whole = super::normal(&stage.send(&request(CHAT, 20, &more)).await);
        stage.decoders_fail(&Fault::once(FaultKind::EndAfterEvents(1)));
        assert_eq!(super::normal(&stage.send(&request(CHAT, 20, &more)).await), whole, "{more}");
    }
    stage.end().await;
}

#[tokio::test]
async fn off_means_off() {
    let stage = Stage::new().await;
    let asked = request(CHAT, 20, &json!({}));
    stage.decoders_fail(&Fault::always(FaultKind::EndAfterEvents(5)));
    assert_broken(&stage.send(&asked).await, "off");
    let sent = bodies(&stage, &stage.decoders);
    assert!(sent.len() == 1 && sent[0].get("return_token_ids").is_none());
    stage.end().await;
}

#[tokio::test]
async fn client_is_told_when_no_engine_is_left() {
    let stage = Stage::set(Script { decoders: 1, ..resuming() }).await;
    let asked = request(CHAT, 20, &json!({}));
    // The only decoder breaks again and again, always a little further.
    stage.decoders_fail(&Fault::always(FaultKind::EndAfterEvents(4)));
    let answer = stage.send(&asked).await;
    assert_broken(&answer, "always");
    assert_eq!(bodies(&stage, &stage.decoders).len(), 3, "as many attempts as for any leg");
    let text = stage.get("/metrics").await.text();
    assert!(metric(&text, "pd_proxy_continuations_total", &["refused", "attempts"]) >= 1);
    stage.heal();
    stage.assert_nothing_left("at the end").await;
    stage.end().await;
}
