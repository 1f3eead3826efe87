//! Requests of the Messages and Responses APIs as the chats that vLLM 0.32 and 0.33 make of them.
//!
//! vLLM has one code for each of the two: `AnthropicServingMessages.to_chat_completion_request`
//! (`entrypoints/anthropic/serving.py`), and `construct_input_messages` with `construct_tool_dicts`
//! (`entrypoints/openai/responses/utils.py`). Both are the same in the two releases. A body that
//! they refuse is [`Reason::Shape`] here; a part of the prompt that the engine alone has is
//! [`Reason::Api`].

mod inline_system;
mod messages;
mod response_items;
mod response_tools;
mod responses;
mod settle;

use bytes::Bytes;
use serde_json::{Map, Value};

use super::Reason;
use super::chat::Chat;
use super::json;
use super::source::present;
use super::topics::{Topic, Topics};
use crate::codec::json::{Edit, Object, ScanLimits};
use crate::dialect::Api;

pub(super) use inline_system::refuses_inline_system;
pub(super) use responses::names_first;

/// Request that a chat was made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// A request to the chat endpoint, which is a chat as it is.
    #[default]
    Chat,
    /// One of Anthropic's Messages API.
    Messages(OpenChoices),
    /// One of the Responses API.
    Responses,
}

/// Choices about a chat of the Messages API that engines make by the model's template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenChoices {
    /// A system message stands after another message. Where the template refuses that, engines
    /// move it to the front.
    pub inline_system: bool,
    /// The client switches thinking off. The chat has the effort `none` for that, in place of which
    /// engines take `low` where it changes nothing.
    pub thinking_off: bool,
}

/// A chat, taken apart.
struct Converted {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    /// Members of the chat request beside them.
    members: Edit,
    origin: Origin,
}

/// Reads the chat that an engine makes of a body.
///
/// # Errors
/// The [`Reason`] for which it is not known.
pub(super) fn read(api: Api, body: &Object) -> Result<Chat, Reason> {
    let (converted, topic) = match api {
        Api::Messages => (messages::convert(body)?, Topic::Messages),
        Api::Responses => (responses::convert(body)?, Topic::Responses),
        Api::Chat | Api::Completions | Api::Generate => return Err(Reason::Api),
    };
    let empty = scan(Bytes::from_static(b"{}"))?;
    let members = scan(empty.splice(&converted.members).to_bytes())?;
    let mut chat = Chat::assemble(&members, converted.messages, converted.tools, body.bytes().len())?;
    chat.topics = chat.topics.or(Topics::NONE.with(topic));
    chat.origin = converted.origin;
    Ok(chat)
}

fn scan(text: Bytes) -> Result<Object, Reason> {
    Object::scan(text, ScanLimits::default()).map_err(|_| Reason::Json)
}

/// A member of the body with the same name and meaning in a chat.
fn with_same(members: Edit, body: &Object, key: &'static str) -> Edit {
    match present(body, key) {
        Some(value) => members.set(key, value.to_bytes()),
        None => members,
    }
}

/// A member of the body that is a list, `None` if it is not there.
fn list(body: &Object, key: &str) -> Result<Option<Vec<Value>>, Reason> {
    match value(body, key)? {
        None => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items)),
        Some(_) => Err(Reason::Shape),
    }
}

/// A member of the body that is there and not null.
fn value(body: &Object, key: &str) -> Result<Option<Value>, Reason> {
    present(body, key).map(|value| json::parse(value.raw())).transpose()
}

fn object(value: Value) -> Result<Map<String, Value>, Reason> {
    match value {
        Value::Object(members) => Ok(members),
        _ => Err(Reason::Shape),
    }
}

/// Takes a text out of an object; `None` if it is not there, or null.
fn take_text(from: &mut Map<String, Value>, key: &str) -> Result<Option<String>, Reason> {
    match from.shift_remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Reason::Shape),
    }
}

/// A message with a role and a content.
fn message(role: &str, content: impl Into<Value>) -> Value {
    let mut out = Map::new();
    out.insert("role".to_owned(), Value::from(role));
    out.insert("content".to_owned(), content.into());
    Value::Object(out)
}

/// A part of a content that is an image.
fn image(url: String) -> Map<String, Value> {
    let mut place = Map::new();
    place.insert("url".to_owned(), Value::String(url));
    let mut out = Map::new();
    out.insert("type".to_owned(), Value::from("image_url"));
    out.insert("image_url".to_owned(), Value::Object(place));
    out
}

/// A part of a content that is text.
fn text_part(text: String) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("type".to_owned(), Value::from("text"));
    out.insert("text".to_owned(), Value::String(text));
    out
}

/// A call of a tool in an earlier answer.
fn call(id: String, name: String, arguments: String) -> Value {
    let mut function = Map::new();
    function.insert("name".to_owned(), Value::String(name));
    function.insert("arguments".to_owned(), Value::String(arguments));
    let mut out = Map::new();
    out.insert("id".to_owned(), Value::String(id));
    out.insert("type".to_owned(), Value::from("function"));
    out.insert("function".to_owned(), Value::Object(function));
    Value::Object(out)
}

/// The result of a tool.
fn tool_result(id: Value, content: Value) -> Value {
    let mut out = Map::new();
    out.insert("role".to_owned(), Value::from("tool"));
    out.insert("tool_call_id".to_owned(), id);
    out.insert("content".to_owned(), content);
    Value::Object(out)
}

/// A function that the model may call; members that are null are not there.
#[derive(Default)]
struct Function {
    name: String,
    description: Value,
    parameters: Value,
    strict: Value,
    defer_loading: Value,
}

impl Function {
    /// The tool in the chat's form.
    fn into_tool(self) -> Value {
        let Function { name, description, parameters, strict, defer_loading } = self;
        let members = [
            ("name", Value::String(name)),
            ("description", description),
            ("parameters", parameters),
            ("strict", strict),
            ("defer_loading", defer_loading),
        ];
        let members = members.into_iter().filter(|(_, value)| !value.is_null());
        let function: Map<String, Value> = members.map(|(key, value)| (key.to_owned(), value)).collect();
        let mut out = Map::new();
        out.insert("type".to_owned(), Value::from("function"));
        out.insert("function".to_owned(), Value::Object(function));
        Value::Object(out)
    }
}

#[cfg(test)]
mod tests;
