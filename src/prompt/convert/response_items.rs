//! Items of a Responses request as messages of a chat (vLLM 0.32 and 0.33,
//! `_construct_message_from_response_item`). What an answer consists of becomes one message.

use serde_json::{Map, Value};

use super::{call, image, object, take_text, tool_result};
use crate::prompt::Reason;
use crate::prompt::encoding::dumps;
use crate::prompt::parts::has_billing_header;

/// An item as what it adds to the chat.
pub(super) enum Item {
    /// A message of its own.
    Message(Value),
    /// A call of a tool, by the answer before it.
    Call(Value),
    /// The reasoning of an answer.
    Reasoning(String),
    /// The text of an answer.
    Text(String),
}

/// Items that become messages.
#[derive(Default)]
pub(super) struct Items(Vec<Value>);

impl Items {
    pub(super) fn into_messages(self) -> Vec<Value> {
        self.0
    }

    fn add(&mut self, item: Item) {
        let last = self.0.last_mut().and_then(Value::as_object_mut);
        let answer = last.filter(|last| last.get("role").is_some_and(|role| role == "assistant"));
        let (key, value) = match item {
            Item::Message(message) => return self.0.push(message),
            Item::Call(call) => ("tool_calls", call),
            Item::Reasoning(text) => ("reasoning", Value::String(text)),
            Item::Text(text) => ("content", Value::String(text)),
        };
        let is_call = key == "tool_calls";
        if let Some(answer) = answer {
            match answer.get_mut(key) {
                Some(Value::Array(calls)) if is_call => return calls.push(value),
                Some(given) if !given.is_null() => {}
                _ => return add_member(answer, key, value),
            }
        }
        let mut message = Map::new();
        message.insert("role".to_owned(), Value::from("assistant"));
        add_member(&mut message, key, value);
        self.0.push(Value::Object(message));
    }
}

fn add_member(answer: &mut Map<String, Value>, key: &str, value: Value) {
    let value = if key == "tool_calls" { Value::Array(vec![value]) } else { value };
    answer.insert(key.to_owned(), value);
}

impl FromIterator<Item> for Items {
    fn from_iter<I: IntoIterator<Item = Item>>(items: I) -> Self {
        let mut all = Self::default();
        items.into_iter().for_each(|item| all.add(item));
        all
    }
}

/// Reads an item.
///
/// # Errors
/// [`Reason::Shape`] for one that the engine refuses, or that is not known here.
pub(super) fn item(item: Value) -> Result<Item, Reason> {
    let mut item = object(item)?;
    let kind = take_text(&mut item, "type")?;
    match kind.as_deref() {
        Some("function_call") => function_call(item),
        Some("custom_tool_call") => custom_call(item),
        Some("reasoning") => reasoning(item),
        Some("function_call_output") => output(item),
        // Beside `custom_tool_call` the same, but for one that is an answer of this API itself.
        Some("custom_tool_call_output") => output(item),
        None | Some("message") => spoken(item, kind.is_some()),
        Some(_) => Err(Reason::Shape),
    }
}

fn function_call(mut item: Map<String, Value>) -> Result<Item, Reason> {
    let mut text = |key| take_text(&mut item, key);
    let name = text("name")?.ok_or(Reason::Shape)?;
    let name = match text("namespace")?.filter(|space| !space.is_empty()) {
        Some(space) => flat_name(&space, &name),
        None => name,
    };
    let id = text("call_id")?.ok_or(Reason::Shape)?;
    Ok(Item::Call(call(id, name, text("arguments")?.ok_or(Reason::Shape)?)))
}

/// The name under which a model sees a function of a namespace.
pub(super) fn flat_name(space: &str, name: &str) -> String {
    format!("{space}__{name}")
}

fn custom_call(mut item: Map<String, Value>) -> Result<Item, Reason> {
    let mut text = |key| take_text(&mut item, key)?.ok_or(Reason::Shape);
    let (id, name) = (text("call_id")?, text("name")?);
    let mut arguments = Map::new();
    arguments.insert("input".to_owned(), Value::String(text("input")?));
    Ok(Item::Call(call(id, name, dumps(&Value::Object(arguments))?)))
}

/// The first text of an answer's reasoning, or of its summary.
fn reasoning(mut item: Map<String, Value>) -> Result<Item, Reason> {
    if take_text(&mut item, "encrypted_content")?.is_some_and(|text| !text.is_empty()) {
        return Err(Reason::Shape);
    }
    let mut first = |key, kind: &str| match item.shift_remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(parts)) => {
            if parts.iter().any(|part| part.get("type").is_none_or(|given| given != kind)) {
                return Err(Reason::Shape);
            }
            parts.into_iter().next().map(first_text).transpose()
        }
        Some(_) => Err(Reason::Shape),
    };
    let content = first("content", "reasoning_text")?;
    let summary = first("summary", "summary_text")?;
    Ok(Item::Reasoning(content.or(summary).unwrap_or_default()))
}

fn first_text(part: Value) -> Result<String, Reason> {
    take_text(&mut object(part)?, "text")?.ok_or(Reason::Shape)
}

fn output(mut item: Map<String, Value>) -> Result<Item, Reason> {
    let id = match item.shift_remove("call_id") {
        None => Value::Null,
        Some(id) => id,
    };
    let content = match item.shift_remove("output") {
        Some(text @ Value::String(_)) => text,
        Some(Value::Array(given)) => Value::Array(parts(given)?),
        _ => return Err(Reason::Shape),
    };
    Ok(Item::Message(tool_result(id, content)))
}

/// A message that somebody has said; `is_named` if the item says that it is a message.
fn spoken(mut item: Map<String, Value>, is_named: bool) -> Result<Item, Reason> {
    let role = take_text(&mut item, "role")?.ok_or(Reason::Shape)?;
    let content = item.shift_remove("content").ok_or(Reason::Shape)?;
    if role == "assistant" {
        match content {
            Value::String(text) => return Ok(Item::Text(text)),
            Value::Array(parts) if !parts.is_empty() => return answer(item, parts, is_named),
            // The engine fails on one that says that it is a message.
            Value::Array(_) if is_named => return Err(Reason::Shape),
            Value::Array(_) => {}
            _ => return Err(Reason::Shape),
        }
    }
    let content = match content {
        Value::String(text) => Value::String(text),
        Value::Array(given) => Value::Array(parts(given)?),
        _ => return Err(Reason::Shape),
    };
    // Engines leave the line for billing in a part of this API's types.
    let billed = content.as_array().is_some_and(|parts| parts.iter().any(has_billing_header));
    let known = matches!(role.as_str(), "user" | "system" | "developer" | "assistant");
    if !known || (role == "system" && billed) || item.get("tools").is_some() {
        return Err(Reason::Shape);
    }
    item.insert("role".to_owned(), Value::String(role));
    item.insert("content".to_owned(), content);
    Ok(Item::Message(Value::Object(item)))
}

/// An answer in parts: its first text counts.
fn answer(item: Map<String, Value>, parts: Vec<Value>, is_named: bool) -> Result<Item, Reason> {
    let is = |part: &Value, kind: &str| part.get("type").is_some_and(|given| given == kind);
    // Without id and status its parts are those of a question, unless it says what it is.
    let is_whole = is_named || (item.contains_key("id") && item.contains_key("status"));
    let of_answer = parts.iter().all(|part| is(part, "output_text") || is(part, "refusal"));
    if !(is_whole && of_answer || parts.iter().all(|part| is(part, "input_text"))) {
        return Err(Reason::Shape);
    }
    parts.into_iter().next().ok_or(Reason::Shape).and_then(first_text).map(Item::Text)
}

/// Parts of a content under the names that a chat has for them.
fn parts(given: Vec<Value>) -> Result<Vec<Value>, Reason> {
    given.into_iter().map(part).collect()
}

fn part(part: Value) -> Result<Value, Reason> {
    let mut part = object(part)?;
    let mut out = match part.shift_remove("type").as_ref().and_then(Value::as_str) {
        Some("input_text") => super::text_part(take_text(&mut part, "text")?.ok_or(Reason::Shape)?),
        Some("input_image") => {
            let url = take_text(&mut part, "image_url")?.ok_or(Reason::Media)?;
            part.entry("detail").or_insert_with(|| Value::from("auto"));
            image(url)
        }
        Some("input_file") => return Err(Reason::Media),
        _ => return Err(Reason::Shape),
    };
    out.extend(part);
    Ok(Value::Object(out))
}
