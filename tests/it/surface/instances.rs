//! Engines that come and go while it runs.

use std::pin::pin;

use pd_proxy::config::Secret;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::common::client::{self, post, post_with};
use crate::common::place;
use crate::common::stage::{Script, Stage, fast, slow};
use crate::common::time::eventually;

use super::moves::busy_decoder;
use super::{CHAT, change, chat, count, lone, name, remove_all};

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

/// vLLM's `disagg_proxy_demo.py` takes one engine, by a name of its own.
#[tokio::test]
async fn one_instance_may_be_named_as_the_demo_proxy_has_it() {
    let stage = Stage::new().await;
    let third = lone(fast(), "127.0.0.1:0").await;
    let body = json!({"type": "prefill", "instance": name(&third)}).to_string();
    let raw = stage.post("/instances/add", &body).await;
    assert_eq!(raw.status, 200, "{}", raw.text());
    assert_eq!(raw.json()["message"], format!("add prefill instances: ['{}'].", name(&third)));
    let twice = json!({"type": "prefill", "instance": "h:1", "instances": ["h:2"]}).to_string();
    assert_eq!(stage.post("/instances/add", &twice).await.status, 400, "which of them?");
    stage.end().await;
}

#[tokio::test]
async fn the_admin_key_guards_all_that_is_for_operators() {
    let mut script = Script::default();
    script.config.server.admin_key = Some(Secret::new("k"));
    let stage = Stage::set(script).await;
    for path in ["/status", "/instances", "/debug/route/x"] {
        let get = |key| format!("GET {path} HTTP/1.1\r\nhost: gateway\r\nx-api-key: {key}\r\n\r\n");
        assert_eq!(stage.get(path).await.status, 401, "{path}");
        assert_eq!(stage.send(get("x").as_bytes()).await.status, 401, "{path}");
        // No request of that id is known.
        let good = if path.ends_with('x') { 404 } else { 200 };
        assert_eq!(stage.send(get("k").as_bytes()).await.status, good, "{path}");
    }
    let reset = "/reset_prefix_cache?reset_running_requests=true";
    for (key, status) in [("", 401), ("x", 401), ("k", 200)] {
        let raw = stage.send(&post_with(reset, &[("x-api-key", key)], b"")).await;
        assert_eq!(raw.status, status, "{key}");
        let asked = stage.engines().filter(|engine| !engine.seen().is_empty()).count();
        assert_eq!(asked, if status == 200 { 4 } else { 0 }, "{key}");
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
    assert_eq!(engine.seen().iter().filter(|s| s.path == CHAT).count(), 1, "whole, by one that is both");
    stage.end().await;
}

#[tokio::test]
async fn an_instance_that_is_not_up_yet_joins_when_it_is() {
    let mut script = Script::default();
    script.config.fleet.probe_interval_ms = 20;
    script.config.fleet.probe_attempts = 1_000;
    let stage = Stage::set(script).await;
    let late = place::own().to_string();
    let here = name(&stage.decoders[0]);
    let raw = stage.post("/instances/add", &change("prefill", json!([late]))).await;
    assert_eq!(raw.json()["message"], format!("Instances ['{late}'] are waiting to be added."));
    assert_eq!(raw.json()["current_prefill_instances"].as_array().unwrap().len(), 2);
    let raw = stage.post("/instances/add", &change("prefill", json!([late, here]))).await;
    let message = format!("add prefill instances: ['{here}']. Instances ['{late}'] are waiting to be added.");
    assert_eq!(raw.json()["message"], message);

    let engine = lone(fast(), &late).await;
    let listed = async || stage.get("/status").await.json()["prefill_nodes"].to_string().contains(&late);
    eventually("the late one is listed", listed).await;
    let served = async || {
        let raw = stage.post(CHAT, &chat("x").to_string()).await;
        assert_eq!(raw.status, 200);
        engine.seen().iter().any(|s| s.path == CHAT)
    };
    eventually("the late one serves", served).await;
    let nodes = stage.get("/status").await.json()["prefill_nodes"].to_string();
    assert_eq!(nodes.matches(&late).count(), 1, "it was asked for twice and is listed once");
    stage.end().await;
}

/// Rollouts are quicker than engines that load their weights.
#[tokio::test]
async fn engine_removed_before_its_first_answer_does_not_join() {
    let mut script = Script::default();
    script.config.fleet.probe_interval_ms = 20;
    script.config.fleet.probe_timeout_ms = 5_000;
    let stage = Stage::set(script).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let late = listener.local_addr().unwrap().to_string();
    let asked = change("decode", json!([late]));
    let add = stage.post("/instances/add", &asked);
    let (added, ()) = tokio::join!(add, async {
        let (mut socket, _) = listener.accept().await.unwrap();
        let removed = stage.post("/instances/remove", &change("decode", json!([late]))).await;
        assert_eq!(removed.json()["message"], format!("remove decode instances: ['{late}']."));
        socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
        socket.flush().await.unwrap();
        let _ = socket.read(&mut [0; 4_096]).await;
    });
    assert_eq!(added.status, 200);
    assert!(!added.text().contains(&late), "{}", added.text());
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
    eventually("a decoder writes", busy).await;
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
async fn removal_that_is_awaited_fails_where_the_engine_is_added_again() {
    let (stage, mut socket, at) = busy_decoder().await;
    let leaving = name(&stage.decoders[at]);
    let body = change("decode", json!(leaving));
    let told = post("/instances/remove?wait_ms=600000", &body);
    let mut order = pin!(client::send(stage.gateway, &told));
    let drains = async || stage.get("/instances").await.text().contains("\"draining\":true");
    tokio::select! {
        raw = &mut order => panic!("it still has a request: {}", raw.text()),
        () = eventually("it drains", drains) => {}
    }
    assert_eq!(stage.post("/instances/add", &body).await.status, 200);
    let raw = order.await;
    let message = raw.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert_eq!(raw.status, 502, "{}", raw.text());
    assert!(message.contains(&format!("`{leaving}` was added again")), "{message}");
    let stream = client::read(&mut socket).await;
    assert!(stream.complete && stream.done(), "{}", stream.text());
    stage.end().await;
}

#[tokio::test]
async fn change_refuses_queries_that_mean_nothing() {
    let stage = Stage::new().await;
    let body = change("decode", json!(name(&stage.decoders[0])));
    for (target, param) in [
        ("/instances/remove?drain_ms=5000", "drain_ms"),
        ("/instances/remove?wait=1", "wait"),
        ("/instances/remove?wait_ms=1&wait_ms=2", "wait_ms"),
        ("/instances/remove?wait_ms=1&fleet=x", "fleet"),
        ("/instances/add?wait_ms=1", "wait_ms"),
    ] {
        let raw = stage.post(target, &body).await;
        let told = raw.json()["error"].clone();
        assert_eq!(raw.status, 400, "{target}: {told}");
        assert!(told["message"].as_str().unwrap().contains(&format!("`{param}")), "{target}: {told}");
    }
    assert_eq!(stage.get("/status").await.json()["decode_node_count"], 2, "nothing was done");
    let raw = stage.post("/instances/remove?wait%5Fms=%35000", &body).await;
    assert_eq!(raw.status, 200, "{}", raw.text());
    stage.end().await;
}
