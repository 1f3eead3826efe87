//! Several prompts in one completions body: each goes its own way, and the client reads what one
//! engine would have written.

mod equal;
mod faults;
mod limits;
mod merge;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use pd_proxy::auth::Digest;
use pd_proxy::sim::{Engine, EngineSpec, Role};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::client::{self, Raw};
use crate::common::stage::{Script, Stage, fast};

pub const PATH: &str = "/v1/completions";

/// Prompts of a few blocks that no other test run has asked.
pub fn prompts(count: usize) -> Vec<String> {
    static ROUND: AtomicUsize = AtomicUsize::new(0);
    let round = ROUND.fetch_add(1, Ordering::Relaxed);
    let prompt =
        |at: usize| format!("{round} {at} is what this one begins with, {}", "and on ".repeat(9 + 3 * at));
    (0..count).map(prompt).collect()
}

/// A request with these prompts and `more` members.
pub fn request(id: &str, prompts: &Value, more: &Value) -> Vec<u8> {
    client::post_with(PATH, &[("x-request-id", id)], body(prompts, more).to_string().as_bytes())
}

pub fn body(prompts: &Value, more: &Value) -> Value {
    let mut body = json!({"model": "sim", "prompt": prompts, "max_tokens": 6});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// One engine that does all by itself.
pub async fn lone() -> Engine {
    let spec = EngineSpec { role: Role::Both, ..fast() };
    Engine::start(spec, "127.0.0.1:0".parse().unwrap()).await.unwrap()
}

/// An answer without the time at which it was made.
pub fn timeless(mut answer: Value) -> Value {
    answer.as_object_mut().unwrap().remove("created");
    answer
}

/// The events of a stream by the choice that they are about, and those about none; in order.
pub fn by_choice(events: Vec<Value>) -> BTreeMap<Option<u64>, Vec<Value>> {
    let mut sorted: BTreeMap<Option<u64>, Vec<Value>> = BTreeMap::new();
    for event in events {
        let about = event.pointer("/choices/0/index").and_then(Value::as_u64);
        sorted.entry(about).or_default().push(timeless(event));
    }
    sorted
}

/// The texts of a whole answer or of a stream, by choice.
pub fn texts(answer: &Raw) -> Vec<String> {
    let streamed = answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
    let events = if streamed { answer.events() } else { vec![answer.json()] };
    let mut texts: BTreeMap<u64, String> = BTreeMap::new();
    for choice in events.iter().flat_map(|event| event["choices"].as_array().cloned().unwrap_or_default()) {
        let text = texts.entry(choice["index"].as_u64().unwrap()).or_default();
        text.push_str(choice["text"].as_str().unwrap());
    }
    assert!(texts.keys().copied().eq(0..texts.len() as u64), "{:?}", texts.keys());
    texts.into_values().collect()
}

/// The metrics are the process's, and so all tests'; those of a key are one test's own.
pub struct Own {
    pub stage: Stage,
    key: &'static str,
    _file: TempDir,
}

impl Own {
    /// A stage with a key of this name.
    pub async fn stage(key: &'static str, mut script: Script) -> Own {
        let file = tempfile::tempdir().unwrap();
        let path = file.path().join("keys.toml");
        let digest = Digest::of(key.as_bytes());
        std::fs::write(&path, format!("[[key]]\nname = \"{key}\"\nsha256 = \"{digest}\"\n")).unwrap();
        script.config.auth.keys_file = Some(path.to_str().unwrap().to_owned());
        // A prefill of a client that has left ends, however busy the machine is.
        script.config.engine.abandon_grace_ms = 20_000;
        Own { stage: Stage::set(script).await, key, _file: file }
    }

    /// A request with its key.
    pub fn request(&self, id: &str, prompts: &Value, more: &Value) -> Vec<u8> {
        let key = format!("Bearer {}", self.key);
        let headers = [("x-request-id", id), ("authorization", &key)];
        client::post_with(PATH, &headers, body(prompts, more).to_string().as_bytes())
    }

    /// Requests that ended like this: `ok`, `refused`, `failed`, `client_gone`.
    pub async fn ended(&self, outcome: &str) -> u64 {
        metric(
            &self.stage,
            "pd_proxy_key_requests_total",
            &[&self.label(), &format!("outcome=\"{outcome}\"")],
        )
        .await
    }

    /// The requests that it has received.
    pub async fn all(&self) -> u64 {
        metric(&self.stage, "pd_proxy_key_requests_total", &[&self.label()]).await
    }

    /// Its tokens: `prompt`, `output`.
    pub async fn tokens(&self, kind: &str) -> u64 {
        metric(&self.stage, "pd_proxy_key_tokens_total", &[&self.label(), &format!("kind=\"{kind}\"")]).await
    }

    fn label(&self) -> String {
        format!("key=\"{}\"", self.key)
    }
}

/// The sum of a metric's samples whose labels hold all of these.
async fn metric(stage: &Stage, name: &str, labels: &[&str]) -> u64 {
    let text = stage.get("/metrics").await.text();
    let fits = |line: &&str| line.starts_with(name) && labels.iter().all(|label| line.contains(label));
    text.lines().filter(fits).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}
