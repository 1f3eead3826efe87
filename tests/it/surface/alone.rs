//! Metrics and log lines of requests that one engine answers alone, however they end.

use std::net::SocketAddr;

use pd_proxy::sim::{ConnectionEnd, Engine, Fault, FaultKind};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::command::{Process, pair};
use crate::common::client::{self, get, post};
use crate::common::stage::fast;
use crate::common::time::eventually;

use super::{CHAT, long_text, name, samples};

const TOKENIZE: &str = "/tokenize";
/// Behind an engine's head, before the end of its answer.
const MIDDLE_BYTES: usize = 600;

/// A gateway in a process of its own: metrics belong to a process.
struct Alone {
    process: Process,
    gateway: SocketAddr,
    prefill: Engine,
    decode: Engine,
}

impl Alone {
    async fn start() -> Alone {
        Alone::with(&[]).await
    }

    async fn with(more: &[&str]) -> Alone {
        let (prefill, decode) = pair(fast()).await;
        let flags = ["--set", "log.format=json", "--set", "health.probe_ms=0"];
        let flags = [&flags[..], more].concat();
        let (process, gateway) = Process::gateway(&prefill, &decode, &flags, &[]);
        Alone { process, gateway, prefill, decode }
    }

    fn request() -> Vec<u8> {
        let body = serde_json::json!({"model": "sim", "prompt": long_text(), "return_token_strs": true});
        post(TOKENIZE, &body.to_string())
    }

    /// The log line of the next request that is over.
    fn line(&mut self) -> Value {
        let line = self.process.wait_for(r#""message":"request""#);
        serde_json::from_str(&line).unwrap()
    }

    async fn count(&self, series: &str) -> f64 {
        let text = client::send(self.gateway, &get("/metrics")).await.text();
        samples(&text).get(series).copied().unwrap_or(0.0)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_client_that_leaves_is_counted_and_logged() {
    let mut it = Alone::start().await;
    for (n, what, status) in
        [(1.0, FaultKind::StallBeforeHead, 499), (2.0, FaultKind::StallAfterBytes(MIDDLE_BYTES), 200)]
    {
        it.prefill.clear_seen();
        it.prefill.inject(Fault::once(what).on_path(TOKENIZE));
        let mut socket = TcpStream::connect(it.gateway).await.unwrap();
        socket.write_all(&Alone::request()).await.unwrap();
        eventually("the engine is asked", async || {
            it.prefill.seen().iter().any(|seen| seen.path == TOKENIZE)
        })
        .await;
        if status == 200 {
            socket.read_exact(&mut [0; 16]).await.unwrap();
        }
        drop(socket);
        let line = it.line();
        assert_eq!((&line["status"], &line["reason"]), (&status.into(), &"client_gone".into()), "{line}");
        assert_eq!(line["prefiller"], name(&it.prefill), "{line}");
        let ended =
            format!(r#"pd_proxy_requests_total{{route="passthrough",code="{status}",reason="client_gone"}}"#);
        assert_eq!(it.count(&ended).await, 1.0);
        let of_key = r#"pd_proxy_key_requests_total{key="anyone",outcome="client_gone"}"#;
        assert_eq!(it.count(of_key).await, n);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_answer_that_breaks_off_is_no_good_one() {
    let mut it = Alone::start().await;
    it.prefill.inject(
        Fault::once(FaultKind::CutAfterBytes { bytes: MIDDLE_BYTES, how: ConnectionEnd::Close })
            .on_path(TOKENIZE),
    );
    let raw = client::send(it.gateway, &Alone::request()).await;
    assert!(!raw.complete, "{}", raw.head);
    let line = it.line();
    assert_eq!((&line["status"], &line["reason"]), (&200.into(), &"engine_failed".into()), "{line}");
    let requests = r#"pd_proxy_requests_total{route="passthrough",code="200",reason="engine_failed"}"#;
    let leg = format!(
        r#"pd_proxy_leg_failures_total{{role="prefill",engine="{}",reason="broken"}}"#,
        name(&it.prefill)
    );
    let key = r#"pd_proxy_key_requests_total{key="anyone",outcome="failed"}"#;
    assert_eq!((it.count(requests).await, it.count(&leg).await, it.count(key).await), (1.0, 1.0, 1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_engine_that_is_silent_is_not_waited_for_until_the_end_of_the_hour() {
    let mut it = Alone::with(&["--set", "timeout.gap_ms=100", "--set", "timeout.answer_ms=100"]).await;
    let mut said = Vec::new();
    for what in [FaultKind::StallBeforeHead, FaultKind::StallAfterBytes(MIDDLE_BYTES)] {
        it.prefill.inject(Fault::once(what).on_path(TOKENIZE));
        let raw = client::send(it.gateway, &Alone::request()).await;
        let line = it.line();
        said.push((raw.status, raw.complete, line["reason"].as_str().unwrap().to_owned()));
    }
    assert_eq!(said, [(504, true, "prefill_timeout".to_owned()), (200, false, "engine_failed".to_owned())]);
    let leg = format!(
        r#"pd_proxy_leg_failures_total{{role="prefill",engine="{}",reason="timeout"}}"#,
        name(&it.prefill)
    );
    assert_eq!(it.count(&leg).await, 2.0, "both are its fault");
}

/// Signals until the gateway has ended with two answers under way.
async fn cut(flag: &str, signals: usize) {
    let mut it = Alone::with(&["--set", flag]).await;
    let chat = r#"{"model":"sim","messages":[{"role":"user","content":"hi"}],"stream":true}"#;
    it.decode.inject(Fault::always(FaultKind::StallBeforeHead).on_path(CHAT));
    it.prefill.inject(Fault::always(FaultKind::StallAfterBytes(MIDDLE_BYTES)).on_path(TOKENIZE));
    let mut sockets = Vec::new();
    for (request, engine, path) in
        [(Alone::request(), &it.prefill, TOKENIZE), (post(CHAT, chat), &it.decode, CHAT)]
    {
        let mut socket = TcpStream::connect(it.gateway).await.unwrap();
        socket.write_all(&request).await.unwrap();
        eventually("an engine is asked", async || engine.seen().iter().any(|seen| seen.path == path)).await;
        sockets.push(socket);
    }
    sockets[0].read_exact(&mut [0; 16]).await.unwrap();
    for _ in 0..signals {
        it.process.signal("TERM");
        it.process.hear("shutting down");
    }
    let mut ended = [(); 2].map(|()| {
        let line: Value = serde_json::from_str(&it.process.wait_for(r#""message":"request""#)).unwrap();
        (line["status"].as_u64().unwrap(), line["reason"].as_str().unwrap().to_owned())
    });
    ended.sort();
    assert_eq!(ended, [(200, "shutdown".to_owned()), (503, "shutdown".to_owned())]);
    assert_eq!(it.process.ended().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn requests_cut_by_shutdown_are_not_counted_as_left() {
    cut("server.drain_ms=100", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn nor_what_a_second_signal_cuts() {
    cut("server.drain_ms=600000", 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn attempts_that_fail_are_seen_where_legs_that_fail_are() {
    let mut it = Alone::start().await;
    it.prefill.inject(Fault::once(FaultKind::Status(500, None)).on_path(TOKENIZE));
    assert_eq!(client::send(it.gateway, &Alone::request()).await.status, 200);
    let line = it.line();
    let p = name(&it.prefill);
    assert_eq!((&line["reason"], &line["prefiller"]), (&"ok".into(), &p.as_str().into()), "{line}");
    assert!(line["total_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{line}");
    let leg = format!(r#"pd_proxy_leg_failures_total{{role="prefill",engine="{p}",reason="status"}}"#);
    assert_eq!(it.count(&leg).await, 1.0);
    let all = client::send(it.gateway, &get("/status.json")).await;
    let shown = all.json();
    let engine = shown["engines"].as_array().unwrap().iter().find(|it| it["role"] == "prefill").unwrap();
    assert_eq!(engine["last_error"]["reason"], "status", "{shown}");
}
