//! Broken at every event, in every way, the stream is that of an undisturbed one.

use pd_proxy::sim::{ConnectionEnd, Fault, FaultKind, Match};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{CHAT, COMPLETIONS, assert_same, bodies, events, metric, normal, request, resuming};
use crate::common::client::{self, Raw};
use crate::common::stage::{Script, Stage};

/// Hits each decoder's next request by a client, not those that continue one: these have a list as
/// prompt.
fn first_legs(what: FaultKind) -> Fault {
    let contains = Some("x-mark".to_owned());
    Fault { on: Match { contains, ..Match::default() }, times: 1, what }
}

/// Members that mark the client's own request; what is dropped from a continuation marks nothing
/// there.
fn marked(more: &Value) -> Value {
    let mut more = more.clone();
    more["metadata"] = json!({"x-mark": "1"});
    more
}

/// So that all find the same in its cache.
fn one_prefiller() -> Script {
    Script { prefillers: 1, ..resuming() }
}

async fn undisturbed(stage: &Stage, asked: &[u8]) -> Raw {
    let answer = stage.send(asked).await;
    assert!(answer.done() && answer.complete, "{} {}", answer.head, answer.text());
    // The second of its kind finds its prompt cached, as all that follow.
    stage.send(asked).await
}

async fn broken_at_every_event(path: &str, more: Value) {
    let whole = broken(one_prefiller(), (path, 24), more).await;
    assert!(whole.contains(r#""finish_reason":"length""#), "{whole}");
}

/// The undisturbed stream, to which all that were broken are equal.
async fn broken(script: Script, (path, tokens): (&str, usize), more: Value) -> String {
    let stage = Stage::set(script).await;
    let more = marked(&more);
    let asked = request(path, tokens, &more);
    let whole = normal(&undisturbed(&stage, &asked).await);
    let count = events(&whole);
    for at in 1..=count {
        // Before the event with the reason, usage and [DONE].
        let hollow = (at + 3 <= count).then_some(FaultKind::HollowAfterEvents(at));
        let ends = [FaultKind::EndAfterEvents(at), FaultKind::RecomputeAfterEvents(at)];
        for what in ends.into_iter().chain(hollow) {
            stage.heal();
            stage.decoders_fail(&first_legs(what.clone()));
            let answer = stage.send(&asked).await;
            assert_same(&normal(&answer), &whole, &format!("{path} {more} {what:?}"));
            assert!(answer.complete);
        }
    }
    stage.heal();
    stage.assert_nothing_left(path).await;
    stage.assert_all_alive(path);
    stage.end().await;
    whole
}

/// The engine decides, long before there are as many tokens as there may be: never before
/// `min_tokens` of the whole answer.
#[tokio::test]
async fn answers_that_end_by_themselves() {
    let usage = json!({"include_usage": true});
    for (path, mean, min_tokens) in [(CHAT, 6, 0), (COMPLETIONS, 12, 0), (CHAT, 2, 9), (COMPLETIONS, 3, 14)] {
        let mut script = one_prefiller();
        script.engine.answer_tokens = mean;
        let more = json!({"stream_options": usage, "min_tokens": min_tokens});
        let whole = broken(script, (path, 300), more).await;
        assert!(whole.contains(r#""finish_reason":"stop""#), "{whole}");
        let counted = whole.rsplit("\"completion_tokens\":").next().unwrap();
        let tokens: u64 = counted[..counted.find(|c: char| !c.is_ascii_digit()).unwrap()].parse().unwrap();
        assert!((min_tokens + 1..300).contains(&tokens), "{path} {mean} {min_tokens}: {tokens}");
    }
}

#[tokio::test]
async fn completions_plain() {
    broken_at_every_event(COMPLETIONS, json!({})).await;
}

#[tokio::test]
async fn completions_with_everything() {
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let more = json!({"stream_options": options, "logprobs": 2, "return_token_ids": true, "min_tokens": 3,
        "temperature": 0, "seed": 7, "user": "u"});
    broken_at_every_event(COMPLETIONS, more).await;
}

#[tokio::test]
async fn completions_with_usage() {
    broken_at_every_event(COMPLETIONS, json!({"stream_options": {"include_usage": true}})).await;
}

#[tokio::test]
async fn chats_plain() {
    broken_at_every_event(CHAT, json!({})).await;
}

#[tokio::test]
async fn chats_with_everything() {
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    broken_at_every_event(CHAT, json!({"stream_options": options, "return_token_ids": true})).await;
}

#[tokio::test]
async fn chats_with_usage() {
    broken_at_every_event(CHAT, json!({"stream_options": {"include_usage": true}, "temperature": 0.0})).await;
}

#[tokio::test]
async fn cut_at_any_byte_nothing_is_lost() {
    let stage = Stage::set(one_prefiller()).await;
    for path in [CHAT, COMPLETIONS] {
        let asked = request(path, 12, &marked(&json!({"stream_options": {"include_usage": true}})));
        let whole = undisturbed(&stage, &asked).await;
        for bytes in (400..whole.raw_bytes + 200).step_by(97) {
            for how in [ConnectionEnd::Reset, ConnectionEnd::Close] {
                stage.heal();
                stage.decoders_fail(&first_legs(FaultKind::CutAfterBytes { bytes, how }));
                let answer = stage.send(&asked).await;
                assert_same(&normal(&answer), &normal(&whole), &format!("{path} {bytes} {how:?}"));
            }
        }
    }
    stage.heal();
    stage.assert_nothing_left("after all cuts").await;
    stage.end().await;
}

#[tokio::test]
async fn a_silent_decoder_and_one_that_says_that_it_failed_are_left() {
    let mut script = resuming();
    script.config.timeout.gap_ms = 200;
    let stage = Stage::set(script).await;
    for path in [CHAT, COMPLETIONS] {
        let asked = request(path, 12, &marked(&json!({})));
        let whole = normal(&undisturbed(&stage, &asked).await);
        for what in [FaultKind::StallAfterBytes(1_800), FaultKind::ErrorEvent] {
            stage.heal();
            stage.decoders_fail(&first_legs(what.clone()));
            assert_same(&normal(&stage.send(&asked).await), &whole, &format!("{path} {what:?}"));
        }
    }
    stage.end().await;
}

#[tokio::test]
async fn two_breaks_in_one_stream() {
    let stage = Stage::set(one_prefiller()).await;
    for path in [CHAT, COMPLETIONS] {
        let asked = request(path, 40, &json!({"stream_options": {"include_usage": true}}));
        let whole = normal(&undisturbed(&stage, &asked).await);
        for at in [1, 2, 5, 9, 14] {
            stage.heal();
            // Each decoder breaks once: the first leg and the continuation.
            stage.decoders_fail(&Fault::once(FaultKind::EndAfterEvents(at)));
            assert_same(&normal(&stage.send(&asked).await), &whole, &format!("{path} {at}"));
        }
    }
    let text = stage.get("/metrics").await.text();
    assert!(metric(&text, "pd_proxy_continuations_total", &["resumed", "ended"]) >= 20, "{text}");
    stage.end().await;
}

#[tokio::test]
async fn a_decoder_that_is_killed_is_replaced() {
    let mut script = resuming();
    script.engine.tpot_ms = 4.0;
    let stage = Stage::set(script).await;
    let asked = request(CHAT, 80, &json!({}));
    let whole = normal(&undisturbed(&stage, &asked).await);
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    socket.write_all(&asked).await.unwrap();
    // In the middle: a good part of the events is here, and not the last.
    let mut first = Vec::new();
    while String::from_utf8_lossy(&first).matches("data: ").count() < 20 {
        assert!(socket.read_buf(&mut first).await.unwrap() > 0, "{}", String::from_utf8_lossy(&first));
    }
    let busy = stage.decoders.iter().find(|d| d.ledger().running > 0).unwrap();
    busy.kill().await;
    let answer = client::read_on(&mut socket, first).await;
    assert_same(&normal(&answer), &whole, "killed");
    stage.end().await;
}

#[tokio::test]
async fn next_pair_gets_prompt_and_answer_so_far() {
    let stage = Stage::set(resuming()).await;
    let more = json!({"temperature": 0, "seed": 5, "min_tokens": 20, "top_p": 0.9, "cache_salt": "s",
        "stream_options": {"include_usage": true}, "metadata": {"x-mark": 1}, "logprobs": false});
    stage.decoders_fail(&first_legs(FaultKind::EndAfterEvents(8)));
    let answer = stage.send(&request(CHAT, 30, &more)).await;
    assert!(answer.done(), "{}", answer.text());
    let sent = bodies(&stage, &stage.decoders);
    let [own, rest] = ["messages", "prompt"].map(|key| sent.iter().find(|b| b.get(key).is_some()).unwrap());
    assert_eq!(own["return_token_ids"], true);
    let list = rest["prompt"].as_array().unwrap();
    let generated = 30 - rest["max_tokens"].as_u64().unwrap();
    assert!((5..=7).contains(&generated), "{generated} of seven tokens had text");
    assert_eq!(rest["min_tokens"], 20 - generated);
    let usage = answer.events().last().unwrap()["usage"].clone();
    assert_eq!(list.len() as u64, usage["prompt_tokens"].as_u64().unwrap() + generated);
    assert_eq!(usage["completion_tokens"], 30);
    for (key, value) in more.as_object().unwrap() {
        let kept = !["metadata", "min_tokens", "logprobs"].contains(&key.as_str());
        assert_eq!(rest.get(key).filter(|_| kept), Some(value).filter(|_| kept), "{key}");
    }
    assert_eq!((&rest["logprobs"], &rest["skip_special_tokens"]), (&json!(0), &json!(true)), "a chat's");
    // The prefiller computed both, the second as a completion.
    let prompts = bodies(&stage, &stage.prefillers);
    assert_eq!(prompts.iter().filter(|b| b["prompt"] == rest["prompt"] && b["max_tokens"] == 1).count(), 1);
    stage.end().await;
}
