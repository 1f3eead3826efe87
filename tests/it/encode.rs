//! Encoders of their own: what each is sent, that prefillers find what was encoded, and how the
//! stage fails.

use std::net::SocketAddr;
use std::sync::Arc;

use pd_proxy::config::DialectName;
use pd_proxy::sim::{Encodings, Engine, EngineSpec, Fault, FaultKind, ObservedRequest, Part, Role};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::common::client;
use crate::common::stage::{Script, Stage, fast, slow};
use crate::common::time::{eventually, watching};
use crate::dialects;
use crate::health::member;

/// Encoders and what they keep, and a stage whose prefillers can't do without.
struct Encoders {
    encoders: Vec<Engine>,
    kept: Arc<Encodings>,
    stage: Stage,
}

const CHAT: &str = "/v1/chat/completions";

fn image(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url}})
}

/// A chat with two images and a sound, and options that encoders must know.
fn pictures(stream: bool) -> Value {
    let sound = json!({"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}});
    json!({"model": "sim", "max_tokens": 8, "stream": stream, "mm_processor_kwargs": {"fps": 2}, "messages": [
        {"role": "user", "content": [{"type": "text", "text": "what is this? ".repeat(8)}, image("data:image/png;base64,AAAA")]},
        {"role": "assistant", "content": "a cat"},
        {"role": "user", "content": [image("http://images/b.png"), sound, {"type": "text", "text": "and these?"}]}]})
}

impl Encoders {
    async fn set(count: usize, engine: EngineSpec, script: Script) -> Encoders {
        let kept = Arc::new(Encodings::default());
        Encoders::keeping(&vec![kept; count], engine, script).await
    }

    /// The first one keeps what it encodes where no prefiller looks: another storage path than
    /// theirs.
    async fn apart(count: usize, script: Script) -> Encoders {
        let shared = Arc::new(Encodings::default());
        let mut kept: Vec<_> = std::iter::repeat_with(|| shared.clone()).take(count).collect();
        kept[0] = Arc::new(Encodings::default());
        Encoders::keeping(&kept, fast(), script).await
    }

    /// An encoder for each of `stores`; prefillers look into the last one.
    async fn keeping(stores: &[Arc<Encodings>], engine: EngineSpec, mut script: Script) -> Encoders {
        let kept = stores.last().unwrap().clone();
        let mut encoders = Vec::new();
        for store in stores {
            let encodings = Some((Part::Encodes, store.clone()));
            let spec = EngineSpec { role: Role::Both, encodings, ..engine.clone() };
            encoders.push(Engine::start(spec, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap());
        }
        script.engine.encodings = Some((Part::OnlyFetches, kept.clone()));
        script.config.fleet.encode = encoders.iter().map(|engine| engine.addr().to_string()).collect();
        Encoders { encoders, kept, stage: Stage::set(script).await }
    }

    async fn new(count: usize) -> Encoders {
        Encoders::set(count, fast(), Script::default()).await
    }

    fn seen(&self) -> Vec<ObservedRequest> {
        self.stage.seen(&self.encoders)
    }

    fn fail(&self, what: &FaultKind) {
        self.encoders
            .iter()
            .for_each(|engine| assert!(engine.inject(Fault::always(what.clone()).on_path("/v1/"))));
    }

    async fn end(self) {
        self.stage.assert_nothing_left("at the end").await;
        self.stage.end().await;
        for encoder in self.encoders {
            assert_eq!((encoder.ledger().running, encoder.ledger().pinned_blocks), (0, 0));
            encoder.stop().await;
        }
    }
}

fn header<'a>(seen: &'a ObservedRequest, name: &str) -> Option<&'a str> {
    seen.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// In every dialect: the encoders are sent each item alone, in the form of vLLM's
/// `disagg_epd_proxy.py`, and both legs are told what they said.
#[tokio::test]
async fn items_are_encoded_one_by_one_before_anything_else() {
    for spoken in dialects::EVERY {
        let all = Encoders::set(2, fast(), dialects::script(spoken)).await;
        for stream in [false, true] {
            let sent = pictures(stream);
            let request = client::post_with(CHAT, &[("x-request-id", "mine")], sent.to_string().as_bytes());
            all.stage.forget();
            all.encoders.iter().for_each(Engine::clear_seen);
            let answer = all.stage.send(&request).await;
            assert_eq!((answer.status, answer.complete), (200, true), "{spoken:?}: {}", answer.text());
            let seen = all.seen();
            let mut bodies: Vec<Value> =
                seen.iter().map(|seen| serde_json::from_slice(&seen.body).unwrap()).collect();
            bodies.sort_by_key(|body| body["messages"][0]["content"][0].to_string());
            let alone = |item: &Value| {
                json!({"model": "sim", "mm_processor_kwargs": {"fps": 2}, "max_tokens": 1, "stream": false,
                    "messages": [{"role": "user", "content": [item]}]})
            };
            let (first, last) = (&sent["messages"][0]["content"], &sent["messages"][2]["content"]);
            assert_eq!(bodies, [alone(&first[1]), alone(&last[0]), alone(&last[1])], "{spoken:?}");
            let mut ids: Vec<&str> = seen.iter().filter_map(|seen| header(seen, "x-request-id")).collect();
            ids.sort_unstable();
            for (at, id) in ids.iter().enumerate() {
                let random = id.strip_prefix(&format!("mine:{at}:")).unwrap();
                assert!(random.len() == 6 && random.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
            }
            assert!(seen.iter().all(|seen| seen.path == CHAT));
            for leg in
                all.stage.seen(&all.stage.prefillers).iter().chain(&all.stage.seen(&all.stage.decoders))
            {
                let body: Value = serde_json::from_slice(&leg.body).unwrap();
                assert_eq!(body["messages"], sent["messages"], "{spoken:?}: the items stay where they are");
                assert_eq!(body["ec_transfer_params"].as_object().map(serde_json::Map::len), Some(3));
            }
        }
        let counts = (all.kept.encoded(), all.kept.fetched(), all.kept.computed());
        assert_eq!(counts, (6, 6, 0), "{spoken:?}");
        let both = all.encoders.iter().all(|encoder| !encoder.seen().is_empty());
        assert!(both, "{spoken:?}: encoders share the items");
        all.end().await;
    }
}

#[tokio::test]
async fn the_answer_is_that_of_engines_which_encode_themselves() {
    let alone = Stage::set(Script::default()).await;
    let all = Encoders::new(1).await;
    for stream in [false, true] {
        let body = pictures(stream).to_string();
        assert_eq!(all.stage.post(CHAT, &body).await.words(), alone.post(CHAT, &body).await.words());
    }
    all.end().await;
    alone.end().await;
}

#[tokio::test]
async fn a_request_without_items_knows_no_encoder() {
    let all = Encoders::new(1).await;
    all.fail(&FaultKind::Status(500, None));
    for (path, body) in [
        dialects::completion(false),
        dialects::chat(true),
        (
            CHAT,
            r#"{"model":"sim","messages":[{"role":"user","content":[{"type":"text","text":"image_url"}]}]}"#
                .into(),
        ),
    ] {
        assert_eq!(all.stage.post(path, &body).await.status, 200);
    }
    assert_eq!(all.seen().len(), 0);
    all.end().await;
}

#[tokio::test]
async fn clients_encoding_params_reach_no_engine() {
    let all = Encoders::new(1).await;
    let mut body = pictures(false);
    body["ec_transfer_params"] = json!({"evil": {"peer_host": "evil"}});
    assert_eq!(all.stage.post(CHAT, &body.to_string()).await.status, 200);
    for seen in all.stage.engines().chain(&all.encoders).flat_map(Engine::seen) {
        assert!(!String::from_utf8_lossy(&seen.body).contains("evil"), "{}", seen.path);
    }
    all.end().await;
}

#[tokio::test]
async fn an_encoder_that_fails_is_replaced_by_another() {
    let bad = || FaultKind::Events(b"{\"ec_transfer_params\":7}".as_slice().into());
    for what in [
        FaultKind::Refuse,
        FaultKind::Status(500, None),
        FaultKind::Status(503, None),
        FaultKind::ResetBeforeHead,
        bad(),
    ] {
        let all = Encoders::new(2).await;
        assert!(all.encoders[0].inject(Fault::always(what.clone()).on_path("/v1/")));
        for stream in [false, true] {
            let answer = all.stage.post(CHAT, &pictures(stream).to_string()).await;
            assert_eq!((answer.status, answer.complete), (200, true), "{what:?}: {}", answer.text());
        }
        assert_eq!((all.kept.fetched(), all.kept.computed()), (6, 0), "{what:?}");
        all.end().await;
    }
}

/// A chat with one image.
fn picture(n: usize) -> String {
    let content =
        json!([{"type": "text", "text": "what is this?"}, image(&format!("http://images/{n}.png"))]);
    json!({"model": "sim", "max_tokens": 4, "messages": [{"role": "user", "content": content}]}).to_string()
}

#[tokio::test]
async fn an_encoder_whose_encodings_nobody_finds_rests_and_no_prefiller_does() {
    let mut script = Script { prefillers: 3, ..Script::default() };
    // No rest ends within the test.
    script.config.health.rest_ms = 60_000;
    script.config.health.rest_max_ms = 60_000;
    let all = Encoders::apart(3, script).await;
    let bad = all.encoders[0].addr();
    let mut failed = 0;
    for n in 0..60 {
        let answer = all.stage.post(CHAT, &picture(n)).await;
        failed += usize::from(answer.status != 200);
        if member(all.stage.gateway, "encode", bad).await["breaker"] == "open" {
            break;
        }
    }
    assert!(failed <= 6, "{failed} failed");
    let encoder = member(all.stage.gateway, "encode", bad).await;
    assert_eq!((&encoder["breaker"], &encoder["rests_for_handoffs"]), (&json!("open"), &json!(true)));
    for n in 100..120 {
        let answer = all.stage.post(CHAT, &picture(n)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    for prefiller in &all.stage.prefillers {
        assert_eq!(member(all.stage.gateway, "prefill", prefiller.addr()).await["breaker"], "closed");
    }
    for encoder in &all.encoders[1..] {
        assert_eq!(member(all.stage.gateway, "encode", encoder.addr()).await["breaker"], "closed");
    }
    all.end().await;
}

#[tokio::test]
async fn failed_encoding_is_reported_and_nothing_is_computed() {
    for (what, status, code) in [
        (FaultKind::Status(500, None), 502, "encode_failed"),
        (FaultKind::Refuse, 502, "encode_failed"),
        (FaultKind::Status(503, None), 503, "overloaded"),
        (FaultKind::StallBeforeHead, 504, "encode_timeout"),
    ] {
        let mut script = Script::default();
        script.config.timeout.encode_ms = 150;
        let all = Encoders::set(2, fast(), script).await;
        all.fail(&what);
        let answer = all.stage.post(CHAT, &pictures(true).to_string()).await;
        assert_eq!((answer.status, answer.header("x-pd-error")), (status, Some(code)), "{what:?}");
        let text = answer.text();
        assert!(!all.encoders.iter().any(|it| text.contains(&it.addr().port().to_string())), "{text}");
        assert_eq!(all.stage.seen(&all.stage.prefillers).len(), 0, "{what:?}");
        all.end().await;
    }
}

#[tokio::test]
async fn encoder_refusal_is_the_answer() {
    let all = Encoders::new(2).await;
    // Encoders that serve are believed.
    eventually("each encoder has served", async || {
        assert_eq!(all.stage.post(CHAT, &pictures(true).to_string()).await.status, 200);
        all.encoders.iter().all(|encoder| !encoder.seen().is_empty())
    })
    .await;
    let (prefilled, encoded) = (all.stage.seen(&all.stage.prefillers).len(), all.seen().len());
    let refusal = r#"{"error":{"message":"cannot identify image file","type":"BadRequestError","param":null,"code":400}}"#;
    all.fail(&FaultKind::Status(400, Some(refusal.into())));
    let answer = all.stage.post(CHAT, &pictures(true).to_string()).await;
    assert_eq!((answer.status, answer.text().as_str()), (400, refusal));
    assert_eq!(all.stage.seen(&all.stage.prefillers).len(), prefilled);
    assert!(all.seen().len() - encoded <= 3, "a refusal is not tried again");
    all.end().await;
}

#[tokio::test]
async fn more_items_than_allowed_are_refused() {
    let mut script = Script::default();
    script.config.limit.encode_items = 2;
    let all = Encoders::set(1, fast(), script).await;
    let answer = all.stage.post(CHAT, &pictures(false).to_string()).await;
    assert_eq!((answer.status, answer.header("x-pd-error")), (400, Some("invalid_value")));
    assert!(answer.text().contains("limit.encode_items"), "{}", answer.text());
    assert_eq!(all.seen().len(), 0);
    all.end().await;
}

/// More than are sent at once: the others wait, and none is forgotten.
#[tokio::test]
async fn many_items_go_a_few_at_a_time() {
    let all = Encoders::set(1, EngineSpec { tpot_ms: 20.0, ..slow() }, Script::default()).await;
    let content: Vec<Value> = (0..40).map(|n| image(&format!("http://images/{n}"))).collect();
    let body = json!({"model": "sim", "max_tokens": 2, "messages": [{"role": "user", "content": content}]})
        .to_string();
    let mut most = 0;
    let count = || most = most.max(all.encoders[0].ledger().running + all.encoders[0].ledger().waiting);
    let answer = watching(all.stage.post(CHAT, &body), count).await;
    assert_eq!((answer.status, all.kept.fetched()), (200, 40), "{}", answer.text());
    assert!((2..=16).contains(&most), "{most}");
    all.end().await;
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_items_along() {
    let all = Encoders::set(1, EngineSpec { prefill_tokens_per_s: 1.0, ..slow() }, Script::default()).await;
    let mut leaving = TcpStream::connect(all.stage.gateway).await.unwrap();
    leaving.write_all(&client::post(CHAT, &pictures(true).to_string())).await.unwrap();
    let work = || all.encoders[0].ledger().running + all.encoders[0].ledger().waiting;
    eventually("work", async || work() > 0).await;
    drop(leaving);
    eventually("no work", async || work() == 0).await;
    assert_eq!((all.kept.encoded(), all.stage.seen(&all.stage.prefillers).len()), (0, 0));
    all.end().await;
}

/// Engines that do both (E+PD): the request goes there whole, when its items are encoded.
#[tokio::test]
async fn an_engine_that_does_both_gets_the_request_when_its_items_are_encoded() {
    let kept = Arc::new(Encodings::default());
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let encodes = EngineSpec { encodings: Some((Part::Encodes, kept.clone())), ..fast() };
    let encoder = Engine::start(encodes, any).await.unwrap();
    let fetches = EngineSpec { encodings: Some((Part::OnlyFetches, kept.clone())), ..fast() };
    let both = Engine::start(fetches, any).await.unwrap();
    let mut script = Script { prefillers: 0, decoders: 0, ..Script::default() };
    script.config.dialect.name = DialectName::KvTransfer;
    let name = |engine: &Engine| vec![engine.addr().to_string()];
    let mut config = script.config;
    (config.fleet.prefill, config.fleet.decode, config.fleet.encode) =
        (name(&both), name(&both), name(&encoder));
    let app = pd_proxy::app::App::build(&config).await.unwrap();
    let (gateway, stop) = (app.addresses()[0], app.stop());
    #[expect(clippy::disallowed_methods, reason = "it is waited for below")]
    let serving = tokio::spawn(app.serve());
    let answer = client::send(gateway, &client::post(CHAT, &pictures(true).to_string())).await;
    assert_eq!((answer.status, kept.fetched(), kept.computed()), (200, 3, 0), "{}", answer.text());
    stop.cancel();
    serving.await.unwrap();
    encoder.stop().await;
    both.stop().await;
}
