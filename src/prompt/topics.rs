//! Parts of a chat that releases of vLLM read in different ways. Everything else is the same in all
//! releases that were looked at.

use serde_json::Value;

use super::chat::{OLDER_REASONING, REASONING};
use super::parts::{has_billing_header, is_media};
use super::source::present;
use crate::codec::json::Object;

/// One such part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Topic {
    /// An earlier answer's `reasoning`.
    Reasoning,
    /// The same under its older name, `reasoning_content`.
    OlderReasoning,
    /// The member `reasoning_effort`.
    Effort,
    /// The member `documents`.
    Documents,
    /// The role `developer`.
    Developer,
    /// Roles beyond the usual ones, and the member `task`.
    OddRole,
    /// Tools with `strict`, `defer_loading`, and what else vLLM has taken into its type, or out of
    /// it.
    Tools,
    /// A tool's result in parts.
    ToolParts,
    /// Calls of tools without arguments in an object, and empty lists of calls.
    Calls,
    /// Parts of a text with other types or members.
    Parts,
    /// A system message that begins with a line for billing.
    Billing,
    /// Variables of the template that are null or `"auto"`.
    Unset,
    /// Any chat of a model whose chats engines render by code.
    Encoding,
    /// A request of the Messages API.
    Messages,
    /// One of the Responses API.
    Responses,
    /// Images and the like, up to the first of which the prompt is known.
    Media,
}

/// A set of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Topics(u32);

impl Topic {
    /// All of them.
    pub const ALL: [Topic; 16] = [
        Topic::Reasoning,
        Topic::OlderReasoning,
        Topic::Effort,
        Topic::Documents,
        Topic::Developer,
        Topic::OddRole,
        Topic::Tools,
        Topic::ToolParts,
        Topic::Calls,
        Topic::Parts,
        Topic::Billing,
        Topic::Unset,
        Topic::Encoding,
        Topic::Messages,
        Topic::Responses,
        Topic::Media,
    ];

    /// A short stable name for logs.
    pub fn name(self) -> &'static str {
        match self {
            Topic::Reasoning => "reasoning",
            Topic::OlderReasoning => "reasoning_content",
            Topic::Effort => "reasoning_effort",
            Topic::Documents => "documents",
            Topic::Developer => "developer",
            Topic::OddRole => "odd_role",
            Topic::Tools => "tools",
            Topic::ToolParts => "tool_parts",
            Topic::Calls => "tool_calls",
            Topic::Parts => "parts",
            Topic::Billing => "billing_header",
            Topic::Unset => "unset_variables",
            Topic::Encoding => "encoding",
            Topic::Messages => "messages",
            Topic::Responses => "responses",
            Topic::Media => "media",
        }
    }

    /// True if `/tokenize` is asked about it as the chat endpoint is. The others that endpoint
    /// turns into something else before, and the question says that something; or it takes no such
    /// request.
    pub fn is_shown_by_tokenize(self) -> bool {
        !matches!(
            self,
            Topic::OlderReasoning | Topic::Effort | Topic::Documents | Topic::Messages | Topic::Responses
        )
    }
}

impl Topics {
    /// None of them.
    pub const NONE: Topics = Topics(0);
    /// All of them.
    pub const ALL: Topics = Topics((1 << Topic::ALL.len()) - 1);

    pub(super) const fn from_bits(bits: u32) -> Self {
        Self(bits & Self::ALL.0)
    }

    pub(super) const fn bits(self) -> u32 {
        self.0
    }

    /// This set and one more.
    #[must_use]
    pub const fn with(self, topic: Topic) -> Self {
        Self(self.0 | 1 << topic as u8)
    }

    /// Those of this set that are not in the other.
    #[must_use]
    pub const fn without(self, others: Topics) -> Self {
        Self(self.0 & !others.0)
    }

    /// Those that are in both.
    #[must_use]
    pub const fn shared_with(self, other: Topics) -> Self {
        Self(self.0 & other.0)
    }

    /// Those that are in one of them.
    #[must_use]
    pub const fn or(self, other: Topics) -> Self {
        Self(self.0 | other.0)
    }

    /// True if it has all that the other has.
    pub const fn covers(self, other: Topics) -> bool {
        other.0 & !self.0 == 0
    }

    /// True if it has none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The topics of this set.
    pub fn iter(self) -> impl Iterator<Item = Topic> {
        Topic::ALL.into_iter().filter(move |topic| self.covers(Topics::NONE.with(*topic)))
    }

    /// Those that a chat has; `messages` and `tools` are the client's.
    pub(super) fn of(body: &Object, messages: &[Value], tools: &[Value]) -> Self {
        let mut found = Self::NONE;
        let mut set = |is: bool, topic| {
            if is {
                found = found.with(topic);
            }
        };
        set(present(body, "reasoning_effort").is_some(), Topic::Effort);
        set(present(body, "documents").is_some(), Topic::Documents);
        set(!tools.iter().all(tool_is_old), Topic::Tools);
        set(unset_variables(body), Topic::Unset);
        for message in messages {
            message_topics(message, &mut set);
        }
        found
    }
}

/// A message of unknown shape is refused elsewhere.
fn message_topics(message: &Value, set: &mut impl FnMut(bool, Topic)) {
    let Some(message) = message.as_object() else { return };
    let Some(role) = message.get("role").and_then(Value::as_str) else { return };
    let content = message.get("content").unwrap_or(&Value::Null);
    let parts = content.as_array().map(Vec::as_slice).unwrap_or_default();
    let calls = message.get("tool_calls").and_then(Value::as_array);
    let given = |key: &str| message.get(key).is_some_and(|value| !value.is_null());
    set(given(REASONING), Topic::Reasoning);
    set(given(OLDER_REASONING), Topic::OlderReasoning);
    set(role == "developer", Topic::Developer);
    let usual = matches!(role, "system" | "user" | "assistant" | "tool" | "developer");
    set(!usual || message.contains_key("task"), Topic::OddRole);
    set(role == "tool" && content.is_array(), Topic::ToolParts);
    let billing = has_billing_header(content) || parts.iter().any(has_billing_header);
    set(role == "system" && billing, Topic::Billing);
    for part in parts.iter().filter(|part| !part_is_old(part)) {
        set(true, if is_media(part) { Topic::Media } else { Topic::Parts });
    }
    set(calls.is_some_and(|calls| calls.is_empty() || !calls.iter().all(call_is_old)), Topic::Calls);
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

    fn topics(body: &Value) -> Vec<Topic> {
        let body = Object::scan(Bytes::from(body.to_string()), ScanLimits::default()).unwrap();
        Chat::read(&body).unwrap().needs().iter().collect()
    }

    #[test]
    fn a_chat_has_the_topics_of_what_it_uses() {
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
            assert_eq!(topics(&plain), [], "{plain}");
        }
        let header = "x-anthropic-billing-header: 1\na";
        for (body, topic) in [
            (
                with(json!({"role": "assistant", "content": "a", "reasoning_content": "r"})),
                Topic::OlderReasoning,
            ),
            (with(json!({"role": "assistant", "content": "a", "reasoning": ""})), Topic::Reasoning),
            (json!({"messages": [user], "reasoning_effort": "low"}), Topic::Effort),
            (json!({"messages": [user], "documents": [{"text": "a"}]}), Topic::Documents),
            (with(json!({"role": "developer", "content": "a"})), Topic::Developer),
            (with(json!({"role": "critic", "content": "a"})), Topic::OddRole),
            (with(json!({"role": "user", "content": "a", "task": "t"})), Topic::OddRole),
            (with(json!({"role": "tool", "content": [{"type": "text", "text": "a"}]})), Topic::ToolParts),
            (with(json!({"role": "system", "content": header})), Topic::Billing),
            (with(json!({"role": "system", "content": [{"type": "text", "text": header}]})), Topic::Billing),
            (
                with(
                    json!({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}),
                ),
                Topic::Parts,
            ),
            (
                with(json!({"role": "assistant", "content": [{"type": "refusal", "refusal": "a"}]})),
                Topic::Parts,
            ),
            (with(json!({"role": "assistant", "content": "a", "tool_calls": []})), Topic::Calls),
            (called("[]"), Topic::Calls),
            (
                json!({"messages": [user], "tools": [{"function": {"name": "f", "strict": true}}]}),
                Topic::Tools,
            ),
            (
                json!({"messages": [user], "tools": [{"function": {"name": "f"}, "defer_loading": true}]}),
                Topic::Tools,
            ),
            (json!({"messages": [user], "chat_template_kwargs": {"x": "auto"}}), Topic::Unset),
        ] {
            assert_eq!(topics(&body), [topic], "{body}");
        }
    }

    #[test]
    fn every_topic_is_in_the_set_of_all() {
        assert_eq!(Topics::ALL.iter().collect::<Vec<_>>(), Topic::ALL);
        for topic in Topic::ALL {
            let one = Topics::NONE.with(topic);
            assert_eq!(one.iter().collect::<Vec<_>>(), [topic]);
            assert!(!Topics::ALL.without(one).covers(one));
        }
    }
}
