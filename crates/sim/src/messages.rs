//! `/v1/messages`, the Anthropic form, text only.

use bytes::Bytes;
use serde_json::{Value, json};

use super::bodies::{ChoiceText, Reply};
use super::chunks::Format;
use super::r#gen::{Counts, Finish, Piece};

/// The whole body. A hand-off is answered only if there is one.
#[must_use]
pub fn whole(reply: &Reply, counts: Counts, written: &[ChoiceText], handoff: Value) -> Value {
    let first = written.first();
    let text = first.map_or("", |choice| choice.text.as_str());
    let mut body = json!({
        "id": reply.id, "type": "message", "role": "assistant", "content": [{"type": "text", "text": text}],
        "model": reply.model, "stop_reason": stop_reason(first.and_then(|choice| choice.finish.as_ref())),
        "usage": {"input_tokens": counts.prompt.saturating_sub(counts.cached), "output_tokens": counts.output,
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": counts.cached},
    });
    if !handoff.is_null() {
        body["kv_transfer_params"] = handoff;
    }
    body
}

fn stop_reason(finish: Option<&Finish>) -> &'static str {
    match finish {
        Some(Finish::Stop(_)) => "stop_sequence",
        Some(Finish::End) => "end_turn",
        _ => "max_tokens",
    }
}

/// The streamed form.
#[derive(Debug)]
pub struct Events {
    reply: Reply,
    finish: Option<Finish>,
}

impl Events {
    /// The format for one answer.
    #[must_use]
    pub fn new(reply: Reply) -> Events {
        Events { reply, finish: None }
    }
}

fn event(name: &str, mut data: Value) -> Bytes {
    data["type"] = name.into();
    format!("event: {name}\ndata: {data}\n\n").into()
}

impl Format for Events {
    fn begin(&mut self, counts: Counts, out: &mut Vec<Bytes>) {
        let message = json!({
            "id": self.reply.id, "type": "message", "role": "assistant", "content": [], "model": self.reply.model,
            "stop_reason": null, "stop_sequence": null,
            "usage": {"input_tokens": counts.prompt, "output_tokens": 0},
        });
        out.push(event("message_start", json!({ "message": message })));
        let block = json!({"index": 0, "content_block": {"type": "text", "text": ""}});
        out.push(event("content_block_start", block));
    }

    fn piece(&mut self, piece: &Piece, _: Counts, _: bool, out: &mut Vec<Bytes>) {
        let delta = json!({"type": "text_delta", "text": piece.text});
        out.push(event("content_block_delta", json!({"index": 0, "delta": delta})));
        self.finish.clone_from(&piece.finish);
    }

    fn end(&mut self, counts: Counts, out: &mut Vec<Bytes>) {
        out.push(event("content_block_stop", json!({"index": 0})));
        let delta = json!({"stop_reason": stop_reason(self.finish.as_ref())});
        let usage = json!({"input_tokens": counts.prompt, "output_tokens": counts.output});
        out.push(event("message_delta", json!({"delta": delta, "usage": usage})));
        out.push(event("message_stop", json!({})));
    }
}
