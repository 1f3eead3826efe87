//! Every kind of request is told that it is cut, over both protocols and however the gateway ends.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Request, Version};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::command::Process;
use crate::common::client::{self, get};
use crate::common::raw_engine::{Asked, RawEngine, answer};
use crate::common::time::eventually;

/// A page of this origin may read the answers.
const ORIGIN: &str = "https://chat.example";

/// Ways to the end of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The time to drain is over.
    Drained,
    /// A second signal while it drains.
    Second,
    /// A second signal while balancers still may send requests.
    SecondAsLameDuck,
}

/// A request's answer as a client has it at the end.
#[derive(Debug)]
struct Told {
    status: u16,
    headers: HeaderMap,
    text: String,
    /// The framing says that the body is complete.
    is_complete: bool,
}

/// Something to ask: the name of the case is the id of the request.
struct Case {
    name: &'static str,
    method: &'static str,
    target: &'static str,
    body: &'static str,
    /// Only a part of the body is sent.
    is_half: bool,
}

const fn post(name: &'static str, target: &'static str, body: &'static str) -> Case {
    Case { name, method: "POST", target, body, is_half: false }
}

/// Streams that an engine has begun, or that the gateway keeps alive.
const STREAMS: [Case; 5] = [
    post(
        "stream",
        "/v1/chat/completions",
        r#"{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true}"#,
    ),
    post(
        "kept-alive",
        "/v1/chat/completions",
        r#"{"model":"m","messages":[{"role":"user","content":"no head"}],"stream":true}"#,
    ),
    post("prompts", "/v1/completions", r#"{"model":"m","prompt":["x","y"],"stream":true}"#),
    post("passed", "/v1/new/x", r#"{"model":"m"}"#),
    Case {
        name: "stored",
        method: "GET",
        target: "/v1/responses/resp_1?stream=true",
        body: "",
        is_half: false,
    },
];

/// Requests that have no answer yet.
const WHOLE: [Case; 4] = [
    post(
        "whole",
        "/v1/chat/completions",
        r#"{"model":"m","messages":[{"role":"user","content":"no head"}]}"#,
    ),
    post("embedding", "/v1/embeddings", r#"{"model":"m","input":"no head"}"#),
    Case { is_half: true, ..post("half", "/v1/chat/completions", r#"{"model":"#) },
    Case { is_half: true, ..post("half-order", "/instances/remove", r#"{"type":"#) },
];

/// Streams without room for an event: one in the middle of an event, which a client would take for
/// a whole one if another came, and one of a length that the engine has told.
const BROKEN: [Case; 2] =
    [post("broken", "/v1/new/half", r#"{"model":"m"}"#), post("fixed", "/v1/new/fixed", r#"{"model":"m"}"#)];

/// Waits until its engine has drained.
const ORDER: Case = post("order", "/sleep?drain_ms=600000&role=decode", "");

/// Falls silent in the middle of a stream, or before the head of an answer.
fn silent(asked: &Asked) -> Vec<u8> {
    // Where an engine of these tests sees a length, it keeps the connection.
    if String::from_utf8_lossy(&asked.body).contains("no head") {
        return b"HTTP/1.1 200 OK\r\nx-why: no content-length\r\n".to_vec();
    }
    let event = match asked.path() {
        "/v1/responses/resp_1" => {
            "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":7}\n\n"
        }
        "/v1/completions" => "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n",
        "/v1/new/x" => "data: {\"id\":1}\n\n",
        "/v1/new/fixed" => {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 40\r\n\r\n";
            return format!("{head}data: {{\"id\":1}}\n\n").into_bytes();
        }
        "/v1/new/half" => "data: {\"id\":1}\n\ndata: {\"id\"",
        _ => "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n",
    };
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nx-why: no content-length\r\n\r\n";
    format!("{head}{:x}\r\n{event}\r\n", event.len()).into_bytes()
}

async fn engines() -> (RawEngine, RawEngine) {
    let prefilled = r#"{"choices":[{"index":0,"finish_reason":"length"}],"usage":{"prompt_tokens":2,"completion_tokens":1},"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"e"}}"#;
    let prefiller = RawEngine::start(move |asked| match asked.path() {
        "/v1/chat/completions" | "/v1/completions" => answer(200, prefilled),
        _ => silent(asked),
    });
    tokio::join!(prefiller, RawEngine::start(silent))
}

fn request(case: &Case, over: Version) -> Request<BoxBody<Bytes, Infallible>> {
    let sent = stream::iter([Ok(Frame::data(Bytes::from(case.body)))]);
    let body = match case.is_half {
        true => BodyExt::boxed(StreamBody::new(sent.chain(stream::pending()))),
        false => BodyExt::boxed(StreamBody::new(sent)),
    };
    let target = match over {
        Version::HTTP_2 => format!("http://gateway{}", case.target),
        _ => case.target.to_owned(),
    };
    let request = Request::builder().method(case.method).uri(target).version(over);
    let request = request.header("x-request-id", case.name);
    // Orders of other origins' pages are refused.
    let request = if case.target.starts_with("/v1") { request.header("origin", ORIGIN) } else { request };
    let request = if over == Version::HTTP_2 { request } else { request.header("host", "gateway") };
    request.header("content-type", "application/json").body(body).unwrap()
}

/// One exchange on a connection of its own; `begun` counts the heads of answers.
async fn ask(to: SocketAddr, case: &Case, over: Version, begun: &AtomicUsize) -> Told {
    let io = TokioIo::new(TcpStream::connect(to).await.unwrap());
    let mut connections = JoinSet::new();
    let response = match over {
        Version::HTTP_2 => {
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
            connections.spawn(async { drop(connection.await) });
            sender.send_request(request(case, over)).await
        }
        _ => {
            let (mut sender, connection) = http1::handshake(io).await.unwrap();
            connections.spawn(async { drop(connection.await) });
            sender.send_request(request(case, over)).await
        }
    };
    let Ok(response) = response else {
        return Told { status: 0, headers: HeaderMap::new(), text: String::new(), is_complete: false };
    };
    begun.fetch_add(1, Ordering::Relaxed);
    let (head, mut body) = response.into_parts();
    let (mut text, mut is_complete) = (Vec::new(), true);
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => text.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Err(_) => {
                is_complete = false;
                break;
            }
        }
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    Told { status: head.status.as_u16(), headers: head.headers, text, is_complete }
}

/// A stream ends with an event that says why, whole and after whole events.
fn assert_stream_told(name: &str, told: &Told) {
    assert_eq!(told.status, 200, "{name}: {told:?}");
    let last = told.text.trim_end().rsplit("\n\n").next().unwrap();
    let data = last.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or_default();
    let error: serde_json::Value =
        serde_json::from_str(data).unwrap_or_else(|e| panic!("{name}: {e}: {told:?}"));
    let code = error.pointer("/error/code").and_then(|code| code.as_str());
    assert_eq!(code, Some("shutdown"), "{name}: {told:?}");
    assert!(!told.text.contains("[DONE]"), "{name}: {told:?}");
    let kind = told.headers["content-type"].to_str().unwrap();
    assert!(kind.starts_with("text/event-stream"), "{name}: {kind}");
}

/// An answer that was not begun is a refusal like any other.
fn assert_refused(name: &str, told: &Told, ending: Ending) {
    if name == ORDER.name && told.status == 502 {
        // The order itself has noticed first, and says so of each engine.
        return assert!(told.text.contains("the gateway shuts down: it was not told"), "{told:?}");
    }
    let header = |name: &str| told.headers.get(name).and_then(|value| value.to_str().ok());
    assert_eq!((told.status, header("x-pd-error")), (503, Some("shutdown")), "{name}: {told:?}");
    assert!(told.is_complete && header("retry-after").is_some(), "{name}: {told:?}");
    assert_eq!(header("x-request-id"), Some(name), "{told:?}");
    let may_read = (ending == Ending::Second && !name.contains("order")).then_some(ORIGIN);
    assert_eq!(header("access-control-allow-origin"), may_read, "{name}: {told:?}");
}

async fn all_are_told(over: Version, ending: Ending) {
    let (prefiller, decoder) = engines().await;
    let [prefill, decode] = [&prefiller, &decoder].map(|engine| engine.addr().to_string());
    let times = match ending {
        Ending::Drained => "server.drain_ms=1000",
        Ending::Second => "server.drain_ms=600000",
        Ending::SecondAsLameDuck => "server.lame_duck_ms=600000",
    };
    let origins = if ending == Ending::Second { ORIGIN } else { "" };
    let origins = format!("server.cors_origins={origins}");
    let mut flags = vec!["--host", "127.0.0.1", "--port", "0", "--prefill", &prefill, "--decode", &decode];
    for setting in [
        times,
        "server.open_admin=true",
        "stream.keep_alive_ms=20",
        "server.passthrough=/v1/new/*",
        "dialect.name=kv_transfer",
        "health.probe_ms=0",
        &origins,
    ] {
        flags.extend(["--set", setting]);
    }
    let mut process = Process::start(&flags, &[]);
    let to = process.address();
    let (mut told, begun) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for case in STREAMS.iter().chain(&WHOLE).chain(&BROKEN) {
        let begun = begun.clone();
        told.spawn(async move { (case.name, ask(to, case, over, &begun).await) });
    }
    let asked = || [prefiller.seen(), decoder.seen()].concat();
    // Each of these is asked for once; both prompts and the legs of chats make more.
    let has = |all: &[Asked], path: &str| all.iter().filter(|it| it.path() == path).count();
    let wanted = [
        ("/v1/new/x", 1),
        ("/v1/new/half", 1),
        ("/v1/new/fixed", 1),
        ("/v1/responses/resp_1", 1),
        ("/v1/embeddings", 1),
        ("/v1/completions", 4),
        ("/v1/chat/completions", 6),
    ];
    let all = async || wanted.iter().all(|(path, times)| has(&asked(), path) >= *times);
    eventually("all engines are asked", all).await;
    // What has no head yet would be refused: the comment of a kept stream takes its time.
    let streams = STREAMS.len() + BROKEN.len();
    eventually("all streams have begun", async || begun.load(Ordering::Relaxed) == streams).await;
    let of_order = begun.clone();
    told.spawn(async move { (ORDER.name, ask(to, &ORDER, over, &of_order).await) });
    let drains = async || client::send(to, &get("/instances")).await.text().contains("\"draining\":true");
    eventually("the order waits", drains).await;
    process.signal("TERM");
    process.wait_for("shutting down");
    if ending != Ending::Drained {
        process.signal("TERM");
    }
    let told = told.join_all().await;
    assert_eq!(told.len(), STREAMS.len() + WHOLE.len() + BROKEN.len() + 1);
    for (name, told) in &told {
        match STREAMS.iter().any(|case| case.name == *name) {
            true => assert_stream_told(&format!("{name} {over:?} {ending:?}"), told),
            false if BROKEN.iter().any(|case| case.name == *name) => {
                let begun = "data: {\"id\":1}\n\n";
                let whole =
                    if *name == "fixed" { begun.to_owned() } else { format!("{begun}data: {{\"id\"") };
                assert_eq!(
                    (told.status, told.is_complete, &told.text),
                    (200, false, &whole),
                    "{name} {over:?} {ending:?}"
                );
            }
            false => assert_refused(name, told, ending),
        }
        let follows = told.text.contains("\"sequence_number\":8");
        assert_eq!(follows, *name == "stored", "the engine's event was the seventh: {told:?}");
    }
    assert_eq!(process.ended().code(), Some(0));
    for case in STREAMS.iter().chain(&WHOLE[..3]).chain(&BROKEN) {
        let line = process.hear(&format!("request id={}", case.name));
        assert!(line.contains("WARN") && line.contains("shutdown"), "{line}");
    }
    assert_eq!(has(&asked(), "/sleep"), 0, "its requests were cut, not finished");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn requests_over_http1_are_told() {
    for ending in [Ending::Drained, Ending::Second, Ending::SecondAsLameDuck] {
        all_are_told(Version::HTTP_11, ending).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn requests_over_http2_are_told() {
    for ending in [Ending::Drained, Ending::Second, Ending::SecondAsLameDuck] {
        all_are_told(Version::HTTP_2, ending).await;
    }
}
