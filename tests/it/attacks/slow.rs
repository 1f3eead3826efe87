//! Clients that take their time: every step has a limit, however the bytes trickle in.

use std::time::{Duration, Instant};

use pd_proxy::sim::{Fault, FaultKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::common::client;
use crate::common::time::pace;

use super::{GOOD, PATH, PATIENCE, assert_serves, reached, stage};

/// Between two bytes: far below every limit here, so that no limit is on silence alone.
const TRICKLE: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_millis(400);

/// Sends `first` at once and `rest` byte by byte; gives what came back, and after how long the
/// connection was closed.
async fn trickle(to: std::net::SocketAddr, first: &[u8], rest: &[u8]) -> (String, Duration) {
    let (mut reader, mut writer) = TcpStream::connect(to).await.unwrap().into_split();
    writer.write_all(first).await.unwrap();
    let start = Instant::now();
    let writing = async {
        for byte in rest.iter().cycle() {
            pace(TRICKLE).await;
            if writer.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    let mut said = Vec::new();
    let reading = timeout(PATIENCE, reader.read_to_end(&mut said));
    tokio::select! {
        ended = reading => assert!(ended.is_ok(), "never closed"),
        () = writing => {}
    }
    (String::from_utf8_lossy(&said).into_owned(), start.elapsed())
}

#[tokio::test]
async fn heads_that_trickle() {
    let stage = stage(|s| s.config.timeout.header_ms = 400).await;
    let line = format!("POST {PATH} HTTP/1.1\r\nhost: gateway\r\n");
    for (first, rest) in [(&b"P"[..], &b"OST"[..]), (line.as_bytes(), b"x-a: b\r\n"), (b"PRI * HTTP/2", b".")]
    {
        let (said, took) = trickle(stage.gateway, first, rest).await;
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{said}");
        assert!(took < 10 * LIMIT, "{took:?}: it is not each byte that has a limit, but all of them");
    }
    assert_eq!(reached(&stage, "heads"), 0);
    assert_serves(&stage, "heads").await;
    stage.end().await;
}

#[tokio::test]
async fn bodies_that_trickle() {
    let stage = stage(|s| s.config.timeout.body_ms = 400).await;
    let head = |framing: &str| format!("POST {PATH} HTTP/1.1\r\nhost: gateway\r\n{framing}\r\n\r\n");
    let sized = head("content-length: 100000");
    let chunked = head("transfer-encoding: chunked");
    for (first, rest) in [(&sized, &b" "[..]), (&chunked, b"1\r\n \r\n"), (&chunked, b"0")] {
        let (said, took) = trickle(stage.gateway, first.as_bytes(), rest).await;
        assert!(said.starts_with("HTTP/1.1 408 ") || said.starts_with("HTTP/1.1 400 "), "{said}");
        assert!(took < 10 * LIMIT, "{took:?}");
    }
    assert_eq!(reached(&stage, "bodies"), 0);
    assert_serves(&stage, "bodies").await;
    stage.end().await;
}

#[tokio::test]
async fn a_hundred_of_them_stand_in_nobody_s_way() {
    let stage = stage(|_| {}).await;
    let mut slow = Vec::new();
    for n in 0..100 {
        let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
        let begun =
            format!("POST {PATH} HTTP/1.1\r\nhost: gateway\r\ncontent-length: {}\r\n\r\n{{", GOOD.len());
        socket.write_all(&begun.as_bytes()[..begun.len() * (n + 1) / 100]).await.unwrap();
        slow.push(socket);
    }
    let start = Instant::now();
    assert_serves(&stage, "beside a hundred slow ones").await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    drop(slow);
    stage.end().await;
}

/// A client that takes a little now and then finds something whenever it comes: the whole has a
/// limit all the same.
#[tokio::test]
async fn an_answer_that_is_read_slowly_ends_in_time() {
    const EVENTS: usize = 400_000;
    let limit = Duration::from_millis(1_000);
    let stage = stage(|s| s.config.timeout.total_ms = 1_000).await;
    let event = r#"data: {"choices":[{"index":0,"text":"one more of a great many","finish_reason":null}]}"#;
    let events = format!("{event}\n\n").repeat(EVENTS) + "data: [DONE]\n\n";
    let sent_bytes = events.len();
    stage.decoders_fail(&Fault::always(FaultKind::Events(events.into())));
    let body = GOOD.replace('}', r#","stream":true}"#);
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    socket.write_all(&client::post(PATH, &body)).await.unwrap();
    let (start, mut read, mut some) = (Instant::now(), 0, vec![0; 64 << 10]);
    while start.elapsed() < 2 * limit {
        read += socket.read(&mut some).await.unwrap_or(0);
        pace(Duration::from_millis(50)).await;
    }
    // The rest at once: what was on its way, and the end.
    let mut rest = Vec::new();
    let ended = timeout(PATIENCE, socket.read_to_end(&mut rest)).await;
    assert!(ended.is_ok() && read + rest.len() < sent_bytes, "{read} and {} of {sent_bytes}", rest.len());
    assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"), "it was cut");
    stage.heal();
    assert_serves(&stage, "slowly").await;
    stage.end().await;
}
