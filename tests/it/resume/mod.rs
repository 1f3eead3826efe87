//! Streams that break and go on elsewhere: the client must get the bytes of an undisturbed stream.

mod exact;
mod limits;
mod refused;
mod shown;
mod special_tokens;

use pd_proxy::sim::Engine;
use serde_json::{Value, json};

use crate::common::client::{self, Raw};
use crate::common::stage::{Script, Stage};

pub const CHAT: &str = "/v1/chat/completions";
pub const COMPLETIONS: &str = "/v1/completions";

/// A stage that continues streams.
pub fn resuming() -> Script {
    let mut script = Script::default();
    script.config.retry.resume = true;
    script
}

/// A streamed request of `tokens` tokens, with `more` members.
pub fn request(path: &str, tokens: usize, more: &Value) -> Vec<u8> {
    let mut body = match path {
        CHAT => json!({"messages": [{"role": "user", "content": "tell me about blocks and tokens, please"}]}),
        _ => json!({"prompt": "a prompt that is some blocks long, once upon a time"}),
    };
    for (key, value) in [("model", json!("sim")), ("max_tokens", json!(tokens)), ("stream", json!(true))] {
        body[key] = value;
    }
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    client::post_with(path, &[("x-request-id", "one")], body.to_string().as_bytes())
}

/// The text of a stream with what differs between any two answers made equal: the time, and what
/// the decoder says of blocks that were new to its cache.
pub fn normal(answer: &Raw) -> String {
    let mut text = answer.text();
    for key in ["\"created\":", ",\"created_cache_tokens\":"] {
        let mut parts = text.split(key);
        let mut out = parts.next().unwrap().to_owned();
        for part in parts {
            if !key.starts_with(',') {
                out.push_str(key);
            }
            out.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
        }
        text = out;
    }
    text
}

/// Two streams are the same; says where they part. A usage event that the gateway writes itself has
/// no fingerprint.
#[track_caller]
pub fn assert_same(got: &str, want: &str, when: &str) {
    let own = want
        .replace(",\"system_fingerprint\":\"vllm-0.32.0-51d1a700\"}\n\ndata: [DONE]", "}\n\ndata: [DONE]");
    let want = if want.contains("\"choices\":[]") && got == own { &own } else { want };
    let parts = got.split("\n\n").zip(want.split("\n\n")).position(|(a, b)| a != b);
    let at = |text: &str| parts.and_then(|at| Some(text.split("\n\n").nth(at)?.to_owned()));
    assert!(
        got == want,
        "{when}: event {parts:?}\n{:?}\n{:?}\n{} and {} bytes",
        at(got),
        at(want),
        got.len(),
        want.len()
    );
}

/// Events of a whole stream, `[DONE]` among them.
pub fn events(text: &str) -> usize {
    text.matches("data: ").count()
}

pub fn metric(text: &str, name: &str, labels: &[&str]) -> u64 {
    let fits = |line: &&str| line.starts_with(name) && labels.iter().all(|label| line.contains(label));
    text.lines().filter(fits).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// The requests that engines of one side received.
pub fn bodies(stage: &Stage, engines: &[Engine]) -> Vec<Value> {
    stage.seen(engines).iter().map(|seen| serde_json::from_slice(&seen.body).unwrap()).collect()
}
