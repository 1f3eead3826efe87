//! Headers that belong to one connection do not cross the gateway, in either direction.

use bytes::Bytes;
use pd_proxy::sim::{Fault, FaultKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{GOOD, PATH, stage};
use crate::common::client;
use crate::common::time::eventually;

#[tokio::test]
async fn engines_see_nothing_of_the_client_s_connection() {
    let stage = stage(|_| {}).await;
    let lines = [
        ("connection", "keep-alive, X-Mine, te"),
        ("connection", "x-also"),
        ("x-mine", "1"),
        ("x-also", "1"),
        ("keep-alive", "timeout=5"),
        ("te", "trailers"),
        ("trailer", "x-sum"),
        ("upgrade", "h2c, websocket"),
        ("http2-settings", "AAMAAABkAAQAoAAAAAIAAAAA"),
        ("proxy-authorization", "Basic c2VjcmV0"),
        ("proxy-connection", "keep-alive"),
        // Whose pages may read answers is for the gateway to say: engines are told of none.
        ("origin", "https://chat.example"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "content-type"),
        ("access-control-request-private-network", "true"),
        ("x-kept", "1"),
    ];
    let answer = stage.send(&client::post_with(PATH, &lines, GOOD.as_bytes())).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    for engine in stage.engines() {
        for seen in engine.seen() {
            let names: Vec<&str> = seen.headers.iter().map(|(name, _)| name.as_str()).collect();
            assert!(names.contains(&"x-kept"), "{names:?}");
            for (name, _) in lines.iter().filter(|(name, _)| *name != "x-kept") {
                let line = seen.headers.iter().find(|(seen, _)| seen == name);
                assert!(!names.contains(name), "{line:?} crossed");
            }
        }
    }
    stage.end().await;
}

/// An engine that answers everything with `answer` and closes.
async fn parrot(listener: TcpListener, answer: Bytes) {
    loop {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut asked = vec![0; 64 << 10];
        let _ = socket.read(&mut asked).await;
        let _ = socket.write_all(&answer).await;
    }
}

/// One that answers so, for as long as it is held, and where it is.
async fn engine(answer: String) -> (JoinSet<()>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut engine = JoinSet::new();
    engine.spawn(parrot(listener, answer.into()));
    (engine, address)
}

#[tokio::test]
async fn clients_see_nothing_of_an_engine_s_connection() {
    let body = r#"{"data":[1]}"#;
    let answer = format!(
        "HTTP/1.0 200 OK\r\ncontent-type: application/json\r\nconnection: close, X-Internal\r\nx-internal: 10.0.0.1\r\n\
         location: http://10.0.0.1:8000/v1/embeddings\r\nkeep-alive: timeout=5\r\nproxy-connection: close\r\nupgrade: h2c\r\nserver: uvicorn\r\nx-kept: 1\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (_engine, address) = engine(answer).await;
    let stage = stage(|s| s.prefillers = 0).await;
    let add = format!(r#"{{"type":"prefill","instances":["{address}"]}}"#);
    stage.post("/instances/add", &add).await;
    let raw = eventually("an answer of the engine's", async || {
        let raw = stage.post("/v1/embeddings", "{}").await;
        if raw.header("x-kept").is_some() { Ok(raw) } else { Err(raw) }
    })
    .await;
    assert_eq!((raw.status, raw.header("x-kept")), (200, Some("1")), "{}", raw.head);
    assert!(raw.head.starts_with("HTTP/1.1 "), "it is us who speak: {}", raw.head);
    for name in
        ["x-internal", "location", "keep-alive", "proxy-connection", "upgrade", "server", "connection"]
    {
        assert_eq!(raw.header(name), None, "{name} crossed: {}", raw.head);
    }
    stage.end().await;
}

/// vLLM's server answers so by default (`--allowed-origins '["*"]'`).
#[tokio::test]
async fn engines_open_nothing_to_pages() {
    const PAGE: &str = "https://chat.example";
    let body = r#"{"choices":[{"index":0,"text":"x","finish_reason":"stop"}]}"#;
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\naccess-control-allow-origin: *\r\n\
         access-control-allow-credentials: true\r\naccess-control-expose-headers: x-engine\r\nx-kept: 1\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (_engine, address) = engine(answer).await;
    for origins in [&[][..], &["https://chat.example"]] {
        let stage = stage(|s| {
            (s.prefillers, s.decoders) = (0, 0);
            s.config.server.cors_origins = origins.iter().map(|&origin| origin.to_owned()).collect();
        })
        .await;
        for role in ["prefill", "decode"] {
            let add = format!(r#"{{"type":"{role}","instances":["{address}"]}}"#);
            assert_eq!(stage.post("/instances/add", &add).await.status, 200);
        }
        for path in [PATH, "/v1/embeddings"] {
            let raw = stage.send(&client::post_with(path, &[("origin", PAGE)], GOOD.as_bytes())).await;
            assert_eq!((raw.status, raw.header("x-kept")), (200, Some("1")), "{path}: {}", raw.head);
            // What is there is the gateway's own.
            assert_eq!(raw.header("access-control-allow-origin"), origins.first().copied(), "{path}");
            assert_eq!(raw.header("access-control-allow-credentials"), None, "{path}");
            let readable = raw.header("access-control-expose-headers");
            assert!(readable.is_none_or(|names| !names.contains("x-engine")), "{path}: {readable:?}");
            assert_eq!(readable.is_some(), !origins.is_empty(), "{path}");
        }
        stage.end().await;
    }
}

#[tokio::test]
async fn errors_tell_nothing_of_the_engines() {
    let stage = stage(|s| s.config.retry.attempts = 2).await;
    let inside: Vec<String> = stage.engines().map(|engine| engine.addr().port().to_string()).collect();
    let faults = [
        FaultKind::Refuse,
        FaultKind::ResetBeforeHead,
        FaultKind::Status(500, None),
        FaultKind::Status(200, Some("<html>".into())),
    ];
    for fault in faults {
        for side in 0..2 {
            let engines = [&stage.prefillers, &stage.decoders][side];
            engines.iter().for_each(|engine| assert!(engine.inject(Fault::always(fault.clone()))));
            for path in [PATH, "/tokenize", "/v1/models", "/readyz"] {
                let request = if path.starts_with("/v1/m") || path == "/readyz" {
                    client::get(path)
                } else {
                    client::post_with(path, &[("x-request-id", "id")], GOOD.as_bytes())
                };
                let raw = stage.send(&request).await;
                let text = format!("{}\n{}", raw.head.to_lowercase(), raw.text());
                for port in &inside {
                    assert!(!text.contains(&format!(":{port}")), "{fault:?} {path}: {text}");
                }
                for word in ["127.0.0.1", "hyper", "os error", "src/", "panicked", "connection refused"] {
                    assert!(!text.to_lowercase().contains(word), "{fault:?} {path}: {text}");
                }
            }
            stage.heal();
        }
    }
    stage.end().await;
}
