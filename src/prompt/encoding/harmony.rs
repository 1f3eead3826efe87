//! Chats of gpt-oss: the messages that vLLM 0.32 and 0.33 make of them (`harmony_utils.py`,
//! `OnlineRenderer._make_request_with_harmony`), written as oss-harmony 0.0.11 does.
//!
//! Special tokens are never looked for in what clients say. The engine's environment may pin the
//! date or move instructions into the system message, which the comparison with it shows.

use std::collections::HashMap;

use serde_json::Value;

use super::typescript;
use crate::prompt::Reason;
use crate::prompt::chat::Chat;
use crate::prompt::media::MediaForm;
use crate::prompt::message::conversation;
use crate::prompt::renderer::{Moment, Piece};
use crate::prompt::strftime::Today;
use crate::prompt::template::ContentFormat;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";
const CALL: &str = "<|call|>";

/// Ways in which a message of an answer is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channel {
    Analysis,
    Commentary,
    Final,
}

impl Channel {
    fn name(self) -> &'static str {
        match self {
            Self::Analysis => "analysis",
            Self::Commentary => "commentary",
            Self::Final => "final",
        }
    }
}

/// A message as it is written.
struct Message {
    /// Author, and to whom it goes.
    header: String,
    channel: Option<Channel>,
    /// Text after the channel's name.
    addition: &'static str,
    /// Texts that are tokenised one by one.
    texts: Vec<String>,
    end: &'static str,
}

impl Message {
    fn new(header: impl Into<String>, texts: Vec<String>) -> Self {
        Self { header: header.into(), channel: None, addition: "", texts, end: END }
    }

    fn answer(channel: Channel, texts: Vec<String>) -> Self {
        Self { channel: Some(channel), ..Self::new("assistant", texts) }
    }

    fn developer(instructions: Option<&str>, tools: Option<String>) -> Self {
        let instructions = instructions.map(|text| format!("# Instructions\n\n{text}"));
        let sections: Vec<String> = instructions.into_iter().chain(tools).collect();
        Self::new("developer", vec![sections.join("\n\n")])
    }

    fn write(self, pieces: &mut Vec<Piece>) {
        pieces.extend([Piece::Special(START), Piece::Plain(self.header)]);
        if let Some(channel) = self.channel {
            let name = format!("{}{}", channel.name(), self.addition);
            pieces.extend([Piece::Special(CHANNEL), Piece::Plain(name)]);
        }
        pieces.push(Piece::Special(MESSAGE));
        pieces.extend(self.texts.into_iter().filter(|text| !text.is_empty()).map(Piece::Plain));
        pieces.push(Piece::Special(self.end));
    }
}

/// The prompt of a chat.
pub(super) fn render(chat: Chat, moment: Moment<'_>) -> Result<Vec<Piece>, Reason> {
    let effort = effort(chat.asked_effort())?;
    let today = moment.today.ok_or(Reason::Date)?;
    let limit_bytes = typescript::limit(chat.source_bytes);
    // Refuses what the request's type refuses.
    conversation(chat.messages.clone(), ContentFormat::String, MediaForm::Unknown)?;
    let tools = match chat.tools.as_deref() {
        None | Some([]) => None,
        Some(tools) => Some(typescript::namespace(tools, limit_bytes)?),
    };
    let mut messages = vec![system(effort, today, tools.is_some())];
    let (instructions, rest) = instructions(&chat.messages)?;
    if tools.is_some() || instructions.as_deref().is_some_and(|text| !text.is_empty()) {
        messages.push(Message::developer(instructions.as_deref(), tools));
    }
    let names = call_names(rest)?;
    for message in rest {
        if moment.stop.is_told() {
            return Err(Reason::Limit);
        }
        read(message, &names, &mut messages)?;
    }
    Ok(pieces(messages))
}

/// Without the thoughts before the last final answer, and with the header of the next.
fn pieces(messages: Vec<Message>) -> Vec<Piece> {
    let last_final = messages.iter().rposition(|message| message.channel == Some(Channel::Final));
    let last_final = last_final.unwrap_or(0);
    let mut pieces = Vec::with_capacity(messages.len() * 7 + 2);
    for (at, message) in messages.into_iter().enumerate() {
        if at >= last_final || message.channel != Some(Channel::Analysis) {
            message.write(&mut pieces);
        }
    }
    pieces.extend([Piece::Special(START), Piece::Plain("assistant".to_owned())]);
    pieces
}

fn effort(asked: Option<&str>) -> Result<&'static str, Reason> {
    match asked {
        None | Some("medium") => Ok("medium"),
        Some("low") => Ok("low"),
        Some("high") => Ok("high"),
        Some(_) => Err(Reason::Rejected),
    }
}

fn system(effort: &str, today: Today, has_tools: bool) -> Message {
    let Today { year, month, day } = today;
    let mut text = format!(
        "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n\
         Current date: {year:04}-{month:02}-{day:02}\n\nReasoning: {effort}\n\n# Valid channels: analysis, \
         commentary, final. Channel must be included for every message."
    );
    if has_tools {
        text.push_str("\nCalls to these tools must go to the commentary channel: 'functions'.");
    }
    Message::new("system", vec![text])
}

/// The text of a first message that instructs, and the messages after it.
fn instructions(messages: &[Value]) -> Result<(Option<String>, &[Value]), Reason> {
    match messages.split_first() {
        Some((first, rest)) if matches!(role(first)?, "system" | "developer") => {
            Ok((joined(first.get("content"))?, rest))
        }
        _ => Ok((None, messages)),
    }
}

fn role(message: &Value) -> Result<&str, Reason> {
    message.get("role").and_then(Value::as_str).ok_or(Reason::Shape)
}

/// All texts of a content; `None` if it has none.
fn joined(content: Option<&Value>) -> Result<Option<String>, Reason> {
    match content {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) => {
            // A refusal has none.
            let text = |part: &Value| part.as_str().or_else(|| part.get("text")?.as_str()).map(str::to_owned);
            let texts: Vec<String> = parts.iter().filter_map(text).collect();
            Ok((!texts.is_empty()).then(|| texts.concat()))
        }
        Some(_) => Err(Reason::Shape),
    }
}

/// The texts of a content, one by one.
fn texts(content: Option<&Value>) -> Result<Vec<String>, Reason> {
    match content {
        None | Some(Value::Null) => Ok(vec![String::new()]),
        Some(Value::String(text)) => Ok(vec![text.clone()]),
        Some(Value::Array(parts)) if parts.is_empty() => Ok(vec![String::new()]),
        Some(Value::Array(parts)) => {
            // The engine fails on a text that is no object, and takes no other kind's text.
            let texts = parts.iter().map(|part| match part {
                Value::Object(part) => match part.get("text") {
                    Some(Value::String(text)) => Ok(text.clone()),
                    None => Ok(String::new()),
                    Some(_) => Err(Reason::Rejected),
                },
                _ => Err(Reason::Rejected),
            });
            texts.collect()
        }
        Some(_) => Err(Reason::Shape),
    }
}

fn calls(message: &Value) -> &[Value] {
    message.get("tool_calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Names of the functions by the ids of their calls.
fn call_names(messages: &[Value]) -> Result<HashMap<&str, &str>, Reason> {
    let mut names = HashMap::new();
    for message in messages {
        if role(message)? != "assistant" && message.get("tool_calls").is_some() {
            return Err(Reason::Shape);
        }
        for call in calls(message) {
            let id = call.get("id").and_then(Value::as_str).ok_or(Reason::Shape)?;
            names.insert(id, function(call)?.0);
        }
    }
    Ok(names)
}

/// Name and arguments of a call. A name that is no identifier might be cut into other tokens.
fn function(call: &Value) -> Result<(&str, &str), Reason> {
    let function = call.get("function").ok_or(Reason::Shape)?;
    let text = |key: &str| function.get(key).and_then(Value::as_str).ok_or(Reason::Shape);
    let name = text("name")?;
    let is_usual = |char: char| char.is_ascii_alphanumeric() || "_-.".contains(char);
    if !name.chars().all(is_usual) {
        return Err(Reason::Shape);
    }
    Ok((name, text("arguments")?))
}

fn read(message: &Value, names: &HashMap<&str, &str>, out: &mut Vec<Message>) -> Result<(), Reason> {
    let content = message.get("content");
    match role(message)? {
        "assistant" => answer(message, out)?,
        "tool" => {
            let id = match message.get("tool_call_id") {
                None => "",
                Some(id) => id.as_str().ok_or(Reason::Shape)?,
            };
            let name = names.get(id).copied().unwrap_or_default();
            out.push(Message {
                channel: Some(Channel::Commentary),
                addition: " to=assistant",
                ..Message::new(format!("functions.{name}"), vec![joined(content)?.unwrap_or_default()])
            });
        }
        "system" | "developer" => {
            let text = joined(content)?;
            out.extend(text.map(|text| Message::developer(Some(&text), None)));
        }
        "user" => out.push(Message::new("user", texts(content)?)),
        _ => return Err(Reason::Rejected),
    }
    Ok(())
}

fn answer(message: &Value, out: &mut Vec<Message>) -> Result<(), Reason> {
    let reasoning = ["reasoning", "reasoning_content"]
        .iter()
        .find_map(|key| message.get(*key).filter(|value| !value.is_null()).and_then(Value::as_str));
    let thought = reasoning.filter(|text| !text.is_empty());
    let thought = thought.map(|text| Message::answer(Channel::Analysis, vec![text.to_owned()]));
    let content = message.get("content");
    let calls = calls(message);
    if calls.is_empty() {
        out.extend(thought);
        let texts = texts(content)?;
        if texts.first().is_some_and(|text| !text.is_empty()) {
            out.push(Message::answer(Channel::Final, texts));
        }
        return Ok(());
    }
    let said = joined(content)?.filter(|text| !text.is_empty());
    out.extend(said.map(|text| Message::answer(Channel::Commentary, vec![text])));
    out.extend(thought);
    for call in calls {
        let (name, arguments) = function(call)?;
        out.push(Message {
            header: format!("assistant to=functions.{name}"),
            addition: " json",
            end: CALL,
            ..Message::answer(Channel::Commentary, vec![arguments.to_owned()])
        });
    }
    Ok(())
}
