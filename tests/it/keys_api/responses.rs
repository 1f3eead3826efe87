//! Responses that are kept belong to the key for which they were made.

use std::net::SocketAddr;

use http::Method;
use pd_proxy::sim::{Engine, Fault, FaultKind};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{code, keys, script};
use crate::common::client::{self, Raw};
use crate::common::raw_engine::Front;
use crate::common::stage::{Script, Stage};

pub(super) const RESPONSES: &str = "/v1/responses";

/// One decoder that makes the response `resp_1` and knows `resp_2`, which this gateway has not seen
/// made.
async fn keeping(script: Script) -> Stage {
    let stage = Stage::set(Script { prefillers: 1, decoders: 1, ..script }).await;
    let answer =
        |id: &str| FaultKind::Status(200, Some(json!({"id": id, "object": "response"}).to_string().into()));
    stage.decoders_fail(&Fault::always(answer("resp_2")).on_path(&format!("{RESPONSES}/resp_2")));
    stage.decoders_fail(&Fault::always(answer("resp_1")).on_path(RESPONSES));
    stage
}

async fn send(stage: &Stage, name: &str, method: &Method, path: &str, body: &str) -> Raw {
    send_to(stage.gateway, name, method, path, body).await
}

/// All that may be asked about a response.
pub(super) fn about(id: &str) -> [(Method, String, String); 5] {
    let path = format!("{RESPONSES}/{id}");
    [
        (Method::GET, path.clone(), String::new()),
        (Method::GET, format!("{path}/input_items"), String::new()),
        (Method::DELETE, path.clone(), String::new()),
        (Method::POST, format!("{path}/cancel"), String::new()),
        (Method::POST, RESPONSES.to_owned(), next(id)),
    ]
}

fn next(id: &str) -> String {
    json!({"model": "sim", "input": "b", "previous_response_id": id}).to_string()
}

#[tokio::test]
async fn another_key_can_not_read_stop_delete_or_go_on_from_a_response() {
    let dir = keys(&[("a", ""), ("b", ""), ("boss", "admin = true")]);
    let stage = keeping(script(&dir)).await;
    let new = json!({"model": "sim", "input": "a"}).to_string();
    assert_eq!(send(&stage, "a", &Method::POST, RESPONSES, &new).await.json()["id"], "resp_1");
    stage.forget();
    let asked = [
        (Method::GET, format!("{RESPONSES}/resp_1"), String::new()),
        (Method::DELETE, format!("{RESPONSES}/resp_1"), String::new()),
        (Method::POST, format!("{RESPONSES}/resp_1/cancel"), String::new()),
        (Method::POST, RESPONSES.to_owned(), next("resp_1")),
        // Spelled otherwise it is not known here, and an engine would read it.
        (Method::GET, format!("{RESPONSES}/resp%5F1"), String::new()),
    ];
    for (method, path, body) in &asked {
        for name in ["b", "boss"] {
            let raw = send(&stage, name, method, path, body).await;
            assert_eq!(code(&raw), (404, Some("response_not_found")), "{method} {path}: {}", raw.text());
        }
    }
    assert!(stage.decoders.iter().all(|it| it.seen().is_empty()), "no engine is asked");
    for (method, path, body) in &asked[..4] {
        let raw = send(&stage, "a", method, path, body).await;
        assert_ne!(code(&raw).1, Some("response_not_found"), "{method} {path}: {}", raw.text());
    }
    stage.end().await;
}

#[tokio::test]
async fn unknown_responses_are_refused_unless_configured() {
    let dir = keys(&[("a", "")]);
    let path = format!("{RESPONSES}/resp_2");
    for (allowed, status) in [(false, 404), (true, 200)] {
        let mut script = script(&dir);
        script.config.auth.unknown_responses = allowed;
        let stage = keeping(script).await;
        assert_eq!(send(&stage, "a", &Method::GET, &path, "").await.status, status, "{allowed}");
        let odd = send(&stage, "a", &Method::GET, &format!("{RESPONSES}/resp%5F2"), "").await;
        assert_eq!(odd.status, 404, "{allowed}");
        stage.end().await;
    }
}

/// Another gateway in front of the same engines, which asks for the same keys.
async fn beside(stage: &Stage, dir: &TempDir, unknown_responses: bool) -> Front {
    let at = |engines: &[Engine]| engines.iter().map(Engine::addr).collect::<Vec<_>>();
    Front::at(&at(&stage.prefillers), &at(&stage.decoders), |config| {
        config.auth.keys_file = Some(dir.path().join("keys.toml").to_str().unwrap().to_owned());
        config.auth.unknown_responses = unknown_responses;
    })
    .await
}

pub(super) async fn send_to(at: SocketAddr, name: &str, method: &Method, path: &str, body: &str) -> Raw {
    let length = body.len();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer sk-of-{name}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    client::send(at, text.as_bytes()).await
}

#[tokio::test]
async fn a_gateway_that_has_not_seen_a_response_made_gives_it_to_nobody() {
    let dir = keys(&[("a", ""), ("b", ""), ("boss", "admin = true")]);
    let stage = keeping(script(&dir)).await;
    let other = beside(&stage, &dir, false).await;
    let new = json!({"model": "sim", "input": "a"}).to_string();
    assert_eq!(send(&stage, "a", &Method::POST, RESPONSES, &new).await.json()["id"], "resp_1");
    stage.forget();
    for (method, path, body) in about("resp_1") {
        for name in ["a", "b", "boss"] {
            let raw = send_to(other.at, name, &method, &path, &body).await;
            assert_eq!(code(&raw), (404, Some("response_not_found")), "{method} {path}: {}", raw.text());
        }
    }
    assert!(stage.decoders.iter().all(|it| it.seen().is_empty()), "no engine is asked");
    other.end().await;

    // Where it is said so the other gateway shows it to whoever has its id; this one goes on to
    // know better.
    let other = beside(&stage, &dir, true).await;
    let path = format!("{RESPONSES}/resp_1");
    assert_eq!(send_to(other.at, "b", &Method::GET, &path, "").await.status, 200);
    for (method, path, body) in about("resp_1") {
        let raw = send(&stage, "b", &method, &path, &body).await;
        assert_eq!(code(&raw), (404, Some("response_not_found")), "{method} {path}: {}", raw.text());
    }
    other.end().await;
    stage.end().await;
}

/// Engines keep a response under the id that its request names, in the place of another that has
/// it.
#[tokio::test]
async fn no_key_chooses_the_id_of_a_response_and_so_takes_another_ones_place() {
    let dir = keys(&[("b", "")]);
    let body = json!({"model": "sim", "request_id": "resp_1", "input": "b"}).to_string();
    for (asks, expected) in [(true, None), (false, Some("resp_1"))] {
        let mut script = script(&dir);
        if !asks {
            script.config.auth.keys_file = None;
        }
        let stage = Stage::set(script).await;
        assert_eq!(send(&stage, "b", &Method::POST, RESPONSES, &body).await.status, 200);
        for seen in stage.engines().flat_map(Engine::seen) {
            let body: Value = serde_json::from_slice(&seen.body).unwrap();
            assert_eq!(body.get("request_id").and_then(Value::as_str), expected, "{}", seen.path);
            assert_eq!(body["input"], "b", "all else is as it came");
        }
        stage.end().await;
    }
}
