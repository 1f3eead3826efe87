//! Every route beside the two legs' own contract: what operators and their tools ask, what clients
//! rarely ask.

mod added_asleep;
mod alone;
mod asleep;
mod cors;
mod health;
mod ids;
mod instances;
mod metrics;
mod moves;
mod policies;
mod replaced;
mod routes;
mod stored;
mod told;

use pd_proxy::sim::{Engine, EngineSpec, ObservedRequest, Role};
use serde_json::{Value, json};

use crate::common::client::Raw;
use crate::common::stage::Stage;

pub use metrics::samples;

const CHAT: &str = "/v1/chat/completions";

fn chat(text: &str) -> Value {
    json!({"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 12})
}

/// A body and the same with `stream`.
fn both(body: &Value) -> [String; 2] {
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    [body.to_string(), streamed.to_string()]
}

async fn lone(spec: EngineSpec, listen: &str) -> Engine {
    Engine::start(EngineSpec { role: Role::Both, ..spec }, listen.parse().unwrap()).await.unwrap()
}

fn name(engine: &Engine) -> String {
    engine.addr().to_string()
}

fn count(engine: &Engine) -> usize {
    engine.seen().len()
}

fn header(seen: &ObservedRequest, name: &str) -> Option<String> {
    seen.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone())
}

fn body_of(seen: &ObservedRequest) -> Value {
    serde_json::from_slice(&seen.body).unwrap()
}

fn change(kind: &str, instances: Value) -> String {
    json!({"type": kind, "instances": instances}).to_string()
}

/// Takes every engine of one side out of the gateway.
async fn remove_all(stage: &Stage, kind: &str, engines: &[Engine]) -> Raw {
    let all: Vec<String> = engines.iter().map(name).collect();
    stage.post("/instances/remove", &change(kind, json!(all))).await
}

fn long_text() -> String {
    (0..60).map(|n| format!("word{n} ")).collect()
}
