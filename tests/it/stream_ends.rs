//! The end of a stream: `[DONE]` without a reason is none, since vLLM and SGLang name a reason for
//! each choice before it unless they failed; and after a whole answer nobody waits for an engine
//! that keeps its body open.

use std::time::{Duration, Instant};

use pd_proxy::sim::{Fault, FaultKind};
use serde_json::json;

use crate::common::client;
use crate::common::raw_engine::{Front, RawEngine, answer};
use crate::common::stage::{Script, Stage};
use crate::common::time::eventually;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const DONE: &str = "data: [DONE]\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":1,\"total_tokens\":3}}\n\n";

/// A stream's role, and an event with text, for either API.
fn begun(path: &str) -> [&'static str; 2] {
    match path {
        CHAT => [
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ba\"},\"finish_reason\":null}]}\n\n",
        ],
        _ => ["", "data: {\"choices\":[{\"index\":0,\"text\":\"ba\",\"finish_reason\":null}]}\n\n"],
    }
}

fn body(path: &str) -> String {
    match path {
        CHAT => {
            json!({"messages": [{"role": "user", "content": "some words"}], "max_tokens": 8, "stream": true})
        }
        _ => json!({"prompt": "some words", "max_tokens": 8, "stream": true}),
    }
    .to_string()
}

fn events(text: &[&str]) -> FaultKind {
    FaultKind::Events(text.concat().into())
}

async fn pair() -> Stage {
    Stage::set(Script { prefillers: 1, decoders: 1, ..Script::default() }).await
}

/// vLLM sends the events of a chat that say nothing, and `[DONE]`, for a request that was aborted
/// before its first token.
#[tokio::test]
async fn an_answer_that_ends_before_any_text_is_tried_elsewhere() {
    let stage = Stage::new().await;
    let words = stage.post(CHAT, &body(CHAT)).await.words();
    for end in [&[DONE][..], &[USAGE, DONE]] {
        let said = [&begun(CHAT)[..1], end].concat();
        assert!(stage.decoders[0].inject(Fault::always(events(&said))));
        for _ in 0..2 {
            let answer = stage.post(CHAT, &body(CHAT)).await;
            assert_eq!((answer.words(), answer.done()), (words.clone(), true), "{}", answer.text());
        }
        stage.heal();
    }
    stage.end().await;
}

#[tokio::test]
async fn an_answer_that_ends_without_a_reason_is_broken() {
    let stage = pair().await;
    for path in [CHAT, COMPLETIONS] {
        let [role, text] = begun(path);
        for end in [&[DONE][..], &[USAGE, DONE], &["data:[DONE]\r\n\r\n"], &["data: [DONE]"]] {
            let said = [&[role, text][..], end].concat();
            stage.decoders_fail(&Fault::once(events(&said)));
            let answer = stage.post(path, &body(path)).await;
            let last = answer.events().pop().unwrap();
            assert_eq!(last["error"]["code"], "decode_failed", "{path} {end:?}: {}", answer.text());
            assert!(
                !answer.text().contains("[DONE]") && answer.text().contains("\"ba\""),
                "{}",
                answer.text()
            );
            stage.heal();
        }
    }
    let metrics = stage.get("/metrics").await.text();
    let broken = format!("engine=\"{}\",reason=\"broken\"", stage.decoders[0].addr());
    assert!(metrics.contains(&broken), "the decoder is blamed: {metrics}");
    stage.end().await;
}

/// Spellings in which a reason may come: spaces, several choices, an event that has text as well,
/// after usage.
#[tokio::test]
async fn a_reason_in_any_spelling_ends_an_answer() {
    let stage = pair().await;
    for path in [CHAT, COMPLETIONS] {
        let [role, text] = begun(path);
        let spaced = text.replace("\":", "\": ").replace(',', ", ");
        for reason in [
            "data: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}\n\n",
            "data: {\"choices\": [{\"index\": 0, \"finish_reason\": \"length\"}]}\n\n",
            "data: {\"choices\" : [{\"finish_reason\" :\t\"tool_calls\"}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"finish_reason\":null},{\"index\":1,\"finish_reason\":\"stop\"}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\ndata: \"finish_reason\":\ndata: \"stop\"}]}\n\n",
        ] {
            for text in [text, spaced.as_str(), ""] {
                for said in [&[role, text, reason, DONE][..], &[role, text, reason, USAGE, DONE]] {
                    stage.decoders_fail(&Fault::once(events(said)));
                    let answer = stage.post(path, &body(path)).await;
                    assert_eq!(answer.text(), said.concat(), "it passes as it came");
                    stage.heal();
                }
            }
        }
    }
    stage.end().await;
}

/// A prefiller and a decoder that writes `said` as chunks and leaves its body open.
async fn open_ended(said: &'static str) -> (RawEngine, RawEngine) {
    let prefiller = RawEngine::start(|_| {
        answer(
            200,
            r#"{"choices":[{"index":0,"finish_reason":"length"}],"usage":{"prompt_tokens":2,"completion_tokens":1},"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"e"}}"#,
        )
    })
    .await;
    let decoder = RawEngine::start(move |_| {
        // The engine keeps the connection, as for an answer with a length.
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nx-why: no content-length\r\n\r\n";
        format!("{head}{:x}\r\n{said}\r\n", said.len()).into_bytes()
    })
    .await;
    (prefiller, decoder)
}

#[tokio::test]
async fn a_body_that_stays_open_after_the_last_event_holds_nobody() {
    for (path, body, said) in [
        (
            CHAT,
            body(CHAT),
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ba\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
        ),
        (
            COMPLETIONS,
            body(COMPLETIONS),
            "data: {\"choices\":[{\"index\":0,\"text\":\"ba\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
        ),
        (
            "/v1/messages",
            json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 8, "stream": true})
                .to_string(),
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\"}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        ),
        (
            "/v1/responses",
            json!({"input": "a", "stream": true}).to_string(),
            "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\"}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"error\":null}}\n\n",
        ),
    ] {
        let (prefiller, decoder) = open_ended(said).await;
        let front = Front::of(&[&prefiller], &[&decoder], |_| {}).await;
        let sent = Instant::now();
        let answer = front.post(path, &body).await;
        assert_eq!((answer.status, answer.text().as_str(), answer.complete), (200, said, true), "{path}");
        assert!(sent.elapsed() < Duration::from_secs(5), "{path}: {:?}", sent.elapsed());
        eventually(format!("{path}: the reservation is given back"), async || {
            let members = client::send(front.at, &client::get("/instances")).await.json();
            members["instances"].as_array().unwrap().iter().all(|it| it["requests"] == 0)
        })
        .await;
        let metrics = front.get("/metrics").await.text();
        let blame = format!("engine=\"{}\",reason=", decoder.addr());
        assert!(!metrics.contains(&blame), "{path}: nobody is blamed");
        front.end().await;
    }
}

/// The same of streams that are passed through, of several prompts, continued and kept alive.
#[tokio::test]
async fn nor_does_it_where_the_answer_takes_another_way() {
    let said =
        "data: {\"choices\":[{\"index\":0,\"text\":\"ba\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    let (prefiller, decoder) = open_ended(said).await;
    let several = json!({"prompt": ["some words", "others"], "max_tokens": 8, "stream": true});
    let chats = json!({"messages": [[{"role": "user", "content": "a"}]], "max_tokens": 8, "stream": true});
    for (name, path, body) in [
        ("resumed", COMPLETIONS, body(COMPLETIONS)),
        ("kept alive", COMPLETIONS, body(COMPLETIONS)),
        ("several", COMPLETIONS, several.to_string()),
        ("passed through", "/v1/chat/completions/batch", chats.to_string()),
    ] {
        let front = Front::of(&[&prefiller], &[&decoder], |config| {
            config.retry.resume = name == "resumed";
            config.stream.keep_alive_ms = if name == "kept alive" { 20 } else { 0 };
        })
        .await;
        let sent = Instant::now();
        let answer = front.post(path, &body).await;
        let text = answer.text();
        assert!(answer.status == 200 && answer.complete && text.ends_with(DONE), "{name}: {text}");
        assert!(sent.elapsed() < Duration::from_secs(5), "{name}: {:?}", sent.elapsed());
        eventually(format!("{name}: the reservation is given back"), async || {
            let members = client::send(front.at, &client::get("/instances")).await.json();
            members["instances"].as_array().unwrap().iter().all(|it| it["requests"] == 0)
        })
        .await;
        let metrics = front.get("/metrics").await.text();
        let blame = format!("engine=\"{}\",reason=", decoder.addr());
        assert!(!metrics.contains(&blame), "{name}: nobody is blamed");
        front.end().await;
    }
}
