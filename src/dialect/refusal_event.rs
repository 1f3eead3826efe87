//! An engine's refusal as the last event of a stream that is open already: its own words, in the
//! form for which the API's clients raise an error.
//!
//! Engines refuse in one of four forms, whatever the API: OpenAI's `{"error":{…}}` (vLLM since
//! 0.10), Anthropic's `{"type":"error","error":{…}}`, a flat `{"object":"error","message":…}`
//! (SGLang, older vLLM), and `{"detail":…}` of their web framework.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::codec::json::{Object, ScanLimits};
use crate::dialect::Api;

/// Types of Anthropic's errors, by which its clients choose what to raise.
const ANTHROPIC_TYPES: [&str; 9] = [
    "api_error",
    "authentication_error",
    "billing_error",
    "invalid_request_error",
    "not_found_error",
    "overloaded_error",
    "permission_error",
    "rate_limit_error",
    "request_too_large",
];

/// The event for a refusal with this status and body; `None` if the body says nothing that a client
/// could read.
pub fn of(api: Api, status: u16, body: &Bytes) -> Option<String> {
    let refusal = Object::scan(body.clone(), ScanLimits::default()).ok()?;
    let error = error_in(&refusal, status)?;
    let text = |name: &str| error.get(name).cloned().unwrap_or(Value::Null);
    let data = match api {
        Api::Chat | Api::Completions | Api::Generate => {
            return Some(format!("data: {}\n\n", json!({ "error": error })));
        }
        Api::Messages => {
            let own = error.get("type").and_then(Value::as_str).filter(|it| ANTHROPIC_TYPES.contains(it));
            let kind = own.map_or_else(|| anthropic_type(status), Cow::from);
            json!({ "type": "error", "error": { "type": kind, "message": text("message") } })
        }
        Api::Responses => json!({
            "type": "error",
            // Nothing of the response has been sent: it is the first event.
            "sequence_number": 0,
            "code": text("code"),
            "message": text("message"),
            "param": text("param"),
            "error": error,
        }),
    };
    Some(format!("event: error\ndata: {data}\n\n"))
}

/// The members of OpenAI's `error` object, from any of the four forms.
fn error_in(refusal: &Object, status: u16) -> Option<Value> {
    let whole = || serde_json::from_slice::<Value>(refusal.bytes()).ok();
    let mut error = match refusal.get("error").filter(|error| !error.is_null()) {
        Some(error) => serde_json::from_slice(error.raw()).ok()?,
        None if refusal.get("message").is_some_and(|message| message.is_string()) => {
            let mut flat = whole()?;
            flat.as_object_mut()?.remove("object");
            flat
        }
        None => json!({ "message": words(serde_json::from_slice(refusal.get("detail")?.raw()).ok()?) }),
    };
    if !error.is_object() {
        error = json!({ "message": words(error) });
    }
    let members = error.as_object_mut()?;
    members.entry("message").or_insert_with(|| json!(format!("an engine refused with status {status}")));
    for (name, value) in
        [("type", json!("invalid_request_error")), ("param", Value::Null), ("code", json!(status))]
    {
        members.entry(name).or_insert(value);
    }
    Some(error)
}

/// A text as it is, anything else as JSON.
fn words(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// Anthropic's type for a status.
fn anthropic_type(status: u16) -> Cow<'static, str> {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        503 | 529 => "overloaded_error",
        _ => "api_error",
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refusals of one fact, in the four forms.
    const FORMS: [&str; 4] = [
        r#"{"error":{"message":"too \"long\"","type":"BadRequestError","param":"messages","code":400}}"#,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"too \"long\""}}"#,
        r#"{"object":"error","message":"too \"long\"","type":"BadRequestError","param":null,"code":400}"#,
        "{\"detail\":\n\"too \\\"long\\\"\"}",
    ];

    fn data(event: &str) -> Value {
        assert!(event.ends_with("\n\n") && !event.trim_end().contains("\n\n"), "{event:?}");
        serde_json::from_str(event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap()).unwrap()
    }

    #[test]
    fn every_form_becomes_the_one_that_clients_of_the_api_raise_for() {
        for form in FORMS {
            for api in Api::ALL {
                let event = of(api, 400, &Bytes::from_static(form.as_bytes())).unwrap();
                assert_eq!(event.starts_with("event: error\n"), !api.ends_with_done(), "{form}: {event}");
                let data = data(&event);
                assert_eq!(data["error"]["message"], "too \"long\"", "{form}: {event}");
                match api {
                    Api::Messages => {
                        assert_eq!(data["type"], "error");
                        assert_eq!(data["error"]["type"], "invalid_request_error", "{form}");
                        assert_eq!(data["error"].as_object().unwrap().len(), 2);
                    }
                    Api::Responses => {
                        assert_eq!((&data["type"], &data["sequence_number"]), (&json!("error"), &json!(0)));
                        assert_eq!(data["message"], "too \"long\"");
                        assert!(["code", "param"].iter().all(|name| data.get(name).is_some()), "{event}");
                    }
                    _ => assert_eq!(data["error"]["code"], 400, "{form}"),
                }
            }
        }
    }

    #[test]
    fn types_of_messages_follow_the_status_where_an_engine_has_others() {
        let body = Bytes::from_static(br#"{"error":{"message":"x","type":"NotFoundError","code":404}}"#);
        for (status, kind) in [
            (404, "not_found_error"),
            (401, "authentication_error"),
            (413, "request_too_large"),
            (422, "invalid_request_error"),
            (429, "rate_limit_error"),
        ] {
            assert_eq!(data(&of(Api::Messages, status, &body).unwrap())["error"]["type"], kind);
        }
    }

    #[test]
    fn a_body_that_says_nothing_is_none() {
        for body in ["", "<html>", "[]", r#"{"id":"x"}"#] {
            assert_eq!(of(Api::Chat, 400, &Bytes::copy_from_slice(body.as_bytes())), None, "{body}");
        }
        let bare = of(Api::Chat, 401, &Bytes::from_static(br#"{"error":"Unauthorized"}"#)).unwrap();
        assert_eq!(data(&bare)["error"]["message"], "Unauthorized");
    }
}
