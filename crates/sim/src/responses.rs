//! `/v1/responses`, text only, event for event as vLLM 0.32 writes it.

use bytes::Bytes;
use serde_json::{Value, json};

use super::ask::Ask;
use super::bodies::{ChoiceText, Reply};
use super::chunks::Format;
use super::r#gen::{Counts, Finish, Piece};
use super::http::short_id;

/// The whole body.
#[must_use]
pub fn whole(reply: &Reply, ask: &Ask, counts: Counts, written: &[ChoiceText], handoff: Value) -> Value {
    let text = written.first().map_or("", |choice| choice.text.as_str());
    let item = message(&format!("msg_{}", short_id()), Some(text));
    let cut = is_cut(written.first().and_then(|choice| choice.finish.as_ref()));
    response(reply, ask.max_tokens, Some(Finished { counts, item, cut }), handoff)
}

/// True if the answer was cut before its end.
fn is_cut(finish: Option<&Finish>) -> bool {
    matches!(finish, None | Some(Finish::Length))
}

/// The output item; without text it has just begun.
fn message(id: &str, text: Option<&str>) -> Value {
    let content: Vec<Value> = text.map(|text| part(text, Value::Null)).into_iter().collect();
    let status = if text.is_some() { "completed" } else { "in_progress" };
    json!({"id": id, "content": content, "role": "assistant", "status": status, "type": "message", "phase": null})
}

fn part(text: &str, logprobs: Value) -> Value {
    json!({"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs})
}

/// The end of a response.
struct Finished {
    counts: Counts,
    item: Value,
    /// True if the output was cut before its end.
    cut: bool,
}

/// The response object, of which `finished` is the end.
fn response(reply: &Reply, max_tokens: usize, finished: Option<Finished>, handoff: Value) -> Value {
    let (status, reason) = match &finished {
        None => ("in_progress", Value::Null),
        Some(Finished { cut: true, .. }) => ("incomplete", json!({"reason": "max_output_tokens"})),
        Some(Finished { .. }) => ("completed", Value::Null),
    };
    let usage = finished.as_ref().map(|Finished { counts, .. }| {
        json!({
            "input_tokens": counts.prompt,
            "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0,
                "input_tokens_per_turn": [], "cached_tokens_per_turn": []},
            "output_tokens": counts.output,
            "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0, "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": []},
            "total_tokens": counts.prompt + counts.output,
        })
    });
    let output: Vec<Value> = finished.into_iter().map(|finished| finished.item).collect();
    json!({
        "id": reply.id, "created_at": reply.created, "incomplete_details": reason, "instructions": null,
        "metadata": null, "model": reply.model, "object": "response", "output": output,
        "parallel_tool_calls": true, "temperature": 0.0, "tool_choice": "none", "tools": [], "top_p": 1.0,
        "background": false, "max_output_tokens": max_tokens, "max_tool_calls": null,
        "previous_response_id": null, "prompt": null, "reasoning": null, "service_tier": "auto",
        "status": status, "text": null, "top_logprobs": null,
        "truncation": "disabled", "usage": usage, "user": null, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        "kv_transfer_params": handoff, "ec_transfer_params": null, "input_messages": null, "output_messages": null,
    })
}

/// The streamed form.
#[derive(Debug)]
pub struct Events {
    reply: Reply,
    max_tokens: usize,
    item_id: String,
    text: String,
    cut: bool,
    sequence: u64,
}

impl Events {
    /// The format for one answer.
    #[must_use]
    pub fn new(ask: &Ask, reply: Reply) -> Events {
        let item_id = format!("msg_{}", short_id());
        Events { reply, max_tokens: ask.max_tokens, item_id, text: String::new(), cut: true, sequence: 0 }
    }

    /// Writes one event. The members stand in alphabetical order, as the engine sorts them.
    fn event(&mut self, name: &str, members: Value) -> Bytes {
        let mut all = members;
        all["sequence_number"] = self.sequence.into();
        all["type"] = name.into();
        if let Some(object) = all.as_object_mut() {
            object.sort_keys();
        }
        self.sequence += 1;
        format!("event: {name}\ndata: {all}\n\n").into()
    }
}

impl Format for Events {
    fn announce(&mut self, out: &mut Vec<Bytes>) {
        let begun = response(&self.reply, self.max_tokens, None, Value::Null);
        out.push(self.event("response.created", json!({ "response": begun })));
        out.push(self.event("response.in_progress", json!({ "response": begun })));
    }

    fn begin(&mut self, _: Counts, out: &mut Vec<Bytes>) {
        let item = message(&self.item_id, None);
        out.push(self.event("response.output_item.added", json!({"item": item, "output_index": 0})));
        let added = json!({"content_index": 0, "item_id": self.item_id, "output_index": 0, "part": part("", json!([]))});
        out.push(self.event("response.content_part.added", added));
    }

    fn piece(&mut self, piece: &Piece, _: Counts, _: bool, out: &mut Vec<Bytes>) {
        self.text.push_str(&piece.text);
        self.cut = is_cut(piece.finish.as_ref());
        let delta = json!({"content_index": 0, "delta": piece.text, "item_id": self.item_id, "logprobs": [],
            "output_index": 0});
        out.push(self.event("response.output_text.delta", delta));
    }

    fn end(&mut self, counts: Counts, out: &mut Vec<Bytes>) {
        let done = json!({"content_index": 0, "item_id": self.item_id, "logprobs": [], "output_index": 0,
            "text": self.text});
        out.push(self.event("response.output_text.done", done));
        let part = part(&self.text, Value::Null);
        let done = json!({"content_index": 0, "item_id": self.item_id, "output_index": 0, "part": part});
        out.push(self.event("response.content_part.done", done));
        let item = message(&self.item_id, Some(&self.text));
        out.push(self.event("response.output_item.done", json!({"item": item, "output_index": 0})));
        let finished = Finished { counts, item, cut: self.cut };
        let whole = response(&self.reply, self.max_tokens, Some(finished), Value::Null);
        out.push(self.event("response.completed", json!({ "response": whole })));
    }
}
