//! Pages of other origins: what a browser asks before it lets them ask, and whether it lets them
//! read the answer.

use pd_proxy::auth::Digest;

use super::{CHAT, chat};
use crate::common::client::{Raw, post_with};
use crate::common::stage::{Script, Stage};

const PAGE: &str = "https://chat.example";

async fn stage(origins: &[&str]) -> Stage {
    let mut script = Script::default();
    script.config.server.cors_origins = origins.iter().map(|&origin| origin.to_owned()).collect();
    Stage::set(script).await
}

/// The first request of a browser (Fetch Standard, "CORS-preflight fetch"): without the key that
/// the page would send.
async fn preflight(stage: &Stage, origin: &str, path: &str) -> Raw {
    let head = format!(
        "OPTIONS {path} HTTP/1.1\r\nhost: gateway\r\norigin: {origin}\r\naccess-control-request-method: POST\r\n\
         access-control-request-headers: authorization,content-type\r\n\r\n"
    );
    stage.send(head.as_bytes()).await
}

async fn ask(stage: &Stage, path: &str, headers: &[(&str, &str)]) -> Raw {
    stage.send(&post_with(path, headers, chat("x").to_string().as_bytes())).await
}

fn allowed(raw: &Raw) -> Option<&str> {
    raw.header("access-control-allow-origin")
}

#[tokio::test]
async fn pages_are_answered_only_where_their_origin_is_configured() {
    let stage = stage(&[]).await;
    let asked = preflight(&stage, PAGE, CHAT).await;
    assert_eq!((asked.status, allowed(&asked)), (405, None));
    let answer = ask(&stage, CHAT, &[("origin", PAGE)]).await;
    assert_eq!((answer.status, allowed(&answer), answer.header("vary")), (200, None, None));
    stage.end().await;
}

#[tokio::test]
async fn a_page_that_is_named_may_ask_and_read_the_refusals_too() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys.toml");
    std::fs::write(&keys, format!("[[key]]\nname = \"a\"\nsha256 = \"{}\"\n", Digest::of(b"sk-a"))).unwrap();
    let mut script = Script::default();
    script.config.server.cors_origins = vec!["http://localhost:3000".to_owned(), PAGE.to_owned()];
    script.config.auth.keys_file = Some(keys.to_str().unwrap().to_owned());
    let stage = Stage::set(script).await;

    let asked = preflight(&stage, PAGE, CHAT).await;
    assert_eq!((asked.status, allowed(&asked)), (200, Some(PAGE)), "without a key");
    assert_eq!(asked.header("access-control-allow-methods"), Some("POST"));
    assert_eq!(asked.header("access-control-allow-headers"), Some("authorization,content-type"));
    assert!(stage.seen(&stage.prefillers).is_empty(), "no engine heard of it");

    let key = ("authorization", "Bearer sk-a");
    let answer = ask(&stage, CHAT, &[("origin", PAGE), key]).await;
    assert_eq!((answer.status, allowed(&answer)), (200, Some(PAGE)));
    let readable = answer.header("access-control-expose-headers").unwrap_or_default();
    assert!(readable.contains("x-request-id") && answer.header("x-request-id").is_some(), "{readable}");
    // A cache in between may not give one page's answer to another.
    assert!(answer.header("vary").is_some_and(|vary| vary.contains("origin")));
    let refused = ask(&stage, CHAT, &[("origin", PAGE)]).await;
    assert_eq!((refused.status, allowed(&refused)), (401, Some(PAGE)));
    let unknown = ask(&stage, "/v1/nothing", &[("origin", PAGE), key]).await;
    assert_eq!((unknown.status, allowed(&unknown)), (404, Some(PAGE)));

    for other in ["https://chat.example.evil", "http://chat.example", "https://chat.example:8443", "null"] {
        assert_eq!(allowed(&preflight(&stage, other, CHAT).await), None, "{other}");
        assert_eq!(allowed(&ask(&stage, CHAT, &[("origin", other), key]).await), None, "{other}");
    }
    stage.end().await;
}

#[tokio::test]
async fn pages_may_not_ask_operator_routes() {
    let stage = stage(&["*"]).await;
    for path in [CHAT, "/v1/models", "/health"] {
        assert_eq!(allowed(&preflight(&stage, PAGE, path).await), Some(PAGE), "{path}");
    }
    for path in [
        "/instances",
        "/instances/remove",
        "/debug/route",
        "/status",
        "/status.json",
        "/metrics",
        "/reset_prefix_cache",
        "/",
    ] {
        assert_eq!(allowed(&preflight(&stage, PAGE, path).await), None, "{path}");
        let get = format!("GET {path} HTTP/1.1\r\nhost: gateway\r\norigin: {PAGE}\r\n\r\n");
        assert_eq!(allowed(&stage.send(get.as_bytes()).await), None, "{path}");
    }
    stage.end().await;
}
