//! Responses that are kept belong to the key for which they were made.

use http::Method;
use pd_proxy::sim::{Fault, FaultKind};
use serde_json::json;

use super::{code, keys, script};
use crate::common::client::Raw;
use crate::common::stage::{Script, Stage};

const RESPONSES: &str = "/v1/responses";

/// One decoder that makes the response `resp_1` and knows `resp_2`, which this gateway has not seen made.
async fn keeping(script: Script) -> Stage {
    let stage = Stage::set(Script { prefillers: 1, decoders: 1, ..script }).await;
    let answer =
        |id: &str| FaultKind::Status(200, Some(json!({"id": id, "object": "response"}).to_string().into()));
    stage.decoders_fail(&Fault::always(answer("resp_2")).on_path(&format!("{RESPONSES}/resp_2")));
    stage.decoders_fail(&Fault::always(answer("resp_1")).on_path(RESPONSES));
    stage
}

async fn send(stage: &Stage, name: &str, method: &Method, path: &str, body: &str) -> Raw {
    let length = body.len();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer sk-of-{name}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stage.send(text.as_bytes()).await
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
async fn a_response_of_which_nobody_knows_whose_it_is_is_nobody_s_unless_it_is_said() {
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
