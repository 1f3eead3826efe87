//! Answers that report a failure under status 200, and what clients get in their place.
//!
//! The forms are those of public reports: vLLM's own error event, `finish_reason: "error"` (vLLM
//! 0.11 and later), `{"object":"error"}` (vLLM up to 0.10, TensorRT-LLM), named `error` events, and
//! white space and line ends as the SSE grammar allows them.

use std::time::Duration;

use pd_proxy::sim::{Fault, FaultKind};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::client;
use crate::common::stage::{Script, Stage, slow};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const ROLE: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n";
const TEXT: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ba\"},\"finish_reason\":null}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// Failures of an engine for which clients raise no error, or not all of them.
const HIDDEN: [&str; 6] = [
    "data: {\"object\":\"error\",\"message\":\"x\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"error\"}]}\n\n",
    "event: error\ndata: {\"message\":\"x\",\"code\":500}\n\n",
    "event:error\r\ndata:Internal Server Error\r\n\r\n",
    "data: {\"type\":\"error\",\"message\":\"x\"}\n\n",
    "data: {\"message\":\"x\"}\nevent: error\n\n",
];

/// Failures for which clients raise an error by themselves.
const RAISING: [&str; 4] = [
    "data: {\"error\":{\"message\":\"x\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}\n\n",
    "data:{\"error\":{\"message\":\"x\",\"code\":500}}\n\n",
    "data: { \"error\" : \"x\" }\n\n",
    "data: {\"id\":\"chat-1\",\"error\":{\"code\":503}}\r\n\r\n",
];

fn chat(stream: bool) -> String {
    json!({"messages": [{"role": "user", "content": "some words"}], "max_tokens": 8, "stream": stream})
        .to_string()
}

fn events(text: &[&str]) -> FaultKind {
    FaultKind::Events(text.concat().into())
}

fn pair() -> Script {
    Script { prefillers: 1, decoders: 1, ..Script::default() }
}

#[tokio::test]
async fn a_failure_before_the_first_text_is_tried_on_another_decoder() {
    let stage = Stage::new().await;
    let words = stage.post(CHAT, &chat(true)).await.words();
    for failure in HIDDEN.iter().chain(&RAISING) {
        for before in ["", ROLE, ": comment\n\n"] {
            assert!(stage.decoders[0].inject(Fault::always(events(&[before, failure, DONE]))));
            for _ in 0..2 {
                let answer = stage.post(CHAT, &chat(true)).await;
                assert_eq!((answer.status, answer.words()), (200, words.clone()), "{before}{failure}");
            }
            stage.heal();
        }
    }
    stage.end().await;
}

#[tokio::test]
async fn a_failure_after_text_ends_with_an_error_event_that_clients_raise_for() {
    let stage = Stage::set(pair()).await;
    for failure in HIDDEN {
        stage.decoders_fail(&Fault::once(events(&[ROLE, TEXT, failure, DONE])));
        let answer = stage.post(CHAT, &chat(true)).await;
        let last = answer.events().pop().unwrap();
        assert_eq!(last["error"]["code"], "decode_failed", "{failure}: {}", answer.text());
        assert!(!answer.text().contains(failure) && !answer.done(), "{}", answer.text());
        assert!(answer.text().contains("\"ba\""), "the text that came stays");
        stage.heal();
    }
    for failure in RAISING {
        stage.decoders_fail(&Fault::once(events(&[ROLE, TEXT, failure, DONE])));
        let answer = stage.post(CHAT, &chat(true)).await;
        assert!(answer.text().contains(failure), "the engine's own words pass: {}", answer.text());
        stage.heal();
    }
    stage.end().await;
}

#[tokio::test]
async fn a_whole_answer_that_failed_is_tried_elsewhere_in_every_api() {
    let failed = r#"{"choices":[{"index":0,"message":{"role":"assistant"},"text":"","token_ids":[],"finish_reason":"error"}],"usage":{}}"#;
    let object = r#"{"object":"error","message":"x","type":"InternalServerError","param":null,"code":500}"#;
    let response = r#"{"id":"resp_1","object":"response","status":"failed","error":null,"output":[]}"#;
    let message = r#"{"type":"error","error":{"type":"api_error","message":"x"}}"#;
    for (path, body, answers) in [
        (CHAT, chat(false), [failed, object]),
        (COMPLETIONS, json!({"prompt": "some words", "max_tokens": 8}).to_string(), [failed, object]),
        (RESPONSES, json!({"input": "some words", "max_output_tokens": 8}).to_string(), [response, object]),
        (
            "/v1/messages",
            json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 8}).to_string(),
            [message, object],
        ),
    ] {
        for said in answers {
            let stage = Stage::new().await;
            let fault = Fault::always(FaultKind::Status(200, Some(said.into())));
            // Both roles: a prefiller's failure hands nothing over.
            assert!(stage.decoders[0].inject(fault.clone()) && stage.prefillers[0].inject(fault.clone()));
            for _ in 0..4 {
                let answer = stage.post(path, &body).await;
                assert_eq!(answer.status, 200, "{path} {said}: {}", answer.text());
                assert!(!answer.text().contains("\"error\",") && !answer.text().contains("\"failed\""));
            }
            stage.decoders_fail(&fault);
            let answer = stage.post(path, &body).await;
            assert_eq!(answer.status, 502, "{path} {said}: {}", answer.text());
            stage.heal();
            stage.end().await;
        }
    }
}

/// The simulated engines do not serve this route: both answers are recorded ones.
#[tokio::test]
async fn a_generation_that_failed_is_tried_elsewhere() {
    const GENERATE: &str = "/inference/v1/generate";
    let answer = |reason: &str| {
        let choice = json!({"index": 0, "token_ids": [1], "logprobs": null, "finish_reason": reason});
        let body = json!({"request_id": "x", "choices": [choice], "kv_transfer_params": null}).to_string();
        Fault::always(FaultKind::Status(200, Some(body.into())))
    };
    let stage = Stage::new().await;
    stage.engines().for_each(|engine| assert!(engine.inject(answer("stop"))));
    for engine in [&stage.prefillers[0], &stage.decoders[0]] {
        engine.clear_faults();
        assert!(engine.inject(answer("error")));
    }
    let body = json!({"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 8}}).to_string();
    for _ in 0..4 {
        let answer = stage.post(GENERATE, &body).await;
        assert_eq!((answer.status, answer.text().contains("\"stop\"")), (200, true), "{}", answer.text());
    }
    stage.heal();
    stage.end().await;
}

/// OpenAI's SDKs raise an error for a nested `error` alone, and number events.
#[tokio::test]
async fn a_broken_response_ends_with_a_numbered_event_and_a_nested_error() {
    let stage = Stage::set(pair()).await;
    let event = |name: &str, number: u64| {
        let data = json!({"type": name, "sequence_number": number, "delta": "ba"});
        format!("event: {name}\ndata: {data}\n\n")
    };
    let sent: Vec<String> = ["response.created", "response.in_progress", "response.output_text.delta"]
        .iter()
        .zip(0..)
        .map(|(n, at)| event(n, at))
        .collect();
    let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
    // The stream ends without its last event.
    stage.decoders_fail(&Fault::once(events(&sent)));
    let body = json!({"input": "some words", "stream": true}).to_string();
    let answer = stage.post(RESPONSES, &body).await;
    let text = answer.text();
    let (name, data) = text.trim_end().rsplit_once("event: ").unwrap().1.split_once("\ndata: ").unwrap();
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(
        (name, &data["type"], &data["sequence_number"]),
        ("error", &json!("error"), &json!(3)),
        "{text}"
    );
    assert_eq!((&data["code"], &data["param"]), (&json!("decode_failed"), &json!(null)));
    assert_eq!((&data["error"]["code"], &data["error"]["message"]), (&data["code"], &data["message"]));
    stage.heal();
    stage.end().await;
}

#[tokio::test]
async fn streams_ask_proxies_in_front_to_pass_events_on() {
    let stage = Stage::set(pair()).await;
    for (stream, expected) in [(true, [Some("no-cache"), Some("no")]), (false, [None, None])] {
        let answer = stage.post(CHAT, &chat(stream)).await;
        assert_eq!([answer.header("cache-control"), answer.header("x-accel-buffering")], expected);
    }
    stage.end().await;
}

/// Reads from a socket until `text` has come.
async fn read_until(socket: &mut TcpStream, text: &str) -> String {
    let mut all = Vec::new();
    while !String::from_utf8_lossy(&all).contains(text) {
        let count = socket.read_buf(&mut all).await.unwrap();
        assert!(count > 0, "it ended before {text:?}: {}", String::from_utf8_lossy(&all));
    }
    String::from_utf8_lossy(&all).into_owned()
}

fn kept_alive() -> Script {
    let mut script = Script { engine: slow(), ..pair() };
    script.config.stream.keep_alive_ms = 20;
    script
}

#[tokio::test]
async fn comments_keep_a_stream_whose_prompt_is_computed() {
    let stage = Stage::set(kept_alive()).await;
    stage.prefillers_fail(&Fault::always(FaultKind::StallBeforeHead));
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    socket.write_all(&client::post(CHAT, &chat(true))).await.unwrap();
    let text = read_until(&mut socket, ": keep-alive\n\n").await;
    assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("text/event-stream"), "{text}");
    assert!(text.contains("x-accel-buffering: no") && text.contains("x-request-id: "), "{text}");
    // More of them, with nothing else between.
    read_until(&mut socket, ": keep-alive\n\n").await;
    drop(socket);
    stage.heal();
    stage.assert_nothing_left("after the client left").await;
    let answer = stage.post(CHAT, &chat(true)).await;
    assert!(answer.status == 200 && answer.done() && !answer.words().is_empty(), "{}", answer.text());
    stage.end().await;
}

#[tokio::test]
async fn a_failure_after_a_comment_is_an_error_event() {
    let stage = Stage::set(kept_alive()).await;
    for (path, body, name) in [
        (CHAT, chat(true), ""),
        (RESPONSES, json!({"input": "a", "stream": true}).to_string(), "event: error\n"),
        (
            "/v1/messages",
            json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 8, "stream": true})
                .to_string(),
            "event: error\n",
        ),
    ] {
        for (status, said) in [(500, "decode_failed"), (400, "\"Scripted failure\"")] {
            stage.decoders_fail(&Fault::always(FaultKind::Delay(Duration::from_millis(100))));
            stage.decoders_fail(&Fault::always(FaultKind::Status(status, None)));
            let answer = stage.post(path, &body).await;
            let text = answer.text();
            assert_eq!(answer.status, 200);
            assert!(text.starts_with(": keep-alive\n\n"), "{text}");
            let last = text.trim_end().rsplit_once("\n\n").unwrap().1;
            assert!(
                last.starts_with(&format!("{name}data: {{")) && last.contains(said),
                "{path} {status}: {text}"
            );
            assert!(last.contains("\"error\":{"), "{last}");
            stage.heal();
        }
    }
    stage.end().await;
}

/// Forms in which engines refuse: vLLM's own, its messages', SGLang's, and their web framework's.
const REFUSALS: [&str; 4] = [
    r#"{"error":{"message":"no such thing","type":"BadRequestError","param":"x","code":400}}"#,
    r#"{"type":"error","error":{"type":"invalid_request_error","message":"no such thing"}}"#,
    r#"{"object":"error","message":"no such thing","type":"BadRequestError","param":null,"code":400}"#,
    r#"{"detail":"no such thing"}"#,
];

/// The SDKs of OpenAI and of Anthropic look at `error` at the top, and for messages at an event
/// named `error` whose data has `type`, and whose error has one of Anthropic's types.
#[tokio::test]
async fn a_refusal_after_a_comment_is_in_the_form_of_its_api() {
    let stage = Stage::set(kept_alive()).await;
    let stream = |mut body: Value| {
        body["stream"] = json!(true);
        body.to_string()
    };
    for (path, body) in [
        (CHAT, chat(true)),
        (COMPLETIONS, stream(json!({"prompt": "some words", "max_tokens": 8}))),
        (RESPONSES, stream(json!({"input": "a"}))),
        ("/v1/messages", stream(json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 8}))),
    ] {
        for refusal in REFUSALS {
            stage.decoders_fail(&Fault::always(FaultKind::Delay(Duration::from_millis(100))));
            stage.decoders_fail(&Fault::always(FaultKind::Status(400, Some(refusal.into()))));
            let answer = stage.post(path, &body).await;
            let text = answer.text();
            let (name, data) = match text.trim_end().rsplit_once("\n\n").unwrap().1.split_once("data: ") {
                Some((name, data)) => (name, serde_json::from_str::<Value>(data).unwrap()),
                None => panic!("{path} {refusal}: {text}"),
            };
            assert_eq!(data["error"]["message"], "no such thing", "{path} {refusal}: {text}");
            let kind = &data["error"]["type"];
            match path {
                "/v1/messages" => {
                    assert_eq!(
                        (name, &data["type"], kind),
                        ("event: error\n", &json!("error"), &json!("invalid_request_error"))
                    );
                }
                RESPONSES => {
                    assert_eq!(
                        (name, &data["type"], &data["sequence_number"]),
                        ("event: error\n", &json!("error"), &json!(0))
                    );
                    assert_eq!(data["message"], "no such thing");
                }
                _ => assert_eq!(name, "", "{path}: {text}"),
            }
            stage.heal();
        }
    }
    stage.end().await;
}

/// A client would take a 200 for an answer, and an engine is not at fault for what it was asked.
#[tokio::test]
async fn a_refusal_under_a_200_has_the_status_that_it_names() {
    let stage = Stage::set(pair()).await;
    for (path, body) in [
        (CHAT, chat(false)),
        (COMPLETIONS, json!({"prompt": "some words", "max_tokens": 8}).to_string()),
        (COMPLETIONS, json!({"prompt": ["one", "two"], "max_tokens": 8}).to_string()),
    ] {
        for refusal in &REFUSALS[..3] {
            stage.decoders_fail(&Fault::always(FaultKind::Status(200, Some((*refusal).into()))));
            let answer = stage.post(path, &body).await;
            assert_eq!((answer.status, answer.text().as_str()), (400, *refusal), "{path} {body}");
            stage.heal();
        }
    }
    stage.end().await;
}

/// A decoder that is full says so, whatever the status: another one has room.
#[tokio::test]
async fn busy_under_a_200_is_busy() {
    let stage = Stage::set(Script { decoders: 2, ..pair() }).await;
    for error in [r#"{"error":{"message":"full","code":429}}"#, r#"{"error":{"code":"rate_limit_exceeded"}}"#]
    {
        let full = Fault::always(FaultKind::Status(200, Some(error.into())));
        assert!(stage.decoders[0].inject(full));
        for _ in 0..4 {
            assert_eq!(stage.post(CHAT, &chat(false)).await.status, 200, "{error}");
        }
        stage.heal();
    }
    stage.end().await;
}

/// Comments, roles and events without data are no answer, however many there are.
#[tokio::test]
async fn a_flood_before_the_first_text_is_no_answer() {
    let mut script = Script { decoders: 2, ..pair() };
    script.config.limit.frame_bytes = 16 << 10;
    let stage = Stage::set(script).await;
    let words = stage.post(CHAT, &chat(true)).await.words();
    for flood in [": a comment\n\n", ROLE, "data:\n\n", "event: x\n\n"] {
        let long = flood.repeat((80 << 10) / flood.len());
        assert!(stage.decoders[0].inject(Fault::always(events(&[&long, TEXT, DONE]))));
        for _ in 0..2 {
            let answer = stage.post(CHAT, &chat(true)).await;
            assert_eq!((answer.status, answer.words()), (200, words.clone()), "{flood:?}");
            assert!(answer.text().len() < long.len(), "{flood:?}");
        }
        stage.heal();
    }
    stage.end().await;
}

#[tokio::test]
async fn a_refusal_that_comes_at_once_keeps_its_status() {
    let mut script = kept_alive();
    script.config.stream.keep_alive_ms = 60_000;
    let stage = Stage::set(script).await;
    stage.decoders_fail(&Fault::always(FaultKind::Status(400, None)));
    assert_eq!(stage.post(CHAT, &chat(true)).await.status, 400);
    stage.heal();
    stage.end().await;
}

#[tokio::test]
async fn comments_of_engines_reach_the_client() {
    let stage = Stage::set(pair()).await;
    let comment = ": ping from the engine\n\n";
    let end = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    stage.decoders_fail(&Fault::once(events(&[comment, ROLE, comment, TEXT, comment, end, DONE])));
    let answer = stage.post(CHAT, &chat(true)).await;
    assert_eq!(answer.text().matches(comment).count(), 3, "{}", answer.text());
    assert!(answer.done());
    stage.heal();
    stage.end().await;
}
