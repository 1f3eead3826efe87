//! Mistakes of clients: each gets an answer that names it, no engine is asked, and the next request
//! is served.

use std::net::SocketAddr;

use pd_proxy::config::Secret;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::common::client::{self, Raw, get, post, post_with};
use crate::common::stage::{Script, Stage};
use crate::common::time::eventually;
use pd_proxy::sim::{Fault, FaultKind};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const GOOD: &str = r#"{"model":"sim","messages":[{"role":"user","content":"Good?"}],"max_tokens":4}"#;
/// The limit of the stage: more than any good or merely malformed body here.
const BODY_BYTES: usize = 100_000;

/// A request that is refused, and how.
struct Wrong {
    name: &'static str,
    request: Vec<u8>,
    status: u16,
    code: &'static str,
    message: String,
    param: Value,
}

fn wrong(name: &'static str, request: Vec<u8>, (status, code): (u16, &'static str), message: &str) -> Wrong {
    Wrong { name, request, status, code, message: message.to_owned(), param: Value::Null }
}

/// A body that is no JSON object that we may edit, on a generating route.
fn not_json(name: &'static str, body: &[u8], why: &str) -> Wrong {
    let message = format!("the request body can't be used: {why}");
    wrong(name, post_with(CHAT, &[], body), (400, "invalid_json"), &message)
}

fn assert_refused(raw: &Raw, wrong: &Wrong) {
    let name = wrong.name;
    assert_eq!(raw.status, wrong.status, "{name}: {}", raw.text());
    let kind = match wrong.code {
        "invalid_api_key" => "authentication_error",
        _ if wrong.status == 503 => "server_error",
        _ => "invalid_request_error",
    };
    let expected = json!({"error": {
        "message": wrong.message, "type": kind, "param": wrong.param, "code": wrong.code,
    }});
    assert_eq!(raw.json(), expected, "{name}");
    assert_eq!(raw.header("content-type"), Some("application/json"), "{name}");
    assert_eq!(raw.header("x-pd-error"), Some(wrong.code), "{name}");
    assert!(raw.header("x-request-id").is_some(), "{name}");
    assert_eq!(raw.header("retry-after"), (wrong.status == 503).then_some("1"), "{name}");
    assert!(raw.complete, "{name}");
}

/// Nothing reached an engine, and a good request does.
async fn assert_unharmed(stage: &Stage, when: &str) {
    for engine in stage.engines() {
        assert!(engine.seen().is_empty(), "{when}: {} saw {:?}", engine.addr(), engine.seen());
    }
    let good = stage.post(CHAT, GOOD).await;
    assert_eq!((good.status, good.words().is_empty()), (200, false), "{when}: {}", good.text());
    stage.forget();
}

async fn refused_one_by_one(stage: &Stage, table: Vec<Wrong>) {
    for wrong in table {
        let raw = stage.send(&wrong.request).await;
        assert_refused(&raw, &wrong);
        assert_unharmed(stage, wrong.name).await;
    }
}

async fn stage(change: impl FnOnce(&mut Script)) -> Stage {
    let mut script = Script { prefillers: 1, decoders: 1, ..Script::default() };
    script.config.limit.body_bytes = BODY_BYTES;
    change(&mut script);
    Stage::set(script).await
}

fn deep() -> Vec<u8> {
    let levels = 10_000;
    format!("{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels)).into_bytes()
}

#[tokio::test]
async fn bodies_that_are_no_object() {
    let stage = stage(|_| {}).await;
    let table = vec![
        not_json("text", b"hello", "expected a JSON object at byte 0"),
        not_json("nothing", b"", "unexpected end of the text at byte 0"),
        not_json("white space", b" \r\n\t", "unexpected end of the text at byte 4"),
        not_json("an array", br#"[{"a":1}]"#, "expected a JSON object at byte 0"),
        not_json("a string", br#""{}""#, "expected a JSON object at byte 0"),
        not_json("a number", b" 17", "expected a JSON object at byte 1"),
        not_json("null", b"null", "expected a JSON object at byte 0"),
        not_json("10 000 levels", &deep(), "nested deeper than 512 levels at byte 516"),
        not_json("bad UTF-8", b"{\"a\":\"\xff\"}", "invalid UTF-8 at byte 6"),
        not_json(
            "two byte order marks",
            b"\xef\xbb\xbf\xef\xbb\xbf{}",
            "a byte order mark is not allowed at byte 0",
        ),
        not_json("UTF-16", b"\xff\xfe{\0}\0", "invalid UTF-8 at byte 0"),
        not_json("garbage behind it", b"{} x", "unexpected text after the object at byte 3"),
        not_json("a second object", b"{}{}", "unexpected text after the object at byte 2"),
        not_json("cut short", br#"{"a":1"#, "unexpected end of the text at byte 6"),
        not_json("no colon", br#"{"a" 1}"#, "expected ':' after a key at byte 5"),
    ];
    refused_one_by_one(&stage, table).await;
    stage.end().await;
}

#[tokio::test]
async fn bodies_that_are_compressed() {
    let stage = stage(|_| {}).await;
    let coded = |coding: &str| {
        let message = format!(
            "the request body is sent with `Content-Encoding: {coding}`, which is not read here: send it as it is"
        );
        let request = post_with(CHAT, &[("Content-Encoding", coding)], b"\x1f\x8b\x08\0");
        wrong("compressed", request, (415, "body_coded"), &message)
    };
    refused_one_by_one(&stage, vec![coded("gzip"), coded("zstd"), coded("deflate, br")]).await;
    for plain in ["identity", "Identity", ""] {
        let answer = stage.send(&post_with(CHAT, &[("content-encoding", plain)], GOOD.as_bytes())).await;
        assert_eq!(answer.status, 200, "{plain}: {}", answer.text());
    }
    let second = [("content-encoding", "identity"), ("content-encoding", "gzip")];
    assert_eq!(stage.send(&post_with(CHAT, &second, GOOD.as_bytes())).await.status, 415);
    stage.end().await;
}

#[tokio::test]
async fn engine_addresses_from_clients() {
    let stage = stage(|_| {}).await;
    let refused = |path: &'static str, name, body: &str, at: &str| {
        let message =
            format!("`{at}` names engines to each other and can't be set by a client; leave it out");
        wrong(name, post(path, body), (400, "invalid_value"), &message)
    };
    let table = vec![
        refused(
            CHAT,
            "chat",
            r#"{"messages":[],"vllm_xargs":{"kv_transfer_params":"{}"}}"#,
            "vllm_xargs.kv_transfer_params",
        ),
        refused(
            COMPLETIONS,
            "an escaped name",
            r#"{"prompt":"a","vllm_x\u0061rgs":{"ec_transfer\u005fparams":{}}}"#,
            "vllm_xargs.ec_transfer_params",
        ),
        refused(
            "/tokenize",
            "a route without legs",
            r#"{"prompt":"a","vllm_xargs":{"kv_transfer_params":1}}"#,
            "vllm_xargs.kv_transfer_params",
        ),
    ];
    refused_one_by_one(&stage, table).await;
    stage.end().await;
}

#[tokio::test]
async fn wrong_paths_and_methods() {
    let stage = stage(|_| {}).await;
    let method = |name, request, message: &str| wrong(name, request, (405, "method_not_allowed"), message);
    let path = |name, request, message: &str| wrong(name, request, (404, "unknown_url"), message);
    let table = vec![
        method("GET chat", get(CHAT), "GET is not allowed on /v1/chat/completions."),
        method("POST models", post("/v1/models", "{}"), "POST is not allowed on /v1/models."),
        method("GET add", get("/instances/add"), "GET is not allowed on /instances/add."),
        path("no such route", get("/v2/none?x=1"), "Unknown request URL: GET /v2/none."),
        path("an unknown one with a slash", get("/v2/none/"), "Unknown request URL: GET /v2/none/."),
        path(
            "another host",
            post("//v1/chat/completions/", GOOD),
            "Unknown request URL: POST //v1/chat/completions/.",
        ),
        path(
            "a base URL without /v1",
            post("/chat/completions", GOOD),
            "Unknown request URL: POST /chat/completions. The client's base URL lacks /v1: /v1/chat/completions was meant?",
        ),
        path(
            "a base URL for clients that add /v1",
            post("/v1/v1/messages", GOOD),
            "Unknown request URL: POST /v1/v1/messages. The client's base URL has /v1 once too often: /v1/messages was meant?",
        ),
        path("the engines' back door", get("/sim/ledger"), "Unknown request URL: GET /sim/ledger."),
    ];
    refused_one_by_one(&stage, table).await;
    for (path, code) in [("/v1/models/%ff", "model_not_found"), ("/debug/route/%ff", "unknown_url")] {
        let raw = stage.get(path).await;
        assert_eq!((raw.status, raw.header("x-pd-error")), (404, Some(code)), "{path}: {}", raw.text());
    }
    let raw = stage.get(CHAT).await;
    assert_eq!(raw.header("allow"), Some("POST"), "RFC 9110, 15.5.6: {}", raw.head);
    stage.end().await;
}

/// A request with `lines` more header lines of `bytes` each.
fn headers(lines: usize, bytes: usize) -> Vec<u8> {
    let more: Vec<(String, String)> = (0..lines).map(|n| (format!("x-{n:04}"), "v".repeat(bytes))).collect();
    let more: Vec<(&str, &str)> = more.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    post_with(CHAT, &more, GOOD.as_bytes())
}

#[tokio::test]
async fn too_many_headers() {
    // Half of what the simulated engines take, so that it is the gateway's limit that is met.
    let stage = stage(|s| s.config.limit.headers = 50).await;
    // host, content-type and content-length: names, values and four bytes of punctuation each.
    let always = "hostgateway".len() + "content-typeapplication/json".len() + "content-length".len() + 2 + 12;
    let flood = |name, lines, bytes| {
        let message = format!(
            "the request has {} headers in {} bytes; the limits are 50 (limit.headers) and 65536 bytes \
             (limit.header_bytes)",
            lines + 3,
            always + lines * (6 + bytes + 4),
        );
        wrong(name, headers(lines, bytes), (431, "headers_too_large"), &message)
    };
    let table = vec![flood("lines", 48, 1), flood("bytes", 1, 65_536), flood("both", 70, 1_000)];
    refused_one_by_one(&stage, table).await;
    let fits = stage.send(&headers(47, 1)).await;
    assert_eq!(fits.status, 200, "exactly the limit: {}", fits.text());
    stage.forget();

    for (name, request) in [("lines", headers(500, 1)), ("bytes", headers(1, 300_000))] {
        let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
        let _ = socket.write_all(&request).await;
        let raw = client::read(&mut socket).await;
        assert_eq!(raw.status, 431, "beyond the parser, {name}: {}", raw.head);
        let next = client::read(&mut socket).await;
        assert_eq!((next.status, next.body.len()), (0, 0), "{name}: the connection is closed");
        assert_unharmed(&stage, name).await;
    }
    stage.end().await;
}

fn head(path: &str, lines: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n{lines}\r\n")
        .into_bytes()
}

#[tokio::test]
async fn bodies_over_the_limit() {
    let stage = stage(|_| {}).await;
    let chunk = [format!("{:x}\r\n", 60_000).as_bytes(), &b" ".repeat(60_000), b"\r\n"].concat();
    let chunked = [head(CHAT, "transfer-encoding: chunked\r\n"), chunk.clone(), chunk].concat();
    let message = "the request body is larger than 100000 bytes (limit.body_bytes)";
    let large = |name, request| wrong(name, request, (413, "body_too_large"), message);
    let table = vec![
        // Not a byte of the body is sent: it is refused for what it announces.
        large("announced", head(CHAT, "content-length: 100001\r\n")),
        large("announced and waiting", head(CHAT, "content-length: 100001\r\nexpect: 100-continue\r\n")),
        large(
            "announced on a route that reads the API from it",
            head("/invocations", "content-length: 100001\r\n"),
        ),
        large("announced on a route without legs", head("/tokenize", "content-length: 100001\r\n")),
        large("not announced", chunked),
    ];
    for wrong in table {
        let raw = stage.send(&wrong.request).await;
        assert_refused(&raw, &wrong);
        assert_eq!(raw.header("connection"), Some("close"), "{}", wrong.name);
        assert_unharmed(&stage, wrong.name).await;
    }
    let fits = format!("{GOOD}{}", " ".repeat(BODY_BYTES - GOOD.len()));
    assert_eq!(stage.post(CHAT, &fits).await.status, 200, "exactly the limit");
    stage.end().await;
}

#[tokio::test]
async fn bodies_that_stall() {
    let stage = stage(|s| s.config.timeout.body_ms = 150).await;
    let request = [head(CHAT, "content-length: 90\r\n"), b"{\"messages\"".to_vec()].concat();
    let message = "the request body did not arrive within 150ms";
    let late = wrong("stalled", request, (408, "body_timeout"), message);
    let raw = stage.send(&late.request).await;
    assert_refused(&raw, &late);
    assert_eq!(raw.header("connection"), Some("close"));
    assert_unharmed(&stage, "stalled").await;
    stage.end().await;
}

#[tokio::test]
async fn bodies_that_are_shorter_than_announced() {
    let stage = stage(|_| {}).await;
    for path in [CHAT, COMPLETIONS, "/tokenize", "/instances/add"] {
        let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
        socket.write_all(&head(path, "content-length: 90\r\n")).await.unwrap();
        socket.write_all(b"{\"messages\"").await.unwrap();
        socket.shutdown().await.unwrap();
        let raw = client::read(&mut socket).await;
        // A client that is still there to read is told; most are gone.
        if raw.status != 0 {
            let message = "the request body could not be read to its end";
            let broken = wrong("cut", Vec::new(), (400, "body_broken"), message);
            assert_refused(&raw, &broken);
        }
        idle(stage.gateway).await;
        assert_unharmed(&stage, path).await;
    }
    stage.end().await;
}

#[tokio::test]
async fn anthropic_clients_get_anthropic_errors() {
    let stage = stage(|_| {}).await;
    let ask = |body: &str| post_with("/v1/messages", &[("x-request-id", "mine-1")], body.as_bytes());
    let long = format!("{{\"messages\":\"{}\"}}", "x".repeat(BODY_BYTES));
    for (body, status, kind, code) in [
        ("{", 400, "invalid_request_error", "invalid_json"),
        (long.as_str(), 413, "request_too_large", "body_too_large"),
    ] {
        let raw = stage.send(&ask(body)).await;
        let said = raw.json();
        assert_eq!((raw.status, &said["type"]), (status, &json!("error")), "{said}");
        assert_eq!((&said["error"]["type"], &said["error"]["code"]), (&json!(kind), &json!(code)), "{said}");
        assert!(said["error"]["message"].is_string());
        assert_eq!((raw.header("request-id"), raw.header("x-request-id")), (Some("mine-1"), Some("mine-1")));
    }
    let good = r#"{"model":"sim","max_tokens":2,"messages":[{"role":"user","content":"x"}]}"#;
    assert_eq!(stage.send(&ask(good)).await.header("request-id"), Some("mine-1"));
    stage.end().await;
}

#[tokio::test]
async fn models_that_are_not_served() {
    let body = r#"{"model":"nope","messages":[{"role":"user","content":"x"}]}"#;
    let strict = stage(|s| s.config.fleet.model = Some("sim".into())).await;
    let message = "The model `nope` does not exist. This gateway serves `sim`.";
    let unknown = |path: &'static str| Wrong {
        param: "model".into(),
        ..wrong(path, post(path, body), (404, "model_not_found"), message)
    };
    let paths = [CHAT, "/v1/chat/completions/batch", "/tokenize"];
    refused_one_by_one(&strict, paths.map(unknown).into()).await;
    let unnamed = strict.post("/tokenize", r#"{"prompt":"x"}"#).await;
    assert_eq!(unnamed.status, 200, "{}", unnamed.text());
    strict.end().await;

    // vLLM's demo proxy is given the model's folder. Which name it is exactly is the engine's to
    // say.
    let folder = stage(|s| s.config.fleet.model = Some("/data/models/sim".into())).await;
    let named = |model: &str| {
        json!({"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}).to_string()
    };
    let served = folder.post(CHAT, &named("sim")).await;
    assert_eq!(served.status, 200, "{}", served.text());
    for (model, ours) in [("/data/models/sim", None), ("hub/sim", None), ("nope", Some("model_not_found"))] {
        let refused = folder.post(CHAT, &named(model)).await;
        assert_eq!((refused.status, refused.header("x-pd-error")), (404, ours), "{model}");
    }
    folder.end().await;

    let open = stage(|_| {}).await;
    let ours = open.post(CHAT, body).await;
    let theirs = client::send(open.prefillers[0].addr(), &post(CHAT, body)).await;
    assert_eq!((ours.status, ours.text()), (404, theirs.text()), "the engine's own words");
    assert_eq!(ours.header("x-pd-error"), None);
    assert_eq!(open.decoders[0].seen().len(), 0, "a refused prefill has no decode");
    open.end().await;
}

#[tokio::test]
async fn changes_of_the_fleet_without_its_key() {
    let stage = stage(|s| s.config.server.admin_key = Some(Secret::new("right"))).await;
    let body = r#"{"type":"decode","instances":["127.0.0.1:9"]}"#;
    let refused = |name, path, key: Option<&str>| {
        let headers: Vec<(&str, &str)> = key.iter().map(|k| ("X-API-Key", *k)).collect();
        let message = "this needs the admin key, in the header X-API-Key";
        wrong(name, post_with(path, &headers, body.as_bytes()), (401, "invalid_api_key"), message)
    };
    let table = vec![
        refused("no key", "/instances/add", None),
        refused("wrong key", "/instances/add", Some("wrong")),
        refused("longer key", "/instances/remove", Some("right1")),
        refused("empty key", "/instances/remove", Some("")),
    ];
    refused_one_by_one(&stage, table).await;
    assert_eq!(stage.get("/healthcheck").await.json()["decode_instances"], 1);
    let right = post_with("/instances/remove", &[("x-api-key", "right")], body.as_bytes());
    assert_eq!(stage.send(&right).await.status, 200);
    stage.end().await;
}

#[tokio::test]
async fn changes_of_the_fleet_that_make_no_sense() {
    let stage = stage(|_| {}).await;
    let shape = r#"expected {"type":"prefill"|"decode"|"encode","instances":["host:port"]}"#;
    let add = |name, body: &str, code, message: &str| {
        wrong(name, post("/instances/add", body), (400, code), message)
    };
    let host = |name, body: &str, message: &str| Wrong {
        param: "instances".into(),
        ..add(name, body, "invalid_value", message)
    };
    let table = vec![
        add("not JSON", "x", "invalid_json", &format!("{shape}: expected value at line 1 column 1")),
        add("empty", "", "invalid_json", &format!("{shape}: EOF while parsing a value at line 1 column 0")),
        add(
            "nobody named",
            r#"{"type":"prefill"}"#,
            "invalid_json",
            &format!("{shape}: missing field `instances` at line 1 column 18"),
        ),
        host("no port", r#"{"type":"decode","instances":"h"}"#, "`h` has no port: write host:port"),
        host(
            "one of two",
            r#"{"type":"prefill","instances":["127.0.0.1:9","ftp://h:1"]}"#,
            "`ftp://h:1` has an unknown scheme: use host:port, http://host:port or https://host:port",
        ),
    ];
    refused_one_by_one(&stage, table).await;
    stage.end().await;
}

/// Requests inside the gateway.
async fn inside(gateway: SocketAddr) -> u64 {
    client::send(gateway, &get("/healthcheck")).await.json()["request_num"].as_u64().unwrap()
}

async fn wait_inside(gateway: SocketAddr, count: u64) {
    eventually(format!("{count} requests inside"), async || inside(gateway).await == count).await;
}

async fn idle(gateway: SocketAddr) {
    wait_inside(gateway, 0).await;
}

#[tokio::test]
async fn one_request_too_many() {
    let full = "the gateway is at its limit of requests and its queue is full";
    let long = "the gateway is at its limit of requests and the wait was too long";
    for (queue, messages) in [(0, vec![full, full]), (1, vec![full, long])] {
        let stage = stage(|s| {
            s.config.limit.inflight = 1;
            s.config.limit.queue = queue;
            s.config.limit.queue_ms = 1_000;
        })
        .await;
        stage.prefillers_fail(&Fault::once(FaultKind::StallBeforeHead));
        let mut first = TcpStream::connect(stage.gateway).await.unwrap();
        first.write_all(&post(CHAT, GOOD)).await.unwrap();
        wait_inside(stage.gateway, 1).await;

        let request = post(CHAT, GOOD);
        let (second, third) = tokio::join!(stage.send(&request), stage.send(&request));
        let mut said = Vec::new();
        for raw in [second, third] {
            let message = raw.json()["error"]["message"].as_str().unwrap().to_owned();
            let refused = wrong("one too many", Vec::new(), (503, "overloaded"), &message);
            assert_refused(&raw, &refused);
            said.push(message);
        }
        said.sort();
        assert_eq!(said, messages, "queue of {queue}");

        drop(first);
        idle(stage.gateway).await;
        stage.heal();
        stage.forget();
        assert_unharmed(&stage, "after it was full").await;
        stage.end().await;
    }
}
