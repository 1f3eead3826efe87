//! Traced requests: what a collector gets, and what engines are told.

mod collector;
mod trouble;

use std::sync::Arc;

use pd_proxy::config::{Config, Secret, Tokens};
use pd_proxy::sim::{Encodings, Engine, EngineSpec, Part, Role};
use serde_json::{Value, json};

use crate::common::client::{Raw, post_with};
use crate::common::stage::{Script, Stage, fast};
use crate::dialects;

use collector::{Collector, Seen, texts};

const CHAT: &str = "/v1/chat/completions";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
const SECRET_WORDS: &str = "nobody is to read this";

/// A gateway whose spans go to `collector`, with one engine of each kind.
fn script(collector: &Collector, change: impl FnOnce(&mut Config)) -> Script {
    let mut script = Script { prefillers: 1, decoders: 1, ..Script::default() };
    script.config.trace.endpoint = collector.url.clone();
    change(&mut script.config);
    script
}

fn chat(stream: bool) -> Value {
    let words = format!("{SECRET_WORDS} {}", "word ".repeat(50));
    json!({"model": "sim", "messages": [{"role": "user", "content": words}], "max_tokens": 8, "stream": stream})
}

async fn ask(stage: &Stage, body: &Value, flags: Option<&str>) -> Raw {
    let parent = flags.map(|flags| format!("00-{TRACE}-{PARENT}-{flags}"));
    let mut headers = vec![("authorization", "Bearer sk-client"), ("x-request-id", "req-1")];
    headers.extend(parent.as_deref().map(|parent| ("traceparent", parent)));
    headers.push(("tracestate", "vendor=x"));
    stage.send(&post_with(CHAT, &headers, body.to_string().as_bytes())).await
}

/// The span of the request, and its parts by their beginning, after checking that they are its
/// parts.
fn tree(spans: &[Seen]) -> (Seen, Vec<Seen>) {
    let (roots, parts): (Vec<Seen>, Vec<Seen>) = spans.iter().cloned().partition(|span| span.kind == 2);
    let [root] = &roots[..] else { panic!("one root: {roots:#?}") };
    for part in &parts {
        assert_eq!((&part.trace, &part.parent), (&root.trace, &root.id), "{part:#?}");
        assert!(root.start <= part.start && part.start <= part.end && part.end <= root.end, "{part:#?}");
    }
    (root.clone(), parts)
}

fn names(spans: &[Seen]) -> Vec<&str> {
    spans.iter().map(|span| span.name.as_str()).collect()
}

fn header_of(engine: &Engine, name: &str) -> Vec<String> {
    let legs =
        engine.seen().into_iter().filter(|seen| seen.path.starts_with("/v1/") && seen.method == "POST");
    legs.flat_map(|seen| {
        seen.headers.into_iter().filter(|(n, _)| n == name).map(|(_, v)| v).collect::<Vec<_>>()
    })
    .collect()
}

#[tokio::test]
async fn a_streamed_request_is_a_tree_of_spans() {
    let collector = Collector::start().await;
    let stage = Stage::set(script(&collector, |config| {
        config.prompt.tokens = Tokens::Engine;
        config.prompt.budget_ms = 10_000;
        config.events.listen = true;
        config.trace.headers = Some(Secret::new("x-collector-key=hidden"));
        config.trace.service_name = "edge".to_owned();
    }))
    .await;
    assert!(ask(&stage, &chat(true), Some("01")).await.done());
    let prefiller = stage.prefillers[0].addr();
    let told = [header_of(&stage.prefillers[0], "traceparent"), header_of(&stage.decoders[0], "traceparent")];
    let state = header_of(&stage.decoders[0], "tracestate");
    // What has not been posted yet is when the gateway stops.
    stage.end().await;
    let spans = collector.spans();
    let (root, parts) = tree(&spans);
    assert_eq!(
        names(&parts),
        ["receive", "admission", "tokenise", "lookup", "decide", "prefill", "decode first byte", "stream"]
    );
    assert_eq!(
        (root.name.as_str(), root.trace.as_str(), root.parent.as_str()),
        (&*format!("POST {CHAT}"), TRACE, PARENT)
    );
    assert!(spans.iter().all(|span| !span.failed && span.state == "vendor=x"), "{spans:#?}");
    for (key, value) in [
        ("http.request.method", "POST"),
        ("http.route", CHAT),
        ("url.path", CHAT),
        ("http.response.status_code", "200"),
        ("gen_ai.request.model", "sim"),
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.usage.output_tokens", "8"),
        ("pd_proxy.request_id", "req-1"),
        ("pd_proxy.reason", "ok"),
        ("pd_proxy.prefiller", &prefiller.to_string()),
    ] {
        assert_eq!(root.get(key), Some(value), "{key} in {root:#?}");
    }
    let (prefill, decode) = (&parts[5], &parts[6]);
    assert_eq!((prefill.kind, decode.kind, parts[4].kind), (3, 3, 1));
    assert_eq!(prefill.get("server.port").unwrap(), prefiller.port().to_string());
    assert_eq!(
        (prefill.get("pd_proxy.attempt"), prefill.get("http.request.resend_count")),
        (Some("1"), None)
    );
    assert_eq!(prefill.get("pd_proxy.cached_tokens"), Some("0"));
    assert_eq!(prefill.get("gen_ai.usage.input_tokens"), root.get("gen_ai.usage.input_tokens"));
    for (leg, told) in [prefill, decode].into_iter().zip(told) {
        assert_eq!(told, [format!("00-{TRACE}-{}-01", leg.id)], "its engine's parent is the leg");
    }
    assert_eq!(state, ["vendor=x"]);
    nothing_is_given_away(&collector);
}

/// No text, no key; and who sends it is said.
fn nothing_is_given_away(collector: &Collector) {
    for (headers, post) in collector.posts() {
        assert_eq!(headers["content-type"], "application/x-protobuf");
        assert_eq!(headers["x-collector-key"], "hidden");
        let shown = format!("{post:?}");
        assert!(!shown.contains(SECRET_WORDS) && !shown.contains("sk-client") && !shown.contains("hidden"));
        let resource = texts(&post.resource_spans[0].resource.as_ref().unwrap().attributes);
        assert_eq!(resource["service.name"], "edge");
        assert_eq!(resource["service.version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(resource["service.instance.id"].len(), 36);
    }
}

#[tokio::test]
async fn an_answer_in_one_piece_and_one_that_an_engine_gives_alone_are_traced() {
    let collector = Collector::start().await;
    let stage = Stage::set(script(&collector, |_| {})).await;
    assert_eq!(ask(&stage, &chat(false), None).await.status, 200);
    assert_eq!(stage.post("/tokenize", r#"{"prompt":"a"}"#).await.status, 200);
    stage.end().await;
    let spans = collector.spans();
    let of = |name: &str| {
        let root = spans.iter().find(|span| span.name == name).unwrap();
        tree(&spans.iter().filter(|span| span.trace == root.trace).cloned().collect::<Vec<_>>())
    };
    let (root, parts) = of("POST /v1/chat/completions");
    assert_eq!(names(&parts), ["receive", "admission", "decide", "prefill", "decode"]);
    assert_eq!(root.parent, "", "a state without a trace begins one");
    assert_eq!(root.state, "");
    let (root, parts) = of("POST /tokenize");
    assert_eq!(names(&parts), ["errand"]);
    for span in [&root, &parts[0]] {
        assert_eq!(span.get("http.response.status_code"), Some("200"), "{span:#?}");
    }
}

#[tokio::test]
async fn client_sampling_is_kept_and_engines_get_every_trace() {
    for (ratio, flags, kept) in
        [(0.0, None, false), (0.0, Some("01"), true), (1.0, Some("00"), false), (1.0, None, true)]
    {
        let collector = Collector::start().await;
        let stage = Stage::set(script(&collector, |config| config.trace.sample_ratio = ratio)).await;
        assert_eq!(ask(&stage, &chat(false), flags).await.status, 200);
        let told =
            [header_of(&stage.prefillers[0], "traceparent"), header_of(&stage.decoders[0], "traceparent")];
        stage.end().await;
        assert_eq!(!collector.spans().is_empty(), kept, "{ratio} {flags:?}");
        let [prefill, decode] = told.map(|lines| {
            assert_eq!(lines.len(), 1);
            lines[0].clone()
        });
        assert!(prefill.ends_with(if kept { "-01" } else { "-00" }), "{prefill}");
        assert_eq!(prefill[..36], decode[..36], "one trace");
        assert_ne!(prefill[36..], decode[36..], "two spans");
        assert_eq!(prefill.contains(TRACE), flags.is_some());
        assert!(!prefill.contains(PARENT), "the client's span is not the engine's parent");
    }
}

#[tokio::test]
async fn without_an_endpoint_headers_pass_as_they_came() {
    let stage = Stage::set(Script { prefillers: 1, decoders: 1, ..Script::default() }).await;
    let odd = [("traceparent", "00-1-2-01"), ("tracestate", "A B")];
    assert_eq!(stage.send(&post_with(CHAT, &odd, chat(false).to_string().as_bytes())).await.status, 200);
    for engine in stage.engines() {
        assert_eq!(header_of(engine, "traceparent"), ["00-1-2-01"]);
        assert_eq!(header_of(engine, "tracestate"), ["A B"]);
    }
    stage.end().await;
}

#[tokio::test]
async fn every_prompt_of_several_has_spans_of_its_own() {
    let collector = Collector::start().await;
    let stage = Stage::set(script(&collector, |_| {})).await;
    let body = json!({"model": "sim", "prompt": ["a".repeat(200), "b".repeat(200)], "max_tokens": 4});
    assert_eq!(stage.post("/v1/completions", &body.to_string()).await.status, 200);
    stage.end().await;
    let (_, parts) = tree(&collector.spans());
    for prompt in ["0", "1"] {
        let own: Vec<&Seen> = parts.iter().filter(|s| s.get("pd_proxy.prompt") == Some(prompt)).collect();
        let mut names: Vec<&str> = own.iter().map(|span| span.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["decide", "decode", "prefill"]);
        assert!(own.iter().all(|span| span.get("pd_proxy.attempt").is_none_or(|attempt| attempt == "1")));
    }
}

#[tokio::test]
async fn both_legs_of_every_dialect_are_parts_and_their_engines_know_it() {
    for spoken in dialects::EVERY {
        let collector = Collector::start().await;
        let mut script = dialects::script(spoken);
        script.config.trace.endpoint = collector.url.clone();
        let stage = Stage::set(script).await;
        assert!(ask(&stage, &chat(true), None).await.done(), "{spoken:?}");
        let told: Vec<String> = stage.engines().flat_map(|engine| header_of(engine, "traceparent")).collect();
        stage.end().await;
        let spans = collector.spans();
        let root = spans.iter().find(|span| span.kind == 2).unwrap();
        let legs: Vec<&Seen> = spans.iter().filter(|span| span.kind == 3).collect();
        assert!(legs.iter().all(|leg| (&leg.trace, &leg.parent) == (&root.trace, &root.id)), "{spoken:?}");
        for name in ["prefill", "decode first byte"] {
            let well = legs.iter().filter(|leg| leg.name == name && !leg.failed).count();
            assert_eq!(well, 1, "{spoken:?}: {name} in {legs:#?}");
        }
        assert!(!told.is_empty());
        for parent in told {
            assert!(legs.iter().any(|leg| parent.contains(&leg.id)), "{spoken:?}: {parent} in {legs:#?}");
        }
    }
}

#[tokio::test]
async fn items_at_encoders_are_spans() {
    let collector = Collector::start().await;
    let kept = Arc::new(Encodings::default());
    let spec = EngineSpec { role: Role::Both, encodings: Some((Part::Encodes, kept.clone())), ..fast() };
    let encoder = Engine::start(spec, "127.0.0.1:0".parse().unwrap()).await.unwrap();
    let mut script = script(&collector, |config| config.fleet.encode = vec![encoder.addr().to_string()]);
    script.engine.encodings = Some((Part::OnlyFetches, kept));
    let stage = Stage::set(script).await;
    let image = |data: &str| json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}});
    let content = json!([{"type": "text", "text": "what is this?"}, image("AAAA"), image("BBBB")]);
    let body = json!({"model": "sim", "max_tokens": 4, "messages": [{"role": "user", "content": content}]});
    assert_eq!(stage.post(CHAT, &body.to_string()).await.status, 200);
    let mut told = header_of(&encoder, "traceparent");
    told.sort_unstable();
    stage.end().await;
    encoder.stop().await;
    let (_, parts) = tree(&collector.spans());
    let mut items: Vec<String> = parts
        .iter()
        .filter(|s| s.name == "encode" && !s.failed)
        .map(|s| format!("00-{}-{}-01", s.trace, s.id))
        .collect();
    items.sort_unstable();
    assert_eq!((items.len(), items), (2, told));
}
