//! Exchanges with an engine at the other end of a pipe.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::tls::{EngineFiles, EngineTls};

/// Connections that were dialled, as the engine has them; ours wait to be handed out.
#[derive(Debug, Default)]
struct Pipes {
    ours: Mutex<VecDeque<DuplexStream>>,
}

impl Dial for Pipes {
    fn dial(&self, _: &Uri) -> Dialling<Box<dyn Pipe>, io::Error> {
        let next = self.ours.lock().unwrap().pop_front();
        Box::pin(async move {
            next.map(|pipe| Box::new(pipe) as Box<dyn Pipe>).ok_or(io::ErrorKind::ConnectionRefused.into())
        })
    }
}

/// A client for one engine, and the engine's ends of the connections that it may make, each with
/// room for so many bytes.
fn engine<const N: usize>(room_bytes: usize) -> (Upstream, [DuplexStream; N]) {
    let pipes = Pipes::default();
    let theirs = std::array::from_fn(|_| {
        let (ours, theirs) = duplex(room_bytes);
        pipes.ours.lock().unwrap().push_back(ours);
        theirs
    });
    let limit = Duration::from_secs(1);
    (
        Upstream::new(Connector::new(
            limit,
            EngineTls::new(&EngineFiles::default()).unwrap(),
            Some(Arc::new(pipes)),
        )),
        theirs,
    )
}

async fn ask(upstream: &Upstream, body: &[u8], written: &Written) -> Result<Response<Reply>, SendError> {
    let key = Key { tls: false, authority: Authority::from_static("engine:8000") };
    let head = head::write(&Method::POST, "/x", "engine:8000", &HeaderMap::new(), body.len());
    let taken = upstream.idle.take(&key);
    let pieces = Pieces::from_iter([head, Bytes::copy_from_slice(body)]);
    upstream.exchange(Outgoing { key, taken, pieces }, &Method::POST, written).await
}

/// Reads a request with this body.
async fn hear(engine: &mut DuplexStream, body: &[u8]) {
    let mut heard = Vec::new();
    while !heard.ends_with(body) {
        assert_ne!(engine.read_buf(&mut heard).await.unwrap(), 0, "{:?}", String::from_utf8_lossy(&heard));
    }
}

async fn text(response: Response<Reply>) -> Result<String, ReplyError> {
    let body = response.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn timeout_of_an_idle_connection_is_no_answer_to_the_request_that_crossed_it() {
    const TIMEOUT: &str = "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let (upstream, [mut first, mut second]) = engine(1_024);
    let serve = async {
        hear(&mut first, b"one").await;
        first.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        hear(&mut first, b"two").await;
        first.write_all(TIMEOUT.as_bytes()).await.unwrap();
        hear(&mut second, b"three").await;
        second.write_all(TIMEOUT.as_bytes()).await.unwrap();
    };
    let client = async {
        let written = Written::default();
        assert_eq!(text(ask(&upstream, b"one", &written).await.unwrap()).await.unwrap(), "ok");
        let crossed = ask(&upstream, b"two", &written).await.unwrap_err();
        assert!(!crossed.connect && crossed.causes().contains("no request had come for long"), "{crossed}");
        // On a connection of its own it is what the engine says of this request.
        let late = ask(&upstream, b"three", &written).await.unwrap();
        assert_eq!(late.status(), StatusCode::REQUEST_TIMEOUT);
    };
    tokio::join!(serve, client);
}

#[tokio::test]
async fn one_connection_serves_one_request_after_another() {
    let (upstream, [mut engine]) = engine(64);
    let serve = async {
        hear(&mut engine, b"first").await;
        for piece in
            ["HTTP/1.1 200 OK\r\ntransfer-en", "coding: chunked\r\n\r\n3\r\nab", "c\r\n0\r\n", "\r\n"]
        {
            engine.write_all(piece.as_bytes()).await.unwrap();
            tokio::task::yield_now().await;
        }
        hear(&mut engine, b"second").await;
        engine.write_all(b"HTTP/1.1 404 No\r\ncontent-length: 2\r\n\r\nno").await.unwrap();
        hear(&mut engine, b"third").await;
        engine.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        hear(&mut engine, b"fourth").await;
        engine.write_all(b"HTTP/1.1 200 OK\r\n\r\nto the end").await.unwrap();
        drop(engine);
    };
    let asking = async {
        let mut heard = Vec::new();
        for body in [&b"first"[..], b"second", b"third", b"fourth"] {
            let written = Written::default();
            let response = ask(&upstream, body, &written).await.unwrap();
            assert!(written.get());
            heard.push((response.status().as_u16(), text(response).await.unwrap()));
        }
        heard
    };
    let (heard, ()) = tokio::join!(asking, serve);
    let expected = [(200, "abc"), (404, "no"), (200, ""), (200, "to the end")];
    assert_eq!(heard, expected.map(|(status, body)| (status, body.to_owned())));
}

#[tokio::test]
async fn a_connection_is_not_used_again_after_a_close_more_than_the_body_or_a_body_that_nobody_read() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nmore",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nok",
    ] {
        let (upstream, [mut first, mut second]) = engine(1024);
        first.write_all(answer.as_bytes()).await.unwrap();
        second.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecond").await.unwrap();
        let mut response = ask(&upstream, b"a", &Written::default()).await.unwrap();
        assert_eq!(response.frame().await.unwrap().unwrap().into_data().unwrap(), "ok", "{answer}");
        drop(response);
        let response = ask(&upstream, b"b", &Written::default()).await.unwrap();
        assert_eq!(text(response).await.unwrap(), "second", "{answer}");
    }
}

#[tokio::test]
async fn a_request_over_a_connection_that_was_closed_meanwhile_takes_another() {
    let (upstream, [mut first, mut second]) = engine(1024);
    first.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n1").await.unwrap();
    assert_eq!(text(ask(&upstream, b"a", &Written::default()).await.unwrap()).await.unwrap(), "1");
    drop(first);
    second.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n2").await.unwrap();
    assert_eq!(text(ask(&upstream, b"b", &Written::default()).await.unwrap()).await.unwrap(), "2");
}

#[tokio::test]
async fn an_engine_may_refuse_a_body_before_it_has_read_it() {
    let (upstream, [mut engine]) = engine(256);
    let written = Written::default();
    engine.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig").await.unwrap();
    let response = ask(&upstream, &[b'x'; 4096], &written).await.unwrap();
    assert_eq!(response.status(), 413);
    assert!(!written.get());
    assert_eq!(text(response).await.unwrap(), "big");
    // The rest of the body never comes: the connection is of no more use.
    let mut heard = Vec::new();
    engine.read_to_end(&mut heard).await.unwrap();
    assert!(heard.len() < 4096);
}

#[tokio::test]
async fn written_is_known_without_an_answer() {
    let (upstream, [engine, mut other]) = engine(256);
    drop(engine);
    let written = Written::default();
    let error = ask(&upstream, &[b'x'; 4096], &written).await.unwrap_err();
    assert!(!error.connect && !written.get(), "{}", error.causes());
    let close = async {
        hear(&mut other, b"short").await;
        drop(other);
    };
    let asking = ask(&upstream, b"short", &written);
    let (error, ()) = tokio::join!(asking, close);
    let error = error.unwrap_err();
    assert!(!error.connect && written.get(), "{}", error.causes());
    let error = ask(&upstream, b"nobody listens", &Written::default()).await.unwrap_err();
    assert!(error.connect, "{}", error.causes());
}

#[tokio::test]
async fn a_body_that_ends_too_early_or_is_nonsense_is_an_error() {
    for (answer, nonsense) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", false),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab", false),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n", false),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nhello\r\n", true),
    ] {
        let (upstream, [mut engine]) = engine(1024);
        engine.write_all(answer.as_bytes()).await.unwrap();
        engine.shutdown().await.unwrap();
        let response = ask(&upstream, b"a", &Written::default()).await.unwrap();
        let error = text(response).await.unwrap_err();
        assert_eq!(matches!(error, ReplyError::Chunk(_)), nonsense, "{answer}: {error}");
        assert!(matches!(error, ReplyError::Chunk(_) | ReplyError::Early), "{answer}: {error}");
    }
}

#[tokio::test]
async fn dropped_request_or_answer_closes_the_connection() {
    let (upstream, [mut first, mut second]) = engine(1024);
    let asked =
        tokio::time::timeout(Duration::from_millis(20), ask(&upstream, b"a", &Written::default())).await;
    assert!(asked.is_err());
    let mut heard = Vec::new();
    first.read_to_end(&mut heard).await.unwrap();
    second.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n").await.unwrap();
    drop(ask(&upstream, b"b", &Written::default()).await.unwrap());
    second.read_to_end(&mut heard).await.unwrap();
}
