//! Where requests go, and why: what is predicted against what engines report, the waiting in the gateway, explanations.

mod explain;
mod hits;
mod ranks;
mod waiting;

use std::collections::HashMap;
use std::net::SocketAddr;

use pd_proxy::config::Tokens;
use pd_proxy::sim::EngineSpec;
use serde_json::{Value, json};

use crate::common::client::{self, Raw, post_with};
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
    let said = raw.header("x-pd-route").expect("it explains itself").to_owned();
    said.split("; ").filter_map(|part| part.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect()
}

async fn ask(gateway: SocketAddr, body: &Value) -> Raw {
    let raw =
        client::send(gateway, &post_with(CHAT, &[("x-pd-route", "1")], body.to_string().as_bytes())).await;
    assert_eq!(raw.status, 200, "{}", raw.text());
    raw
}

fn number(said: &HashMap<String, String>, name: &str) -> f64 {
    said.get(name).unwrap_or_else(|| panic!("{name} in {said:?}")).parse().unwrap()
}
