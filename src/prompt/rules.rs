//! The releases of vLLM that read a chat as it is read here. Most chats consist of parts that are
//! the same in all, and the comparison with `/tokenize` shows whether they are. But `/tokenize` is
//! not asked with `reasoning_content` and `reasoning_effort`, which the chat endpoint turns into
//! something else before. And no fixed request can have all that was changed at some time.

use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::Value;

use super::chat::{OLDER_REASONING, REASONING};
use super::parts::has_billing_header;
use super::source::present;
use crate::codec::json::Object;

/// So many of the rules followed here, those of 0.32. Compared with 0.22, 0.24 and 0.28
/// (`ChatCompletionRequest`, `_parse_chat_message_content`), and with 0.11, 0.13, 0.18 and 0.20,
/// which treat reasoning in three other ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rules {
    /// Those that all releases share.
    EveryRelease,
    /// And what 0.22 to 0.32 make of earlier reasoning, of `reasoning_effort` and of documents.
    Since22,
    /// All, as only 0.32 is known to have them.
    Of32,
}

/// The rules that all engines share, as far as is known at the moment.
#[derive(Debug)]
pub struct SharedRules(AtomicU8);

impl SharedRules {
    /// These, until more is known.
    pub fn new(rules: Rules) -> Self {
        Self(AtomicU8::new(rules as u8))
    }

    /// These from now on.
    pub fn set(&self, rules: Rules) {
        self.0.store(rules as u8, Ordering::Relaxed);
    }

    /// The rules at this moment.
    pub fn now(&self) -> Rules {
        match self.0.load(Ordering::Relaxed) {
            0 => Rules::EveryRelease,
            1 => Rules::Since22,
            _ => Rules::Of32,
        }
    }
}

impl Rules {
    /// The fewest that engines must share for a chat's prompt to be known; `messages` and `tools`
    /// are the client's.
    pub(super) fn needed(body: &Object, messages: &[Value], tools: &[Value]) -> Self {
        let newest = messages.iter().any(|message| message_is_new(message).unwrap_or(false))
            || !tools.iter().all(tool_is_old)
            || unset_variables(body);
        let since_22 = || {
            messages.iter().any(|message| given(message, OLDER_REASONING) || given(message, REASONING))
                || present(body, "reasoning_effort").is_some()
                || present(body, "documents").is_some()
        };
        match newest {
            true => Rules::Of32,
            false if since_22() => Rules::Since22,
            false => Rules::EveryRelease,
        }
    }
}

fn given(message: &Value, key: &str) -> bool {
    message.get(key).is_some_and(|value| !value.is_null())
}

/// True if a message is treated otherwise by newer rules. A message of unknown shape is refused
/// elsewhere.
fn message_is_new(message: &Value) -> Option<bool> {
    let message = message.as_object()?;
    let role = message.get("role")?.as_str()?;
    let content = message.get("content").unwrap_or(&Value::Null);
    let parts = content.as_array().map(Vec::as_slice).unwrap_or_default();
    let calls = message.get("tool_calls").and_then(Value::as_array);
    Some(
        !matches!(role, "system" | "user" | "assistant" | "tool")
            || message.contains_key("task")
            || (role == "tool" && content.is_array())
            || (role == "system" && (has_billing_header(content) || parts.iter().any(has_billing_header)))
            || !parts.iter().all(part_is_old)
            || calls.is_some_and(|calls| calls.is_empty() || !calls.iter().all(call_is_old)),
    )
}

/// A text, and nothing beside it.
fn part_is_old(part: &Value) -> bool {
    part.as_object().is_none_or(|part| {
        part.get("type").is_some_and(|kind| kind == "text") && only(part.keys(), &["type", "text"])
    })
}

/// True if older rules treat the call otherwise: a value that is no object was refused, or passed
/// on as it was.
fn call_is_old(call: &Value) -> bool {
    let arguments = call.get("function").and_then(|function| function.get("arguments"));
    arguments.and_then(Value::as_str).is_none_or(|text| text.trim_start().starts_with('{'))
}

/// Without `strict`, `defer_loading` and what else vLLM has taken into its type, or out of it.
fn tool_is_old(tool: &Value) -> bool {
    let function = tool.get("function").and_then(Value::as_object);
    tool.as_object().is_some_and(|tool| only(tool.keys(), &["type", "function"]))
        && function.is_some_and(|function| only(function.keys(), &["name", "description", "parameters"]))
}

/// True if a variable of the template is null or `"auto"`, and so not given.
fn unset_variables(body: &Object) -> bool {
    let variables = present(body, "chat_template_kwargs");
    let variables = variables.and_then(|value| serde_json::from_slice::<Value>(value.raw()).ok());
    let members = variables.as_ref().and_then(Value::as_object);
    members.is_some_and(|members| members.values().any(|value| value.is_null() || value == "auto"))
}

fn only<'a>(mut keys: impl Iterator<Item = &'a String>, known: &[&str]) -> bool {
    keys.all(|key| known.contains(&key.as_str()))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::super::Chat;
    use super::*;
    use crate::codec::json::ScanLimits;

    fn needs(body: &Value) -> Rules {
        let body = Object::scan(Bytes::from(body.to_string()), ScanLimits::default()).unwrap();
        Chat::read(&body).unwrap().rules
    }

    #[test]
    fn a_chat_needs_the_rules_of_what_it_uses() {
        let user = json!({"role": "user", "content": "a"});
        let with = |message: Value| json!({"messages": [user, message]});
        let called = |arguments: &str| {
            let function = json!({"name": "f", "arguments": arguments});
            with(
                json!({"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}),
            )
        };
        for plain in [
            json!({"messages": [user], "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}),
            with(json!({"role": "system", "content": [{"type": "text", "text": "a"}, "b"]})),
            with(json!({"role": "assistant", "content": "a", "reasoning": null, "name": "n"})),
            with(json!({"role": "tool", "content": "a", "tool_call_id": "1"})),
            called(" {}"),
            json!({"messages": [user], "chat_template_kwargs": {"enable_thinking": false}}),
        ] {
            assert_eq!(needs(&plain), Rules::EveryRelease, "{plain}");
        }
        for since_22 in [
            with(json!({"role": "assistant", "content": "a", "reasoning_content": "r"})),
            with(json!({"role": "assistant", "content": "a", "reasoning": ""})),
            json!({"messages": [user], "reasoning_effort": "low"}),
            json!({"messages": [user], "documents": [{"text": "a"}]}),
        ] {
            assert_eq!(needs(&since_22), Rules::Since22, "{since_22}");
        }
        for newest in [
            with(json!({"role": "developer", "content": "a"})),
            with(json!({"role": "user", "content": "a", "task": "t"})),
            with(json!({"role": "tool", "content": [{"type": "text", "text": "a"}]})),
            with(json!({"role": "system", "content": "x-anthropic-billing-header: 1\na"})),
            with(
                json!({"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header"}]}),
            ),
            with(json!({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]})),
            with(json!({"role": "assistant", "content": [{"type": "refusal", "refusal": "a"}]})),
            with(json!({"role": "assistant", "content": "a", "reasoning": "r", "tool_calls": []})),
            called("[]"),
            json!({"messages": [user], "tools": [{"function": {"name": "f", "strict": true}}]}),
            json!({"messages": [user], "tools": [{"function": {"name": "f"}, "defer_loading": true}]}),
            json!({"messages": [user], "chat_template_kwargs": {"x": "auto"}}),
        ] {
            assert_eq!(needs(&newest), Rules::Of32, "{newest}");
        }
    }
}
