//! Bodies that never come, or come too slowly, over TLS: they take no place of those that are
//! served.

use tokio::io::AsyncWriteExt;

use super::authority::{Authority, connect};
use super::{Running, pair};
use crate::attacks::{http2, trickle};
use crate::common::client;

const GOOD: &str = r#"{"model":"sim","prompt":"Good?","max_tokens":4}"#;

#[tokio::test]
async fn unsent_bodies_take_no_place_over_either_http() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let (_engines, mut config) = pair().await;
    let (cert, key) = authority.sign("127.0.0.1").write(dir.path(), "gateway");
    (config.tls.cert, config.tls.key) = (Some(cert), Some(key));
    (config.limit.inflight, config.limit.queue) = (4, 0);
    let gateway = Running::start(config).await.unwrap();
    let mut open = Vec::new();
    for _ in 0..20 {
        let mut stream = connect(&authority.client(None, &["http/1.1"]), gateway.at).await.unwrap();
        let head = "POST /v1/completions HTTP/1.1\r\nhost: gateway\r\ncontent-length: 100\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        open.push(stream);
    }
    let mut stream = connect(&authority.client(None, &["h2"]), gateway.at).await.unwrap();
    stream.write_all(&http2::streams_without_bodies(100)).await.unwrap();
    http2::pinged(&mut stream).await;
    open.push(stream);
    for _ in 0..3 {
        let mut stream = connect(&authority.client(None, &["http/1.1"]), gateway.at).await.unwrap();
        stream.write_all(&client::post("/v1/completions", GOOD)).await.unwrap();
        assert_eq!(client::read(&mut stream).await.status, 200);
    }
    drop(open);
    gateway.end().await;
}

#[tokio::test]
async fn slow_body_is_refused_over_either_http() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let (engines, mut config) = pair().await;
    let (cert, key) = authority.sign("127.0.0.1").write(dir.path(), "gateway");
    (config.tls.cert, config.tls.key) = (Some(cert), Some(key));
    config.health.probe_ms = 0;
    trickle::limit(&mut config);
    let gateway = Running::start(config).await.unwrap();
    let first = connect(&authority.client(None, &["http/1.1"]), gateway.at).await.unwrap();
    trickle::over_http1(first).await.assert_too_slow("HTTP/1.1");
    let second = connect(&authority.client(None, &["h2"]), gateway.at).await.unwrap();
    trickle::over_http2(second).await.assert_too_slow("HTTP/2");
    assert!(engines.iter().all(|it| it.seen().iter().all(|seen| seen.method == "GET")), "none was asked");
    let mut stream = connect(&authority.client(None, &["http/1.1"]), gateway.at).await.unwrap();
    stream.write_all(&client::post("/v1/completions", GOOD)).await.unwrap();
    assert_eq!(client::read(&mut stream).await.status, 200);
    gateway.end().await;
}
