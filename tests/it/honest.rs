//! Answers that look like answers and are none, and limits that hold when the other side does
//! nothing.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use pd_proxy::sim::{ConnectionEnd, Engine, Fault, FaultKind};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::common::client::{self, Raw};
use crate::common::place;
use crate::common::stage::{Script, Stage, fast};
use crate::common::time::eventually;
use crate::health::member;

const PATH: &str = "/v1/completions";
const PATIENCE: Duration = Duration::from_secs(10);

fn body(stream: bool) -> String {
    json!({"prompt": "some words to begin with", "max_tokens": 8, "stream": stream}).to_string()
}

#[tokio::test]
async fn a_200_that_is_no_answer_is_tried_elsewhere() {
    let stage = Stage::new().await;
    let words = stage.post(PATH, &body(false)).await.words();
    for said in ["", "<html>", "[]", r#"{"error":{"code":500}}"#] {
        for stream in [false, true] {
            let fault = Fault::always(FaultKind::Status(200, Some(said.into())));
            assert!(stage.decoders[0].inject(fault.clone()));
            for _ in 0..2 {
                let answer = stage.post(PATH, &body(stream)).await;
                assert_eq!((answer.status, answer.words().as_str()), (200, words.as_str()), "{said:?}");
            }
            stage.heal();
            stage.decoders_fail(&fault);
            let answer = stage.post(PATH, &body(stream)).await;
            assert_eq!(
                (answer.status, answer.json()["error"]["code"].as_str()),
                (502, Some("decode_failed"))
            );
            stage.heal();
        }
    }
    stage.end().await;
}

/// Our limit, not the engine's fault: it is asked once and stays in good health, and the client
/// reads which limit it was.
#[tokio::test]
async fn an_answer_that_is_too_large_is_nobody_s_failure() {
    for (prefill, answer, code, limit, prefills, decodes) in [
        (64 << 20, 100, "decode_failed", "limit.answer_bytes", 1, 1),
        (100, 64 << 20, "bad_prefill_reply", "limit.prefill_reply_bytes", 1, 0),
    ] {
        let mut script = Script { prefillers: 1, decoders: 1, ..Script::default() };
        (script.config.limit.prefill_reply_bytes, script.config.limit.answer_bytes) = (prefill, answer);
        // One failure would open its breaker.
        script.config.health.failures = 1;
        script.config.health.rest_ms = 60_000;
        script.config.health.rest_max_ms = 60_000;
        let stage = Stage::set(script).await;
        for _ in 0..2 {
            stage.forget();
            let said = stage.post(PATH, &body(false)).await;
            assert_eq!((said.status, said.json()["error"]["code"].as_str()), (502, Some(code)));
            assert!(said.text().contains(limit), "{}", said.text());
            assert_eq!(stage.seen(&stage.prefillers).len(), prefills, "{limit}");
            assert_eq!(stage.seen(&stage.decoders).len(), decodes, "{limit}");
        }
        for (role, engine) in [("prefill", &stage.prefillers[0]), ("decode", &stage.decoders[0])] {
            let it = member(stage.gateway, role, engine.addr()).await;
            assert_eq!((&it["breaker"], &it["failures"]), (&json!("closed"), &json!(0)), "{limit}: {it}");
        }
        assert_eq!(stage.expired(), 0, "what was decoded was fetched");
        stage.end().await;
    }
}

#[tokio::test]
async fn nothing_comes_after_the_last_event() {
    let pair = Script { prefillers: 1, decoders: 1, ..Script::default() };
    let stage = Stage::set(pair.tried_at_once()).await;
    let request = client::post_with(PATH, &[("x-request-id", "same")], body(true).as_bytes());
    // As long as what the decoder writes for the gateway: same id, same words.
    let direct = client::send(stage.decoders[0].addr(), &request).await;
    let length = direct.raw_bytes;
    let mut complete = 0;
    for bytes in length - 30..=length {
        stage.decoders_fail(&Fault::once(FaultKind::CutAfterBytes { bytes, how: ConnectionEnd::Reset }));
        let answer = stage.send(&request).await;
        let errors = answer.text().matches("\"error\"").count();
        assert_eq!(
            errors + usize::from(answer.done()),
            1,
            "cut after {bytes} of {length}: {}",
            answer.text()
        );
        complete += usize::from(answer.done());
        stage.heal();
    }
    assert!((2..30).contains(&complete), "{complete} of 31 had their last event");
    stage.end().await;
}

/// Completeness of a streamed response, and the sign to its client that it is incomplete.
fn ending(answer: &Raw) -> (bool, bool) {
    let text = answer.text();
    let last = text.split("event: ").last().unwrap();
    let data = last.strip_prefix("response.completed\ndata: ").and_then(|data| data.strip_suffix("\n\n"));
    let whole = data.is_some_and(|data| serde_json::from_str::<Value>(data).is_ok());
    (whole, last.starts_with("error\n") && text.contains("\n\nevent: error\n"))
}

/// An event that is too large to be held back goes out in parts: the first part of the last event
/// is no end.
#[tokio::test]
async fn half_of_a_last_event_is_no_end() {
    let mut script = Script { prefillers: 1, decoders: 1, ..Script::default() }.tried_at_once();
    script.config.limit.frame_bytes = 100;
    let stage = Stage::set(script).await;
    let asked = json!({"input": "some words to begin with", "max_output_tokens": 40, "stream": true});
    let request =
        client::post_with("/v1/responses", &[("x-request-id", "same")], asked.to_string().as_bytes());
    let direct = client::send(stage.decoders[0].addr(), &request).await;
    // Beyond its end, in case that the next ones are a little longer, back to where the last event
    // begins.
    let (most, last) = (direct.raw_bytes + 50, direct.text().split("event: ").last().unwrap().len());
    let mut broken = 0;
    for back in (0..last).step_by(41) {
        let how = if back % 2 == 0 { ConnectionEnd::Reset } else { ConnectionEnd::Close };
        stage.decoders_fail(&Fault::once(FaultKind::CutAfterBytes { bytes: most - back, how }));
        let answer = stage.send(&request).await;
        let (whole, told) = ending(&answer);
        assert!(whole != told && answer.complete == whole, "{back} before {most}: {}", answer.text());
        assert!(whole || back > 0);
        broken += usize::from(told);
        stage.heal();
    }
    assert!(broken > 5, "{broken} of {last} bytes");
    stage.decoders_fail(&Fault::once(FaultKind::DribbleBytes(150)));
    let answer = stage.send(&request).await;
    assert_eq!((ending(&answer), answer.complete), ((true, false), true), "{}", answer.text());
    stage.end().await;
}

/// The same where the engine's body ends as if it were complete: what the client is told is an
/// event of its own.
#[tokio::test]
async fn half_an_event_is_followed_by_a_whole_one() {
    let mut script = Script { prefillers: 1, decoders: 1, ..Script::default() }.tried_at_once();
    script.config.limit.frame_bytes = 100;
    let stage = Stage::set(script).await;
    let long = "x".repeat(500);
    let messages = json!([{"role": "user", "content": "a"}]);
    for (path, key, value, first, last) in [
        (
            PATH,
            "prompt",
            json!("a"),
            "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}",
            "data: {\"choices\":[{\"text\":\"",
        ),
        (
            "/v1/responses",
            "input",
            json!("a"),
            "event: response.output_text.delta\ndata: {\"delta\":\"a\"}",
            "event: response.completed\ndata: {\"response\":\"",
        ),
        (
            "/v1/messages",
            "messages",
            messages,
            "event: content_block_delta\ndata: {\"delta\":{\"text\":\"a\"}}",
            "event: message_stop\ndata: {\"type\":\"",
        ),
    ] {
        let body = json!({"model": "sim", "max_tokens": 8, "stream": true, key: value}).to_string();
        let half = format!("{first}\n\n{last}{long}");
        stage.decoders_fail(&Fault::once(FaultKind::Events(half.clone().into())));
        let answer = stage.post(path, &body).await;
        let text = answer.text();
        let told = text.strip_prefix(&format!("{half}\n\n")).unwrap_or_else(|| panic!("{path}: {text}"));
        let event = if path == PATH { "data: {\"error\"" } else { "event: error\n" };
        assert!(told.starts_with(event) && told.contains("decode_failed"), "{path}: {text}");
        assert_eq!((answer.status, answer.complete), (200, false), "{path}");
        stage.heal();
    }
    stage.end().await;
}

/// Reads until the connection ends or a second has passed; whether it ended, and what came.
async fn read_for_a_second(socket: &mut TcpStream) -> (bool, String) {
    let mut all = Vec::new();
    let ended = timeout(Duration::from_secs(1), socket.read_to_end(&mut all)).await.is_ok();
    (ended, String::from_utf8_lossy(&all).into_owned())
}

#[tokio::test]
async fn a_client_has_time_to_read_that_its_stream_broke() {
    for (tell_ms, cut) in [(0, true), (60_000, false)] {
        let mut script = Script::default();
        script.config.timeout.tell_ms = tell_ms;
        let stage = Stage::set(script).await;
        // One prompt, and two that are merged.
        let two = r#"{"model":"sim","prompt":["one","two"],"max_tokens":16,"stream":true}"#;
        for body in [body(true), two.to_owned()] {
            stage.decoders_fail(&Fault::always(FaultKind::CutAfterBytes {
                bytes: 900,
                how: ConnectionEnd::Reset,
            }));
            let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
            socket.write_all(&client::post_with(PATH, &[], body.as_bytes())).await.unwrap();
            let (ended, text) = read_for_a_second(&mut socket).await;
            assert!(text.contains("\"decode_failed\"") && !text.contains("[DONE]"), "{tell_ms} ms: {text}");
            assert!(!text.ends_with("0\r\n\r\n"), "it does not end cleanly");
            assert_eq!(ended, cut, "{tell_ms} ms: {text}");
            // Nothing waits for the client, and it is not waited for.
            stage.assert_nothing_left("while the client reads").await;
            drop(socket);
            stage.heal();
        }
        stage.end().await;
    }
}

#[tokio::test]
async fn a_client_over_http2_learns_that_its_stream_broke() {
    let stage = Stage::set(Script::default().tried_at_once()).await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Full<bytes::Bytes>>();
    for _ in 0..20 {
        stage.decoders_fail(&Fault::once(FaultKind::CutAfterBytes { bytes: 900, how: ConnectionEnd::Reset }));
        let request = http::Request::post(format!("http://{}{PATH}", stage.gateway))
            .header("content-type", "application/json")
            .body(Full::from(body(true)))
            .unwrap();
        let answer = client.request(request).await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (200, http::Version::HTTP_2));
        let all = answer.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&all);
        assert!(text.contains("\"decode_failed\"") && !text.contains("[DONE]"), "{text}");
        stage.heal();
    }
    stage.end().await;
}

#[tokio::test]
async fn nothing_is_prefilled_while_nobody_can_decode() {
    let stage = Stage::new().await;
    let all: Vec<String> = stage.decoders.iter().map(|d| d.addr().to_string()).collect();
    let removal = json!({"type": "decode", "instances": all}).to_string();
    assert_eq!(stage.post("/instances/remove", &removal).await.status, 200);
    let answer = stage.post(PATH, &body(false)).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (503, Some("no_decoder")));
    assert!(stage.seen(&stage.prefillers).is_empty());
    stage.end().await;
}

#[tokio::test]
async fn connections_that_say_nothing_are_closed() {
    let mut script = Script::default();
    script.config.timeout.header_ms = 200;
    let stage = Stage::set(script).await;
    for beginning in [&b""[..], b"P", b"PRI * HT", b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"] {
        let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
        socket.write_all(beginning).await.unwrap();
        let mut rest = Vec::new();
        let closed = timeout(PATIENCE, socket.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "still open after {beginning:?}");
    }
    stage.end().await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_of_its_answer_is_given_up() {
    let mut script = Script::default();
    script.config.timeout.write_ms = 200;
    let stage = Stage::set(script).await;
    let long = json!({"prompt": "x", "max_tokens": 200_000, "stream": true}).to_string();
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    socket.write_all(&client::post(PATH, &long)).await.unwrap();
    // 200 000 events are 40 MB, more than the sockets hold: without the limit the decoder would
    // wait for ever.
    let running = || stage.decoders.iter().any(|d| d.ledger().running > 0);
    eventually("it begins", async || running()).await;
    eventually("it is given up", async || !running()).await;
    drop(socket);
    stage.assert_nothing_left("at the end").await;
    stage.end().await;
}

#[tokio::test]
async fn an_engine_that_is_removed_while_it_is_waited_for_does_not_join() {
    let mut script = Script::default();
    script.config.fleet.probe_interval_ms = 100;
    script.config.fleet.probe_attempts = 1_000;
    let stage = Stage::set(script).await;
    let [address, other] = [place::own(), place::own()];
    let change =
        |of: std::net::SocketAddr| json!({"type": "prefill", "instances": of.to_string()}).to_string();
    for of in [address, other] {
        let said = stage.post("/instances/add", &change(of)).await.text();
        assert!(said.contains("waiting to be added"), "{said}");
    }
    stage.post("/instances/remove", &change(address)).await;
    let engine = Engine::start(fast(), address).await.unwrap();
    // Another one is waited for, and asked several times. Were the first still waited for, it would
    // be asked as often.
    let busy = Fault { times: 3, ..Fault::always(FaultKind::Status(503, None)) };
    let other = Engine::start(fast(), other).await.unwrap();
    assert!(other.inject(busy));
    let count = async || stage.get("/status").await.json()["prefill_node_count"].clone();
    eventually("the other one joins", async || count().await == 3).await;
    assert!(other.seen().len() > 3 && engine.seen().is_empty(), "nobody asks the one that was removed");
    for engine in [engine, other] {
        engine.stop().await;
    }
    stage.end().await;
}
