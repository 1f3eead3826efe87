//! The generating request shapes: what limits the output, where usage stands, how a stream ends.

use crate::codec::json::Object;
use std::borrow::Cow;

use crate::error::Error;

/// One generating request shape of vLLM's HTTP surface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    /// OpenAI's route `POST /v1/chat/completions`.
    Chat,
    /// OpenAI's route `POST /v1/completions`.
    Completions,
    /// OpenAI's route `POST /v1/responses`.
    Responses,
    /// `POST /v1/messages` (Anthropic's shape, served by vLLM)
    Messages,
    /// `POST /inference/v1/generate` (vLLM's token-in, token-out)
    Generate,
}

/// Place where an API reports prompt and output tokens.
#[derive(Clone, Copy, Debug)]
pub struct UsageNames {
    /// Member of `usage` that counts the prompt.
    pub prompt: &'static str,
    /// Member of `usage` that counts the output.
    pub output: &'static str,
    /// Object inside `usage` that holds `cached`; `None` when `cached` stands in `usage` itself.
    pub details: Option<&'static str>,
    /// Member that counts prompt tokens read from a cache.
    pub cached: &'static str,
    /// Member beside it that counts those that were computed and put into one.
    pub created: &'static str,
}

/// Members of the Messages API that a chat does not have.
const MESSAGES_ALONE: [&str; 3] = ["system", "stop_sequences", "output_config"];

impl Api {
    /// All of them, for tables.
    pub const ALL: [Api; 5] = [Api::Chat, Api::Completions, Api::Responses, Api::Messages, Api::Generate];

    /// A short stable name for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Api::Chat => "chat_completions",
            Api::Completions => "completions",
            Api::Responses => "responses",
            Api::Messages => "messages",
            Api::Generate => "generate",
        }
    }

    /// Path of its route.
    pub const fn path(self) -> &'static str {
        match self {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
            Api::Responses => "/v1/responses",
            Api::Messages => "/v1/messages",
            Api::Generate => "/inference/v1/generate",
        }
    }

    /// The API of this path.
    pub fn at(path: &str) -> Option<Api> {
        Api::ALL.into_iter().find(|api| api.path() == path)
    }

    /// The API that a body is most likely for, where no path says so. A chat and a request of the
    /// Messages API are told apart by members that only the latter has.
    pub fn of_body(body: &Object) -> Api {
        let has_schema = || {
            let tool = body.get("tools").and_then(|tools| tools.first_element()?.object().ok());
            tool.is_some_and(|tool| tool.contains("input_schema"))
        };
        let of_messages = |key: &&str| body.contains(key);
        if body.contains("messages") {
            let is = MESSAGES_ALONE.iter().any(of_messages) || has_schema();
            return if is { Api::Messages } else { Api::Chat };
        }
        match (body.contains("input"), body.contains("token_ids")) {
            (true, _) => Api::Responses,
            (_, true) => Api::Generate,
            _ => Api::Completions,
        }
    }

    /// The member that caps the output. `Generate` keeps it inside `sampling_params`.
    pub fn max_tokens_member(self) -> &'static str {
        match self {
            Api::Responses => "max_output_tokens",
            _ => "max_tokens",
        }
    }

    /// True if a complete stream of this API ends with `data: [DONE]`. The others end with a typed
    /// event of their own, and only the HTTP framing tells a cut.
    pub fn ends_with_done(self) -> bool {
        matches!(self, Api::Chat | Api::Completions | Api::Generate)
    }

    /// True if an event of this name is the last of a stream, for the APIs that don't end with
    /// `[DONE]`.
    pub fn ends_with_event(self, name: &[u8]) -> bool {
        match self {
            Api::Responses => {
                matches!(name, b"response.completed" | b"response.failed" | b"response.incomplete" | b"error")
            }
            Api::Messages => matches!(name, b"message_stop" | b"error"),
            Api::Chat | Api::Completions | Api::Generate => false,
        }
    }

    /// True if an event of this name says that the answer failed.
    pub fn fails_with_event(self, name: &[u8]) -> bool {
        match self {
            Api::Responses => matches!(name, b"response.failed" | b"error"),
            Api::Messages => name == b"error",
            Api::Chat | Api::Completions | Api::Generate => false,
        }
    }

    /// True if an event of this name says only that an answer will come: vLLM sends those of
    /// responses before it has any of it (0.10 to 0.32).
    pub fn announces_with_event(self, name: &[u8]) -> bool {
        match self {
            Api::Responses => {
                matches!(name, b"response.created" | b"response.queued" | b"response.in_progress")
            }
            Api::Messages => matches!(name, b"message_start" | b"ping"),
            Api::Chat | Api::Completions | Api::Generate => false,
        }
    }

    /// True if an object has the member that each whole answer of the API has. A response in the
    /// background may have its id alone.
    pub fn is_answer(self, object: &Object) -> bool {
        let is_list = |key| object.get(key).is_some_and(|value| value.is_array());
        match self {
            Api::Chat | Api::Completions | Api::Generate => {
                object.get("choices").is_some_and(|choices| choices.first_element().is_some())
            }
            Api::Responses => is_list("output") || object.contains("id"),
            Api::Messages => is_list("content"),
        }
    }

    /// Tokens in a complete stream of `events`, when it does not report them: engines send one
    /// event per token, and beside those `[DONE]` and, in chats, the role. `None` where events say
    /// nothing about tokens.
    pub fn tokens_in(self, events: u64) -> Option<u64> {
        match self {
            Api::Chat => Some(events.saturating_sub(2)),
            Api::Completions | Api::Generate => Some(events.saturating_sub(1)),
            Api::Responses | Api::Messages => None,
        }
    }

    /// Names of the usage members (vLLM 0.32 answers).
    pub fn usage(self) -> UsageNames {
        match self {
            Api::Chat | Api::Completions | Api::Generate => UsageNames {
                prompt: "prompt_tokens",
                output: "completion_tokens",
                details: Some("prompt_tokens_details"),
                cached: "cached_tokens",
                created: "created_cache_tokens",
            },
            Api::Responses => UsageNames {
                prompt: "input_tokens",
                output: "output_tokens",
                details: Some("input_tokens_details"),
                cached: "cached_tokens",
                created: "cache_write_tokens",
            },
            Api::Messages => UsageNames {
                prompt: "input_tokens",
                output: "output_tokens",
                details: None,
                cached: "cache_read_input_tokens",
                created: "cache_creation_input_tokens",
            },
        }
    }

    /// An error as a whole answer.
    pub fn error_json(self, error: &Error) -> String {
        match self {
            // Anthropic's shape and types, by which its clients choose what to raise; the other
            // members are ours.
            Api::Messages => {
                let mut inner = error.inner();
                inner["type"] = error.kind().anthropic_type().into();
                serde_json::json!({ "type": "error", "error": inner }).to_string()
            }
            _ => error.to_json(),
        }
    }

    /// The server-sent event that ends a broken stream. `number` is the `sequence_number` of an
    /// event of `/v1/responses`, whose data has the members of OpenAI's flat `error` event and,
    /// since the SDKs raise an error only for that, the nested `error` as well.
    pub fn error_event(self, error: &Error, number: u64) -> String {
        let data: Cow<'_, str> = match self {
            Api::Chat | Api::Completions | Api::Generate => return format!("data: {}\n\n", error.to_json()),
            Api::Messages => self.error_json(error).into(),
            Api::Responses => serde_json::json!({
                "type": "error",
                "sequence_number": number,
                "code": error.kind().code(),
                "message": error.public(),
                "param": null,
                "error": error.inner(),
            })
            .to_string()
            .into(),
        };
        format!("event: error\ndata: {data}\n\n")
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::codec::json::ScanLimits;
    use crate::error::Kind;

    #[test]
    fn our_own_error_event_is_a_last_one() {
        for api in Api::ALL {
            let event = api.error_event(&Error::new(Kind::DecodeFailed, "gone"), 0);
            let name = event.lines().find_map(|l| l.strip_prefix("event: "));
            assert_eq!(
                name.is_some_and(|n| api.ends_with_event(n.as_bytes())),
                !api.ends_with_done(),
                "{event}"
            );
        }
        assert!(
            Api::Messages.ends_with_event(b"message_stop")
                && !Api::Messages.ends_with_event(b"message_delta")
        );
    }

    #[test]
    fn error_events_are_one_frame_each_and_hold_json() {
        let e = Error::new(Kind::DecodeFailed, "gone");
        for api in Api::ALL {
            let event = api.error_event(&e, 3);
            assert!(event.ends_with("\n\n") && !event.trim_end().contains("\n\n"), "{event:?}");
            let data = event.lines().find_map(|l| l.strip_prefix("data: ")).unwrap();
            let json: serde_json::Value = serde_json::from_str(data).unwrap();
            let code = json.pointer("/error/code").or(json.pointer("/code")).unwrap();
            assert_eq!(code, "decode_failed");
            assert!(json.pointer("/error/message").is_some(), "SDKs raise for the nested error: {event}");
            assert_eq!(json.get("sequence_number").is_some_and(|n| n == 3), api == Api::Responses);
        }
    }

    #[test]
    fn the_api_is_known_by_its_path_or_by_the_body() {
        for api in Api::ALL {
            assert_eq!(Api::at(api.path()), Some(api));
        }
        assert_eq!(Api::at("/v1/messages/count_tokens"), None);
        for (api, body) in [
            (Api::Completions, r#"{"prompt":"a"}"#),
            (Api::Generate, r#"{"token_ids":[1]}"#),
            (Api::Responses, r#"{"input":"a"}"#),
            (
                Api::Chat,
                r#"{"messages":[],"tools":[{"type":"function","function":{"name":"f"}}],"stop":["a"]}"#,
            ),
            (Api::Chat, r#"{"messages":[],"tools":5,"thinking":{"type":"enabled"}}"#),
            (Api::Messages, r#"{"messages":[],"max_tokens":5,"system":"a"}"#),
            (Api::Messages, r#"{"messages":[],"tools":[{"name":"f","input_schema":{}}]}"#),
            (Api::Messages, r#"{"messages":[],"stop_sequences":[]}"#),
        ] {
            let body = Object::scan(Bytes::from_static(body.as_bytes()), ScanLimits::default()).unwrap();
            assert_eq!(Api::of_body(&body), api);
        }
    }
}
