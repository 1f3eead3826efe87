//! Streamed answers of the completion and chat endpoints, chunk for chunk as vLLM 0.32 writes them.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::ask::{Api, Ask};
use super::bodies::{self, FINGERPRINT, Reply};
use super::r#gen::{Counts, Piece};
use super::tokens;

/// Format of one endpoint's events. Every `Bytes` is one event and becomes one HTTP chunk.
pub trait Format: Send {
    /// Events before any work is done: that an answer will come.
    fn announce(&mut self, _out: &mut Vec<Bytes>) {}
    /// Events before the first token.
    fn begin(&mut self, counts: Counts, out: &mut Vec<Bytes>);
    /// Takes what the connector returned for the answer, before its last token.
    fn hand_over(&mut self, _handoff: Value) {}
    /// Events of one token; `last` on the last one of the whole answer.
    fn piece(&mut self, piece: &Piece, counts: Counts, last: bool, out: &mut Vec<Bytes>);
    /// Events after the last token.
    fn end(&mut self, counts: Counts, out: &mut Vec<Bytes>);
}

/// The end of an OpenAI stream.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// The format of `/v1/completions` and `/v1/chat/completions`.
#[derive(Debug)]
pub struct Chunks {
    ask: Arc<Ask>,
    reply: Reply,
    /// `data: {…"choices":[`, the part all chunks begin with.
    head: String,
    /// True for each choice that has had its first piece.
    begun: Vec<bool>,
    /// Code points of the text that each choice has had, where the offsets of log probabilities
    /// count on.
    chars: Vec<usize>,
    /// Tokens that each choice has had.
    tokens: Vec<usize>,
    /// The member that the connector returned.
    handoff: Value,
}

impl Chunks {
    /// The format for one answer.
    #[must_use]
    pub fn new(ask: Arc<Ask>, reply: Reply) -> Chunks {
        let object = if ask.api == Api::Chat { "chat.completion.chunk" } else { "text_completion" };
        let (id, model) = (Value::from(reply.id.as_str()), Value::from(reply.model.as_str()));
        let created = reply.created;
        let head = format!(
            r#"data: {{"id":{id},"object":"{object}","created":{created},"model":{model},"choices":["#
        );
        let begun = vec![false; ask.n * ask.prompts.len()];
        let (chars, tokens) = (vec![0; begun.len()], vec![0; begun.len()]);
        Chunks { ask, reply, head, begun, chars, tokens, handoff: Value::Null }
    }

    fn chat(&self) -> bool {
        self.ask.api == Api::Chat
    }

    /// One chunk: the choice without its braces, and whatever follows the choices.
    fn chunk(&self, choice: &str, tail: &str) -> Bytes {
        let mut event = String::with_capacity(self.head.len() + choice.len() + tail.len() + 8);
        event.push_str(&self.head);
        if !choice.is_empty() {
            let _ = write!(event, "{{{choice}}}");
        }
        let _ = write!(event, "]{tail}}}\n\n");
        event.into()
    }

    /// The member that chunks have from vLLM 0.33 on.
    fn handoff_member(&self, handoff: &Value) -> String {
        if self.reply.streams_handoff { format!(r#","kv_transfer_params":{handoff}"#) } else { String::new() }
    }

    /// Usage of one choice so far: vLLM counts its prompt and its tokens alone.
    fn running_usage(&self, choice: usize) -> String {
        if !self.ask.continuous_usage {
            return String::new();
        }
        let prompt = self.ask.prompts.get(choice / self.ask.n).map_or(0, |prompt| prompt.len());
        let output = self.tokens.get(choice).copied().unwrap_or(0);
        let details = if self.chat() { r#","completion_tokens_details":null"# } else { "" };
        let total = prompt + output;
        format!(
            r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{output}{details}}}"#
        )
    }

    fn first_text(&self, choice: usize) -> String {
        if !self.ask.echo || self.chat() || self.begun.get(choice) == Some(&true) {
            return String::new();
        }
        let prompt = self.ask.prompts.get(choice / self.ask.n);
        tokens::decode(prompt.map(AsRef::as_ref).unwrap_or_default())
    }

    fn completion_choice(&self, piece: &Piece) -> String {
        let text = Value::from(self.first_text(piece.choice) + &piece.text);
        let logprobs = self.ask.logprobs.map(|most| {
            let before = self.chars.get(piece.choice).copied().unwrap_or(0);
            bodies::completion_logprobs(&[piece.token], most, before)
        });
        let (reason, stop) = bodies::finish_members(piece.finish.as_ref());
        let first = self.begun.get(piece.choice) == Some(&false);
        let prompt_ids = match self.ask.return_token_ids && first {
            true => bodies::prompt_ids(&self.ask, piece.choice / self.ask.n),
            false => Value::Null,
        };
        let ids = json!(self.ask.return_token_ids.then_some([piece.token]));
        format!(
            r#""index":{},"text":{text},"logprobs":{},"finish_reason":{reason},"stop_reason":{stop},"prompt_token_ids":{prompt_ids},"token_ids":{ids}"#,
            piece.choice,
            json!(logprobs),
        )
    }

    fn chat_choice(&self, piece: &Piece) -> String {
        let logprobs = self.ask.logprobs.map(|most| bodies::chat_logprobs(&[piece.token], most));
        let (reason, stop) = bodies::finish_members(piece.finish.as_ref());
        let stop = if piece.finish.is_some() { format!(r#""stop_reason":{stop},"#) } else { String::new() };
        let ids = json!(self.ask.return_token_ids.then_some([piece.token]));
        format!(
            r#""index":{},"delta":{},"logprobs":{},"finish_reason":{reason},{stop}"token_ids":{ids}"#,
            piece.choice,
            self.delta(piece),
            json!(logprobs),
        )
    }

    fn delta(&self, piece: &Piece) -> Value {
        let Some(name) = &self.ask.tool else { return json!({ "content": piece.text }) };
        let mut arguments = Value::from(piece.text.as_str()).to_string();
        arguments = arguments.get(1..arguments.len() - 1).unwrap_or("").to_owned();
        if piece.finish.is_some() {
            arguments.push_str("\"}");
        }
        if self.begun.get(piece.choice) == Some(&true) {
            return json!({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]});
        }
        arguments.insert_str(0, "{\"text\":\"");
        let function = json!({"name": name, "arguments": arguments});
        json!({"tool_calls": [{"index": 0, "id": bodies::tool_id(), "type": "function", "function": function}]})
    }
}

impl Format for Chunks {
    fn begin(&mut self, _: Counts, out: &mut Vec<Bytes>) {
        if !self.chat() {
            return;
        }
        let prompt_ids =
            if self.ask.return_token_ids { bodies::prompt_ids(&self.ask, 0) } else { Value::Null };
        for index in 0..self.begun.len() {
            let usage = self.running_usage(index);
            let handoff = self.handoff_member(&Value::Null);
            let tail = format!(r#"{usage},"prompt_token_ids":{prompt_ids},"prompt_text":null{handoff}"#);
            let choice = format!(
                r#""index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null"#
            );
            out.push(self.chunk(&choice, &tail));
        }
    }

    fn hand_over(&mut self, handoff: Value) {
        self.handoff = handoff;
    }

    fn piece(&mut self, piece: &Piece, _: Counts, last: bool, out: &mut Vec<Bytes>) {
        if let Some(tokens) = self.tokens.get_mut(piece.choice) {
            *tokens += 1;
        }
        let choice = if self.chat() { self.chat_choice(piece) } else { self.completion_choice(piece) };
        let mut tail = self.running_usage(piece.choice);
        if piece.finish.is_some() && !self.ask.include_usage {
            let _ = write!(tail, r#","system_fingerprint":"{FINGERPRINT}""#);
        }
        let handoff = if last { self.handoff.take() } else { Value::Null };
        tail.push_str(&self.handoff_member(&handoff));
        out.push(self.chunk(&choice, &tail));
        if let Some(begun) = self.begun.get_mut(piece.choice) {
            *begun = true;
        }
        if let Some(chars) = self.chars.get_mut(piece.choice) {
            *chars += piece.text.chars().count();
        }
    }

    fn end(&mut self, counts: Counts, out: &mut Vec<Bytes>) {
        if self.ask.include_usage {
            let Counts { prompt, output, cached, created } = counts;
            let details = match (self.reply.details, self.chat()) {
                (false, _) => String::new(),
                (true, false) => format!(r#","prompt_tokens_details":{{"cached_tokens":{cached}}}"#),
                (true, true) => format!(
                    r#","prompt_tokens_details":{{"cached_tokens":{cached},"created_cache_tokens":{created}}}"#
                ),
            };
            let total = prompt + output;
            let handoff = self.handoff_member(&Value::Null);
            let tail = format!(
                r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{output}{details}}},"system_fingerprint":"{FINGERPRINT}"{handoff}"#
            );
            out.push(self.chunk("", &tail));
        }
        out.push(Bytes::from_static(DONE));
    }
}
