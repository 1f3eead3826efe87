//! HTTP/2 frame by frame: floods that cost the sender nothing, and a client that never opens its
//! window.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{GOOD, PATH, PATIENCE, assert_serves, converse, reached, stage};
use crate::common::stage::{Script, Stage};
use crate::common::time::eventually;

const QUIET: Duration = Duration::from_secs(2);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// Frame types and flags of RFC 9113 §6.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const CANCEL: [u8; 4] = [0, 0, 0, 8];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A string as HPACK has it, below 127 bytes and not compressed.
fn text(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

/// `POST` to the route of completions, as HPACK without the dynamic table.
fn fields() -> Vec<u8> {
    [&[0x83, 0x86, 0x04][..], &text(PATH), &[0x01], &text("gateway")].concat()
}

fn post(stream: u32, body: &str) -> Vec<u8> {
    let headers = frame(HEADERS, END_HEADERS, stream, &fields());
    [headers, frame(DATA, END_STREAM, stream, body.as_bytes())].concat()
}

fn opening(settings: &[u8]) -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, settings)].concat()
}

/// Frames of one type in what came back.
fn count(mut bytes: &[u8], kind: u8) -> usize {
    let mut found = 0;
    while bytes.len() >= 9 {
        let length = usize::from(bytes[0]) << 16 | usize::from(bytes[1]) << 8 | usize::from(bytes[2]);
        found += usize::from(bytes[3] == kind);
        bytes = bytes.get(9 + length..).unwrap_or_default();
    }
    found
}

/// A connection with so many streams that announce a body and send nothing of it, and a PING behind
/// them.
pub fn streams_without_bodies(count: u32) -> Vec<u8> {
    let open = |n: u32| frame(HEADERS, END_HEADERS, 2 * n + 1, &fields());
    let streams: Vec<u8> = (0..count).flat_map(open).collect();
    [opening(&[]), streams, frame(PING, 0, 0, &[7; 8])].concat()
}

/// Reads on until a PING is answered.
pub async fn pinged<S: tokio::io::AsyncRead + Unpin>(socket: &mut S) {
    let mut head = [0; 9];
    loop {
        timeout(PATIENCE, socket.read_exact(&mut head)).await.expect("it answers").unwrap();
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        socket.read_exact(&mut vec![0; length]).await.unwrap();
        if (head[3], head[4]) == (PING, 1) {
            return;
        }
    }
}

async fn flood(stage: &Stage, name: &str, flood: Vec<u8>) -> super::Said {
    let said = converse(stage.gateway, &[&opening(&[]), &flood], QUIET).await;
    stage.assert_nothing_left(name).await;
    stage.forget();
    assert_serves(stage, name).await;
    said
}

#[tokio::test]
async fn an_honest_request_is_served() {
    let stage = stage(|_| {}).await;
    let said = converse(stage.gateway, &[&opening(&[]), &post(1, GOOD)], QUIET / 4).await;
    assert_eq!((count(&said.bytes, GOAWAY), count(&said.bytes, HEADERS)), (0, 1));
    assert_eq!(reached(&stage, "honest"), 1);
    stage.end().await;
}

/// The end of a stream: the status of its answer, or a reset.
fn outcome(bytes: &[u8]) -> Option<u16> {
    let mut rest = bytes;
    while rest.len() >= 9 {
        let length = usize::from(rest[0]) << 16 | usize::from(rest[1]) << 8 | usize::from(rest[2]);
        if rest[3] == HEADERS {
            // The static table's statuses (RFC 7541, appendix A); others are written out.
            let payload = rest.get(9..9 + length)?;
            let statuses = [(0x88, 200), (0x8c, 400), (0x8d, 404), (0x8e, 500)];
            let listed =
                statuses.iter().find(|(byte, _)| payload.first() == Some(byte)).map(|(_, status)| *status);
            return Some(listed.unwrap_or(0));
        }
        rest = rest.get(9 + length..).unwrap_or_default();
    }
    None
}

/// The same rules as for HTTP/1.1: one host that could be, no method that is about the connection,
/// no line about it either.
#[tokio::test]
async fn heads_that_name_no_host_or_two() {
    let stage = stage(|_| {}).await;
    let path = |path: &str| [&[0x04][..], &text(path)].concat();
    let line = |name: &str, value: &str| [&[0x00][..], &text(name), &text(value)].concat();
    let authority = |value: &str| [&[0x01][..], &text(value)].concat();
    let (get, scheme) = (vec![0x82], vec![0x86]);
    let method = |name: &str| [&[0x02][..], &text(name)].concat();
    let health = || [get.clone(), scheme.clone(), path("/health")].concat();
    let tokenize =
        |name: &str| [method(name), scheme.clone(), path("/tokenize"), authority("gateway")].concat();
    // None: the stream is reset, since the request is malformed for HTTP/2 itself.
    for (name, fields, status) in [
        ("an authority", [health(), authority("gateway")].concat(), Some(200)),
        ("a host in its place", [health(), line("host", "gateway")].concat(), Some(200)),
        ("both, the same", [health(), authority("gateway:1"), line("host", "gateway:1")].concat(), Some(200)),
        ("none", health(), Some(400)),
        ("two that differ", [health(), authority("gateway"), line("host", "evil")].concat(), Some(400)),
        ("two hosts", [health(), line("host", "gateway"), line("host", "gateway")].concat(), Some(400)),
        ("a host that is none", [health(), line("host", "a b")].concat(), Some(400)),
        ("a user", [health(), authority("user@gateway")].concat(), Some(400)),
        ("te", [health(), authority("gateway"), line("te", "gzip")].concat(), None),
        ("a connection", [health(), authority("gateway"), line("connection", "close")].concat(), None),
        ("a coding", [health(), authority("gateway"), line("transfer-encoding", "chunked")].concat(), None),
        ("te: trailers", [health(), authority("gateway"), line("te", "trailers")].concat(), Some(200)),
        ("TRACE", tokenize("TRACE"), Some(0)),
        ("CONNECT", [method("CONNECT"), authority("engine:80")].concat(), Some(404)),
    ] {
        let head = frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields);
        let said = converse(stage.gateway, &[&opening(&[]), &head], QUIET / 4).await;
        assert_eq!(outcome(&said.bytes), status, "{name}: {:?}", said.bytes);
    }
    assert!(stage.engines().all(|engine| engine.seen().is_empty()));
    stage.end().await;
}

#[tokio::test]
async fn streams_opened_and_reset_at_once() {
    let stage = stage(|_| {}).await;
    let one = |n: u32| [post(2 * n + 1, GOOD), frame(RST_STREAM, 0, 2 * n + 1, &CANCEL)].concat();
    let said = flood(&stage, "rapid reset", (0..5_000).flat_map(one).collect()).await;
    assert!(
        said.closed && count(&said.bytes, GOAWAY) == 1,
        "{} bytes, closed: {}",
        said.bytes.len(),
        said.closed
    );
    stage.end().await;
}

#[tokio::test]
async fn more_streams_than_are_allowed() {
    let stage = stage(|s| s.config.timeout.body_ms = 1_000).await;
    let open = |n: u32| frame(HEADERS, END_HEADERS, 2 * n + 1, &fields());
    let said = flood(&stage, "streams", (0..2_000).flat_map(open).collect()).await;
    let refused = count(&said.bytes, RST_STREAM);
    assert!(refused >= 1_000 || said.closed, "{refused} of 2000 streams were refused");
    stage.end().await;
}

#[tokio::test]
async fn heads_that_go_on_and_on() {
    let stage = stage(|_| {}).await;
    let start = frame(HEADERS, END_STREAM, 1, &fields());
    let empty: Vec<u8> = (0..100_000).flat_map(|_| frame(CONTINUATION, 0, 1, &[])).collect();
    let said = flood(&stage, "empty", [start.clone(), empty].concat()).await;
    assert!(said.closed, "100 000 empty CONTINUATION frames");

    let line = [&[0x00][..], &text("x-a"), &text(&"y".repeat(100))].concat();
    let lines: Vec<u8> = line.iter().copied().cycle().take(line.len() * 150).collect();
    let full: Vec<u8> = (0..1_000).flat_map(|_| frame(CONTINUATION, 0, 1, &lines)).collect();
    let said = flood(&stage, "full", [start, full].concat()).await;
    assert!(said.closed, "16 MB of headers");
    assert_eq!(reached(&stage, "heads"), 0);
    stage.end().await;
}

#[tokio::test]
async fn frames_that_want_an_answer_each() {
    let stage = stage(|_| {}).await;
    let pings: Vec<u8> = (0..100_000).flat_map(|_| frame(PING, 0, 0, &[7; 8])).collect();
    flood(&stage, "PING", pings).await;
    let settings: Vec<u8> = (0..100_000).flat_map(|_| frame(SETTINGS, 0, 0, &[])).collect();
    flood(&stage, "SETTINGS", settings).await;
    stage.end().await;
}

#[tokio::test]
async fn bodies_of_empty_frames() {
    let stage = stage(|s| s.config.timeout.body_ms = 500).await;
    let start = frame(HEADERS, END_HEADERS, 1, &fields());
    let empty: Vec<u8> = (0..50_000).flat_map(|_| frame(DATA, 0, 1, &[])).collect();
    flood(&stage, "empty DATA", [start, empty].concat()).await;
    stage.end().await;
}

/// Connects and asks for a long answer, whose flow-control window of so many bytes it never opens
/// any further.
async fn closed_window(to: SocketAddr, window: u8, body: &str) -> TcpStream {
    let mut socket = TcpStream::connect(to).await.unwrap();
    // SETTINGS_INITIAL_WINDOW_SIZE (4)
    socket.write_all(&[opening(&[0, 4, 0, 0, 0, window]), post(1, body)].concat()).await.unwrap();
    socket
}

/// An answer that its client does not take counts for `limit.inflight`, streamed or not, until it
/// is given up.
#[tokio::test]
async fn a_whole_answer_that_is_not_taken_keeps_its_place() {
    let stage = stage(|s| {
        s.config.timeout.write_ms = 3_000;
        (s.config.limit.inflight, s.config.limit.queue) = (1, 0);
    })
    .await;
    let body = r#"{"model":"sim","prompt":"x","max_tokens":50000}"#;
    for window in [0, 1] {
        let mut socket = closed_window(stage.gateway, window, body).await;
        // Heads need no window: the answer is complete here, and the rest waits for the client.
        let mut said = Vec::new();
        while count(&said, HEADERS) == 0 {
            let read = timeout(PATIENCE, socket.read_buf(&mut said)).await.expect("it is served").unwrap();
            assert!(read > 0, "window {window}: it is served");
        }
        let began = Instant::now();
        stage.let_it_work().await;
        let refused = stage.post(PATH, GOOD).await;
        if began.elapsed() < Duration::from_secs(2) {
            assert_eq!(refused.status, 503, "window {window}: {}", refused.text());
        }
        let given_up = async || stage.post(PATH, GOOD).await.status == 200;
        eventually(format!("window {window}: it is given up"), given_up).await;
        drop(socket);
        stage.forget();
    }
    stage.end().await;
}

#[tokio::test]
async fn a_client_that_never_opens_its_window_is_given_up() {
    let stage = stage(|s| {
        s.config.timeout.write_ms = 300;
        s.engine.tpot_ms = 1.0;
    })
    .await;
    let body = r#"{"model":"sim","prompt":"x","max_tokens":100000,"stream":true}"#;
    let socket = closed_window(stage.gateway, 0, body).await;
    let running = || stage.decoders[0].ledger().running;
    eventually("it begins", async || running() > 0).await;
    eventually("the decoder works no more for a client that takes nothing", async || running() == 0).await;
    drop(socket);
    assert_serves(&stage, "afterwards").await;
    stage.end().await;
}

/// Nobody reads the bodies of those that wait, and all share the connection's window.
#[tokio::test]
async fn bodies_that_wait_leave_room_for_the_one_whose_turn_it_is() {
    const REQUESTS: usize = 60;
    const TEXT_BYTES: usize = 200 << 10;
    let mut script = Script::default();
    script.config.limit.inflight = 1;
    let stage = Stage::set(script).await;
    let socket = TcpStream::connect(stage.gateway).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    let body =
        json!({"model": "sim", "prompt": "a", "user": "b".repeat(TEXT_BYTES), "max_tokens": 2}).to_string();
    let all = join_all((0..REQUESTS).map(async |_| {
        let body = Full::<bytes::Bytes>::new(body.clone().into());
        let request = http::Request::post(format!("http://gateway{PATH}")).body(body).unwrap();
        let response = sender.clone().send_request(request).await.unwrap();
        let status = response.status().as_u16();
        response.into_body().collect().await.unwrap();
        status
    }));
    let served = tokio::select! {
        served = timeout(PATIENCE, all) => served.expect("none is starved"),
        ended = connection => panic!("the connection ended first: {ended:?}"),
    };
    assert_eq!(served, [200; REQUESTS]);
    stage.end().await;
}
