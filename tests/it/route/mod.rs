//! Placement of requests: predictions against reports of engines, the waiting in the gateway,
//! explanations.

mod append;
mod decode_load;
mod explain;
mod hits;
mod links;
mod media;
mod names;
mod ranks;
mod waiting;

use std::collections::HashMap;
use std::net::SocketAddr;

use pd_proxy::config::Tokens;
use pd_proxy::sim::EngineSpec;
use serde_json::{Value, json};

use crate::common::client::{self, Raw};
use crate::common::stage::Script;

const CHAT: &str = "/v1/chat/completions";

/// Prefillers whose prompts are tokenised by an engine, and whose blocks have names.
fn script(prefillers: usize, prefill_tokens_per_s: f64) -> Script {
    let mut script = Script { prefillers, decoders: 2, ..Script::default() };
    script.engine = EngineSpec { prefill_tokens_per_s, ..script.engine };
    script.config.prompt.tokens = Tokens::Engine;
    // Everybody's tests share two cores.
    script.config.prompt.budget_ms = 10_000;
    script.config.hash.seed = Some("0".into());
    script
}

/// A chat of so many messages, of about `tokens` tokens each.
fn chat(conversation: usize, messages: usize, tokens: usize) -> Value {
    let text = |at: usize| {
        let word = format!("c{conversation:03}m{at:02} ");
        word.repeat(3 * tokens / word.len())
    };
    let role = |at: usize| if at.is_multiple_of(2) { "user" } else { "assistant" };
    let messages: Vec<Value> =
        (0..messages).map(|at| json!({"role": role(at), "content": text(at)})).collect();
    json!({"model": "sim", "messages": messages, "max_tokens": 2})
}

/// Sends a chat, and asks why it went where it went.
async fn explained(gateway: SocketAddr, body: &Value) -> HashMap<String, String> {
    let raw = ask(gateway, body).await;
    let id = raw.header("x-request-id").expect("it has an id").to_owned();
    let told = client::send(gateway, &client::get(&format!("/debug/route/{id}"))).await.json();
    let placement = told["placements"].as_array().and_then(|all| all.last()).expect("it is remembered");
    let members = |of: &Value| of.as_object().cloned().unwrap_or_default();
    let all = members(placement)
        .into_iter()
        .chain(members(&placement["request"]))
        .chain(members(&placement["winner"]));
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    all.map(|(name, value)| (name, text(&value))).collect()
}

async fn ask(gateway: SocketAddr, body: &Value) -> Raw {
    let raw = client::send(gateway, &client::post(CHAT, &body.to_string())).await;
    assert_eq!(raw.status, 200, "{}", raw.text());
    raw
}

fn number(said: &HashMap<String, String>, name: &str) -> f64 {
    said.get(name).unwrap_or_else(|| panic!("{name} in {said:?}")).parse().unwrap()
}
