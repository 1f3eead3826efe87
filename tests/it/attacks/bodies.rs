//! Bodies that never come: they take no place of those that are served, and little memory.

use std::time::{Duration, Instant};

use pd_proxy::sim::EngineSpec;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{GOOD, PATH, PATIENCE, assert_serves, http2, reached, stage};
use crate::common::client;
use crate::common::stage::{Script, Stage, slow};
use crate::common::time::{eventually, pace};

/// A gateway that has room for few requests, and for none that waits.
async fn small() -> Stage {
    stage(|s| (s.config.limit.inflight, s.config.limit.queue) = (4, 0)).await
}

/// Requests whose bodies are announced, in every way, and of which nothing more comes.
async fn announced(stage: &Stage, count: usize) -> Vec<TcpStream> {
    let mut open = Vec::new();
    for n in 0..count {
        let framing =
            ["content-length: 100", "transfer-encoding: chunked", "content-length: 60000000"][n % 3];
        let begun = ["", "1\r\n{\r\n", "{"][n % 3];
        let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
        let head = format!("POST {PATH} HTTP/1.1\r\nhost: gateway\r\n{framing}\r\n\r\n{begun}");
        socket.write_all(head.as_bytes()).await.unwrap();
        open.push(socket);
    }
    open
}

#[tokio::test]
async fn over_http1_they_take_no_place() {
    let stage = small().await;
    let open = announced(&stage, 60).await;
    for _ in 0..5 {
        assert_serves(&stage, "beside sixty bodies that never come").await;
    }
    drop(open);
    assert_eq!(reached(&stage, "bodies"), 0);
    stage.end().await;
}

#[tokio::test]
async fn over_http2_they_take_no_place() {
    let stage = small().await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
        socket.write_all(&http2::streams_without_bodies(128)).await.unwrap();
        // All streams are there once the gateway has answered what came behind them.
        http2::pinged(&mut socket).await;
        open.push(socket);
    }
    for _ in 0..5 {
        assert_serves(&stage, "beside 384 streams without bodies").await;
    }
    drop(open);
    stage.end().await;
}

#[tokio::test]
async fn routes_of_one_engine_keep_their_places_as_well() {
    let stage = small().await;
    let mut open = Vec::new();
    for _ in 0..20 {
        let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
        let head = "POST /tokenize HTTP/1.1\r\nhost: gateway\r\ncontent-length: 100\r\n\r\n";
        socket.write_all(head.as_bytes()).await.unwrap();
        open.push(socket);
    }
    assert_serves(&stage, "beside twenty").await;
    stage.end().await;
}

/// The last answer to a body of which nothing more comes, and the time until then.
async fn said(mut socket: TcpStream) -> (String, Duration) {
    let (start, mut text) = (Instant::now(), Vec::new());
    timeout(PATIENCE, socket.read_to_end(&mut text)).await.expect("it ends").unwrap();
    (String::from_utf8_lossy(&text).into_owned(), start.elapsed())
}

#[tokio::test]
async fn a_body_that_comes_more_slowly_than_it_must_is_given_up() {
    let stage = stage(|s| (s.config.timeout.body_grace_ms, s.config.limit.body_rate) = (300, 100)).await;
    for socket in announced(&stage, 3).await {
        let (text, took) = said(socket).await;
        assert!(text.starts_with("HTTP/1.1 408 ") && text.contains("limit.body_rate"), "{text}");
        assert!(took < PATIENCE / 2, "{took:?}: long before timeout.body_ms");
    }
    // Fast enough, and longer than the grace.
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    let body = format!("{GOOD}{}", " ".repeat(1_000));
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: gateway\r\ncontent-length: {}\r\n\r\n", body.len());
    socket.write_all(head.as_bytes()).await.unwrap();
    for piece in body.as_bytes().chunks(400) {
        socket.write_all(piece).await.unwrap();
        pace(Duration::from_millis(200)).await;
    }
    assert_eq!(client::read(&mut socket).await.status, 200);
    stage.end().await;
}

#[tokio::test]
async fn the_oldest_of_too_many_gives_way() {
    let stage = stage(|s| s.config.limit.unread_bodies = 4).await;
    let open = announced(&stage, 6).await;
    let refused = r#"pd_proxy_turned_away_total{reason="body_unread"} "#;
    let count = async || {
        let text = stage.get("/metrics").await.text();
        let line = text.lines().find_map(|line| line.strip_prefix(refused)?.parse::<u64>().ok());
        line.unwrap_or(0)
    };
    eventually("two give way", async || count().await >= 2).await;
    assert_serves(&stage, "beside them").await;
    drop(open);
    stage.end().await;
}

#[tokio::test]
async fn all_bodies_together_have_a_limit_and_small_ones_pass() {
    let mut script = Script { prefillers: 1, decoders: 1, ..Script::default() };
    script.engine = EngineSpec { prefill_tokens_per_s: 100.0, ..slow() };
    (script.config.limit.body_bytes, script.config.limit.bodies_bytes) = (100_000, 100_000);
    let stage = Stage::set(script).await;
    let body = |prompt: &str, user: &str| {
        format!(r#"{{"model":"sim","prompt":"{prompt}","user":"{user}","max_tokens":1}}"#)
    };
    let mut first = TcpStream::connect(stage.gateway).await.unwrap();
    first.write_all(&client::post(PATH, &body(&"word ".repeat(12_000), ""))).await.unwrap();
    eventually("the prefiller is asked", async || !stage.prefillers[0].seen().is_empty()).await;
    let large = body("x", &"u".repeat(60_000));
    let refused = stage.post(PATH, &large).await;
    assert_eq!(
        (refused.status, refused.header("x-pd-error")),
        (503, Some("overloaded")),
        "{}",
        refused.text()
    );
    assert!(refused.text().contains("limit.bodies_bytes") && refused.header("retry-after").is_some());
    let small = stage.post("/tokenize", GOOD).await;
    assert_ne!(small.status, 503, "a small one: {}", small.text());
    drop(first);
    eventually("its room is given back", async || stage.post(PATH, &large).await.status == 200).await;
    stage.end().await;
}
