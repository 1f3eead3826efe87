//! Operators' routes where nobody is asked for a key, and the keys that are the gateway's own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pd_proxy::config::Secret;
use pd_proxy::sim::ObservedRequest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{GOOD, PATH, PATIENCE, stage};
use crate::common::client::{self, Raw, post_with};
use crate::common::raw_engine::{Front, RawEngine, answer};
use crate::common::stage::{Script, Stage};

const EVIL: &str = "rebind.evil.example:8000";

fn add(engine: &str) -> String {
    format!(r#"{{"type":"decode","instances":["{engine}"]}}"#)
}

fn asked(method: &str, target: &str, host: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

fn refused(raw: &Raw, code: &str) -> bool {
    (raw.status, raw.header("x-pd-error")) == (403, Some(code))
}

/// A script for a gateway that other machines could reach.
fn shared(change: impl FnOnce(&mut Script)) -> Script {
    let mut script = Script { prefillers: 1, decoders: 1, ..Script::default() };
    script.config.server.host = "0.0.0.0".into();
    change(&mut script);
    script
}

/// Orders of operators to every engine.
const EVERY_ENGINE: [&str; 21] = [
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/flush_cache",
    "/sleep",
    "/wake_up",
    "/pause",
    "/resume",
    "/release_memory_occupation",
    "/resume_memory_occupation",
    "/pause_generation",
    "/continue_generation",
    "/abort_requests",
    "/inference/v1/abort_requests",
    "/fault_tolerance/apply",
    "/abort_request",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/load_lora_adapter",
    "/unload_lora_adapter",
    "/start_profile",
    "/stop_profile",
];

/// Routes of operators, with their methods; metrics, which scrapers read by any name, are none.
fn operators_routes() -> impl Iterator<Item = (&'static str, &'static str)> {
    let own = [
        ("POST", "/instances/add"),
        ("POST", "/instances/remove"),
        ("DELETE", "/instances"),
        ("POST", "/reset_prefix_cache"),
        ("POST", "/debug/route"),
        ("GET", "/debug/route/a"),
        ("GET", "/instances"),
        ("GET", "/status"),
        ("GET", "/status.json"),
        ("GET", "/is_sleeping"),
        ("GET", "/is_paused"),
        ("GET", "/fault_tolerance/status"),
    ];
    own.into_iter().chain(EVERY_ENGINE.map(|path| ("POST", path)))
}

fn assert_foreign(raw: &Raw, when: &str) {
    let unknown = when.contains("/status.json") && raw.status == 404;
    assert!(unknown || refused(raw, "foreign_host"), "{when}: {} {}", raw.head, raw.text());
}

/// A page that has its name lead to the operators' network must not have their browser give orders.
#[tokio::test]
async fn nor_does_such_a_page_on_a_listener_of_their_own() {
    let engine = RawEngine::start(|_| answer(200, r#"{"object":"list","data":[]}"#)).await;
    for host in ["127.0.0.1", "0.0.0.0"] {
        let front = Front::of(&[&engine], &[&engine], |config| {
            (config.server.admin_host, config.server.admin_port) = (Some(host.into()), 0);
            config.server.names = vec!["ops.example".into()];
        })
        .await;
        let at = SocketAddr::from(([127, 0, 0, 1], front.admin.unwrap().port()));
        let exchange = async |request: Vec<u8>| client::send(at, &request).await;
        engine.forget();
        for (method, path) in operators_routes() {
            let raw = exchange(asked(method, path, EVIL, &add("127.0.0.1:9"))).await;
            assert_foreign(&raw, &format!("{host}: {method} {path}"));
        }
        assert!(engine.seen().is_empty(), "{host}: no engine heard of it");
        for (path, name) in [("/metrics", EVIL), ("/healthz", EVIL), ("/instances", "ops.example:8009")] {
            assert_eq!(exchange(asked("GET", path, name, "")).await.status, 200, "{host}: {path} by {name}");
        }
        assert_eq!(
            exchange(asked("POST", "/sleep", "127.0.0.1", "")).await.status,
            200,
            "{host}: an operator"
        );
        let clients = front.send(&asked("GET", "/instances", EVIL, "")).await;
        assert_eq!(clients.status, 404, "{host}: clients have no such route");
        front.end().await;
    }
}

#[tokio::test]
async fn a_page_that_comes_by_its_own_name_reaches_no_route_of_operators() {
    let stage = stage(|s| s.config.server.names = vec!["gw.example".into()]).await;
    for (method, path) in operators_routes() {
        let absolute = format!("http://{EVIL}{path}");
        for (target, host) in [(path, EVIL), (absolute.as_str(), "localhost")] {
            let raw = stage.send(&asked(method, target, host, &add("127.0.0.1:9"))).await;
            assert_foreign(&raw, &format!("{method} {target}"));
        }
    }
    assert!(stage.engines().all(|engine| engine.seen().is_empty()), "no engine heard of it");
    for host in ["127.0.0.1:8000", "[::1]", "localhost:8000", "gateway", "GW.example:8000"] {
        assert_eq!(stage.send(&asked("GET", "/instances", host, "")).await.status, 200, "{host}");
    }
    for path in ["/metrics", "/health", "/readyz"] {
        assert_eq!(
            stage.send(&asked("GET", path, EVIL, "")).await.status,
            200,
            "{path} is for scrapers and probes"
        );
    }
    stage.end().await;
}

#[tokio::test]
async fn a_key_opens_the_routes_of_operators_by_any_name() {
    let stage = stage(|s| s.config.server.admin_key = Some(Secret::new("k"))).await;
    let get = |key| format!("GET /instances HTTP/1.1\r\nhost: {EVIL}\r\nx-api-key: {key}\r\n\r\n");
    for (key, status) in [("k", 200), ("x", 401)] {
        assert_eq!(stage.send(get(key).as_bytes()).await.status, status, "{key}");
    }
    stage.end().await;
}

#[tokio::test]
async fn an_address_that_others_reach_lets_nobody_change_the_fleet() {
    let stage = Stage::set(shared(|_| {})).await;
    for (path, body) in [
        ("/instances/add", add("127.0.0.1:9")),
        ("/instances/remove", add("x:1")),
        ("/reset_prefix_cache", "".into()),
    ] {
        let raw = stage.post(path, &body).await;
        assert!(refused(&raw, "admin_key_needed"), "{path}: {} {}", raw.head, raw.text());
        assert!(
            raw.text().contains("ADMIN_API_KEY") && raw.text().contains("server.open_admin"),
            "{}",
            raw.text()
        );
    }
    assert!(refused(&stage.get("/debug/route/a").await, "admin_key_needed"));
    for path in ["/instances", "/status", "/metrics", "/healthcheck", "/readyz"] {
        assert_eq!(stage.get(path).await.status, 200, "{path} changes nothing");
    }
    assert_eq!(stage.post(PATH, GOOD).await.status, 200);
    stage.end().await;

    let stage = Stage::set(shared(|s| s.config.server.open_admin = true)).await;
    assert_eq!(stage.post("/instances/remove", &add("x:1")).await.status, 200, "as its operator wants it");
    stage.end().await;
}

#[tokio::test]
async fn a_stranger_s_engine_is_not_sent_the_key_of_the_engines() {
    let key = |s: &mut Script| s.config.engine.api_key = Some(Secret::new("engine-key"));
    let stage = stage(key).await;
    let strange = super::stage(|_| {}).await;
    let engine = strange.decoders[0].addr().to_string();
    let raw = stage.post("/instances/add", &add(&engine)).await;
    assert!(refused(&raw, "admin_key_needed"), "{} {}", raw.head, raw.text());
    assert!(raw.text().contains("engine.api_key") && raw.text().contains("ADMIN_API_KEY"), "{}", raw.text());
    assert!(strange.decoders[0].seen().is_empty(), "it is not even asked");
    // One that the configuration lists may go and come back.
    let own = add(&stage.decoders[0].addr().to_string());
    for path in ["/instances/remove", "/instances/add"] {
        assert_eq!(stage.post(path, &own).await.status, 200, "{path}");
    }
    stage.end().await;

    let stage = super::stage(|s| {
        key(s);
        s.config.server.admin_key = Some(Secret::new("k"));
    })
    .await;
    let raw = stage.send(&post_with("/instances/add", &[("x-api-key", "k")], add(&engine).as_bytes())).await;
    assert_eq!(raw.status, 200, "{}", raw.text());
    assert!(
        strange.decoders[0].seen().iter().any(|seen| has(seen, "Bearer engine-key")),
        "its operator named it"
    );
    stage.end().await;
    strange.end().await;
}

fn has(seen: &ObservedRequest, secret: &str) -> bool {
    seen.headers.iter().any(|(_, value)| value.contains(secret))
}

#[tokio::test]
async fn the_admin_key_reaches_no_engine_on_whichever_line_it_is() {
    let stage = stage(|s| s.config.server.admin_key = Some(Secret::new("admin-key"))).await;
    for path in [PATH, "/tokenize"] {
        for lines in [
            &[("x-api-key", "admin-key")][..],
            &[("x-api-key", "mine"), ("x-api-key", "admin-key")],
            &[("x-api-key", "admin-key"), ("x-api-key", "mine")],
            &[("authorization", "Bearer mine"), ("authorization", "Bearer admin-key")],
            &[("authorization", "bearer  admin-key"), ("x-api-key", "mine")],
        ] {
            let raw = stage.send(&post_with(path, lines, GOOD.as_bytes())).await;
            assert_ne!(raw.status, 401, "{path} {lines:?}: {}", raw.text());
            let seen: Vec<ObservedRequest> = stage.engines().flat_map(|engine| engine.seen()).collect();
            assert!(!seen.is_empty() && !seen.iter().any(|seen| has(seen, "admin-key")), "{path} {lines:?}");
            let own = lines.iter().any(|(name, value)| *name == "authorization" && *value == "Bearer mine");
            assert!(!own || seen.iter().any(|seen| has(seen, "Bearer mine")), "the client's own key goes on");
            stage.forget();
        }
    }
    stage.end().await;
}

/// It costs a place of `limit.connections`, and nothing else would ever end it.
#[tokio::test]
async fn a_connection_that_only_answers_pings_ends() {
    let stage = stage(|s| s.config.timeout.header_ms = 500).await;
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    let (settings, ping_ack) = ([0, 0, 0, 4, 0, 0, 0, 0, 0], [0, 0, 8, 6, 1, 0, 0, 0, 0]);
    socket.write_all(&[&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings].concat()).await.unwrap();
    let (start, mut frame) = (Instant::now(), [0; 9]);
    let ended = async {
        while socket.read_exact(&mut frame).await.is_ok() {
            let length = usize::from(frame[0]) << 16 | usize::from(frame[1]) << 8 | usize::from(frame[2]);
            let mut payload = vec![0; length];
            if socket.read_exact(&mut payload).await.is_err() {
                return;
            }
            if frame[3] == 6 && frame[4] == 0 {
                let _ = socket.write_all(&[&ping_ack[..], &payload].concat()).await;
            }
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("it ends");
    assert!(start.elapsed() >= Duration::from_millis(500), "not before its time");
    stage.end().await;
}
