//! The Responses API (vLLM 0.32 and 0.33, `OnlineRenderer.render_responses` for models whose chats
//! are rendered by a template).

use bytes::Bytes;
use serde_json::{Map, Value};

use super::response_items::{Items, item};
use super::response_tools::tools;
use super::{Converted, Origin, message, value, with_same};
use crate::codec::json::{Edit, Object, quote};
use crate::prompt::Reason;
use crate::prompt::source::present;

/// Members with which the engine adds something of its own, or cuts the prompt.
const ENGINES_OWN: [&str; 2] = ["previous_response_id", "previous_input_messages"];

pub(super) fn convert(body: &Object) -> Result<Converted, Reason> {
    if ENGINES_OWN.iter().any(|key| present(body, key).is_some()) {
        return Err(Reason::Api);
    }
    if present(body, "prompt").is_some() {
        return Err(Reason::Shape);
    }
    // Null is not "disabled" either.
    if body.get("truncation").is_some_and(|how| how.as_str().is_none_or(|how| how != "disabled")) {
        return Err(Reason::Truncation);
    }
    let mut messages = Vec::new();
    if let Some(instructions) = present(body, "instructions") {
        let text = instructions.as_str().ok_or(Reason::Json)?;
        messages.extend((!text.is_empty()).then(|| message("system", text.into_owned())));
    }
    let mut continues = false;
    match value(body, "input")?.ok_or(Reason::Shape)? {
        Value::String(text) => messages.push(message("user", text)),
        Value::Array(given) => {
            continues = given.last().is_some_and(is_partial);
            messages.extend(given.into_iter().map(item).collect::<Result<Items, _>>()?.into_messages());
        }
        _ => return Err(Reason::Shape),
    }
    let members = members(body, continues)?;
    Ok(Converted { messages, tools: tools(body)?, members, origin: Origin::Responses })
}

/// True for an answer that the client gives as unfinished, as the last item: it is continued.
fn is_partial(item: &Value) -> bool {
    let text = |key| item.get(key).and_then(Value::as_str);
    let of_answer = match item.get("type") {
        None => true,
        Some(_) => matches!(text("type"), Some("message" | "reasoning")),
    };
    of_answer && matches!(text("status"), Some("in_progress" | "incomplete"))
}

/// The members of the chat beside its messages and tools.
fn members(body: &Object, continues: bool) -> Result<Edit, Reason> {
    let mut members = with_same(Edit::new(), body, "chat_template_kwargs")
        // Unlike that of a chat, the text is tokenised with the tokenizer's own marks.
        .set("add_special_tokens", Bytes::from_static(b"true"));
    if continues {
        members = members
            .set("continue_final_message", Bytes::from_static(b"true"))
            .set("add_generation_prompt", Bytes::from_static(b"false"));
    }
    if let Some(reasoning) = present(body, "reasoning") {
        let reasoning = reasoning.object().map_err(|_| Reason::Shape)?;
        members = match present(&reasoning, "effort") {
            Some(effort) => members.set("reasoning_effort", effort.to_bytes()),
            None => members,
        };
    }
    let no_tool =
        present(body, "tool_choice").is_some_and(|how| how.as_str().is_some_and(|how| how == "none"));
    Ok(if no_tool { members.set("tool_choice", quote("none")) } else { members })
}

/// Puts the name of every called function before its arguments. The chat endpoint's type puts it
/// after them, and templates may print the function as it is.
pub(in crate::prompt) fn names_first(messages: &mut [Map<String, Value>]) {
    let calls = messages.iter_mut().filter_map(|message| message.get_mut("tool_calls")?.as_array_mut());
    for call in calls.flatten() {
        let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else { continue };
        if let Some(name) = function.shift_remove("name") {
            function.shift_insert(0, "name".to_owned(), name);
        }
    }
}
