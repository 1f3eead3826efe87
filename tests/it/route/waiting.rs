//! Requests wait in the gateway, not in an engine's queue.

use futures_util::future::join_all;
use pd_proxy::config::Bind;
use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{CHAT, ask, chat, script};
use crate::common::client::{self, Raw, get, post};
use crate::common::stage::{Script, Stage};
use crate::common::time::{eventually, watching};

/// One prefiller that takes long, and takes one request at a time: the next one when it has ended,
/// and not when it was predicted to.
fn narrow(bind: Bind) -> Script {
    let mut script = script(1, 2_000.0);
    script.config.route.bind = bind;
    (script.config.route.batch_tokens, script.config.route.open_ms) = (0, 1);
    script
}

/// The most requests that the prefiller had at a time.
async fn most_at_once(bind: Bind) -> usize {
    let stage = Stage::set(narrow(bind)).await;
    let all = join_all((0..6).map(async |n| {
        let body = chat(n, 1, 400);
        ask(stage.gateway, &body).await
    }));
    let mut most = 0;
    watching(all, || {
        let ledger = stage.prefillers[0].ledger();
        most = most.max(ledger.running + ledger.waiting);
    })
    .await;
    stage.assert_nothing_left("all served").await;
    stage.end().await;
    most
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_binding_leaves_the_queue_in_the_gateway() {
    let (late, arrival) = (most_at_once(Bind::Late).await, most_at_once(Bind::Arrival).await);
    assert!(late <= 2, "{late} at once on the engine");
    assert!(arrival >= 5, "{arrival} at once on the engine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_leaves_the_queue_is_never_sent() {
    let stage = Stage::set(narrow(Bind::Late)).await;
    // The first request stays until its client leaves, however long the others take to come and go.
    stage.prefillers[0].inject(Fault::once(FaultKind::StallBeforeHead));
    let mut sockets = Vec::new();
    for n in 0..4 {
        let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
        socket.write_all(&post(CHAT, &chat(n, 1, 2_000).to_string())).await.unwrap();
        sockets.push(socket);
        let arrived = async || sent(&stage) == 1 && dry_waiting(&stage).await == n as u64;
        eventually("the first is on the engine, each of the others waits after it", arrived).await;
    }
    sockets.truncate(1);
    eventually("they left", async || dry_waiting(&stage).await == 0).await;
    sockets.clear();
    ask(stage.gateway, &chat(9, 1, 400)).await;
    assert_eq!(sent(&stage), 2, "the first and the last, and none of those that left");
    stage.assert_nothing_left("one served, four gone").await;
    stage.end().await;
}

/// Chats that the prefiller has been sent.
fn sent(stage: &Stage) -> usize {
    stage.seen(&stage.prefillers).iter().filter(|seen| seen.path == CHAT).count()
}

async fn dry_waiting(stage: &Stage) -> u64 {
    stage.post("/debug/route", &chat(77, 1, 8).to_string()).await.json()["waiting"].as_u64().unwrap()
}

async fn remove(stage: &Stage, kind: &str, engine: &Engine) -> Raw {
    let body = json!({"type": kind, "instances": [engine.addr().to_string()]});
    stage.post("/instances/remove", &body.to_string()).await
}

/// While one request runs there and another one waits for it.
async fn a_prefiller_leaves(alone: bool) {
    let mut script = narrow(Bind::Late);
    script.config.route.bypass_without_prefiller = alone;
    let stage = Stage::set(script).await;
    let mut first = TcpStream::connect(stage.gateway).await.unwrap();
    first.write_all(&post(CHAT, &chat(1, 1, 2_000).to_string())).await.unwrap();
    eventually("it runs", async || stage.prefillers[0].ledger().running == 1).await;
    let body = post(CHAT, &chat(2, 1, 2_000).to_string());
    let second = client::send(stage.gateway, &body);
    let remove = async {
        eventually("one waits", async || dry_waiting(&stage).await == 1).await;
        remove(&stage, "prefill", &stage.prefillers[0]).await
    };
    let (second, removed) = tokio::join!(second, remove);
    assert_eq!(removed.status, 200);
    let ready = client::send(stage.gateway, &get("/readyz")).await.status;
    if alone {
        assert_eq!((second.status, ready), (200, 200));
    } else {
        assert_eq!((second.status, second.header("x-pd-error"), ready), (503, Some("no_prefiller"), 503));
    }
    assert_eq!(client::read(&mut first).await.status, 200, "what runs there is finished");
    stage.assert_nothing_left("nobody waits").await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefiller_that_leaves_sends_its_line_home() {
    a_prefiller_leaves(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn or_to_decoders_where_they_may_do_without() {
    a_prefiller_leaves(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_decoders_do_not_leave_what_is_computed_for_it() {
    let stage = Stage::set(narrow(Bind::Late)).await;
    let mut sockets = Vec::new();
    for n in 0..2 {
        let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
        socket.write_all(&post(CHAT, &chat(n, 1, 1_000).to_string())).await.unwrap();
        sockets.push(socket);
    }
    // The gateway counts a request that it has sent before the engine has it.
    let both = async || dry_waiting(&stage).await == 1 && stage.prefillers[0].ledger().running == 1;
    eventually("one runs, and one waits", both).await;
    for decoder in &stage.decoders {
        assert_eq!(remove(&stage, "decode", decoder).await.status, 200);
    }
    let new = stage.post(CHAT, &chat(9, 1, 8).to_string()).await;
    assert_eq!((new.status, new.header("x-pd-error")), (503, Some("no_decoder")), "nobody new");
    let several = json!({"model": "sim", "prompt": ["a", "b"], "max_tokens": 2}).to_string();
    let new = stage.post("/v1/completions", &several).await;
    assert_eq!((new.status, new.header("x-pd-error")), (503, Some("no_decoder")), "nor with several prompts");
    // This one leaves while its prompt is computed, and its blocks are fetched all the same.
    drop(sockets.remove(0));
    assert_eq!(client::read(&mut sockets[0]).await.status, 200);
    stage.assert_nothing_left("one served, one gone").await;
    assert_eq!(stage.expired(), 0);
    eventually("the decoders are gone", async || {
        let listed = client::send(stage.gateway, &get("/instances")).await.json();
        !listed["instances"].as_array().unwrap().iter().any(|it| it["type"] == "decode")
    })
    .await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_prompts_may_go_to_a_decoder_alone() {
    let mut script = script(1, 20_000.0);
    script.config.route.bypass_tokens = 64;
    script.config.route.bypass_without_prefiller = true;
    let stage = Stage::set(script).await;
    let generated = |engines: &[pd_proxy::sim::Engine]| {
        stage.seen(engines).iter().filter(|seen| seen.path == CHAT).count()
    };
    assert_eq!(stage.post(CHAT, &chat(1, 1, 40).to_string()).await.status, 200);
    assert_eq!((generated(&stage.prefillers), generated(&stage.decoders)), (0, 1), "short");
    assert_eq!(stage.post(CHAT, &chat(2, 1, 400).to_string()).await.status, 200);
    assert_eq!((generated(&stage.prefillers), generated(&stage.decoders)), (1, 2), "long");
    remove(&stage, "prefill", &stage.prefillers[0]).await;
    assert_eq!(stage.post(CHAT, &chat(3, 1, 400).to_string()).await.status, 200, "no prefiller");
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_gateways_see_each_others_load() {
    let mut script = script(2, 2_000.0);
    script.config.route.scrape_ms = 20;
    script.engine = EngineSpec { tpot_ms: 20.0, ..script.engine };
    let stage = Stage::set(script).await;
    // Something of its own, from which it knows how long requests are.
    ask(stage.gateway, &chat(1, 1, 400)).await;
    // And answers that take long: their prefillers hold the hand-offs until they are whole, but
    // have nothing to do.
    let mut answers = Vec::new();
    for n in 2..6 {
        let mut body = chat(n, 1, 100);
        body["max_tokens"] = json!(2_000);
        let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
        socket.write_all(&post(CHAT, &body.to_string())).await.unwrap();
        answers.push(socket);
    }
    let decoding = async || stage.decoders.iter().map(|it| it.ledger().running).sum::<usize>() == 4;
    eventually("four answers are being decoded", decoding).await;
    // Another gateway's request, of which this one knows only by the engine's own word.
    let mut foreign = TcpStream::connect(stage.prefillers[0].addr()).await.unwrap();
    foreign.write_all(&post(CHAT, &chat(50, 1, 8_000).to_string())).await.unwrap();
    let busy = stage.prefillers[0].addr().to_string();
    let seen = async || {
        let dry = stage.post("/debug/route", &chat(9, 1, 100).to_string()).await.json();
        let all = dry["candidates"].as_array().unwrap().clone();
        all.iter().any(|it| it["prefiller"] == busy && it["backlog_s"].as_f64().unwrap() > 0.0)
    };
    eventually("the other's request is seen", seen).await;
    stage.end().await;
}
