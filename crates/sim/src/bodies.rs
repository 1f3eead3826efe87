//! Whole (non-streaming) answers of the completion and chat endpoints, member for member as vLLM
//! 0.32 writes them.

use serde_json::{Map, Value, json};

use super::ask::{Api, Ask};
use super::r#gen::{Counts, Finish, Gen, Piece};
use super::tokens;

/// Members that every chunk and body of one answer repeats.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Id of the response.
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
    /// Served model name.
    pub model: String,
    /// True if `prompt_tokens_details` are reported.
    pub details: bool,
    /// True if each chunk of a stream has the member `kv_transfer_params`, as from vLLM 0.33 on.
    pub streams_handoff: bool,
}

/// `system_fingerprint` of every answer.
pub const FINGERPRINT: &str = "vllm-0.32.0-51d1a700";

/// The whole answer of one choice.
#[derive(Clone, Debug, Default)]
pub struct ChoiceText {
    /// Text of the choice.
    pub text: String,
    /// Ids of its tokens.
    pub tokens: Vec<u32>,
    /// Reason why it ended.
    pub finish: Option<Finish>,
}

/// Writes every choice of `generation` to its end.
pub async fn write_all(generation: &mut Gen) -> Vec<ChoiceText> {
    let mut written: Vec<ChoiceText> = Vec::new();
    loop {
        // Without a pace nothing else gives way to other tasks.
        tokio::task::consume_budget().await;
        let pieces = generation.next().await;
        if pieces.is_empty() {
            return written;
        }
        for Piece { choice, token, text, finish } in pieces {
            if written.len() <= choice {
                written.resize(choice + 1, ChoiceText::default());
            }
            if let Some(into) = written.get_mut(choice) {
                into.text.push_str(&text);
                into.tokens.push(token);
                into.finish = finish;
            }
        }
    }
}

/// The body of a completion or a chat; `handoff` is the value of `kv_transfer_params`.
#[must_use]
pub fn whole(reply: &Reply, ask: &Ask, counts: Counts, written: &[ChoiceText], handoff: Value) -> Value {
    let chat = ask.api == Api::Chat;
    let choices: Vec<Value> = written
        .iter()
        .enumerate()
        .map(|(i, choice)| if chat { chat_choice(ask, i, choice) } else { completion_choice(ask, i, choice) })
        .collect();
    let mut body = Map::new();
    body.insert("id".into(), reply.id.clone().into());
    body.insert("object".into(), if chat { "chat.completion" } else { "text_completion" }.into());
    body.insert("created".into(), reply.created.into());
    body.insert("model".into(), reply.model.clone().into());
    body.insert("choices".into(), choices.into());
    body.insert("service_tier".into(), Value::Null);
    body.insert("system_fingerprint".into(), FINGERPRINT.into());
    body.insert("usage".into(), usage(reply, ask, counts));
    if chat {
        let prompt_ids = if ask.return_token_ids { prompt_ids(ask, 0) } else { Value::Null };
        body.insert("prompt_logprobs".into(), Value::Null);
        body.insert("prompt_token_ids".into(), prompt_ids);
        body.insert("prompt_text".into(), Value::Null);
    }
    body.insert("kv_transfer_params".into(), handoff);
    body.insert("ec_transfer_params".into(), Value::Null);
    body.insert("metrics".into(), Value::Null);
    Value::Object(body)
}

fn completion_choice(ask: &Ask, index: usize, choice: &ChoiceText) -> Value {
    let prompt = index / ask.n;
    let mut text = choice.text.clone();
    if ask.echo {
        text.insert_str(0, &tokens::decode(ask.prompts.get(prompt).map(AsRef::as_ref).unwrap_or_default()));
    }
    let (reason, stop) = finish_members(choice.finish.as_ref());
    json!({
        "index": index, "text": text,
        "logprobs": ask.logprobs.map(|most| completion_logprobs(&choice.tokens, most, 0)),
        "finish_reason": reason, "stop_reason": stop,
        "token_ids": ask.return_token_ids.then_some(&choice.tokens), "prompt_logprobs": null,
        "prompt_token_ids": if ask.return_token_ids { prompt_ids(ask, prompt) } else { Value::Null },
        "routed_experts": null,
    })
}

fn chat_choice(ask: &Ask, index: usize, choice: &ChoiceText) -> Value {
    let (reason, stop) = finish_members(choice.finish.as_ref());
    json!({
        "index": index, "message": message(ask, &choice.text),
        "logprobs": ask.logprobs.map(|most| chat_logprobs(&choice.tokens, most)),
        "finish_reason": reason, "stop_reason": stop,
        "token_ids": ask.return_token_ids.then_some(&choice.tokens), "routed_experts": null,
    })
}

fn message(ask: &Ask, text: &str) -> Value {
    let mut message = Map::new();
    message.insert("role".into(), "assistant".into());
    message.insert("content".into(), if ask.tool.is_some() { "" } else { text }.into());
    for name in ["refusal", "annotations", "audio", "function_call"] {
        message.insert(name.into(), Value::Null);
    }
    if let Some(name) = &ask.tool {
        let arguments = json!({ "text": text }).to_string();
        let call = json!({"id": tool_id(), "type": "function",
            "function": {"name": name, "arguments": arguments}});
        message.insert("tool_calls".into(), json!([call]));
    }
    message.insert("reasoning".into(), Value::Null);
    Value::Object(message)
}

/// A fresh id of a tool call.
#[must_use]
pub fn tool_id() -> String {
    format!("chatcmpl-tool-{}", super::http::short_id())
}

/// The ids of one prompt of `ask`.
#[must_use]
pub fn prompt_ids(ask: &Ask, prompt: usize) -> Value {
    ask.prompts.get(prompt).map_or(Value::Null, |ids| json!(ids.as_ref()))
}

/// `finish_reason` and `stop_reason`.
#[must_use]
pub fn finish_members(finish: Option<&Finish>) -> (Value, Value) {
    match finish {
        None => (Value::Null, Value::Null),
        Some(Finish::Length) => ("length".into(), Value::Null),
        Some(Finish::Stop(stop)) => ("stop".into(), stop.clone().into()),
        Some(Finish::End) => ("stop".into(), Value::Null),
    }
}

fn usage(reply: &Reply, ask: &Ask, counts: Counts) -> Value {
    // Only the chat endpoint fills in what was new to the cache.
    let created = (ask.api == Api::Chat).then_some(counts.created);
    let details =
        json!({"cached_tokens": counts.cached, "created_cache_tokens": created, "multimodal_tokens": null});
    json!({
        "prompt_tokens": counts.prompt, "total_tokens": counts.prompt + counts.output,
        "completion_tokens": counts.output,
        "prompt_tokens_details": if reply.details { details } else { Value::Null },
        "completion_tokens_details": null,
    })
}

/// A log probability made of the token's id.
fn logprob(token: u32) -> f64 {
    -0.01 - f64::from(token % 997) / 500.0
}

/// The token and its alternatives, best first, `most` in all.
fn alternatives(token: u32, most: usize) -> Vec<(String, f64)> {
    let shown = tokens::decode(&[token]);
    let others = (1..most).map(|i| (format!("{shown}{i}"), logprob(token) - i as f64));
    std::iter::once((shown.clone(), logprob(token))).chain(others).collect()
}

/// `logprobs` of a completion choice, whose text has had `before` code points.
#[must_use]
pub fn completion_logprobs(ids: &[u32], most: usize, before: usize) -> Value {
    let texts: Vec<String> = ids.iter().map(|&id| tokens::decode(&[id])).collect();
    let offsets = texts.iter().scan(before, |at, text| {
        let here = *at;
        *at += text.chars().count();
        Some(here)
    });
    let tops: Vec<Value> = ids
        .iter()
        .map(|&id| alternatives(id, most.max(1)).into_iter().map(|(text, p)| (text, json!(p))).collect())
        .map(Value::Object)
        .collect();
    json!({
        "text_offset": offsets.collect::<Vec<usize>>(),
        "token_logprobs": ids.iter().map(|&id| logprob(id)).collect::<Vec<f64>>(),
        "tokens": texts, "top_logprobs": tops,
    })
}

/// `logprobs` of a chat choice.
#[must_use]
pub fn chat_logprobs(ids: &[u32], most: usize) -> Value {
    let entry = |text: &str, p: f64| json!({"token": text, "logprob": p, "bytes": text.as_bytes()});
    let content: Vec<Value> = ids
        .iter()
        .map(|&id| {
            let mut one = entry(&tokens::decode(&[id]), logprob(id));
            let tops = alternatives(id, most).into_iter().take(most);
            one["top_logprobs"] = tops.map(|(text, p)| entry(&text, p)).collect();
            one
        })
        .collect();
    json!({ "content": content })
}
