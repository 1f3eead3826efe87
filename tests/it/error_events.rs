//! Failures that engines report under status 200, in every spelling that JSON and the grammar of
//! events allow, in every API, at every place: the engine is blamed, and the client gets another
//! answer, or an error that its SDK raises.

use pd_proxy::sim::{Engine, Fault, FaultKind};
use serde_json::{Value, json};

use crate::common::client::Raw;
use crate::common::stage::{Script, Stage};
use crate::surface::samples;

/// Requests and answers of an API.
struct Api {
    path: &'static str,
    body: Value,
    /// Events that come before any text.
    before: &'static str,
    /// An event with text.
    text: &'static str,
    /// Failures that this API alone has a spelling for.
    own: &'static [&'static str],
    /// Whole answers that failed, in this API's own form.
    whole: &'static [&'static str],
    /// Engines' good answers where simulated ones don't serve the route: whole, and as events.
    good: Option<[&'static str; 2]>,
}

const FAILED_CHOICE: &str = r#"{"choices":[{"index":0,"message":{"role":"assistant"},"text":"","token_ids":[],"finish_reason":"error"}],"usage":{}}"#;
const FAILED_EVENT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"error\"}]}\n\n";

/// Failures of an engine, as any API may have them.
const SPELLINGS: [&str; 11] = [
    "data: {\"error\":{\"message\":\"boom\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}\n\n",
    "data:{\"error\":{\"message\":\"boom\",\"code\":503}}\n\n",
    "data: { \"error\" : \"boom\" }\n\n",
    "data: {\"id\":\"x\",\"error\":{\"message\":\"boom\",\"code\":null}}\n\n",
    "data: {\"object\":\"error\",\"message\":\"boom\",\"type\":\"InternalServerError\",\"code\":500}\n\n",
    "data: {\"type\":\"error\",\"message\":\"boom\"}\n\n",
    "event: error\ndata: {\"message\":\"boom\",\"code\":500}\n\n",
    "event:error\ndata:boom, and no JSON\n\n",
    "data: {\"message\":\"boom\"}\nevent: error\n\n",
    "data: {\"error\":\ndata: {\"message\":\ndata:\"boom\",\"code\":500}}\n\n",
    "id: 7\n: a comment\nretry: 9\ndata: {\"error\":{\"message\":\"boom\"}}\n\n",
];

const WHOLE: [&str; 4] = [
    r#"{"error":{"message":"boom","code":500}}"#,
    r#"{"error":"boom"}"#,
    r#"{"object":"error","message":"boom","type":"InternalServerError","code":500}"#,
    r#"{"type":"error","message":"boom"}"#,
];

fn apis() -> [Api; 5] {
    let said = json!([{"role": "user", "content": "some words"}]);
    let chat = Api {
        path: "/v1/chat/completions",
        body: json!({"model": "sim", "messages": said.clone(), "max_tokens": 8}),
        before: "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n",
        text: "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"bang\"},\"finish_reason\":null}]}\n\n",
        own: &[FAILED_EVENT],
        whole: &[FAILED_CHOICE],
        good: None,
    };
    let completions = Api {
        path: "/v1/completions",
        body: json!({"model": "sim", "prompt": "some words", "max_tokens": 8}),
        before: ": a comment\n\n",
        text: "data: {\"choices\":[{\"index\":0,\"text\":\"bang\",\"finish_reason\":null}]}\n\n",
        ..chat
    };
    let generate = Api {
        path: "/inference/v1/generate",
        body: json!({"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 8}}),
        before: ": a comment\n\n",
        text: "data: {\"request_id\":\"bang\",\"choices\":[{\"index\":0,\"token_ids\":[1],\"finish_reason\":null}]}\n\n",
        good: Some([
            r#"{"request_id":"x","choices":[{"index":0,"token_ids":[1],"finish_reason":"stop"}],"kv_transfer_params":null}"#,
            "data: {\"choices\":[{\"index\":0,\"token_ids\":[1],\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
        ]),
        ..chat
    };
    let responses = Api {
        path: "/v1/responses",
        body: json!({"model": "sim", "input": "some words", "max_output_tokens": 8}),
        before: "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"r\"}}\n\n",
        text: "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":1,\"delta\":\"bang\"}\n\n",
        own: &[
            "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":null}}\n\n",
            "event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\",\"message\":\"boom\"}\n\n",
        ],
        whole: &[
            r#"{"id":"r","object":"response","status":"failed","error":null,"output":[]}"#,
            r#"{"id":"r","object":"response","status":"failed","error":{"code":"server_error","message":"boom"}}"#,
        ],
        good: None,
    };
    let messages = Api {
        path: "/v1/messages",
        body: json!({"model": "sim", "messages": said, "max_tokens": 8}),
        before: "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{}}}\n\n",
        text: "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"bang\"}}\n\n",
        own: &[
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"boom\"}}\n\n",
        ],
        whole: &[r#"{"type":"error","error":{"type":"api_error","message":"boom"}}"#],
        good: None,
    };
    [chat, completions, generate, responses, messages]
}

impl Api {
    fn request(&self, stream: bool) -> String {
        let mut body = self.body.clone();
        body["stream"] = stream.into();
        body.to_string()
    }

    /// Has the engine answer so once, and well after that.
    fn spoil(&self, engine: &Engine, once: Option<FaultKind>, stream: bool) {
        engine.clear_faults();
        if let Some(once) = once {
            assert!(engine.inject(Fault::once(once).on_path(self.path)));
        }
        if let Some([whole, events]) = self.good {
            let good = match stream {
                true => FaultKind::Events(events.into()),
                false => FaultKind::Status(200, Some(whole.into())),
            };
            assert!(engine.inject(Fault::always(good).on_path(self.path)));
        }
    }

    /// Posts a streaming request that the decoder answers with these events first.
    async fn post_while_decoder_sends(&self, stage: &Stage, events: String) -> Raw {
        self.spoil(&stage.prefillers[0], None, false);
        self.spoil(&stage.decoders[0], Some(FaultKind::Events(events.into())), true);
        stage.post(self.path, &self.request(true)).await
    }

    /// True if a client's SDK raises an error for one of these events.
    fn raises(&self, stream: &str) -> bool {
        let stream = stream.replace("\r\n", "\n").replace('\r', "\n");
        let raises = |frame: &str| {
            let field = |name: &str| {
                let lines = frame.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                lines.map(|value| value.strip_prefix(' ').unwrap_or(value)).collect::<Vec<_>>().join("\n")
            };
            let event = field("event");
            let data: Value = serde_json::from_str(&field("data")).unwrap_or_default();
            let nested = !data["error"].is_null();
            match self.path {
                "/v1/messages" => nested && event == "error",
                "/v1/responses" => nested || event == "response.failed",
                _ => nested,
            }
        };
        stream.split("\n\n").any(raises)
    }
}

/// One prefiller and one decoder, which takes the next attempt whatever the last one came to.
async fn stage() -> Stage {
    let mut script = Script { prefillers: 1, decoders: 1, ..Script::default() };
    script.config.timeout.tell_ms = 1;
    Stage::set(script.tried_at_once()).await
}

/// Legs on this engine that have failed.
async fn blamed(stage: &Stage, leg: &str, engine: &Engine) -> f64 {
    let of = format!("pd_proxy_leg_failures_total{{role=\"{leg}\",engine=\"{}\"", engine.addr());
    let all = samples(&stage.get("/metrics").await.text());
    all.iter().filter(|(name, _)| name.starts_with(&of)).map(|(_, count)| count).sum()
}

const ENDS: [&str; 3] = ["\n", "\r\n", "\r"];

#[tokio::test]
async fn a_stream_that_fails_before_its_first_text_is_another_engines() {
    let stage = stage().await;
    let decoder = &stage.decoders[0];
    for api in apis() {
        let (earlier, mut cases) = (blamed(&stage, "decode", decoder).await, 0.0);
        for failure in SPELLINGS.iter().chain(api.own) {
            for (before, end) in ["", api.before].iter().flat_map(|it| ENDS.map(|end| (it, end))) {
                let events = format!("{before}{failure}data: [DONE]\n\n").replace('\n', end);
                let when = format!("{} {events:?}", api.path);
                let answer = api.post_while_decoder_sends(&stage, events).await;
                let text = answer.text();
                assert_eq!((answer.status, answer.complete), (200, true), "{when}: {text}");
                assert!(!text.contains("boom") && !api.raises(&text), "{when}: {text}");
                assert!(!text.contains("\"finish_reason\":\"error\"") && !text.is_empty(), "{when}: {text}");
                cases += 1.0;
            }
        }
        assert_eq!(blamed(&stage, "decode", decoder).await - earlier, cases, "{}", api.path);
    }
    stage.end().await;
}

#[tokio::test]
async fn a_stream_that_fails_after_text_ends_with_an_error_that_clients_raise() {
    let stage = stage().await;
    let decoder = &stage.decoders[0];
    for api in apis() {
        let (earlier, mut cases) = (blamed(&stage, "decode", decoder).await, 0.0);
        for failure in SPELLINGS.iter().chain(api.own) {
            for end in ENDS {
                let events = format!("{}{}{failure}", api.before, api.text).replace('\n', end);
                let when = format!("{} {events:?}", api.path);
                let answer = api.post_while_decoder_sends(&stage, events).await;
                let text = answer.text();
                assert_eq!(answer.status, 200, "{when}: {text}");
                assert!(text.contains("bang") && api.raises(&text), "{when}: {text}");
                assert_eq!(stage.post(api.path, &api.request(true)).await.status, 200, "{when}");
                cases += 1.0;
            }
        }
        assert_eq!(blamed(&stage, "decode", decoder).await - earlier, cases, "{}", api.path);
    }
    stage.end().await;
}

#[tokio::test]
async fn a_whole_answer_that_failed_is_another_engines_on_either_leg() {
    let stage = stage().await;
    let (prefiller, decoder) = (&stage.prefillers[0], &stage.decoders[0]);
    for api in apis() {
        for (leg, engine, other) in [("prefill", prefiller, decoder), ("decode", decoder, prefiller)] {
            let (earlier, mut cases) = (blamed(&stage, leg, engine).await, 0.0);
            for failure in WHOLE.iter().chain(api.whole) {
                api.spoil(engine, Some(FaultKind::Status(200, Some((*failure).into()))), false);
                api.spoil(other, None, false);
                let when = format!("{} {leg} {failure}", api.path);
                let answer = stage.post(api.path, &api.request(false)).await;
                let text = answer.text();
                assert_eq!(answer.status, 200, "{when}: {text}");
                assert!(!text.contains("boom") && !text.contains("\"failed\""), "{when}: {text}");
                assert!(!text.contains("\"finish_reason\":\"error\""), "{when}: {text}");
                cases += 1.0;
            }
            assert_eq!(blamed(&stage, leg, engine).await - earlier, cases, "{} {leg}", api.path);
        }
    }
    stage.end().await;
}

#[tokio::test]
async fn a_failure_of_the_request_is_the_clients_and_no_engine_is_blamed() {
    let failures = [
        "data: {\"error\":{\"message\":\"boom\",\"type\":\"BadRequestError\",\"code\":400}}\n\n",
        "event: error\ndata: {\"error\":{\"message\":\"boom\",\"type\":\"invalid_request_error\"}}\n\n",
    ];
    for api in apis() {
        let stage = stage().await;
        for failure in failures {
            let when = format!("{} {failure}", api.path);
            let events = format!("{}{failure}", api.before);
            let refused = api.post_while_decoder_sends(&stage, events).await;
            let body: Value = serde_json::from_str(&refused.text()).unwrap_or_default();
            assert_eq!((refused.status, &body["error"]["message"]), (400, &json!("boom")), "{when}");
            assert_eq!(refused.header("content-type"), Some("application/json"), "{when}");
            // A decoder is asked to free what was computed for it.
            stage.assert_nothing_left(&when).await;
        }
        for failure in failures {
            let events = format!("{}{}{failure}", api.before, api.text);
            let text = api.post_while_decoder_sends(&stage, events).await.text();
            let passes = api.raises(failure);
            assert!(api.raises(&text) && text.contains("boom") == passes, "{} {failure}: {text}", api.path);
        }
        assert_eq!(blamed(&stage, "decode", &stage.decoders[0]).await, 0.0, "{}", api.path);
        let refusals = format!(
            "pd_proxy_refusals_total{{role=\"decode\",engine=\"{}\",status=\"400\"}}",
            stage.decoders[0].addr()
        );
        let counted = samples(&stage.get("/metrics").await.text());
        let counted = counted.iter().find(|(name, _)| **name == refusals).map(|(_, count)| *count);
        assert_eq!(counted, Some(4.0), "{}", api.path);
        stage.end().await;
    }
}
