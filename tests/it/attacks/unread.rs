//! Bodies that nobody reads, since their request was refused before: the connection lives on, or
//! the answer says that it does not.

use std::io;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{PATH, PATIENCE, stage};
use crate::common::client::{self, Raw};
use crate::common::stage::Stage;

/// More than the gateway reads at once, and less than it takes of a refused body.
const SOME_BYTES: usize = 300_000;

const NOWHERE: &str = "/v1/nothing";

fn head(lines: &str) -> String {
    format!("POST {NOWHERE} HTTP/1.1\r\nhost: gateway\r\n{lines}\r\n\r\n")
}

fn sized(bytes: usize) -> String {
    head(&format!("content-length: {bytes}"))
}

/// Sends `head` and as much of a body, and reads the answer.
async fn refused(stage: &Stage, head: &str, body: &[u8]) -> (Raw, TcpStream) {
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    // It may be closed before all of it is sent.
    let _ = socket.write_all(&[head.as_bytes(), body].concat()).await;
    let answer = client::read(&mut socket).await;
    (answer, socket)
}

/// True if the gateway has hung up, or will.
async fn closes(mut socket: TcpStream) -> bool {
    let ended = tokio::time::timeout(PATIENCE, socket.read(&mut [0; 16])).await;
    matches!(ended, Ok(Ok(0) | Err(_)))
}

#[tokio::test]
async fn short_unread_body_keeps_the_connection() {
    let stage = stage(|_| {}).await;
    let body = vec![b' '; SOME_BYTES];
    let chunk = [format!("{SOME_BYTES:x}\r\n").as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
    for (head, body) in [(sized(SOME_BYTES), body), (head("transfer-encoding: chunked"), chunk)] {
        let (answer, mut socket) = refused(&stage, &head, &body).await;
        assert_eq!((answer.status, answer.header("connection")), (404, None), "{}", answer.head);
        socket.write_all(&client::get("/health")).await.unwrap();
        let next = client::read(&mut socket).await;
        assert_eq!((next.status, next.complete), (200, true), "the next request is served");
    }
    stage.end().await;
}

#[tokio::test]
async fn endless_unread_body_closes_the_connection_in_its_answer() {
    let stage = stage(|_| {}).await;
    for (name, head, bytes) in [
        ("nothing comes", sized(SOME_BYTES), 0),
        ("some comes", sized(SOME_BYTES), 1_000),
        ("too much is announced", sized(8 << 20), 0),
        ("chunks without an end", head("transfer-encoding: chunked"), 0),
    ] {
        let start = Instant::now();
        let (answer, socket) = refused(&stage, &head, &vec![b' '; bytes]).await;
        assert_eq!((answer.status, answer.header("connection")), (404, Some("close")), "{name}");
        assert!(start.elapsed() < Duration::from_secs(5), "{name}: {:?}", start.elapsed());
        assert!(closes(socket).await, "{name}");
    }
    stage.end().await;
}

#[tokio::test]
async fn chunks_beyond_all_measure_are_not_read() {
    let stage = stage(|_| {}).await;
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    socket.write_all(head("transfer-encoding: chunked").as_bytes()).await.unwrap();
    let chunk = [b"10000\r\n".as_slice(), &[b'x'; 0x10000], b"\r\n"].concat();
    let (mut reader, mut writer) = socket.into_split();
    let mut sent = 0;
    let writing = async {
        while sent < 1 << 30 && writer.write_all(&chunk).await.is_ok() {
            sent += chunk.len();
        }
        std::future::pending::<()>().await;
    };
    let answer = tokio::select! {
        answer = client::read(&mut reader) => answer,
        () = writing => unreachable!("it never ends"),
    };
    assert_eq!((answer.status, answer.header("connection")), (404, Some("close")), "{}", answer.head);
    // What the kernels' buffers hold beside what was read.
    assert!(sent < 64 << 20, "{sent} bytes were taken of a body that nobody wants");
    stage.end().await;
}

#[tokio::test]
async fn a_client_that_waits_to_be_told_to_go_on_is_refused_at_once() {
    let stage = stage(|_| {}).await;
    let lines = format!("content-length: {SOME_BYTES}\r\nexpect: 100-continue");
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    socket.write_all(head(&lines).as_bytes()).await.unwrap();
    let mut said = Vec::new();
    tokio::time::timeout(PATIENCE, socket.read_to_end(&mut said)).await.unwrap().unwrap();
    let said = String::from_utf8(said).unwrap();
    assert!(said.starts_with("HTTP/1.1 404 "), "not told to go on: {said}");
    assert!(said.to_ascii_lowercase().contains("\r\nconnection: close\r\n"), "{said}");
    stage.end().await;
}

/// The answer to a client that sends everything before it reads anything, as many do; an error
/// where it can't send, or meets a reset in place of an end. `waits` for the answer to be there
/// before it sends the second half.
async fn after_sending(stage: &Stage, head: &str, body: &[u8], waits: bool) -> io::Result<Raw> {
    let mut socket = TcpStream::connect(stage.gateway).await?;
    let (first, second) = body.split_at(body.len() / 2);
    socket.write_all(&[head.as_bytes(), first].concat()).await?;
    if waits {
        socket.readable().await?;
    }
    socket.write_all(second).await?;
    let mut said = Vec::new();
    socket.read_to_end(&mut said).await?;
    Ok(client::read(&mut &said[..]).await)
}

#[tokio::test]
async fn client_that_sends_all_first_gets_the_answer_without_reset() {
    // More than the kernel's buffers take, and less than is read behind an answer.
    const MANY_BYTES: usize = 12 << 20;
    let stage = stage(|s| {
        s.config.limit.body_bytes = MANY_BYTES / 2;
        s.config.timeout.body_ms = 400;
    })
    .await;
    let body = vec![b' '; MANY_BYTES];
    let post = |path: &str, lines: &str, bytes: usize| {
        format!("POST {path} HTTP/1.1\r\nhost: gateway\r\n{lines}content-length: {bytes}\r\n\r\n")
    };
    let few = MANY_BYTES / 4;
    for (name, head, bytes, waits, status) in [
        ("no such path", post(NOWHERE, "", MANY_BYTES), MANY_BYTES, false, 404),
        ("too large", post(PATH, "", MANY_BYTES), MANY_BYTES, false, 413),
        ("too many lines", post(PATH, &"x-a: b\r\n".repeat(110), MANY_BYTES), MANY_BYTES, false, 431),
        ("a head that is none", post("no path", "", MANY_BYTES), MANY_BYTES, false, 400),
        ("not in time", post(PATH, "", few), few, true, 408),
    ] {
        let exchange = after_sending(&stage, &head, &body[..bytes], waits);
        let answer = tokio::time::timeout(PATIENCE, exchange).await.expect("it ends");
        let answer = answer.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((answer.status, answer.complete), (status, true), "{name}: {}", answer.head);
        assert_eq!(answer.header("connection"), Some("close"), "{name}: {}", answer.head);
    }
    stage.end().await;
}

/// A refused client that sends nothing more and stays is let go: its place is needed.
#[tokio::test]
async fn refused_client_that_stays_holds_no_place() {
    let stage = stage(|s| s.config.limit.connections = 1).await;
    let (answer, socket) = refused(&stage, &sized(8 << 20), b"").await;
    assert_eq!((answer.status, answer.header("connection")), (404, Some("close")));
    let start = Instant::now();
    assert_eq!(stage.get("/health").await.status, 200);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    drop(socket);
    stage.end().await;
}
