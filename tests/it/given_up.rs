//! Answers that an engine ended before they were complete, and wrote as if they were: the client
//! gets another engine's.

use pd_proxy::sim::{Fault, FaultKind};
use serde_json::{Value, json};

use crate::common::client::Raw;
use crate::common::stage::{Script, Stage};

const WORDS: usize = 12;

/// The events that vLLM 0.32 writes when it is told to stop, to drain or to sleep.
fn aborted(path: &str, stream: bool) -> String {
    let head = json!({"id": "x", "created": 1, "model": "sim"});
    let with = |more: Value| {
        let mut all = head.clone();
        for (key, value) in more.as_object().unwrap() {
            all[key] = value.clone();
        }
        all
    };
    let choice = |more: Value| json!({"choices": [with_index(more)]});
    match (path, stream) {
        ("/v1/messages", false) => {
            json!({"id": "x", "type": "message", "role": "assistant", "content": [], "stop_reason": null,
                "usage": {"input_tokens": 9, "output_tokens": 0}})
            .to_string()
        }
        ("/v1/messages", true) => {
            let start = json!({"type": "message_start", "message": {"id": "x", "stop_reason": null}});
            let delta = json!({"type": "message_delta", "delta": {"stop_reason": null}, "usage": {"output_tokens": 0}});
            format!(
                "event: message_start\ndata: {start}\n\nevent: message_delta\ndata: {delta}\n\nevent: message_stop\ndata: {{}}\n\n"
            )
        }
        ("/v1/chat/completions", false) => {
            with(choice(json!({"message": {"role": "assistant", "content": ""}, "finish_reason": "abort"})))
                .to_string()
        }
        ("/v1/chat/completions", true) => {
            let role =
                with(choice(json!({"delta": {"role": "assistant", "content": ""}, "finish_reason": null})));
            let end = with(choice(
                json!({"delta": {"content": ""}, "finish_reason": "abort", "stop_reason": null}),
            ));
            format!("data: {role}\n\ndata: {end}\n\ndata: [DONE]\n\n")
        }
        _ => {
            let end = with(choice(json!({"text": "", "finish_reason": "abort", "stop_reason": null})));
            if stream { format!("data: {end}\n\ndata: [DONE]\n\n") } else { end.to_string() }
        }
    }
}

fn with_index(mut choice: Value) -> Value {
    choice["index"] = 0.into();
    choice
}

fn body(path: &str, stream: bool) -> String {
    let mut body = json!({"model": "sim", "max_tokens": WORDS, "stream": stream});
    match path {
        "/v1/completions" => body["prompt"] = "a prompt of some words".into(),
        _ => body["messages"] = json!([{"role": "user", "content": "a prompt of some words"}]),
    }
    body.to_string()
}

fn said(answer: &Raw) -> String {
    let events =
        if answer.head.contains("text/event-stream") { answer.events() } else { vec![answer.json()] };
    let places = [
        "/choices/0/text",
        "/choices/0/message/content",
        "/choices/0/delta/content",
        "/content/0/text",
        "/delta/text",
    ];
    events.iter().flat_map(|event| places.iter().filter_map(|place| event.pointer(place)?.as_str())).collect()
}

#[tokio::test]
async fn aborted_answer_is_served_by_another_engine() {
    let stage = Stage::set(Script::default()).await;
    for path in ["/v1/completions", "/v1/chat/completions", "/v1/messages"] {
        for stream in [false, true] {
            let body = body(path, stream);
            let ask = || stage.post(path, &body);
            let whole = said(&ask().await);
            assert!(!whole.is_empty(), "{path} {stream}");
            let text = aborted(path, stream);
            stage.decoders_fail(&Fault::once(match stream {
                true => FaultKind::Events(text.into()),
                false => FaultKind::Status(200, Some(text.into())),
            }));
            stage.forget();
            let answer = ask().await;
            assert_eq!((answer.status, said(&answer)), (200, whole), "{path} {stream}: {}", answer.text());
            assert_eq!(stage.seen(&stage.decoders).len(), 3, "{path} {stream}: both aborted once");
        }
    }
    stage.end().await;
}

/// Engines report the stop string that they met in the same place: only one of that name may be
/// meant.
#[tokio::test]
async fn stop_strings_hide_no_answer_that_was_given_up() {
    let stage = Stage::set(Script::default()).await;
    let path = "/v1/completions";
    let with = |stop: &str, stream: bool| {
        let mut body: Value = serde_json::from_str(&body(path, stream)).unwrap();
        body["stop"] = json!(["never in the text", stop]);
        body.to_string()
    };
    let whole = said(&stage.post(path, &with("nor this", false)).await);
    let choice = json!({"index": 0, "text": "half of", "finish_reason": "stop", "stop_reason": "recomputed"});
    let half = json!({"id": "x", "choices": [choice]}).to_string();
    for (stop, asked, text) in [("nor this", 3, whole.as_str()), ("recomputed", 1, "half of")] {
        stage.decoders_fail(&Fault::once(FaultKind::Status(200, Some(half.clone().into()))));
        stage.forget();
        let answer = stage.post(path, &with(stop, false)).await;
        assert_eq!((answer.status, said(&answer).as_str()), (200, text), "{stop}: {}", answer.text());
        assert_eq!(stage.seen(&stage.decoders).len(), asked, "{stop}");
        stage.heal();
        // What has begun is not passed off as complete, either.
        stage.decoders_fail(&Fault::always(FaultKind::RecomputeAfterEvents(4)));
        let answer = stage.post(path, &with(stop, true)).await;
        let broke = answer.events().last().is_some_and(|event| event["error"]["code"] == "decode_failed");
        assert_eq!((answer.done(), broke), (asked == 1, asked != 1), "{stop}: {}", answer.text());
        stage.heal();
    }
    stage.end().await;
}

/// vLLM makes one event of what fails before the first token.
#[tokio::test]
async fn a_message_that_begins_with_an_error_of_the_engine_is_asked_for_elsewhere() {
    let stage = Stage::set(Script::default()).await;
    let body = body("/v1/messages", true);
    let ask = || stage.post("/v1/messages", &body);
    let whole = said(&ask().await);
    let error = |kind: &str| {
        let data = json!({"type": "error", "error": {"type": kind, "message": "boom"}});
        FaultKind::Events(format!("event: error\ndata: {data}\n\n").into())
    };
    stage.decoders_fail(&Fault::once(error("internal_error")));
    let answer = ask().await;
    assert_eq!((answer.status, said(&answer)), (200, whole), "{}", answer.text());
    stage.decoders_fail(&Fault::once(error("invalid_request_error")));
    assert!(ask().await.text().contains("boom"), "what is wrong with the request is said");
    stage.end().await;
}

/// A decoder's own check of the body tells the prefiller nothing: one that passes it does, and
/// keeps nothing of it in its cache.
#[tokio::test]
async fn handoff_of_a_decoder_refusal_is_released() {
    let stage = Stage::set(Script::default()).await;
    let refusal = json!({"error": {"message": "1 validation error", "type": "Bad Request", "param": null, "code": 400}});
    let mut refuses = Fault::always(FaultKind::Status(400, Some(refusal.to_string().into())));
    refuses.on.contains = Some(format!("\"max_tokens\":{WORDS}"));
    stage.decoders_fail(&refuses);
    let answer = stage.post("/v1/completions", &body("/v1/completions", false)).await;
    assert_eq!((answer.status, answer.json()), (400, refusal));
    stage.assert_nothing_left("after the refusal").await;
    let release = || {
        let bodies = stage
            .seen(&stage.decoders)
            .into_iter()
            .map(|seen| serde_json::from_slice::<Value>(&seen.body).unwrap());
        bodies.into_iter().find(|body| body["max_tokens"] == 1)
    };
    let release = release().expect("a decoder is asked for one token");
    assert!(release["kv_transfer_params"].is_object(), "{release}");
    assert_eq!(release["cache_salt"].as_str().map(str::len), Some(16), "{release}");
    stage.end().await;
}
