//! Requests to each engine, with their headers.

use pd_proxy::config::Secret;
use pd_proxy::sim::{Fault, FaultKind, ObservedRequest};
use serde_json::{Value, json};

use crate::common::client::{self, Raw, get, post, post_with};
use crate::common::stage::{Script, Stage, fast};

use super::{CHAT, body_of, both, chat, count, header, lone, long_text};

#[tokio::test]
async fn single_engine_routes_ask_one_prefiller() {
    let stage = Stage::new().await;
    let cases = [
        post("/tokenize", r#"{"prompt":"Hello there, 世界","return_token_strs":true}"#),
        post("/detokenize", r#"{"tokens":[72,101]}"#),
        post("/tokenize?x=1", r#"{"nonsense":1}"#),
        get("/version"),
        get("/load"),
        post("/v1/score", r#"{"text_1":"a","text_2":"b"}"#),
    ];
    for request in &cases {
        let line = String::from_utf8_lossy(request).lines().next().unwrap().to_owned();
        let theirs = client::send(stage.prefillers[0].addr(), request).await;
        stage.forget();
        let ours = stage.send(request).await;
        assert_eq!((ours.status, ours.text()), (theirs.status, theirs.text()), "{line}");
        assert_eq!(ours.header("content-type"), theirs.header("content-type"), "{line}");
        assert!(ours.header("x-request-id").is_some(), "{line}");
        // What one lacks another one may have: its 404 is the last word when a second says the
        // same.
        let asked = if theirs.status == 404 { 2 } else { 1 };
        assert_eq!(stage.prefillers.iter().map(count).sum::<usize>(), asked, "{line}");
        assert_eq!(stage.decoders.iter().map(count).sum::<usize>(), 0, "{line}");
    }
    let embeddings = stage.post("/v1/embeddings", r#"{"model":"sim","input":["a","b"]}"#).await;
    assert_eq!((embeddings.status, embeddings.json()["data"].as_array().unwrap().len()), (200, 2));

    let request = &cases[0];
    let good = stage.send(request).await;
    for bad in [
        FaultKind::Refuse,
        FaultKind::ResetBeforeHead,
        FaultKind::Status(500, None),
        FaultKind::Status(503, None),
    ] {
        stage.prefillers[0].inject(Fault::always(bad.clone()));
        for _ in 0..3 {
            let raw = stage.send(request).await;
            assert_eq!((raw.status, raw.text()), (200, good.text()), "{bad:?}");
        }
        stage.heal();
    }
    stage.prefillers_fail(&Fault::always(FaultKind::Refuse));
    assert_eq!(stage.send(request).await.text(), good.text(), "a decoder can do it as well");
    stage.decoders_fail(&Fault::always(FaultKind::Refuse));
    let raw = stage.send(request).await;
    assert_eq!((raw.status, raw.header("x-pd-error")), (502, Some("engine_failed")));
    assert_eq!(raw.json()["error"]["message"], "no engine answered");
    stage.end().await;
}

/// The text of an answer of any API, streamed or not.
fn text_of(raw: &Raw) -> String {
    let whole = |v: &Value| {
        let text =
            ["/choices/0/text", "/choices/0/message/content", "/content/0/text", "/output/0/content/0/text"];
        text.iter().find_map(|p| v.pointer(p).and_then(Value::as_str).map(str::to_owned)).unwrap_or_default()
    };
    if !raw.header("content-type").unwrap().starts_with("text/event-stream") {
        return whole(&raw.json());
    }
    let datas = raw.text();
    let events = datas.lines().filter_map(|l| l.strip_prefix("data: ")).filter(|d| *d != "[DONE]");
    events
        .map(|d| serde_json::from_str::<Value>(d).unwrap())
        .filter_map(|v| {
            let pieces = ["/choices/0/text", "/choices/0/delta/content", "/delta/text", "/delta"];
            pieces.iter().find_map(|p| v.pointer(p).and_then(Value::as_str).map(str::to_owned))
        })
        .collect()
}

#[tokio::test]
async fn every_generating_route_takes_both_legs() {
    let stage = Stage::new().await;
    let alone = lone(fast(), "127.0.0.1:0").await;
    let long = long_text();
    let cases = [
        (CHAT, chat(&long)),
        ("/v1/completions", json!({"model": "sim", "prompt": long, "max_tokens": 12})),
        ("/v1/responses", json!({"model": "sim", "input": long, "max_output_tokens": 12})),
        (
            "/v1/messages",
            json!({"model": "sim", "messages": [{"role": "user", "content": long}], "max_tokens": 12}),
        ),
    ];
    for (path, body) in &cases {
        let expected = text_of(&client::send(alone.addr(), &post(path, &body.to_string())).await);
        assert!(!expected.is_empty(), "{path}");
        for body in both(body) {
            stage.forget();
            let raw = stage.post(path, &body).await;
            assert_eq!((raw.status, raw.complete), (200, true), "{path}: {}", raw.text());
            assert_eq!(text_of(&raw), expected, "{path} {body}");
            let (p, d) = (stage.seen(&stage.prefillers), stage.seen(&stage.decoders));
            assert_eq!((p.len(), d.len()), (1, 1), "{path}");
            assert_eq!(body_of(&p[0])["kv_transfer_params"]["do_remote_decode"], true, "{path}");
            assert_eq!(body_of(&d[0])["kv_transfer_params"]["do_remote_prefill"], true, "{path}");
        }
    }
    stage.assert_nothing_left("all routes").await;
    stage.assert_all_alive("all routes");
    stage.end().await;
}

/// Routes that the simulated engines do not have: their 404 is the client's, and the prefill leg is
/// shaped as it must be.
#[tokio::test]
async fn generating_routes_that_an_engine_lacks() {
    let stage = Stage::new().await;
    for (path, body, tokens) in [
        (
            "/inference/v1/generate",
            json!({"token_ids": [1, 2], "sampling_params": {"max_tokens": 9}}),
            "/sampling_params/max_tokens",
        ),
        ("/invocations", chat("x"), "/max_tokens"),
        ("/invocations", json!({"prompt": "x", "max_tokens": 9}), "/max_tokens"),
    ] {
        stage.forget();
        let raw = stage.post(path, &body.to_string()).await;
        assert_eq!((raw.status, raw.text().as_str()), (404, r#"{"detail":"Not Found"}"#), "{path}");
        assert!(raw.header("x-request-id").is_some());
        let p = stage.seen(&stage.prefillers);
        // A second one says the same.
        assert_eq!((p.len(), p[0].path.as_str()), (2, path));
        let sent = body_of(&p[0]);
        assert_eq!(sent.pointer(tokens), Some(&json!(1)), "{path}: {sent}");
        assert!(stage.seen(&stage.decoders).is_empty(), "{path}");
    }
    let raw = stage.post("/invocations", "[]").await;
    assert_eq!((raw.status, raw.header("x-pd-error")), (400, Some("invalid_json")));
    stage.end().await;
}

/// vLLM takes the header for the body's `model`, on this path alone.
#[tokio::test]
async fn an_adapter_in_a_header_is_the_model_of_an_invocation() {
    let mut script = Script::default();
    script.config.fleet.model = Some("lora \"a\"".into());
    let stage = Stage::set(script).await;
    const ADAPTER: &str = "X-Amzn-SageMaker-Adapter-Identifier";
    let ask = async |path: &str, adapter: &[u8], body: &Value| {
        stage.forget();
        let head =
            [format!("POST {path} HTTP/1.1\r\nhost: gateway\r\n{ADAPTER}: ").as_bytes(), adapter].concat();
        let body = body.to_string();
        let rest = format!("\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stage.send(&[&head, rest.as_bytes()].concat()).await
    };
    for body in [chat("x"), json!({"prompt": "x"}), json!({"prompt": "x", "model": null})] {
        let raw = ask("/invocations", br#"lora "a""#, &body).await;
        assert_eq!((raw.status, raw.text().as_str()), (404, r#"{"detail":"Not Found"}"#), "the engine's");
        let seen = &stage.seen(&stage.prefillers)[0];
        assert_eq!(body_of(seen)["model"], r#"lora "a""#, "{body}");
        assert_eq!(header(seen, "x-amzn-sagemaker-adapter-identifier").as_deref(), Some(r#"lora "a""#));
    }
    let mut served = chat("x");
    served["model"] = r#"lora "a""#.into();
    let raw = ask("/invocations", b"other", &served).await;
    assert_eq!((raw.status, raw.header("x-pd-error")), (404, Some("model_not_found")), "{}", raw.text());
    let raw = ask("/invocations", "lör".as_bytes(), &served).await;
    assert_eq!((raw.status, raw.header("x-pd-error")), (400, Some("invalid_value")));
    assert!(raw.text().contains(ADAPTER), "{}", raw.text());
    assert!(stage.engines().all(|engine| engine.seen().is_empty()));
    ask(CHAT, b"other", &served).await;
    let seen = &stage.seen(&stage.prefillers)[0];
    assert_eq!(
        (body_of(seen)["model"].as_str(), header(seen, "x-amzn-sagemaker-adapter-identifier")),
        (Some(r#"lora "a""#), None)
    );
    stage.end().await;
}

#[tokio::test]
async fn one_request_id_for_client_and_both_legs() {
    let stage = Stage::new().await;
    let long = "i".repeat(129);
    for (sent, kept) in [
        (Some("run-7_a.b:C"), true),
        (None, false),
        (Some("a b"), false),
        (Some("a/b"), false),
        (Some(&*long), false),
    ] {
        stage.forget();
        let headers: Vec<(&str, &str)> = sent.iter().map(|id| ("X-Request-Id", *id)).collect();
        let raw = stage.send(&post_with(CHAT, &headers, chat("x").to_string().as_bytes())).await;
        let id = raw.header("x-request-id").unwrap().to_owned();
        assert_eq!(Some(id.as_str()) == sent, kept, "{sent:?} became {id}");
        assert!(kept || uuid::Uuid::parse_str(&id).is_ok(), "{id}");
        assert_eq!(raw.head.to_ascii_lowercase().matches("x-request-id:").count(), 1);
        for seen in [&stage.seen(&stage.prefillers)[0], &stage.seen(&stage.decoders)[0]] {
            assert_eq!(header(seen, "x-request-id").as_ref(), Some(&id));
        }
    }
    stage.end().await;
}

#[tokio::test]
async fn authorization_is_the_clients_or_the_configured_one() {
    for (configured, expected) in [(None, Some("Bearer mine")), (Some("ours"), Some("Bearer ours"))] {
        let mut script = Script::default();
        script.config.engine.api_key = configured.map(Secret::new);
        let stage = Stage::set(script).await;
        for (path, body) in [(CHAT, chat("x")), ("/tokenize", json!({"prompt": "x"}))] {
            let body = body.to_string();
            let raw =
                stage.send(&post_with(path, &[("Authorization", "Bearer mine")], body.as_bytes())).await;
            assert_eq!(raw.status, 200);
        }
        let all: Vec<ObservedRequest> = [stage.seen(&stage.prefillers), stage.seen(&stage.decoders)].concat();
        assert_eq!(all.len(), 3);
        for seen in all {
            assert_eq!(header(&seen, "authorization").as_deref(), expected, "{}", seen.path);
        }
        stage.end().await;
    }
}

#[tokio::test]
async fn several_prompts_go_to_a_decoder_alone() {
    let mut script = Script::default();
    script.config.limit.prompts = 1;
    let stage = Stage::set(script).await;
    let alone = lone(fast(), "127.0.0.1:0").await;
    for prompt in [json!(["one two three", "four"]), json!([[1, 2, 3], [4]])] {
        let body = json!({"model": "sim", "prompt": prompt, "max_tokens": 5, "kv_transfer_params": {"x": 1}});
        stage.forget();
        let raw = stage.post("/v1/completions", &body.to_string()).await;
        let mut clean = body.clone();
        clean.as_object_mut().unwrap().remove("kv_transfer_params");
        let expected = client::send(alone.addr(), &post("/v1/completions", &clean.to_string())).await;
        let texts = |raw: &Raw| {
            let choices = raw.json()["choices"].as_array().unwrap().clone();
            choices.iter().map(|c| c["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!((raw.status, texts(&raw)), (200, texts(&expected)));
        assert_eq!(texts(&raw).len(), 2);
        let d = stage.seen(&stage.decoders);
        assert_eq!((stage.seen(&stage.prefillers).len(), d.len()), (0, 1));
        assert_eq!(body_of(&d[0]), clean);
    }
    stage.end().await;
}

/// vLLM's server (Starlette) redirects with 307, so that its clients are served: OpenAI's and
/// `requests` follow.
#[tokio::test]
async fn a_slash_too_many_is_redirected() {
    let stage = Stage::new().await;
    let location = |raw: &Raw| (raw.status, raw.header("location").map(str::to_owned), raw.complete);
    let to = |path: &str| (307, Some(path.to_owned()), true);
    let good = r#"{"model":"sim","messages":[{"role":"user","content":"Good?"}],"max_tokens":4}"#;
    assert_eq!(location(&stage.post("/v1/chat/completions/", good).await), to("/v1/chat/completions"));
    assert_eq!(location(&stage.get("/v1/models/").await), to("/v1/models"));
    assert_eq!(location(&stage.get("/health/").await), to("/health"));
    assert_eq!(location(&stage.post("/tokenize/?a=b/&c", "{}").await), to("/tokenize?a=b/&c"));
    assert_eq!(location(&stage.post("/v1/chat/completions//", good).await), (404, None, true));
    assert!(stage.engines().all(|engine| engine.seen().is_empty()));
    stage.end().await;
}

/// Python's `json.loads` takes bytes with a mark before them, so engines do: files of Windows'
/// editors and shells begin so.
#[tokio::test]
async fn a_body_may_begin_with_a_byte_order_mark() {
    let stage = Stage::new().await;
    let body = r#"{"model":"sim","prompt":"Good?","max_tokens":4}"#;
    for path in ["/v1/completions", "/tokenize"] {
        stage.forget();
        let raw = stage.post(path, &format!("\u{feff}{body}")).await;
        assert_eq!(raw.status, 200, "{path}: {}", raw.text());
        for seen in stage.engines().flat_map(|engine| engine.seen()) {
            assert!(seen.body.starts_with(b"{"), "{path}: engines need not know of it");
        }
    }
    stage.end().await;
}

/// vLLM cuts such a prompt to the model's length less `max_tokens`: with 1 the prefiller would keep
/// KV of another prompt.
#[tokio::test]
async fn prompts_that_are_cut_to_fit_are_prefilled_where_they_are_decoded() {
    let stage = Stage::new().await;
    for (path, body, alone) in [
        (CHAT, json!({"truncate_prompt_tokens": -1, "messages": [{"role": "user", "content": "Hi"}]}), true),
        (CHAT, json!({"truncate_prompt_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}), false),
        ("/v1/completions", json!({"truncate_prompt_tokens": -1, "prompt": "Hi"}), true),
        ("/v1/responses", json!({"truncation": "auto", "input": "Hi", "max_output_tokens": 4}), true),
        ("/v1/responses", json!({"truncation": "disabled", "input": "Hi", "max_output_tokens": 4}), false),
    ] {
        stage.forget();
        let raw = stage.post(path, &body.to_string()).await;
        assert_eq!(raw.status, 200, "{body}: {}", raw.text());
        let (prefills, decodes) = (stage.seen(&stage.prefillers), stage.seen(&stage.decoders));
        assert_eq!((prefills.len(), decodes.len()), (usize::from(!alone), 1), "{body}");
        assert!(!alone || body_of(&decodes[0]) == body, "{body}");
    }
    stage.end().await;
}

#[tokio::test]
async fn wrong_key_for_models_is_refused() {
    let stage = Stage::new().await;
    let unauthorized = r#"{"error":"Unauthorized"}"#;
    stage.engines().for_each(|engine| {
        let wrong = FaultKind::Status(401, Some(unauthorized.into()));
        assert!(engine.inject(Fault::always(wrong).on_path("/v1/models")));
    });
    for path in ["/v1/models", "/v1/models/sim"] {
        stage.forget();
        let told = stage.get(path).await;
        assert_eq!((told.status, told.text().as_str()), (401, unauthorized), "{path}");
        assert_eq!(stage.engines().map(count).sum::<usize>(), 1, "{path}: no other would know it");
    }
    stage.end().await;
}

#[tokio::test]
async fn anthropic_s_clients_read_errors_in_their_own_shape() {
    let stage = Stage::new().await;
    let counting = r#"{"model":"sim","messages":[{"role":"user","content":"hi"}]}"#;
    let nine = FaultKind::Status(200, Some(r#"{"input_tokens":9}"#.into()));
    stage.prefillers_fail(&Fault::always(nine).on_path("/v1/messages/count_tokens"));
    let counted = stage.post("/v1/messages/count_tokens", counting).await;
    assert_eq!((counted.status, counted.header("request-id")), (200, counted.header("x-request-id")));
    assert!(counted.header("request-id").is_some());
    let lines: Vec<(String, &str)> = (0..110).map(|n| (format!("x-{n}"), "1")).collect();
    let lines: Vec<(&str, &str)> = lines.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let refused = stage.send(&post_with("/v1/messages", &lines, b"{}")).await;
    stage.prefillers_fail(&Fault::always(FaultKind::Refuse));
    stage.decoders_fail(&Fault::always(FaultKind::Refuse));
    let failed = stage.post("/v1/messages/count_tokens", counting).await;
    for (told, status) in [(refused, 431), (failed, 502)] {
        assert_eq!((told.status, &told.json()["type"]), (status, &"error".into()), "{}", told.text());
        assert!(told.header("request-id").is_some(), "{}", told.head);
    }
    stage.end().await;
}
