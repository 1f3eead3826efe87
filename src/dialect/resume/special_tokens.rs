//! Rule by which an engine shows the special tokens of a chat's answer.
//!
//! vLLM's parsers of reasoning and of tools set `skip_special_tokens` false for the chats that they
//! see (`adjust_request`, in 0.32 and 0.33 alike), whatever the client asked for; completions keep
//! the request's value, or the engine's default. Which parsers an engine has nobody else can know,
//! but what it renders a chat into names the value that holds in the end.

use bytes::Bytes;

use crate::codec::json::{Object, ScanLimits};

/// Members by which an engine chooses its parsers, and the value that they may change.
const DECIDING: [&str; 8] = [
    "model",
    "tools",
    "tool_choice",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "include_reasoning",
    KEY,
];

pub(super) const KEY: &str = "skip_special_tokens";

/// True if the chat with this `body` has its special tokens shown under every parser: they only
/// ever set the value false.
pub(super) fn are_shown(body: &Object) -> bool {
    body.get(KEY).is_some_and(|value| value.as_bool() == Some(false))
}

/// A chat for `/v1/chat/completions/render` that is handled as the one with this `body`. Its
/// message is short, since no parser looks at it here.
pub fn question(body: &Object) -> Bytes {
    let mut out = br#"{"messages":[{"role":"user","content":"a"}]"#.to_vec();
    for key in DECIDING {
        if let Some(value) = body.get(key).filter(|value| !value.is_null()) {
            out.extend_from_slice(format!(",\"{key}\":").as_bytes());
            out.extend_from_slice(value.raw());
        }
    }
    out.push(b'}');
    out.into()
}

/// The value that holds, from the answer to [`question`]; `None` where it does not tell. What is
/// true is left out, as every default of sampling.
pub fn told(answer: Bytes) -> Option<bool> {
    let answer = Object::scan(answer, ScanLimits::default()).ok()?;
    let sampling = answer.get("sampling_params")?.object().ok()?;
    sampling.get(KEY).map_or(Some(true), |value| value.as_bool())
}

/// A continuation's body with the value that holds; it has none yet.
pub fn stated(body: &Bytes, skips: bool) -> Bytes {
    let open = body.strip_suffix(b"}").unwrap_or(body);
    [open, format!(",\"{KEY}\":{skips}}}").as_bytes()].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(body: &'static str) -> Object {
        Object::scan(Bytes::from_static(body.as_bytes()), ScanLimits::default()).unwrap()
    }

    #[test]
    fn an_engine_is_asked_without_the_conversation() {
        let body = r#"{"model":"m","messages":[{"role":"user","content":"long"}],"stream":true,"tools":[1],"tool_choice":"none","skip_special_tokens":null}"#;
        let asked =
            r#"{"messages":[{"role":"user","content":"a"}],"model":"m","tools":[1],"tool_choice":"none"}"#;
        assert_eq!(question(&scan(body)), asked);
    }

    #[test]
    fn value_that_is_left_out_is_true_and_one_that_is_not_told_is_unknown() {
        let told = |answer: &'static str| told(Bytes::from_static(answer.as_bytes()));
        assert_eq!(told(r#"{"token_ids":[1],"sampling_params":{"stop":[]}}"#), Some(true));
        assert_eq!(told(r#"{"sampling_params":{"skip_special_tokens":false}}"#), Some(false));
        for unknown in [
            "[]",
            r#"{"token_ids":[1]}"#,
            r#"{"sampling_params":null}"#,
            r#"{"sampling_params":{"skip_special_tokens":"no"}}"#,
            r#"{"error":{"code":403}}"#,
        ] {
            assert_eq!(told(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn only_a_no_of_the_client_holds_under_every_parser() {
        assert!(are_shown(&scan(r#"{"skip_special_tokens":false}"#)));
        for open in ["{}", r#"{"skip_special_tokens":true}"#, r#"{"skip_special_tokens":null}"#] {
            assert!(!are_shown(&scan(open)), "{open}");
        }
        assert_eq!(
            stated(&Bytes::from_static(b"{\"a\":1}"), false),
            "{\"a\":1,\"skip_special_tokens\":false}"
        );
    }
}
