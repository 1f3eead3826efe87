//! Messages to one prompt text, in the ChatML manner.

use std::fmt::Write as _;

use serde_json::Value;

use super::fail::ApiFailure;

/// The prompt of a chat body (`messages`, `tools`, `add_generation_prompt`,
/// `continue_final_message`).
pub fn render(body: &Value) -> Result<String, ApiFailure> {
    let Some(messages) = body.get("messages") else {
        return Err(ApiFailure::schema("missing", "body.messages", "Field required", &dict_of(body)));
    };
    let Some(messages) = messages.as_array() else {
        return Err(ApiFailure::schema("list_type", "body.messages", "Input should be a valid list", "?"));
    };
    if messages.is_empty() {
        let message = "Cannot apply chat template to an empty conversation. Provide at least one message.";
        return Err(ApiFailure::bad_request(message));
    }
    let flag = |name: &str, default| body.get(name).and_then(Value::as_bool).unwrap_or(default);
    let keep_open = flag("continue_final_message", false);
    let mut out = String::new();
    if let Some(tools) =
        body.get("tools").filter(|tools| tools.as_array().is_some_and(|list| !list.is_empty()))
    {
        turn(&mut out, "system", &format!("# Tools\n{tools}"), true);
    }
    for (i, message) in messages.iter().enumerate() {
        let role = message.get("role").and_then(Value::as_str).unwrap_or("user");
        let mut text = content_text(message.get("content"));
        if let Some(calls) = message.get("tool_calls").filter(|calls| !calls.is_null()) {
            let _ = write!(text, "{calls}");
        }
        turn(&mut out, role, &text, !(keep_open && i + 1 == messages.len()));
    }
    if flag("add_generation_prompt", true) && !keep_open {
        out.push_str("<|im_start|>assistant\n");
    }
    Ok(out)
}

/// The text of a message's content: a string, a list of parts, or nothing.
#[must_use]
pub fn content_text(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect()
        }
        _ => String::new(),
    }
}

/// The address of each image of a chat, which may hold its data.
pub fn image_urls(body: &Value) -> impl Iterator<Item = &str> {
    parts(body).filter_map(|part| part.pointer("/image_url/url")?.as_str())
}

/// The parts of all messages of a chat whose content is a list.
pub(super) fn parts(body: &Value) -> impl Iterator<Item = &Value> {
    let messages = body.get("messages").and_then(Value::as_array).into_iter().flatten();
    messages.filter_map(|message| message.get("content")?.as_array()).flatten()
}

/// Name of an object in the schema check's message.
#[must_use]
pub fn dict_of(body: &Value) -> String {
    format!("<dict of {} items>", body.as_object().map_or(0, serde_json::Map::len))
}

fn turn(out: &mut String, role: &str, text: &str, close: bool) {
    let _ = write!(out, "<|im_start|>{role}\n{text}");
    if close {
        out.push_str("<|im_end|>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn images_are_found_in_all_messages() {
        let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        let body = json!({"messages": [{"role": "user", "content": [image("a"), {"type": "text", "text": "b"}]},
            {"role": "user", "content": "c"}, {"role": "user", "content": [image("d"), {"type": "image_url"}]}]});
        assert_eq!(image_urls(&body).collect::<Vec<_>>(), ["a", "d"]);
        assert_eq!(image_urls(&json!({"prompt": "a"})).count(), 0);
    }

    #[test]
    fn messages_become_turns() {
        let body = json!({"messages": [{"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "text", "text": "yo"}]}]});
        let turns = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo";
        assert_eq!(render(&body).unwrap(), format!("{turns}<|im_end|>\n<|im_start|>assistant\n"));
        let mut open = body;
        open["continue_final_message"] = json!(true);
        assert_eq!(render(&open).unwrap(), turns);
        assert_eq!(render(&json!({"messages": []})).unwrap_err().status, 400);
    }
}
