//! TLS towards clients.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pd_proxy::config::Config;
use pd_proxy::sim::Engine;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::authority::{Authority, connect, file};
use super::{Running, pair};
use crate::common::client::{self, Raw};
use crate::common::log::Log;
use crate::common::time::eventually;

const BODY: &str = r#"{"model":"sim","prompt":"one two three","max_tokens":8,"stream":true}"#;

/// A gateway whose certificate `authority` signed, after `change`.
async fn secured(
    authority: &Authority,
    change: impl FnOnce(&mut Config, &TempDir),
) -> (Running, [Engine; 2], TempDir) {
    let (dir, (engines, mut config)) = (tempfile::tempdir().unwrap(), pair().await);
    let (cert, key) = authority.sign("127.0.0.1").write(dir.path(), "gateway");
    (config.tls.cert, config.tls.key) = (Some(cert), Some(key));
    change(&mut config, &dir);
    (Running::start(config).await.unwrap(), engines, dir)
}

async fn ask(client: &TlsConnector, to: SocketAddr) -> std::io::Result<Raw> {
    let mut stream = connect(client, to).await?;
    stream.write_all(&client::post("/v1/completions", BODY)).await?;
    Ok(client::read(&mut stream).await)
}

/// True if the gateway serves this client; with TLS 1.3 a refusal comes after the client's side of
/// the handshake.
async fn served(client: &TlsConnector, to: SocketAddr) -> bool {
    ask(client, to).await.is_ok_and(|raw| raw.status == 200 && raw.done())
}

#[tokio::test]
async fn https_serves_streams_over_http_1_and_http_2() {
    let authority = Authority::new();
    let (gateway, _engines, _dir) = secured(&authority, |_, _| {}).await;
    let raw = ask(&authority.client(None, &["http/1.1"]), gateway.at).await.unwrap();
    assert_eq!(raw.status, 200, "{}", raw.text());
    assert!(raw.done(), "{}", raw.text());
    assert!(served(&authority.client(None, &[]), gateway.at).await, "a client without ALPN speaks HTTP/1");

    let stream = connect(&authority.client(None, &["h2", "http/1.1"]), gateway.at).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let request = http::Request::post("https://127.0.0.1/v1/completions")
        .body(Full::<bytes::Bytes>::new(BODY.into()))
        .unwrap();
    let exchange = async {
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        response.into_body().collect().await.unwrap().to_bytes()
    };
    let body = tokio::select! {
        body = exchange => body,
        ended = connection => panic!("the connection ended first: {ended:?}"),
    };
    assert_eq!(String::from_utf8_lossy(&body).matches("data: [DONE]").count(), 1);
    gateway.end().await;
}

#[tokio::test]
async fn with_client_ca_only_its_clients_are_served() {
    let (authority, ours, others) = (Authority::new(), Authority::new(), Authority::new());
    let (gateway, engines, _dir) = secured(&authority, |config, dir| {
        config.tls.client_ca = Some(file(dir.path(), "clients.pem", &ours.pem()));
        // On a slow machine a probe comes in between, and is seen.
        config.health.probe_ms = 0;
    })
    .await;
    assert!(!served(&authority.client(None, &[]), gateway.at).await, "without a certificate");
    let stranger = others.sign("someone");
    assert!(!served(&authority.client(Some(&stranger), &[]), gateway.at).await, "somebody else's");
    assert!(engines[0].seen().is_empty(), "no engine heard of them");
    let known = ours.sign("someone");
    assert!(served(&authority.client(Some(&known), &[]), gateway.at).await, "one of ours");
    gateway.end().await;
}

#[tokio::test]
async fn plain_http_is_closed_and_not_reset() {
    let authority = Authority::new();
    let (gateway, _engines, _dir) = secured(&authority, |_, _| {}).await;
    let mut socket = TcpStream::connect(gateway.at).await.unwrap();
    socket.write_all(&client::post("/v1/completions", BODY)).await.unwrap();
    let mut said = Vec::new();
    let end = timeout(Duration::from_secs(10), socket.read_to_end(&mut said)).await.expect("it is closed");
    assert_eq!((end.unwrap(), said), (0, vec![]));
    gateway.end().await;
}

#[tokio::test]
async fn a_handshake_that_takes_too_long_is_cut() {
    let authority = Authority::new();
    let (gateway, _engines, _dir) = secured(&authority, |config, _| config.timeout.handshake_ms = 300).await;
    // Nothing at all, and the beginning of a handshake that does not go on.
    for first in [&b""[..], &[22, 3, 1, 2, 0, 1]] {
        let start = Instant::now();
        let mut socket = TcpStream::connect(gateway.at).await.unwrap();
        socket.write_all(first).await.unwrap();
        let mut said = Vec::new();
        let end = timeout(Duration::from_secs(10), socket.read_to_end(&mut said)).await;
        assert!(end.is_ok(), "it is still open");
        assert!(start.elapsed() >= Duration::from_millis(250), "{:?}", start.elapsed());
    }
    assert!(served(&authority.client(None, &[]), gateway.at).await, "others are served");
    gateway.end().await;
}

/// Of what opens an HTTP/2 connection, some or nothing.
const BEGINNINGS: [&[u8]; 2] = [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"];

/// Agrees on HTTP/2 and goes no further than that.
async fn agreed(authority: &Authority, to: SocketAddr, beginning: &[u8]) -> TlsStream<TcpStream> {
    let mut stream = connect(&authority.client(None, &["h2"]), to).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    stream.write_all(beginning).await.unwrap();
    stream.flush().await.unwrap();
    stream
}

#[tokio::test]
async fn http2_client_without_preface_is_cut() {
    let authority = Authority::new();
    let (gateway, _engines, _dir) = secured(&authority, |config, _| config.timeout.header_ms = 300).await;
    for beginning in BEGINNINGS {
        let start = Instant::now();
        let mut stream = agreed(&authority, gateway.at, beginning).await;
        let mut said = Vec::new();
        let end = timeout(Duration::from_secs(10), stream.read_to_end(&mut said)).await;
        assert!(end.is_ok(), "it is still open");
        assert!(start.elapsed() >= Duration::from_millis(250), "{:?}", start.elapsed());
    }
    let mut other = agreed(&authority, gateway.at, b"GET / HTTP/1.1\r\n").await;
    let end = timeout(Duration::from_secs(10), other.read_to_end(&mut Vec::new())).await;
    assert!(end.is_ok(), "it speaks something else");
    assert!(served(&authority.client(None, &["http/1.1"]), gateway.at).await, "others are served");
    gateway.end().await;
}

#[tokio::test]
async fn http2_client_without_preface_does_not_delay_shutdown() {
    let authority = Authority::new();
    let (gateway, _engines, _dir) = secured(&authority, |_, _| {}).await;
    let mut open = Vec::new();
    for beginning in BEGINNINGS {
        open.push(agreed(&authority, gateway.at, beginning).await);
    }
    // The gateway has seen the end of their handshakes.
    assert!(served(&authority.client(None, &[]), gateway.at).await);
    gateway.stop.cancel();
    assert_eq!(gateway.serving.await.unwrap(), 0, "connections were cut when the time was over");
}

/// An answer that comes before its request is complete, as in `attacks/unread.rs`.
#[tokio::test]
async fn client_that_sends_all_first_gets_the_answer_and_an_end() {
    let authority = Authority::new();
    let (gateway, _engines, _dir) = secured(&authority, |_, _| {}).await;
    let mut stream = connect(&authority.client(None, &[]), gateway.at).await.unwrap();
    stream.write_all(&client::post("/v1/nothing", &" ".repeat(4 << 20))).await.unwrap();
    stream.flush().await.unwrap();
    let mut said = Vec::new();
    let end = timeout(Duration::from_secs(20), stream.read_to_end(&mut said)).await.expect("it ends");
    end.expect("no reset");
    let answer = client::read(&mut &said[..]).await;
    assert_eq!((answer.status, answer.complete), (404, true), "{}", answer.text());
    gateway.end().await;
}

#[tokio::test]
async fn a_certificate_is_replaced_while_running_and_a_broken_one_is_not_used() {
    let log = Log::collect();
    let (first, second) = (Authority::new(), Authority::new());
    let (gateway, _engines, dir) = secured(&first, |_, _| {}).await;
    let (by_first, by_second) = (first.client(None, &["http/1.1"]), second.client(None, &["http/1.1"]));
    let mut open = connect(&by_first, gateway.at).await.unwrap();

    file(dir.path(), "gateway.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let looked = async || log.count("the certificate of the listener stays as it was") > 0;
    eventually("it is looked at", looked).await;
    assert!(served(&by_first, gateway.at).await, "the broken one is not used");

    second.sign("127.0.0.1").write(dir.path(), "gateway");
    eventually("the new one comes into use", async || served(&by_second, gateway.at).await).await;
    assert!(!served(&by_first, gateway.at).await, "the old one is gone");
    open.write_all(&client::post("/v1/completions", BODY)).await.unwrap();
    assert!(client::read(&mut open).await.done(), "connections that are open go on");
    gateway.end().await;
}

#[tokio::test]
async fn files_that_can_not_be_used_are_named() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let (cert, key) = authority.sign("127.0.0.1").write(dir.path(), "a");
    let (_, other_key) = authority.sign("127.0.0.1").write(dir.path(), "b");
    let empty = file(dir.path(), "empty", "");
    let missing = dir.path().join("missing").to_str().unwrap().to_owned();
    for (cert, key, said) in [
        (&missing, &key, format!("tls.cert: {missing} can't be read: No such file")),
        (&empty, &key, format!("tls.cert: {empty} has no certificate in PEM")),
        (&cert, &cert, format!("tls.key: {cert} has no private key in PEM")),
        (&cert, &other_key, format!("tls.cert: {cert}: ")),
    ] {
        let (_engines, mut config) = pair().await;
        (config.tls.cert, config.tls.key) = (Some(cert.clone()), Some(key.clone()));
        let error = Running::start(config).await.err().expect("it starts").to_string();
        assert!(error.starts_with(&said), "{error}, not {said}");
    }
}
