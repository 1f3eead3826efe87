//! Routes that one engine answers.

use super::{asked_at, hanging_up, willing};
use crate::common::client::{post, post_with};
use crate::common::raw_engine::{Front, RawEngine, answer};

/// Each that only reads.
const READS: [&str; 25] = [
    "/classify",
    "/detokenize",
    "/pooling",
    "/rerank",
    "/score",
    "/tokenize",
    "/v1/chat/completions/derender",
    "/v1/chat/completions/render",
    "/v1/classify",
    "/v1/completions/derender",
    "/v1/completions/render",
    "/v1/decisions",
    "/v1/embeddings",
    "/v1/messages/count_tokens",
    "/v1/messages/render",
    "/v1/rerank",
    "/v1/responses/compact",
    "/v1/responses/input_tokens",
    "/v1/responses/render",
    "/v1/score",
    "/v1/systemone",
    "/v1/tokenize",
    "/v2/embed",
    "/v2/rerank",
    "/v1/responses/derender",
];
const BODY: &str = r#"{"model":"m","input":"x","prompt":"x","messages":[]}"#;

#[tokio::test]
async fn read_only_request_is_retried_after_a_reset() {
    // The only one of the first role: it is tried until it is known to be down, and then the other
    // role goes first.
    let (bad, good) = (hanging_up().await, willing().await);
    let front = Front::of(&[&bad], &[&good], |_| {}).await;
    for path in READS {
        let raw = front.post(path, BODY).await;
        assert_eq!(raw.status, 200, "{path}: {}", raw.text());
        assert!(!asked_at(&good, path).is_empty(), "{path}");
    }
    assert!(!asked_at(&bad, READS[0]).is_empty(), "the first one was tried there before");
    front.end().await;
}

#[tokio::test]
async fn changing_request_is_not_retried_after_a_reset() {
    let (bad, good) = (hanging_up().await, willing().await);
    let front = Front::of(&[&bad], &[&good], |config| config.server.passthrough = vec!["/v9/*".into()]).await;
    let raw = front.post("/v9/unknown", "{}").await;
    assert_eq!((raw.status, asked_at(&bad, "/v9/unknown").len(), good.seen().len()), (502, 1, 0));
    let raw = front.get("/v9/unknown").await;
    assert_eq!((raw.status, asked_at(&good, "/v9/unknown").len()), (200, 1), "a GET is safe");
    front.end().await;
}

#[tokio::test]
async fn input_tokens_is_a_route_and_no_response() {
    let (p, d1, d2) = (willing().await, willing().await, willing().await);
    let front = Front::of(&[&p], &[&d1, &d2], |_| {}).await;
    for path in ["/v1/responses/input_tokens", "/v1/responses/compact"] {
        assert_eq!(front.post(path, BODY).await.status, 200, "{path}");
        assert_eq!(asked_at(&p, path).len(), 1, "{path}");
        assert!(
            d1.seen().is_empty() && d2.seen().is_empty(),
            "{path}: nobody is asked for a response of that name"
        );
        let raw = front.get(path).await;
        assert_eq!((raw.status, raw.header("allow")), (405, Some("POST")), "{path}");
    }
    front.end().await;
}

#[tokio::test]
async fn continued_response_is_asked_of_its_keeper() {
    let keeper = RawEngine::start(|asked| match asked.path() {
        "/v1/responses/resp_7" => answer(200, r#"{"id":"resp_7"}"#),
        _ => answer(200, r#"{"input_tokens":9}"#),
    })
    .await;
    let other = RawEngine::start(|_| answer(404, r#"{"error":{"message":"not found"}}"#)).await;
    let front = Front::of(&[&other], &[&other, &keeper], |_| {}).await;
    let raw = front
        .post("/v1/responses/input_tokens", r#"{"model":"m","input":"x","previous_response_id":"resp_7"}"#)
        .await;
    assert_eq!((raw.status, raw.text().as_str()), (200, r#"{"input_tokens":9}"#));
    front.end().await;
}

#[tokio::test]
async fn methods_are_those_of_the_route() {
    let engine = willing().await;
    let front =
        Front::of(&[&engine], &[&engine], |config| config.server.passthrough = vec!["/v9/new".into()]).await;
    for (path, allowed) in [
        ("/tokenize", "POST"),
        ("/v1/embeddings", "POST"),
        ("/version", "GET,HEAD"),
        ("/v1/responses/resp_1", "GET,HEAD,DELETE"),
        ("/v1/chat/completions/batch", "POST"),
        ("/sleep", "POST"),
        ("/v1/chat/completions", "POST"),
        ("/instances", "GET,HEAD,DELETE"),
        ("/v9/new", "GET,HEAD,POST,PUT,PATCH,DELETE"),
    ] {
        for method in ["TRACE", "CONNECT", "OPTIONS", "PROPFIND", "BREW"] {
            let raw =
                front.send(format!("{method} {path} HTTP/1.1\r\nhost: gateway\r\n\r\n").as_bytes()).await;
            assert_eq!(
                (raw.status, raw.header("x-pd-error")),
                (405, Some("method_not_allowed")),
                "{method} {path}"
            );
            let mut told: Vec<&str> =
                raw.header("allow").unwrap_or_default().split(',').map(str::trim).collect();
            let mut allowed: Vec<&str> = allowed.split(',').collect();
            told.sort_unstable();
            allowed.sort_unstable();
            assert_eq!(told, allowed, "{method} {path}");
        }
    }
    for line in ["CONNECT engine:80", "OPTIONS *"] {
        let raw = front.send(format!("{line} HTTP/1.1\r\nhost: engine:80\r\n\r\n").as_bytes()).await;
        assert!((400..500).contains(&raw.status), "{line}: {}", raw.head);
    }
    assert!(engine.seen().is_empty(), "{:?}", engine.seen());
    front.end().await;
}

#[tokio::test]
async fn configured_paths_are_passed_on_and_others_are_not() {
    let engine = willing().await;
    let front = Front::of(&[&engine], &[&engine], |config| {
        config.server.passthrough = vec!["/v9/new".into(), "/lab/*".into()];
    })
    .await;
    for (path, status) in [
        ("/v9/new", 200),
        ("/v9/new?x=1", 200),
        ("/lab/a/b", 200),
        ("/lab", 404),
        ("/lab/", 404),
        ("/v9/newer", 404),
        ("/v9", 404),
    ] {
        let raw = front.post(path, r#"{"model":"m","kv_transfer_params":{"remote_host":"evil"}}"#).await;
        assert_eq!(raw.status, status, "{path}: {}", raw.text());
    }
    assert_eq!(
        front.send(b"PUT /lab/x HTTP/1.1\r\nhost: gateway\r\ncontent-length: 2\r\n\r\n{}").await.status,
        200
    );
    for asked in engine.seen() {
        let body = String::from_utf8_lossy(&asked.body).into_owned();
        assert!(!body.contains("evil"), "{}: {body}", asked.target);
    }
    let lines: Vec<String> =
        engine.seen().iter().map(|asked| format!("{} {}", asked.method, asked.target)).collect();
    assert_eq!(lines, ["POST /v9/new", "POST /v9/new?x=1", "POST /lab/a/b", "PUT /lab/x"]);
    front.end().await;
}

#[tokio::test]
async fn an_answer_that_breaks_before_its_first_piece_is_a_failure() {
    for broken in [
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\nnonsense",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;a\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\n",
    ] {
        let engine = RawEngine::start(move |_| broken.as_bytes().to_vec()).await;
        let good = willing().await;
        let front = Front::of(&[&engine], &[&engine], |_| {}).await;
        for request in [
            post("/tokenize", "{}"),
            post("/v1/audio/speech", "{}"),
            b"GET /version HTTP/1.1\r\nhost: g\r\n\r\n".to_vec(),
        ] {
            let raw = front.send(&request).await;
            assert_eq!(
                (raw.status, raw.header("x-pd-error"), raw.complete),
                (502, Some("engine_failed"), true),
                "{broken:?}"
            );
        }
        front.end().await;
        let front = Front::of(&[&engine, &good], &[&good], |_| {}).await;
        for _ in 0..3 {
            assert_eq!(
                front.post("/tokenize", "{}").await.status,
                200,
                "{broken:?}: another engine can answer"
            );
        }
        front.end().await;
    }
}

#[tokio::test]
async fn a_form_of_another_page_is_not_sent_to_engines() {
    let engine = willing().await;
    let front = Front::of(&[&engine], &[&engine], |_| {}).await;
    for path in ["/tokenize", "/v1/audio/transcriptions", "/sleep"] {
        let headers = [("content-type", "text/plain"), ("origin", "http://evil.example")];
        let mut request = post_with(path, &headers, b"{}");
        let text =
            String::from_utf8(request.clone()).unwrap().replace("content-type: application/json\r\n", "");
        request = text.into_bytes();
        let raw = front.send(&request).await;
        assert_eq!((raw.status, raw.header("x-pd-error")), (403, Some("foreign_page")), "{path}");
    }
    assert!(engine.seen().is_empty());
    front.end().await;
}

#[tokio::test]
async fn the_table_is_served_to_tools_and_to_people() {
    let engine = willing().await;
    let front =
        Front::of(&[&engine], &[&engine], |config| config.server.passthrough = vec!["/v9/new".into()]).await;
    let document = front.get("/openapi.json").await;
    assert_eq!((document.status, document.header("content-type")), (200, Some("application/json")));
    let document = document.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    for (path, method) in
        [(super::CHAT, "post"), ("/sleep", "post"), ("/v9/new", "post"), ("/version", "get")]
    {
        assert!(document["paths"][path][method].is_object(), "{path}");
    }
    let page = front.get("/docs").await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.text().contains("/v1/audio/transcriptions") && page.text().contains("/v9/new"));
    front.end().await;
    let front = Front::of(&[&engine], &[&engine], |config| {
        (config.server.admin_host, config.server.admin_port) = (Some("127.0.0.1".into()), 0);
    })
    .await;
    let (clients, operators) = (front.get("/openapi.json").await.json(), front.admin.unwrap());
    let operators =
        crate::common::client::send(operators, &crate::common::client::get("/openapi.json")).await.json();
    let has = |document: &serde_json::Value, path: &str| document["paths"][path].is_object();
    assert!(has(&clients, super::CHAT) && !has(&clients, "/sleep"));
    assert!(!has(&operators, super::CHAT) && has(&operators, "/sleep"));
    front.end().await;
}
