//! A client's messages as the template gets them (vLLM 0.32, `renderers/chat_utils.py`:
//! `parse_chat_messages`).

use serde_json::{Map, Value};

use super::media::MediaForm;
use super::parts::{content, strip_billing_header};
use super::template::ContentFormat;
use super::{Reason, json};

/// All messages, checked and rewritten; an error where the engine would refuse them or we don't
/// follow.
pub(super) fn conversation(
    messages: Vec<Value>,
    format: ContentFormat,
    media: MediaForm,
) -> Result<Vec<Map<String, Value>>, Reason> {
    messages.into_iter().map(|message| one(message, format, media)).collect()
}

fn one(message: Value, format: ContentFormat, media: MediaForm) -> Result<Map<String, Value>, Reason> {
    let Value::Object(mut message) = message else { return Err(Reason::Shape) };
    let Some(Value::String(role)) = message.shift_remove("role") else { return Err(Reason::Shape) };
    let mut parts = match message.shift_remove("content") {
        None => Vec::new(),
        // Only the assistant's own message may have a content of null.
        Some(Value::Null) if role == "assistant" => Vec::new(),
        Some(text @ Value::String(_)) => vec![text],
        Some(Value::Array(parts)) => parts,
        Some(_) => return Err(Reason::Shape),
    };
    if role == "system" {
        parts = strip_billing_header(parts);
    }
    let mut out = Map::new();
    out.insert("role".to_owned(), Value::String(role.clone()));
    out.insert("content".to_owned(), content(parts, &role, format, media)?);
    match role.as_str() {
        "assistant" => assistant(&mut message, &mut out)?,
        "tool" => tool(&mut message, &mut out)?,
        "developer" if message.get("tools").is_some_and(|tools| !tools.is_null()) => {
            return Err(Reason::Shape);
        }
        _ => {}
    }
    for key in ["name", "task"] {
        match message.shift_remove(key) {
            None => {}
            Some(text @ Value::String(_)) => drop(out.insert(key.to_owned(), text)),
            Some(_) => return Err(Reason::Shape),
        }
    }
    if role == "developer" {
        out.insert("tools".to_owned(), Value::Null);
    }
    Ok(out)
}

fn assistant(message: &mut Map<String, Value>, out: &mut Map<String, Value>) -> Result<(), Reason> {
    match message.shift_remove("tool_calls") {
        None | Some(Value::Null) => {}
        // No calls are none: the template sees an ordinary answer.
        Some(Value::Array(calls)) if calls.is_empty() => {}
        Some(Value::Array(calls)) => {
            let calls = calls.into_iter().map(tool_call).collect::<Result<_, _>>()?;
            out.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        Some(_) => return Err(Reason::Shape),
    }
    let given = |value: Option<Value>| value.filter(|value| !value.is_null());
    let older = given(message.shift_remove("reasoning_content"));
    match given(message.shift_remove("reasoning")).or(older) {
        None => Ok(()),
        Some(text @ Value::String(_)) => {
            out.insert("reasoning".to_owned(), text.clone());
            out.insert("reasoning_content".to_owned(), text);
            Ok(())
        }
        Some(_) => Err(Reason::Shape),
    }
}

fn tool(message: &mut Map<String, Value>, out: &mut Map<String, Value>) -> Result<(), Reason> {
    match message.shift_remove("tool_call_id") {
        None => Ok(()),
        Some(id @ (Value::String(_) | Value::Null)) => {
            out.insert("tool_call_id".to_owned(), id);
            Ok(())
        }
        Some(_) => Err(Reason::Shape),
    }
}

/// The client library's type orders the members: `id`, `function {arguments, name}`, `type`, then
/// what else is there.
fn tool_call(call: Value) -> Result<Value, Reason> {
    let Value::Object(mut call) = call else { return Err(Reason::Shape) };
    let id = call.shift_remove("id").filter(Value::is_string).ok_or(Reason::Shape)?;
    let kind = call.shift_remove("type").filter(|kind| kind == "function").ok_or(Reason::Shape)?;
    let Some(Value::Object(mut function)) = call.shift_remove("function") else { return Err(Reason::Shape) };
    let Some(Value::String(arguments)) = function.shift_remove("arguments") else {
        return Err(Reason::Shape);
    };
    let name = function.shift_remove("name").filter(Value::is_string).ok_or(Reason::Shape)?;
    let mut out_function = Map::new();
    out_function.insert("arguments".to_owned(), parsed_arguments(&arguments)?);
    out_function.insert("name".to_owned(), name);
    out_function.extend(function);
    let mut out = Map::new();
    out.insert("id".to_owned(), id);
    out.insert("function".to_owned(), Value::Object(out_function));
    out.insert("type".to_owned(), kind);
    out.extend(call);
    Ok(Value::Object(out))
}

/// Templates want a mapping: what is not an object becomes an empty one.
fn parsed_arguments(text: &str) -> Result<Value, Reason> {
    if text.is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    match json::parse(text.as_bytes())? {
        object @ Value::Object(_) => Ok(object),
        _ => Ok(Value::Object(Map::new())),
    }
}

/// For a template that knows no `developer`: those messages become system messages, and all system
/// messages one, at the front.
pub(super) fn developers_to_system(messages: Vec<Map<String, Value>>) -> Vec<Map<String, Value>> {
    let mut texts = Vec::new();
    let mut others = Vec::new();
    let mut moved = false;
    let mut kept = Vec::with_capacity(messages.len());
    for (at, mut message) in messages.into_iter().enumerate() {
        if message.get("role").is_some_and(|role| role == "developer") {
            message.insert("role".to_owned(), Value::from("system"));
            message.shift_remove("tools");
        }
        if message.get("role").is_some_and(|role| role == "system") {
            moved |= at > 0 || !texts.is_empty();
            texts.extend(joined_text(message.get("content")).filter(|text| !text.is_empty()));
        } else {
            others.push(message.clone());
        }
        kept.push(message);
    }
    if !moved {
        return kept;
    }
    let mut merged = Map::new();
    merged.insert("role".to_owned(), Value::from("system"));
    merged.insert("content".to_owned(), Value::String(texts.join("\n\n")));
    others.insert(0, merged);
    others
}

fn joined_text(content: Option<&Value>) -> Option<String> {
    match content? {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
            Some(texts.join("\n"))
        }
        _ => None,
    }
}
