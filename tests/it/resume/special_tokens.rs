//! Special tokens of a chat that goes on: the client's text is right to its last byte, or ends.

use pd_proxy::sim::{EngineSpec, Fault, FaultKind, Match};
use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, events, metric, request, resuming};
use crate::common::client::Raw;
use crate::common::stage::{Script, Stage};

const NOTE: &str = "<|note|>";

/// Engines whose answers have special tokens, shown in chats or not.
fn noting(parses_chats: bool, special_every: u32) -> Script {
    let mut script = Script { prefillers: 1, ..resuming() };
    script.engine = EngineSpec { parses_chats, special_every, ..script.engine };
    // Engines take the next request whatever the last ones came to.
    script.config.health.rest_ms = 1;
    script.config.health.failure_percent = 100;
    script
}

/// Text of an answer as its client puts it together.
fn text(answer: &Raw) -> String {
    let part = |event: Value| {
        let choice = &event["choices"][0];
        let text = choice.get("text").or_else(|| choice["delta"].get("content"));
        text.and_then(Value::as_str).map(str::to_owned)
    };
    answer.events().into_iter().filter_map(part).collect()
}

/// Numbers of answers that went on to their end, and that ended with the error, when the stream
/// breaks at each event.
async fn broken_at_every_event(script: Script, path: &str) -> (usize, usize) {
    let stage = Stage::set(script).await;
    // It is not in what goes on with an answer.
    let asked = request(path, 40, &json!({"metadata": {"x-mark": "1"}}));
    let undisturbed = stage.send(&asked).await;
    let whole = text(&undisturbed);
    let (mut whole_ones, mut ended) = (0, 0);
    for at in 2..events(&undisturbed.text()) - 1 {
        stage.heal();
        let on = Match { contains: Some("x-mark".to_owned()), ..Match::default() };
        stage.decoders_fail(&Fault { on, times: 1, what: FaultKind::EndAfterEvents(at) });
        let answer = stage.send(&asked).await;
        let got = text(&answer);
        if answer.done() {
            assert_eq!(got, whole, "{path} {at}");
            whole_ones += 1;
        } else {
            assert!(whole.starts_with(&got), "{path} {at}\n{got:?}\n{whole:?}");
            let told = answer.events().pop().unwrap_or_else(|| panic!("{path} {at}: {}", answer.head));
            assert_eq!(told["error"]["code"], "decode_failed", "{path} {at}");
            ended += 1;
        }
    }
    // Of all tests of this process these alone are refused for it.
    let metrics = stage.get("/metrics").await.text();
    let refused = metric(&metrics, "pd_proxy_continuations_total", &["refused", "\"special_tokens\""]);
    assert!(refused > 0 || ended == 0, "{path}");
    stage.heal();
    stage.assert_nothing_left(path).await;
    stage.assert_all_alive(path);
    stage.end().await;
    (whole_ones, ended)
}

#[tokio::test]
async fn a_chat_loses_no_special_token_that_its_parser_shows() {
    let stage = Stage::set(noting(true, 12)).await;
    let shown = text(&stage.send(&request(CHAT, 40, &json!({}))).await);
    assert!(shown.contains(NOTE), "{shown:?}");
    stage.end().await;
    let (whole, ended) = broken_at_every_event(noting(true, 12), CHAT).await;
    assert!(whole > 0 && ended > 0, "{whole} went on, {ended} ended");
}

#[tokio::test]
async fn a_chat_without_special_tokens_goes_on_whatever_its_parser() {
    let (whole, ended) = broken_at_every_event(noting(true, 0), CHAT).await;
    assert!(whole > 30 && ended == 0, "{whole} went on, {ended} ended");
}

#[tokio::test]
async fn a_completion_goes_on_past_special_tokens() {
    let (whole, ended) = broken_at_every_event(noting(false, 12), COMPLETIONS).await;
    assert!(whole > 30 && ended == 0, "{whole} went on, {ended} ended");
}
