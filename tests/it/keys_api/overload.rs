//! Turned away at once, rather than served late.

use std::sync::Mutex;

use futures_util::future::join_all;
use pd_proxy::obs::names;
use pd_proxy::sim::EngineSpec;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{CHAT, ask, chat, code, keys, script as keyed};
use crate::common::client::post;
use crate::common::stage::{Script, Stage, slow};
use crate::common::time::eventually;
use crate::surface::samples;

/// A chat of about so many tokens.
fn long(word: &str, tokens: usize) -> Value {
    let text = format!("{word} ").repeat(tokens);
    json!({"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 1})
}

/// A request that is under way until its socket is dropped.
async fn open(stage: &Stage, body: &Value) -> TcpStream {
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    socket.write_all(&post(CHAT, &body.to_string())).await.unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_would_wait_too_long_is_refused_at_once() {
    let mut script = Script { prefillers: 1, ..Script::default() };
    script.engine = EngineSpec { prefill_tokens_per_s: 1_000.0, ..script.engine };
    script.config.route.batch_tokens = 0;
    script.config.route.ttft_slo_ms = 300;
    let stage = Stage::set(script).await;
    // From these it learns how long prompts take.
    for (word, tokens) in [("a", 200), ("b", 400), ("c", 100)] {
        assert_eq!(stage.post(CHAT, &long(word, tokens).to_string()).await.status, 200);
    }
    let busy = open(&stage, &long("d", 6_000)).await;
    eventually("it runs", async || stage.prefillers[0].ledger().running == 1).await;
    let refused = stage.post(CHAT, &long("e", 20).to_string()).await;
    assert_eq!(code(&refused), (503, Some("overloaded")), "{}", refused.text());
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    drop(busy);
    eventually("there is room again", async || {
        stage.post(CHAT, &long("f", 20).to_string()).await.status == 200
    })
    .await;
    stage.assert_nothing_left("one left").await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_floods_keeps_no_other_waiting() {
    let dir = keys(&[("loud", ""), ("quiet", "")]);
    let mut script = keyed(&dir);
    script.engine = slow();
    script.config.limit.inflight = 1;
    script.config.limit.queue = 40;
    let stage = Stage::set(script).await;
    let order = Mutex::new(Vec::new());
    let one = async |name: &'static str| {
        let raw = stage.send(&ask(name, &chat(12))).await;
        assert_eq!(raw.status, 200, "{}", raw.text());
        order.lock().unwrap().push(name);
    };
    // Holds the only place until all others stand in line.
    let mut body = chat(2_000);
    body["stream"] = true.into();
    let mut first = TcpStream::connect(stage.gateway).await.unwrap();
    first.write_all(&ask("loud", &body)).await.unwrap();
    first.read_exact(&mut [0; 16]).await.unwrap();
    let loud = join_all((0..12).map(|_| one("loud")));
    let quiet = join_all((0..2).map(|_| one("quiet")));
    let begin = async {
        let queued = async || samples(&stage.get("/metrics").await.text())[names::QUEUED] >= 14.0;
        eventually("all stand in line", queued).await;
        drop(first);
    };
    tokio::join!(loud, quiet, begin);
    let order = order.into_inner().unwrap();
    let last = order.iter().rposition(|name| *name == "quiet").unwrap();
    assert!(last < 8, "{order:?}");
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_has_at_most_its_share_of_the_places() {
    let dir = keys(&[("loud", ""), ("quiet", "")]);
    let mut script = keyed(&dir);
    script.engine = slow();
    script.config.limit.inflight = 4;
    let stage = Stage::set(script).await;
    let mut body = chat(100_000);
    body["stream"] = true.into();
    let mut streams = Vec::new();
    for _ in 0..6 {
        let mut stream = TcpStream::connect(stage.gateway).await.unwrap();
        stream.write_all(&ask("loud", &body)).await.unwrap();
        streams.push(stream);
    }
    let queued = async || samples(&stage.get("/metrics").await.text())[names::QUEUED] >= 4.0;
    eventually("half of the places are not for this key", queued).await;
    let raw = stage.send(&ask("quiet", &chat(2))).await;
    assert_eq!(raw.status, 200, "{}", raw.text());
    assert!(samples(&stage.get("/metrics").await.text())[names::QUEUED] >= 4.0, "the others still wait");
    drop(streams);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_side_has_a_limit_of_its_own_and_the_status_is_as_configured() {
    for (prefill, decode) in [(1, 0), (0, 1)] {
        let mut script = Script { prefillers: 1, decoders: 1, ..Script::default() };
        script.engine = EngineSpec { tpot_ms: 50.0, ..slow() };
        script.config.limit.prefill_inflight = prefill;
        script.config.limit.decode_inflight = decode;
        script.config.limit.overload_status = 429;
        let stage = Stage::set(script).await;
        let mut body = if prefill == 1 { long("a", 20_000) } else { chat(2_000) };
        body["stream"] = true.into();
        let mut first = open(&stage, &body).await;
        if decode == 1 {
            first.read_exact(&mut [0; 16]).await.unwrap();
        } else {
            eventually("it is prefilled", async || stage.prefillers[0].ledger().running == 1).await;
        }
        let refused = stage.post(CHAT, &chat(1).to_string()).await;
        assert_eq!(code(&refused), (429, Some("overloaded")), "{prefill} {decode}: {}", refused.text());
        assert_eq!(refused.header("retry-after"), Some("1"));
        drop(first);
        eventually("its place is free again", async || {
            stage.post(CHAT, &chat(1).to_string()).await.status == 200
        })
        .await;
        stage.assert_nothing_left("one left").await;
        stage.end().await;
    }
}
