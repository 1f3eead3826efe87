//! Pages that an operator opens, or anybody who reaches the gateway: what a browser sends for them
//! without asking first.

use pd_proxy::auth::Digest;
use pd_proxy::config::Secret;

use super::{GOOD, PATH, stage};
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

/// As a browser sends it for a form or `fetch` in the mode `no-cors` (Fetch Standard,
/// "CORS-safelisted request-header").
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
async fn request_with_a_key_is_no_foreign_page() {
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

/// The routes that generate, with valid bodies.
const GENERATE: [(&str, &str); 3] = [
    (PATH, GOOD),
    (
        "/v1/chat/completions",
        r#"{"model":"sim","messages":[{"role":"user","content":"Good?"}],"max_tokens":4}"#,
    ),
    ("/invocations", GOOD),
];

/// The headers that a browser sends for a page of another origin.
const FOREIGN: [(&str, &str); 2] = [("origin", PAGE), ("sec-fetch-site", "cross-site")];

/// A POST whose body is of this type, or of none that is said.
fn typed(path: &str, kind: Option<&str>, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let line = kind.map(|kind| format!("content-type: {kind}\r\n")).unwrap_or_default();
    let bytes = String::from_utf8(post_with(path, headers, body.as_bytes())).unwrap();
    bytes.replace("content-type: application/json\r\n", &line).into_bytes()
}

/// All that a browser lets every page send (Fetch Standard, "CORS-safelisted request-header").
const UNASKED: [Option<&str>; 4] =
    [Some("text/plain"), Some("Text/Plain;charset=UTF-8"), Some("application/x-www-form-urlencoded"), None];

#[tokio::test]
async fn a_page_of_another_origin_makes_nobody_generate() {
    let stage = stage(|_| {}).await;
    for (path, body) in GENERATE {
        for kind in UNASKED {
            for headers in [&FOREIGN[..], &FOREIGN[..1], &FOREIGN[1..], &[("origin", "null")]] {
                let raw = stage.send(&typed(path, kind, headers, body)).await;
                assert!(refused(&raw), "{path} {kind:?} {headers:?}: {} {}", raw.head, raw.text());
                let message = raw.json()["error"]["message"].as_str().unwrap().to_owned();
                assert!(message.contains("server.cors_origins"), "{message}");
            }
        }
    }
    assert!(stage.engines().all(|engine| engine.seen().is_empty()), "no engine heard of it");
    stage.end().await;
}

/// `curl -d` says that it sends a form, and the proxies that people come from don't look.
#[tokio::test]
async fn programs_that_name_any_type_are_served() {
    let stage = stage(|_| {}).await;
    for (path, body) in GENERATE {
        // The simulated engines don't know that one, and say so.
        let served = if path == "/invocations" { 404 } else { 200 };
        for kind in UNASKED {
            for headers in [&[][..], &[("origin", "http://gateway"), ("sec-fetch-site", "same-origin")]] {
                let raw = stage.send(&typed(path, kind, headers, body)).await;
                assert_eq!(raw.status, served, "{path} {kind:?} {headers:?}: {}", raw.text());
            }
        }
        // Its browser has asked before, or it is no browser.
        let asked = typed(path, Some("application/json"), &FOREIGN, body);
        assert_eq!(stage.send(&asked).await.status, served, "{path}");
    }
    stage.end().await;
}

#[tokio::test]
async fn pages_that_are_named_may_ask_in_any_way() {
    for (origins, other) in [(&[PAGE][..], 403), (&["*"], 200)] {
        let stage = stage(|s| {
            s.config.server.cors_origins = origins.iter().map(|&origin| origin.to_owned()).collect();
        })
        .await;
        for kind in UNASKED {
            let raw = stage.send(&typed(PATH, kind, &FOREIGN, GOOD)).await;
            assert_eq!(raw.status, 200, "{origins:?} {kind:?}: {}", raw.text());
            let headers = [("origin", "https://another.example"), FOREIGN[1]];
            let raw = stage.send(&typed(PATH, kind, &headers, GOOD)).await;
            assert_eq!(raw.status, other, "{origins:?} {kind:?}: {}", raw.text());
        }
        stage.end().await;
    }
}

#[tokio::test]
async fn a_page_has_no_key_that_it_could_show() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys.toml");
    std::fs::write(&keys, format!("[[key]]\nname = \"a\"\nsha256 = \"{}\"\n", Digest::of(b"sk-a"))).unwrap();
    let stage = stage(|s| s.config.auth.keys_file = Some(keys.to_str().unwrap().to_owned())).await;
    let key = ("authorization", "Bearer sk-a");
    for (headers, status) in [(&FOREIGN[..], 401), (&[FOREIGN[0], FOREIGN[1], key], 200)] {
        let raw = stage.send(&typed(PATH, Some("text/plain"), headers, GOOD)).await;
        assert_eq!(raw.status, status, "{headers:?}: {}", raw.text());
    }
    stage.end().await;
}
