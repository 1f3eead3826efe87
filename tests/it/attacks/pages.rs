//! Pages that an operator opens: what a browser sends for them to the operators' routes without asking first.

use pd_proxy::config::Secret;

use super::stage;
use crate::common::client::{Raw, post_with};
use crate::common::stage::Stage;

const PAGE: &str = "https://evil.example";

/// Every route that changes something, with a body that does.
fn changes(engine: &str) -> [(&'static str, String); 3] {
    let change = format!(r#"{{"type":"decode","instances":["{engine}"]}}"#);
    [
        ("/instances/remove", change.clone()),
        ("/instances/add", change),
        ("/reset_prefix_cache", String::new()),
    ]
}

/// As a browser sends it for a form or `fetch` in the mode `no-cors` (Fetch Standard, "CORS-safelisted request-header").
fn from_page(path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let bytes = String::from_utf8(post_with(path, headers, body.as_bytes())).unwrap();
    bytes.replace("content-type: application/json", "content-type: text/plain").into_bytes()
}

async fn members(stage: &Stage) -> String {
    stage.get("/instances").await.text()
}

fn refused(raw: &Raw) -> bool {
    (raw.status, raw.header("x-pd-error")) == (403, Some("foreign_page"))
}

#[tokio::test]
async fn a_page_of_another_origin_changes_nothing() {
    let stage = stage(|_| {}).await;
    let before = members(&stage).await;
    for (path, body) in changes("127.0.0.1:9") {
        for (headers, named) in [
            (&[("origin", PAGE), ("sec-fetch-site", "cross-site")][..], "Sec-Fetch-Site: cross-site"),
            (&[("sec-fetch-site", "same-site")], "Sec-Fetch-Site: same-site"),
            (&[("origin", PAGE)], "Origin: https://evil.example"),
            (&[("origin", "null")], "Origin: null"),
            (&[("origin", "http://gateway:8009")], "Origin: http://gateway:8009"),
            (&[("origin", "http://gateway"), ("sec-fetch-site", "cross-site")], "Sec-Fetch-Site: cross-site"),
        ] {
            let raw = stage.send(&from_page(path, headers, &body)).await;
            assert!(refused(&raw), "{path} {headers:?}: {} {}", raw.head, raw.text());
            let message = raw.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.contains(named) && message.contains("X-API-Key"), "{message}");
        }
    }
    let delete = "DELETE /instances HTTP/1.1\r\nhost: gateway\r\norigin: null\r\ncontent-length: 0\r\n\r\n";
    assert!(refused(&stage.send(delete.as_bytes()).await));
    assert_eq!(members(&stage).await, before);
    assert!(stage.engines().all(|engine| engine.seen().is_empty()), "no engine heard of it");
    stage.end().await;
}

#[tokio::test]
async fn scripts_and_the_gateways_own_pages_go_on() {
    let stage = stage(|_| {}).await;
    for (path, body) in changes("127.0.0.1:9") {
        for headers in [
            &[][..],
            &[("origin", "http://gateway"), ("sec-fetch-site", "same-origin")],
            &[("origin", "https://GATEWAY:443")],
            &[("sec-fetch-site", "none")],
        ] {
            let raw = stage.send(&from_page(path, headers, &body)).await;
            assert_eq!(raw.status, 200, "{path} {headers:?}: {}", raw.text());
        }
    }
    stage.end().await;
}

#[tokio::test]
async fn who_has_the_key_is_no_page_that_happens_to_be_open() {
    let stage = stage(|script| script.config.server.admin_key = Some(Secret::new("k"))).await;
    let site = ("sec-fetch-site", "cross-site");
    for (path, body) in changes("127.0.0.1:9") {
        for (key, status) in [("k", 200), ("x", 403)] {
            let raw = stage.send(&from_page(path, &[site, ("x-api-key", key)], &body)).await;
            assert_eq!(raw.status, status, "{path} {key}: {}", raw.text());
        }
    }
    stage.end().await;
}
