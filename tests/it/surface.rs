//! Every route beside the two legs' own contract: what operators and their tools ask, what clients rarely ask.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pd_proxy::config::{Policy, Secret};
use pd_proxy::obs::names;
use pd_proxy::sim::{Connector, Engine, EngineSpec, Fault, Pool, Role, Seen, What};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::command::Process;
use crate::common::client::{self, Raw, get, post, post_with};
use crate::common::model;
use crate::common::stage::{Script, Stage, fast, slow};

const CHAT: &str = "/v1/chat/completions";

fn chat(text: &str) -> Value {
    json!({"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 12})
}

/// A body and the same with `stream`.
fn both(body: &Value) -> [String; 2] {
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    [body.to_string(), streamed.to_string()]
}

async fn lone(spec: EngineSpec, listen: &str) -> Engine {
    Engine::start(EngineSpec { role: Role::Both, ..spec }, listen.parse().unwrap()).await.unwrap()
}

fn name(engine: &Engine) -> String {
    engine.addr().to_string()
}

fn count(engine: &Engine) -> usize {
    engine.seen().len()
}

fn header(seen: &Seen, name: &str) -> Option<String> {
    seen.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone())
}

fn body_of(seen: &Seen) -> Value {
    serde_json::from_slice(&seen.body).unwrap()
}

/// Waits for a condition.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < Duration::from_secs(10), "it never came to this: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn change(kind: &str, instances: Value) -> String {
    json!({"type": kind, "instances": instances}).to_string()
}

/// Takes every engine of one side out of the gateway.
async fn remove_all(stage: &Stage, kind: &str, engines: &[Engine]) -> Raw {
    let all: Vec<String> = engines.iter().map(name).collect();
    stage.post("/instances/remove", &change(kind, json!(all))).await
}

#[tokio::test]
async fn supervisors_learn_whether_it_lives_and_whether_it_can_serve() {
    let stage = Stage::new().await;
    for path in ["/health", "/healthz", "/ping"] {
        let raw = stage.get(path).await;
        assert_eq!((raw.status, raw.text().as_str()), (200, ""), "{path}");
    }
    assert_eq!(stage.post("/ping", "").await.status, 200);
    let ready = stage.get("/readyz").await;
    assert_eq!(ready.status, 200);
    assert_eq!(ready.json(), json!({"ready": true, "prefill_instances": 2, "decode_instances": 2}));
    let health = stage.get("/healthcheck").await;
    assert_eq!(
        health.text(),
        r#"{"status":"ok","prefill_instances":2,"decode_instances":2,"request_num":0}"#
    );

    remove_all(&stage, "prefill", &stage.prefillers).await;
    let ready = stage.get("/readyz").await;
    assert_eq!(ready.status, 503);
    assert_eq!(ready.json(), json!({"ready": false, "prefill_instances": 0, "decode_instances": 2}));
    assert_eq!(stage.get("/health").await.status, 200, "a restart would not bring a prefiller");
    let refused = stage.post(CHAT, &chat("x").to_string()).await;
    assert_eq!((refused.status, refused.header("x-pd-error")), (503, Some("no_prefiller")));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.json()["error"]["message"], "no prefiller is available");

    remove_all(&stage, "decode", &stage.decoders).await;
    assert_eq!(stage.get("/readyz").await.json()["decode_instances"], 0);
    stage.post("/instances/add", &change("prefill", json!(name(&stage.prefillers[0])))).await;
    assert_eq!(stage.get("/readyz").await.status, 503);
    let refused = stage.post(CHAT, &chat("x").to_string()).await;
    assert_eq!((refused.status, refused.header("x-pd-error")), (503, Some("no_decoder")));
    stage.end().await;
}

#[tokio::test]
async fn requests_inside_are_counted() {
    let stage = Stage::new().await;
    stage.prefillers_fail(&Fault::always(What::StallBeforeHead));
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
        socket.write_all(&post(CHAT, &chat("x").to_string())).await.unwrap();
        open.push(socket);
    }
    until("3 inside", async || stage.get("/healthcheck").await.json()["request_num"] == 3).await;
    drop(open);
    until("none inside", async || stage.get("/healthcheck").await.json()["request_num"] == 0).await;
    stage.end().await;
}

#[tokio::test]
async fn status_lists_the_engines() {
    let stage = Stage::new().await;
    let names = |engines: &[Engine]| engines.iter().map(name).collect::<Vec<_>>();
    let expected = json!({
        "prefill_node_count": 2, "decode_node_count": 2,
        "prefill_nodes": names(&stage.prefillers), "decode_nodes": names(&stage.decoders),
    });
    assert_eq!(stage.get("/status").await.json(), expected);
    stage.end().await;
}

#[tokio::test]
async fn models_are_the_first_good_answer_verbatim() {
    let stage = Stage::new().await;
    let odd = r#"{ "object":"list",  "data":[{"id":"sim","x":1.50}] }"#;
    let answer =
        Fault::always(What::Status(200, Some(Bytes::from_static(odd.as_bytes())))).on_path("/v1/models");
    assert!(stage.prefillers[1].inject(answer));
    let raw = stage.send(b"GET /v1/models HTTP/1.1\r\nhost: g\r\nauthorization: Bearer mine\r\n\r\n").await;
    assert_eq!((raw.status, raw.json()["data"][0]["id"].as_str()), (200, Some("sim")));
    let seen = stage.prefillers[0].seen();
    assert_eq!((seen.len(), header(&seen[0], "authorization")), (1, Some("Bearer mine".into())));
    assert_eq!(stage.engines().map(count).sum::<usize>(), 1, "one engine is enough");

    for bad in [What::Refuse, What::Status(500, None), What::ResetBeforeHead] {
        stage.prefillers[0].inject(Fault::always(bad.clone()));
        let raw = stage.get("/v1/models").await;
        assert_eq!((raw.status, raw.text().as_str()), (200, odd), "{bad:?}");
        assert_eq!(raw.header("content-type"), Some("application/json"));
        stage.prefillers[0].clear_faults();
    }
    stage.prefillers_fail(&Fault::always(What::Refuse));
    let raw = stage.get("/v1/models").await;
    assert_eq!((raw.status, raw.json()["object"].as_str()), (200, Some("list")), "a decoder answers");
    stage.decoders_fail(&Fault::always(What::Refuse));
    let raw = stage.get("/v1/models").await;
    assert_eq!(
        (raw.status, raw.json()["error"]["message"].as_str()),
        (503, Some("no engine answers /v1/models"))
    );
    stage.end().await;
}

#[tokio::test]
async fn every_engine_resets_its_cache() {
    let stage = Stage::new().await;
    let path = "/reset_prefix_cache?reset_running_requests=true&x=a%20b";
    let raw = stage.post(path, "").await;
    assert_eq!((raw.status, raw.text().as_str()), (200, ""));
    for engine in stage.engines() {
        let paths: Vec<String> = engine.seen().into_iter().map(|s| s.path).collect();
        assert_eq!(paths, [path], "{}", engine.addr());
    }
    stage.prefillers[1].inject(Fault::always(What::Status(500, None)));
    stage.decoders[0].inject(Fault::always(What::Refuse));
    let raw = stage.post("/reset_prefix_cache", "").await;
    let failed: BTreeSet<String> = [stage.prefillers[1].url(), stage.decoders[0].url()].into();
    assert_eq!((raw.status, raw.json()), (500, json!({ "failed": failed })));
    stage.end().await;
}

#[tokio::test]
async fn instances_come_and_go() {
    let stage = Stage::new().await;
    let (p, d): (Vec<String>, Vec<String>) =
        (stage.prefillers.iter().map(name).collect(), stage.decoders.iter().map(name).collect());
    let [third, fourth] = [lone(fast(), "127.0.0.1:0").await, lone(fast(), "127.0.0.1:0").await];
    let answer = |message: String, p: &[&str], d: &[&str]| {
        json!({"message": message, "current_prefill_instances": p, "current_decode_instances": d}).to_string()
    };
    let (t, f) = (name(&third), name(&fourth));

    let raw = stage.post("/instances/add", &change("prefill", json!(t))).await;
    let expected = answer(format!("add prefill instances: ['{t}']."), &[&p[0], &p[1], &t], &[&d[0], &d[1]]);
    assert_eq!((raw.status, raw.text()), (200, expected));
    let raw = stage.post("/instances/add", &change("decode", json!([t, f]))).await;
    let all = [&p[0], &p[1], t.as_str()];
    let expected = answer(format!("add decode instances: ['{t}', '{f}']."), &all, &[&d[0], &d[1], &t, &f]);
    assert_eq!(raw.text(), expected);
    assert_eq!(third.seen()[0].path, "/v1/models", "it is asked before it joins");

    let raw = stage.post("/instances/remove", &change("prefill", json!(p))).await;
    let expected = answer(
        format!("remove prefill instances: ['{}', '{}'].", p[0], p[1]),
        &[&t],
        &[&d[0], &d[1], &t, &f],
    );
    assert_eq!(raw.text(), expected);
    let raw = stage.post("/instances/remove", &change("decode", json!(d[0]))).await;
    let expected = answer(format!("remove decode instances: ['{}'].", d[0]), &[&t], &[&d[1], &t, &f]);
    assert_eq!(raw.text(), expected);
    stage.forget();
    third.clear_seen();
    for n in 0..6 {
        let raw = stage.post(CHAT, &chat(&format!("message {n}")).to_string()).await;
        assert_eq!(raw.status, 200, "{}", raw.text());
    }
    assert_eq!(count(&stage.prefillers[0]) + count(&stage.prefillers[1]) + count(&stage.decoders[0]), 0);
    assert!(count(&third) >= 6);

    for kind in ["both", ""] {
        let raw = stage.post("/instances/add", &change(kind, json!(t))).await;
        let message =
            format!("Instance type '{kind}' is not supported. Only 'prefill' and 'decode' are allowed.");
        assert_eq!((raw.status, raw.json()), (400, json!({ "error": message })));
    }
    stage.end().await;
}

#[tokio::test]
async fn an_instance_may_have_an_ipv6_address() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return; // This machine has no IPv6.
    }
    let stage = Stage::new().await;
    let engine = lone(fast(), "[::1]:0").await;
    for (kind, others) in [("prefill", &stage.prefillers), ("decode", &stage.decoders)] {
        let raw = stage.post("/instances/add", &change(kind, json!([name(&engine)]))).await;
        assert_eq!(
            raw.json()["message"],
            format!("add {kind} instances: ['[::1]:{}'].", engine.addr().port())
        );
        remove_all(&stage, kind, others).await;
    }
    let raw = stage.post(CHAT, &chat("over IPv6").to_string()).await;
    assert_eq!((raw.status, raw.words().is_empty()), (200, false), "{}", raw.text());
    assert_eq!(engine.seen().iter().filter(|s| s.path == CHAT).count(), 2, "both legs");
    stage.end().await;
}

#[tokio::test]
async fn an_instance_that_is_not_up_yet_joins_when_it_is() {
    let mut script = Script::default();
    script.config.fleet.probe_interval_ms = 20;
    script.config.fleet.probe_attempts = 1_000;
    let stage = Stage::set(script).await;
    let late = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().to_string()
    };
    let here = name(&stage.decoders[0]);
    let raw = stage.post("/instances/add", &change("prefill", json!([late]))).await;
    assert_eq!(raw.json()["message"], format!("Instances ['{late}'] are waiting to be added."));
    assert_eq!(raw.json()["current_prefill_instances"].as_array().unwrap().len(), 2);
    let raw = stage.post("/instances/add", &change("prefill", json!([late, here]))).await;
    let message = format!("add prefill instances: ['{here}']. Instances ['{late}'] are waiting to be added.");
    assert_eq!(raw.json()["message"], message);

    let engine = lone(fast(), &late).await;
    let listed = async || stage.get("/status").await.json()["prefill_nodes"].to_string().contains(&late);
    until("the late one is listed", listed).await;
    let served = async || {
        let raw = stage.post(CHAT, &chat("x").to_string()).await;
        assert_eq!(raw.status, 200);
        engine.seen().iter().any(|s| s.path == CHAT)
    };
    until("the late one serves", served).await;
    let nodes = stage.get("/status").await.json()["prefill_nodes"].to_string();
    assert_eq!(nodes.matches(&late).count(), 1, "it was asked for twice and is listed once");
    stage.end().await;
}

#[tokio::test]
async fn an_instance_that_is_removed_finishes_its_work() {
    let stage = Stage::set(Script { engine: slow(), ..Script::default() }).await;
    let mut body = chat("A long one");
    body["max_tokens"] = 60.into();
    body["stream"] = true.into();
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    socket.write_all(&post(CHAT, &body.to_string())).await.unwrap();
    let busy = async || stage.decoders.iter().any(|d| d.ledger().running > 0);
    until("a decoder writes", busy).await;
    let (at, other) = if stage.decoders[0].ledger().running > 0 { (0, 1) } else { (1, 0) };
    let leaving = name(&stage.decoders[at]);
    let raw = stage.post("/instances/remove", &change("decode", json!([leaving]))).await;
    let message = format!("Instances ['{leaving}'] are isolated and waiting to be removed.");
    assert_eq!(raw.json()["message"], message);
    assert_eq!(raw.json()["current_decode_instances"], json!([name(&stage.decoders[other])]));
    stage.forget();
    for _ in 0..4 {
        assert_eq!(stage.post(CHAT, &chat("x").to_string()).await.status, 200);
    }
    assert_eq!((count(&stage.decoders[at]), count(&stage.decoders[other])), (0, 4));
    let raw = client::read(&mut socket).await;
    assert!(raw.complete && raw.done(), "{}", raw.text());
    stage.end().await;
}

#[tokio::test]
async fn what_one_engine_answers_is_asked_of_one_prefiller() {
    let stage = Stage::new().await;
    let cases = [
        post("/tokenize", r#"{"prompt":"Hello there, 世界","return_token_strs":true}"#),
        post("/detokenize", r#"{"tokens":[72,101]}"#),
        post("/tokenize?x=1", r#"{"nonsense":1}"#),
        get("/version"),
        get("/load"),
        get("/tokenize"),
        get("/v1/models/sim"),
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
        assert_eq!(stage.prefillers.iter().map(count).sum::<usize>(), 1, "{line}");
        assert_eq!(stage.decoders.iter().map(count).sum::<usize>(), 0, "{line}");
    }
    let embeddings = stage.post("/v1/embeddings", r#"{"model":"sim","input":["a","b"]}"#).await;
    assert_eq!((embeddings.status, embeddings.json()["data"].as_array().unwrap().len()), (200, 2));

    let request = &cases[0];
    let good = stage.send(request).await;
    for bad in [What::Refuse, What::ResetBeforeHead, What::Status(500, None), What::Status(503, None)] {
        stage.prefillers[0].inject(Fault::always(bad.clone()));
        for _ in 0..3 {
            let raw = stage.send(request).await;
            assert_eq!((raw.status, raw.text()), (200, good.text()), "{bad:?}");
        }
        stage.heal();
    }
    stage.prefillers_fail(&Fault::always(What::Refuse));
    assert_eq!(stage.send(request).await.text(), good.text(), "a decoder can do it as well");
    stage.decoders_fail(&Fault::always(What::Refuse));
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

fn long_text() -> String {
    (0..60).map(|n| format!("word{n} ")).collect()
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

/// Routes that the simulated engines do not have: their 404 is the client's, and the prefill leg is shaped as it must be.
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
        assert_eq!((p.len(), p[0].path.as_str()), (1, path));
        let sent = body_of(&p[0]);
        assert_eq!(sent.pointer(tokens), Some(&json!(1)), "{path}: {sent}");
        assert!(stage.seen(&stage.decoders).is_empty(), "{path}");
    }
    let raw = stage.post("/invocations", "[]").await;
    assert_eq!((raw.status, raw.header("x-pd-error")), (400, Some("invalid_json")));
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
        let all: Vec<Seen> = [stage.seen(&stage.prefillers), stage.seen(&stage.decoders)].concat();
        assert_eq!(all.len(), 3);
        for seen in all {
            assert_eq!(header(&seen, "authorization").as_deref(), expected, "{}", seen.path);
        }
        stage.end().await;
    }
}

#[tokio::test]
async fn several_prompts_go_to_a_decoder_alone() {
    let stage = Stage::new().await;
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

async fn with_policy(policy: Policy) -> Stage {
    let mut script = Script::default();
    script.config.route.policy = policy;
    Stage::set(script).await
}

#[tokio::test]
async fn policies_spread_over_idle_prefillers() {
    for (policy, requests, least) in [
        (Policy::RoundRobin, 10, 5),
        (Policy::LeastWork, 10, 5),
        // One in a hundred million runs of a fair coin has fewer.
        (Policy::Random, 60, 10),
        (Policy::PowerOfTwo, 60, 10),
    ] {
        let stage = with_policy(policy).await;
        for n in 0..requests {
            assert_eq!(stage.post(CHAT, &chat(&format!("request {n}")).to_string()).await.status, 200);
        }
        let spread: Vec<usize> = stage.prefillers.iter().map(count).collect();
        assert_eq!(spread.iter().sum::<usize>(), requests, "{policy}");
        assert!(spread.iter().all(|&n| n >= least), "{policy}: {spread:?}");
        stage.end().await;
    }
}

#[tokio::test]
async fn policies_mind_the_load_or_do_not() {
    for (policy, minds) in
        [(Policy::LeastWork, true), (Policy::PowerOfTwo, true), (Policy::RoundRobin, false)]
    {
        let stage = with_policy(policy).await;
        let stall = Fault { times: 1, ..Fault::always(What::StallBeforeHead) };
        let mut stall = stall;
        stall.on.contains = Some("STALL".into());
        stage.prefillers_fail(&stall);
        let mut busy = TcpStream::connect(stage.gateway).await.unwrap();
        busy.write_all(&post(CHAT, &chat(&format!("STALL {}", long_text())).to_string())).await.unwrap();
        until("one is busy", async || stage.prefillers.iter().any(|p| count(p) == 1)).await;
        let at = usize::from(count(&stage.prefillers[1]) == 1);
        for n in 0..8 {
            assert_eq!(stage.post(CHAT, &chat(&format!("request {n}")).to_string()).await.status, 200);
        }
        let more = count(&stage.prefillers[at]) - 1;
        assert_eq!(more, if minds { 0 } else { 4 }, "{policy}");
        drop(busy);
        stage.end().await;
    }
}

#[tokio::test]
async fn with_a_pool_no_hand_off_is_made_up() {
    let engine = EngineSpec { connector: Connector::Pool, pool: Some(Arc::new(Pool::new(10_000))), ..fast() };
    let stage = Stage::set(Script { engine, ..Script::default() }).await;
    let alone = lone(fast(), "127.0.0.1:0").await;
    let body = chat(&long_text());
    let expected = client::send(alone.addr(), &post(CHAT, &body.to_string())).await.words();
    for body in both(&body) {
        stage.forget();
        let raw = stage.post(CHAT, &body).await;
        assert_eq!((raw.status, raw.words()), (200, expected.clone()));
        let d = stage.seen(&stage.decoders);
        assert_eq!(d.len(), 1);
        let sent: Value = body_of(&d[0]);
        assert_eq!(sent.get("kv_transfer_params"), None, "{sent}");
        assert_eq!(sent, serde_json::from_str::<Value>(&body).unwrap());
    }
    stage.end().await;
}

#[tokio::test]
async fn cached_tokens_are_the_prefillers() {
    let ask = |raw: &Raw| {
        let usage = match raw.header("content-type") {
            Some(kind) if kind.starts_with("text/event-stream") => {
                raw.events().into_iter().rev().find(|e| e["usage"].is_object()).unwrap()["usage"].clone()
            }
            _ => raw.json()["usage"].clone(),
        };
        (usage["prompt_tokens"].clone(), usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap())
    };
    for path in [CHAT, "/v1/completions"] {
        let mut body = chat(&long_text());
        body["prompt"] = long_text().into();
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        streamed["stream_options"] = json!({"include_usage": true});
        for body in [body, streamed] {
            let alone = lone(fast(), "127.0.0.1:0").await;
            let stage = Stage::set(Script { prefillers: 1, decoders: 1, ..Script::default() }).await;
            let request = post(path, &body.to_string());
            for cold in [true, false] {
                let expected = ask(&client::send(alone.addr(), &request).await);
                let raw = stage.send(&request).await;
                assert_eq!(ask(&raw), expected, "{path} cold: {cold} {}", raw.text());
                assert_eq!(expected.1 == 0, cold, "{path}");
            }
            stage.end().await;
        }
    }
}

/// The samples of an exposition, each with the labels as written; panics if the text is not valid.
pub fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut kinds: BTreeMap<&str, &str> = BTreeMap::new();
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|l| !l.is_empty()) {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kinds.insert(name, kind), None, "two types: {line}");
            continue;
        }
        if line.starts_with('#') {
            assert!(line.starts_with("# HELP pd_proxy_"), "{line}");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap();
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name);
        assert!(kinds.contains_key(name) || kinds.get(family) == Some(&"histogram"), "no type before {line}");
        assert_eq!(series.contains('{'), series.ends_with('}'), "{line}");
        assert_eq!(found.insert(series.to_owned(), value.parse().unwrap()), None, "twice: {line}");
    }
    found
}

/// Each histogram's buckets grow, and the last one is its count.
fn assert_buckets(samples: &BTreeMap<String, f64>, text: &str) {
    let mut last: BTreeMap<String, f64> = BTreeMap::new();
    for line in text.lines().filter(|l| l.contains("_bucket{")) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (value, start) = (value.parse::<f64>().unwrap(), series.find("le=\"").unwrap());
        let key = series[..start].trim_end_matches([',', '{']).replace("_bucket", "_count");
        let before = last.insert(key, value).unwrap_or(0.0);
        assert!(value >= before, "{line}");
    }
    assert!(!last.is_empty());
    for (key, value) in last {
        let series = if key.contains('{') { format!("{key}}}") } else { key };
        assert_eq!(samples.get(&series), Some(&value), "{series}");
    }
}

/// One request of each kind; the tokens that the engines reported for them.
async fn one_of_each(gateway: SocketAddr, prefill: &Engine) -> BTreeMap<&'static str, u64> {
    let send = async |path: &str, body: Value| client::send(gateway, &post(path, &body.to_string())).await;
    let mut streamed = chat(&long_text());
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({"include_usage": true});
    let mut tokens = BTreeMap::from([("prompt", 0), ("cached", 0), ("output", 0)]);
    for _ in 0..2 {
        let raw = send(CHAT, streamed.clone()).await;
        let usage = raw.events().pop().unwrap()["usage"].clone();
        let number = |p: &str| usage.pointer(p).and_then(Value::as_u64).unwrap();
        *tokens.get_mut("prompt").unwrap() += number("/prompt_tokens");
        *tokens.get_mut("output").unwrap() += number("/completion_tokens");
        *tokens.get_mut("cached").unwrap() += number("/prompt_tokens_details/cached_tokens");
    }
    assert!(tokens["cached"] > 0);
    let raw = send("/v1/completions", json!({"model": "sim", "prompt": ["a", "b"], "max_tokens": 2})).await;
    let usage = raw.json()["usage"].clone();
    *tokens.get_mut("prompt").unwrap() += usage["prompt_tokens"].as_u64().unwrap();
    *tokens.get_mut("output").unwrap() += usage["completion_tokens"].as_u64().unwrap();
    assert_eq!(send(CHAT, json!([1])).await.status, 400);
    assert_eq!(send(CHAT, json!({"model": "nope", "messages": []})).await.status, 404);
    assert_eq!(send("/tokenize", json!({"prompt": "a"})).await.status, 200);
    prefill.inject(Fault::once(What::ResetBeforeHead));
    assert_eq!(send(CHAT, chat("again")).await.status, 200);
    let usage = {
        // The same prompt once more says what the one that was tried twice counted.
        let raw = send(CHAT, chat("again")).await;
        raw.json()["usage"].clone()
    };
    *tokens.get_mut("prompt").unwrap() += 2 * usage["prompt_tokens"].as_u64().unwrap();
    *tokens.get_mut("output").unwrap() += 2 * usage["completion_tokens"].as_u64().unwrap();
    *tokens.get_mut("cached").unwrap() += usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    tokens
}

/// In a process of its own: the recorder belongs to a process.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn metrics_count_what_happened() {
    let free: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let prefill = Engine::start(EngineSpec { role: Role::Prefill, ..fast() }, free).await.unwrap();
    let decode = Engine::start(EngineSpec { role: Role::Decode, ..fast() }, free).await.unwrap();
    // With everything on that has metrics of its own.
    let model = model::directory("qwen3");
    let flags = ["--max-retries", "5", "--model-path", model.path().to_str().unwrap()];
    let settings = ["prompt.tokens=local", "prompt.verify_interval_ms=100", "hash.seed=0"];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let flags: Vec<&str> = flags.into_iter().chain(settings).collect();
    let (_process, gateway) = Process::gateway(&prefill, &decode, &flags, &[]);
    let tokens = one_of_each(gateway, &prefill).await;

    // A request is accounted for when its last byte is out, which the client may see a moment earlier.
    let ended = r#"pd_proxy_requests_total{route="chat_completions",code="200",reason="ok"}"#;
    let scrape = async || client::send(gateway, &get("/metrics")).await;
    until("4 chats are counted", async || samples(&scrape().await.text()).get(ended) == Some(&4.0)).await;
    // Counted at the second look at the engines.
    until("the cache is looked at", async || scrape().await.text().contains(names::PROMPT_CACHE)).await;
    let raw = scrape().await;
    assert_eq!(
        (raw.status, raw.header("content-type")),
        (200, Some("text/plain; version=0.0.4; charset=utf-8"))
    );
    let text = raw.text();
    let found = samples(&text);
    assert_buckets(&found, &text);
    for name in names::ALL {
        assert!(text.contains(&format!("# TYPE {name} ")), "{name} in\n{text}");
    }
    let (p, d) = (name(&prefill), name(&decode));
    for (series, value) in [
        (r#"pd_proxy_requests_total{route="completions",code="200",reason="ok"}"#.to_owned(), 1.0),
        (
            r#"pd_proxy_requests_total{route="chat_completions",code="400",reason="invalid_json"}"#
                .to_owned(),
            1.0,
        ),
        (r#"pd_proxy_requests_total{route="chat_completions",code="404",reason="engine"}"#.to_owned(), 1.0),
        (r#"pd_proxy_requests_total{route="passthrough",code="200",reason="ok"}"#.to_owned(), 1.0),
        (r#"pd_proxy_tokens_total{kind="prompt"}"#.to_owned(), tokens["prompt"] as f64),
        (r#"pd_proxy_tokens_total{kind="cached"}"#.to_owned(), tokens["cached"] as f64),
        (r#"pd_proxy_tokens_total{kind="output"}"#.to_owned(), tokens["output"] as f64),
        (r#"pd_proxy_handoffs_total{outcome="used"}"#.to_owned(), 4.0),
        (r#"pd_proxy_prefill_bypassed_total{reason="several_prompts"}"#.to_owned(), 1.0),
        (r#"pd_proxy_instances{role="prefill"}"#.to_owned(), 1.0),
        (r#"pd_proxy_instances{role="decode"}"#.to_owned(), 1.0),
        ("pd_proxy_inflight_requests".to_owned(), 0.0),
        ("pd_proxy_queued_requests".to_owned(), 0.0),
        (r#"pd_proxy_time_to_first_token_seconds_count{route="chat_completions"}"#.to_owned(), 2.0),
        (r#"pd_proxy_request_duration_seconds_count{route="completions"}"#.to_owned(), 1.0),
        (r#"pd_proxy_retries_total{leg="prefill",reason="broken"}"#.to_owned(), 1.0),
        (format!(r#"pd_proxy_leg_failures_total{{leg="prefill",instance="{p}",reason="broken"}}"#), 1.0),
        (format!(r#"pd_proxy_leg_duration_seconds_count{{leg="prefill",instance="{p}"}}"#), 4.0),
        (format!(r#"pd_proxy_leg_duration_seconds_count{{leg="decode",instance="{d}"}}"#), 5.0),
        (format!(r#"pd_proxy_build_info{{version="{}"}}"#, env!("CARGO_PKG_VERSION")), 1.0),
    ] {
        assert_eq!(found.get(&series), Some(&value), "{series} in\n{text}");
    }
}
