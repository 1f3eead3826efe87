//! Heads in both directions: whom a request says it is for, and what an engine says in the
//! gateway's name.

use super::{CHAT, willing};
use crate::common::raw_engine::{Front, RawEngine};

#[tokio::test]
async fn a_request_names_one_host_or_is_refused() {
    let engine = willing().await;
    let front = Front::of(&[&engine], &[&engine], |_| {}).await;
    for (name, line, hosts, good) in [
        ("one", "GET /health HTTP/1.1", "host: gateway\r\n", true),
        ("an address", "GET /health HTTP/1.1", "host: [::1]:8000\r\n", true),
        ("none, in 1.0", "GET /health HTTP/1.0", "", true),
        ("none", "GET /health HTTP/1.1", "", false),
        ("two", "GET /health HTTP/1.1", "host: gateway\r\nHost: gateway\r\n", false),
        ("two, that differ", "GET /health HTTP/1.1", "host: gateway\r\nHost: evil\r\n", false),
        ("two, in 1.0", "GET /health HTTP/1.0", "host: gateway\r\nHost: evil\r\n", false),
        ("an empty one", "GET /health HTTP/1.1", "host:\r\n", false),
        ("two words", "GET /health HTTP/1.1", "host: a b\r\n", false),
        ("a list", "GET /health HTTP/1.1", "host: a, b\r\n", false),
        ("a path", "GET /health HTTP/1.1", "host: a/b\r\n", false),
        ("a user", "GET /health HTTP/1.1", "host: user@a\r\n", false),
        ("no port", "GET /health HTTP/1.1", "host: a:b\r\n", false),
        ("a large port", "GET /health HTTP/1.1", "host: a:65536\r\n", false),
        ("a whole URL with a host", "GET http://other/health HTTP/1.1", "host: gateway\r\n", true),
        ("a whole URL without", "GET http://other/health HTTP/1.1", "", false),
        ("a whole URL with a user", "GET http://user@other/health HTTP/1.1", "host: gateway\r\n", false),
    ] {
        let raw = front.send(format!("{line}\r\n{hosts}\r\n").as_bytes()).await;
        assert_eq!(raw.status == 200, good, "{name}: {}", raw.head);
        if !good {
            assert_eq!(raw.status, 400, "{name}");
        }
    }
    for path in [CHAT, "/tokenize", "/sleep", "/nothing", "/v1/responses/x"] {
        let raw =
            front.send(format!("POST {path} HTTP/1.1\r\ncontent-length: 2\r\n\r\n{{}}").as_bytes()).await;
        assert_eq!((raw.status, raw.header("x-pd-error")), (400, Some("invalid_host")), "{path}");
        assert_eq!(raw.header("connection"), Some("close"), "{path}");
    }
    assert!(engine.seen().is_empty());
    front.end().await;
}

/// Headers of engines that clients must not see, a line each.
const FORGED: [&str; 16] = [
    "Set-Cookie: a=b",
    "Refresh: 0; url=http://evil",
    "Content-Location: http://10.0.0.1/x",
    "Location: http://10.0.0.1/x",
    "Via: 1.1 inner",
    "Alt-Svc: h3=\":443\"",
    "Strict-Transport-Security: max-age=1",
    "Clear-Site-Data: \"*\"",
    "X-Accel-Redirect: /internal",
    "X-Sendfile: /etc/passwd",
    "X-Pd-Error: none",
    "X-Pd-Anything: x",
    "Access-Control-Allow-Origin: *",
    "Server: inner",
    "NEL: {}",
    "Connection: x-private",
];

#[tokio::test]
async fn gateway_headers_of_an_engine_do_not_reach_clients() {
    for status in [200, 400, 501] {
        let forging = RawEngine::start(move |_| {
            let body = r#"{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}]}"#;
            let lines = FORGED.join("\r\n");
            format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{lines}\r\nX-Private: 1\r\nX-Kept: 1\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
        })
        .await;
        let front = Front::of(&[&forging], &[&forging], |_| {}).await;
        for path in ["/tokenize", CHAT, "/v1/chat/completions/batch", "/v1/audio/speech"] {
            let raw = front.post(path, r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#).await;
            // An engine that can't do a leg is a failure of ours, and tells nothing.
            assert!(raw.status == status || status == 501, "{path}: {}", raw.head);
            for line in FORGED {
                let (name, value) = line.split_once(": ").unwrap();
                let told = raw.header(&name.to_ascii_lowercase());
                assert!(told.is_none_or(|told| told != value), "{path}: {name}: {told:?}");
            }
            assert_eq!(raw.header("x-private"), None, "{path}");
            if raw.status == status {
                assert_eq!(raw.header("x-kept"), Some("1"), "{path}");
            }
        }
        front.end().await;
    }
}
