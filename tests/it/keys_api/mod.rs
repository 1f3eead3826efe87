//! Clients' keys on the wire: who gets in, what engines see of it, and what a key may do.

mod limits;
mod overload;
mod priorities;
mod responses;
#[cfg(feature = "share")]
mod told_responses;

use std::path::Path;

use pd_proxy::auth::Digest;
use pd_proxy::config::Secret;
use pd_proxy::sim::ObservedRequest;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command::run;
use crate::common::client::{Raw, post_with};
use crate::common::stage::{Script, Stage};
use crate::common::time::eventually;
use crate::surface::samples;

const CHAT: &str = "/v1/chat/completions";

/// A file of keys: names, each with what it may do; the key of `name` is `sk-of-name`.
fn keys(entries: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), entries);
    dir
}

fn write(dir: &Path, entries: &[(&str, &str)]) {
    let entry = |(name, grants): &(&str, &str)| {
        let digest = Digest::of(format!("sk-of-{name}").as_bytes());
        format!("[[key]]\nname = \"{name}\"\nsha256 = \"{digest}\"\n{grants}\n")
    };
    let text: String = entries.iter().map(entry).collect();
    std::fs::write(dir.join("new"), text).unwrap();
    std::fs::rename(dir.join("new"), dir.join("keys.toml")).unwrap();
}

/// A script whose gateway asks for these keys.
fn script(dir: &TempDir) -> Script {
    let mut script = Script::default();
    script.config.auth.keys_file = Some(dir.path().join("keys.toml").to_str().unwrap().to_owned());
    script.config.auth.reload_ms = 100;
    script
}

fn chat(max_tokens: u64) -> Value {
    json!({"model": "sim", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": max_tokens})
}

/// A chat under the key of `name`.
fn ask(name: &str, body: &Value) -> Vec<u8> {
    request(CHAT, &[("Authorization", &format!("Bearer sk-of-{name}"))], body)
}

fn request(path: &str, headers: &[(&str, &str)], body: &Value) -> Vec<u8> {
    post_with(path, headers, body.to_string().as_bytes())
}

fn get(path: &str, key: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: gateway\r\nx-api-key: {key}\r\n\r\n").into_bytes()
}

fn code(raw: &Raw) -> (u16, Option<&str>) {
    (raw.status, raw.header("x-pd-error"))
}

#[tokio::test]
async fn requests_without_key_are_refused_and_keys_are_not_forwarded() {
    for configured in [None, Some("Bearer ours")] {
        let dir = keys(&[("a", "")]);
        let mut script = script(&dir);
        script.config.engine.api_key = configured.map(|it| Secret::new(it.trim_start_matches("Bearer ")));
        let stage = Stage::set(script).await;
        let body = chat(3);
        for wrong in [
            request(CHAT, &[], &body),
            request(CHAT, &[("Authorization", "Bearer sk-of-b")], &body),
            request(CHAT, &[("Authorization", "Bearer sk-of-a ß")], &body),
            request(CHAT, &[("Authorization", "Basic sk-of-a")], &body),
            request(CHAT, &[("X-API-Key", "sk-of-A")], &body),
            request("/tokenize", &[], &body),
            request("/nowhere", &[], &body),
        ] {
            let raw = stage.send(&wrong).await;
            let error = raw.json()["error"].clone();
            assert_eq!(code(&raw), (401, Some("invalid_api_key")), "{}", raw.text());
            assert_eq!(
                (&error["type"], &error["code"]),
                (&json!("authentication_error"), &json!("invalid_api_key"))
            );
            assert_eq!(raw.header("www-authenticate"), Some("Bearer"));
            assert_eq!(raw.header("x-request-id").map(str::len), Some(36), "to ask about it");
            assert!(!raw.text().contains("sk-"), "{}", raw.text());
        }
        assert!(stage.engines().all(|engine| engine.seen().is_empty()), "no engine heard of it");
        for headers in [[("Authorization", "Bearer sk-of-a")], [("X-API-Key", "sk-of-a")]] {
            assert_eq!(stage.send(&request(CHAT, &headers, &body)).await.status, 200);
            assert_eq!(
                stage.send(&request("/tokenize", &headers, &json!({"prompt": "x"}))).await.status,
                200
            );
        }
        assert_eq!(stage.send(&get("/v1/models", "sk-of-a")).await.status, 200);
        let all: Vec<ObservedRequest> = stage.engines().flat_map(|engine| engine.seen()).collect();
        assert_eq!(all.len(), 7);
        for seen in all {
            let header = |name: &str| seen.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
            assert_eq!((header("authorization"), header("x-api-key")), (configured, None), "{}", seen.path);
        }
        stage.end().await;
    }
}

#[tokio::test]
async fn probes_need_no_key_and_the_fleet_needs_a_special_one() {
    let dir = keys(&[("user", ""), ("boss", "admin = true")]);
    let mut script = script(&dir);
    script.config.server.admin_key = Some(Secret::new("the-admin-key"));
    let stage = Stage::set(script).await;
    for path in ["/health", "/healthz", "/ping", "/readyz", "/healthcheck", "/metrics"] {
        assert_eq!(stage.get(path).await.status, 200, "{path}");
    }
    let change = json!({"type": "decode", "instances": ["127.0.0.1:9"]});
    for (key, status) in [("none", 401), ("sk-of-user", 401), ("sk-of-boss", 200), ("the-admin-key", 200)] {
        let headers = [("X-API-Key", key)];
        assert_eq!(
            stage.send(&request("/instances/remove", &headers, &change)).await.status,
            status,
            "{key}"
        );
        assert_eq!(
            stage.send(&request("/reset_prefix_cache", &headers, &json!({}))).await.status,
            status,
            "{key}"
        );
        assert_eq!(stage.send(&request("/debug/route", &headers, &chat(1))).await.status, status, "{key}");
        assert_eq!(stage.send(&get("/status", key)).await.status, status, "{key}");
    }
    let admin = stage.send(&request(CHAT, &[("X-API-Key", "the-admin-key")], &chat(1))).await;
    assert_eq!(admin.status, 401, "the admin key is for the fleet alone");
    for name in ["user", "boss"] {
        let key = format!("sk-of-{name}");
        assert_eq!(stage.send(&request(CHAT, &[("X-API-Key", &key)], &chat(1))).await.status, 200, "{name}");
    }
    stage.end().await;
}

#[tokio::test]
async fn a_key_may_be_for_certain_models() {
    let dir = keys(&[
        ("sim-only", "models = [\"sim\"]"),
        ("other-only", "models = [\"other\"]"),
        ("slash", "models = [\"org/sim\"]"),
    ]);
    let stage = Stage::set(script(&dir)).await;
    assert_eq!(stage.send(&ask("sim-only", &chat(1))).await.status, 200);
    let raw = stage.send(&ask("other-only", &chat(1))).await;
    assert_eq!(code(&raw), (404, Some("model_not_found")));
    let message = "The model `sim` does not exist or you do not have access to it.";
    assert_eq!(raw.json()["error"]["message"], message);
    let key = [("X-API-Key", "sk-of-other-only")];
    let embeddings = json!({"model": "sim", "input": "x"});
    assert_eq!(stage.send(&request("/v1/embeddings", &key, &embeddings)).await.status, 404);
    let headers = [("X-API-Key", "sk-of-sim-only"), ("X-Amzn-SageMaker-Adapter-Identifier", "other")];
    let adapter = stage.send(&request("/invocations", &headers, &chat(1))).await;
    assert_eq!(code(&adapter), (404, Some("model_not_found")), "the header names the model");
    let unnamed = json!({"messages": [{"role": "user", "content": "x"}]});
    assert_eq!(code(&stage.send(&ask("sim-only", &unnamed)).await), (404, Some("model_not_found")));
    let listed = async |name: &str| {
        let list = stage.send(&get("/v1/models", &format!("sk-of-{name}"))).await.json();
        list["data"].as_array().unwrap().len()
    };
    assert_eq!((listed("sim-only").await, listed("other-only").await), (1, 0));
    let one = async |key: &str, model: &str| {
        stage.send(&get(&format!("/v1/models/{model}"), &format!("sk-of-{key}"))).await
    };
    let known = one("sim-only", "sim").await;
    assert_eq!((known.status, known.json()["id"].as_str()), (200, Some("sim")));
    assert_eq!(code(&one("other-only", "sim").await), (404, Some("model_not_found")));
    let asked = |stage: &Stage| stage.engines().map(|engine| engine.seen().len()).sum::<usize>();
    let before = asked(&stage);
    assert_eq!(code(&one("slash", "org%2Fother").await), (404, Some("model_not_found")));
    assert_eq!(asked(&stage), before, "no engine is asked for what the key is not for");
    assert_eq!(code(&one("slash", "org%2Fsim").await), (404, Some("model_not_found")));
    assert_eq!(asked(&stage), before + 1, "one is, for what it is for");
    stage.end().await;
}

#[tokio::test]
async fn a_changed_file_takes_effect_and_a_broken_one_does_not() {
    let dir = keys(&[("old", ""), ("stays", "")]);
    let stage = Stage::set(script(&dir)).await;
    let status = async |name: &str| stage.send(&ask(name, &chat(1))).await.status;
    assert_eq!((status("old").await, status("new").await), (200, 401));
    write(dir.path(), &[("new", ""), ("stays", "")]);
    eventually("the new key is known", async || status("new").await == 200).await;
    assert_eq!((status("old").await, status("stays").await), (401, 200));
    std::fs::write(dir.path().join("keys.toml"), "[[key]]\nname = \"x\"\nkey = \"sk-of-x\"\n").unwrap();
    let broken = r#"pd_proxy_key_file_readings_total{outcome="broken"}"#;
    eventually("the broken file was looked at", async || {
        samples(&stage.get("/metrics").await.text()).get(broken).is_some_and(|count| *count >= 1.0)
    })
    .await;
    assert_eq!((status("new").await, status("x").await), (200, 401));
    stage.end().await;
}

#[tokio::test]
async fn guessing_keys_makes_no_series() {
    let dir = keys(&[("a", "")]);
    let stage = Stage::set(script(&dir)).await;
    let series = async || {
        let text = stage.get("/metrics").await.text();
        assert!(!text.contains("sk-"), "{text}");
        let all = samples(&text);
        all.keys().filter(|name| name.starts_with("pd_proxy_key_")).cloned().collect::<Vec<_>>()
    };
    assert_eq!(stage.send(&ask("guess", &chat(1))).await.status, 401);
    let before = series().await;
    for n in 0..300 {
        assert_eq!(stage.send(&ask(&format!("guess-{n}"), &chat(1))).await.status, 401);
    }
    let stranger = |name: &&String| name.contains("guess");
    // Other tests of this process may count under keys of their own.
    assert_eq!(series().await.iter().filter(stranger).count(), before.iter().filter(stranger).count());
    stage.end().await;
}

#[test]
fn a_gateway_without_its_keys_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.toml");
    let setting = format!("auth.keys_file={}", file.display());
    let flags = ["--port", "0", "--set", setting.as_str()];
    let (code, _, said) = run(&flags, &[]);
    let words = ["auth.keys_file", "No such file", "`pd-proxy api-key new` prints an entry"];
    assert_eq!((code, words.iter().all(|word| said.contains(word))), (1, true), "{said}");
    std::fs::write(&file, "[[key]]\nname = \"a\"\nkey = \"sk-secret-0123456789\"\n").unwrap();
    let (code, _, said) = run(&flags, &[]);
    assert_eq!((code, said.contains("pd-proxy api-key hash")), (1, true), "{said}");
    assert!(!said.contains("sk-secret"), "{said}");
    let (code, _, checked) = run(&["check", "--offline", "--set", setting.as_str()], &[]);
    assert_eq!((code, checked), (1, said), "check says what a start would say");
}

#[test]
fn the_command_makes_entries_that_work() {
    let (code, entry, said) = run(&["api-key", "new", "--name", "made"], &[]);
    assert_eq!(code, 0);
    let key = said.trim().rsplit(' ').next().unwrap();
    assert!(key.starts_with("sk-") && !entry.contains(key), "{entry}");
    let entries = pd_proxy::auth::file::parse(&entry).unwrap();
    assert_eq!((entries[0].name.as_str(), entries[0].digest), ("made", Digest::of(key.as_bytes())));
    let (code, _, said) = run(&["api-key", "new", "--name", "no name"], &[]);
    assert_eq!((code, said.contains("--name")), (1, true), "{said}");
}
