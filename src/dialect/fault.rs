//! Reports by which an engine says, under status 200, that an answer failed, and whose fault that
//! was.
//!
//! Forms that engines and the servers around them write (vLLM 0.8 to 0.33, SGLang, TensorRT-LLM,
//! Anthropic's and OpenAI's APIs): an `error` member, `"object":"error"` or `"type":"error"` at the
//! top, an event named `error`, a response that failed, and a choice with `finish_reason: "error"`.

use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::Finder;

use crate::codec::json::{Object, ScanLimits, Value};
use crate::codec::sse;
use crate::dialect::Api;

/// The word in every report's text. As part of an answer's text its quotes would be escaped.
static WORD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"error\""));

/// Values of `type` and `code` that blame the request, beside those that begin with `invalid_`,
/// and the status with which vLLM, OpenAI's and Anthropic's APIs refuse for that.
const OF_THE_REQUEST: [(&str, u16); 13] = [
    ("BadRequestError", 400),
    ("Bad Request", 400),
    ("NotFoundError", 404),
    ("ValidationError", 400),
    ("UnprocessableEntityError", 422),
    ("authentication_error", 401),
    ("billing_error", 402),
    ("context_length_exceeded", 400),
    ("not_found_error", 404),
    ("permission_error", 403),
    ("rate_limit_error", 429),
    ("rate_limit_exceeded", 429),
    ("request_too_large", 413),
];

/// HTTP statuses in `code` that blame the request.
const REQUEST_CODES: std::ops::Range<u16> = 400..500;

/// The party to which a failure is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Another engine may do better.
    Engine,
    /// Every engine would fail in the same way.
    Request,
}

/// A failure that a stream reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The party to which it is due.
    pub fault: Fault,
    /// The status that an engine would have refused with, if the request is to blame.
    pub status: Option<u16>,
    /// Offset at which the event begins.
    pub at: usize,
    /// True if clients of the API raise an error when they read the event. Otherwise they take the
    /// answer for complete.
    pub raises: bool,
}

/// The failure that an event reports; `None` if it reports none.
pub fn of_event(api: Api, event: &sse::Frame<'_>) -> Option<Report> {
    let name = event.event();
    let named = name.is_some_and(|name| name == b"error" || api.fails_with_event(name));
    let data = event.data();
    if !event.has_data() || !named && WORD.find(&data).is_none() {
        return None;
    }
    let at = event.range().start;
    let Ok(object) = Object::scan(Bytes::copy_from_slice(&data), ScanLimits::default()) else {
        // Text that is cut off or no JSON: the name alone says that it failed.
        return named.then_some(Report { fault: Fault::Engine, status: None, at, raises: false });
    };
    let fault = match of_object(api, &object) {
        Some(fault) => fault,
        None if named => fault_of(&object),
        None => return None,
    };
    let status = (fault == Fault::Request).then(|| LateRefusal::of(&object).status);
    Some(Report { fault, status, at, raises: raises(api, name, &object) })
}

/// The first failure that whole events report.
pub fn in_events(api: Api, events: &[u8]) -> Option<Report> {
    sse::frames(events).find_map(|event| of_event(api, &event))
}

/// A refusal that an engine wrote under status 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateRefusal {
    /// The status that it should have had, 4xx.
    pub status: u16,
    /// The body, a JSON object.
    pub body: Bytes,
}

impl LateRefusal {
    /// The refusal in an object that blames the request: a whole answer, or the data of an event.
    pub fn of(object: &Object) -> LateRefusal {
        let response = object.get("response").filter(|_| given(object, "error").is_none());
        let response = response.and_then(|response| response.object().ok());
        match response.as_ref().and_then(|response| given(response, "error")) {
            // Clients look for the error at the top.
            Some(error) => LateRefusal {
                status: response.as_ref().map_or(400, request_status),
                body: [b"{\"error\":", error.raw(), b"}"].concat().into(),
            },
            None => LateRefusal { status: request_status(object), body: object.bytes().clone() },
        }
    }

    /// The same of an event that blames the request; `None` if its data is no JSON object.
    pub fn of_event(event: &sse::Frame<'_>) -> Option<LateRefusal> {
        let data = Bytes::copy_from_slice(&event.data());
        Object::scan(data, ScanLimits::default()).ok().map(|object| LateRefusal::of(&object))
    }
}

/// The fault of a failure that a whole answer, or the data of an event, reports; `None` if it
/// reports none.
pub fn of_object(api: Api, object: &Object) -> Option<Fault> {
    if let Some(error) = given(object, "error") {
        return Some(of_error(error));
    }
    let is = |key: &str, word: &[u8]| object.get(key).is_some_and(|value| value.raw() == word);
    if is("object", b"\"error\"") || is("type", b"\"error\"") {
        return Some(fault_of(object));
    }
    if api == Api::Responses {
        let response = object.get("response").and_then(|value| value.object().ok());
        let response = response.as_ref().unwrap_or(object);
        let failed = response.get("status").is_some_and(|status| status.raw() == b"\"failed\"");
        let error = given(response, "error").map(|error| of_error(error));
        return error.or(failed.then_some(Fault::Engine));
    }
    has_failed_choice(object).then_some(Fault::Engine)
}

/// True if some choice of a chat, completion or generation ended with `finish_reason: "error"`.
/// Only the choices are searched for the word: a prefiller's answer names each block of its prompt.
fn has_failed_choice(object: &Object) -> bool {
    let choices = object.get("choices").filter(|choices| WORD.find(choices.raw()).is_some());
    let choices = choices.into_iter().flat_map(|choices| choices.elements());
    let failed =
        |choice: Object| choice.get("finish_reason").is_some_and(|reason| reason.raw() == b"\"error\"");
    choices.filter_map(|choice| choice.object().ok()).any(failed)
}

/// True if clients raise an error for an event with this name and data: the SDKs of OpenAI look for
/// `error` at the top, and know a failed response by its name.
fn raises(api: Api, name: Option<&[u8]>, object: &Object) -> bool {
    let nested = given(object, "error").is_some();
    match api {
        Api::Chat | Api::Completions | Api::Generate => nested,
        Api::Messages => nested && name == Some(b"error"),
        Api::Responses => nested || name == Some(b"response.failed"),
    }
}

fn given<'a>(object: &'a Object, key: &str) -> Option<Value<'a>> {
    object.get(key).filter(|value| !value.is_null())
}

/// The fault of an `error` member: an object, or a text that says nothing about it.
fn of_error(error: Value<'_>) -> Fault {
    error.object().map_or(Fault::Engine, |error| fault_of(&error))
}

/// The fault that an error's `code` and `type` name. An engine refuses bad requests before a stream
/// begins, so a failure that names nothing is the engine's.
fn fault_of(error: &Object) -> Fault {
    if status_of(error).is_some() { Fault::Request } else { Fault::Engine }
}

/// The HTTP status that an error which blames the request would have had.
fn request_status(object: &Object) -> u16 {
    status_of(object).unwrap_or(400)
}

/// The status that an error's `code` and `type` name; `None` if they do not blame the request.
fn status_of(error: &Object) -> Option<u16> {
    if let Some(inner) = given(error, "error").and_then(|inner| inner.object().ok()) {
        return status_of(&inner);
    }
    let code = error.get("code");
    let number = code
        .as_ref()
        .and_then(|code| code.as_u64().or_else(|| code.as_str().and_then(|text| text.parse().ok())));
    if let Some(number) = number {
        return u16::try_from(number).ok().filter(|number| REQUEST_CODES.contains(number));
    }
    let named = |value: Option<Value<'_>>| {
        let value = value?;
        let text = value.as_str()?;
        let known = OF_THE_REQUEST.iter().find(|(name, _)| *name == text).map(|(_, status)| *status);
        known.or_else(|| text.starts_with("invalid_").then_some(400))
    };
    named(code).or_else(|| named(error.get("type")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(api: Api, events: &str) -> Option<Fault> {
        in_events(api, events.as_bytes()).map(|report| report.fault)
    }

    #[test]
    fn every_spelling_of_an_error_event_is_a_failure() {
        for event in [
            "data: {\"error\":{\"message\":\"x\",\"type\":\"InternalServerError\",\"code\":500}}\n\n",
            "data:{\"error\":{\"code\":500}}\n\n",
            "data: { \"error\" : { \"code\" : 503 } }\n\n",
            "data: {\"id\":\"chat-1\",\"error\":{\"code\":500}}\n\n",
            "data: {\"error\":\"out of memory\"}\n\n",
            "data: {\"error\":{\"code\":null,\"message\":\"x\"}}\n\n",
            "data: {\"object\":\"error\",\"message\":\"x\",\"type\":\"InternalServerError\",\"code\":500}\n\n",
            "data: {\"type\":\"error\",\"message\":\"x\"}\n\n",
            "event: error\ndata: {\"message\":\"x\"}\n\n",
            "event:error\r\ndata:Internal Server Error\r\n\r\n",
            "data: {\"message\":\"x\"}\nevent: error\n\n",
            "data: {\"error\":\ndata: {\"code\":500}}\n\n",
            "id: 7\rdata: {\"error\":{}}\r\r",
            "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"error\"}]}\n\n",
            "data: {\"choices\":[{\"finish_reason\":null},{\"finish_reason\":\"error\"}]}\n\n",
        ] {
            for api in [Api::Chat, Api::Completions, Api::Generate] {
                assert_eq!(fault(api, event), Some(Fault::Engine), "{event}");
            }
        }
    }

    #[test]
    fn an_error_of_the_request_is_told_from_one_of_the_engine() {
        for error in [
            r#"{"code":400}"#,
            r#"{"code":"404"}"#,
            r#"{"type":"BadRequestError"}"#,
            r#"{"type":"invalid_request_error","code":null}"#,
            r#"{"code":"context_length_exceeded"}"#,
        ] {
            for event in [
                format!("data: {{\"error\":{error}}}\n\n"),
                format!("event: error\ndata: {error}\n\n"),
                format!("data: {}\n\n", error.replacen('{', "{\"object\":\"error\",", 1)),
            ] {
                assert_eq!(fault(Api::Chat, &event), Some(Fault::Request), "{event}");
            }
        }
        let failed = |code: &str| {
            let event = format!(
                "event: response.failed\ndata: {{\"response\":{{\"status\":\"failed\",\"error\":{code}}}}}\n\n"
            );
            fault(Api::Responses, &event)
        };
        assert_eq!(failed(r#"{"code":"invalid_prompt"}"#), Some(Fault::Request));
        assert_eq!(failed(r#"{"code":"server_error"}"#), Some(Fault::Engine));
        assert_eq!(failed("null"), Some(Fault::Engine));
    }

    #[test]
    fn text_that_mentions_errors_is_no_failure() {
        for event in [
            "data: {\"choices\":[{\"delta\":{\"content\":\"{\\\"error\\\":{\\\"code\\\":500}}\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"error\"},\"finish_reason\":null}]}\n\n",
            "data: {\"choices\":[{\"logprobs\":{\"tokens\":[\"error\"]},\"finish_reason\":\"stop\"}]}\n\n",
            "data: {\"error\":null,\"choices\":[]}\n\n",
            ": error\n\n",
            "event: error\n\n",
            "event: response.completed\ndata: {\"response\":{\"status\":\"completed\",\"error\":null}}\n\n",
            "event: response.output_text.delta\ndata: {\"delta\":\"\\\"error\\\"\"}\n\n",
            "data: [DONE]\n\n",
        ] {
            for api in Api::ALL {
                assert_eq!(fault(api, event), None, "{event}");
            }
        }
    }

    #[test]
    fn only_events_that_clients_raise_for_pass_as_they_are() {
        let raises = |api, event: &str| in_events(api, event.as_bytes()).map(|report| report.raises);
        assert_eq!(raises(Api::Chat, "data:{\"error\":{\"code\":500}}\n\n"), Some(true));
        assert_eq!(raises(Api::Chat, "data: {\"object\":\"error\",\"code\":500}\n\n"), Some(false));
        assert_eq!(raises(Api::Chat, "event: error\ndata: {\"code\":500}\n\n"), Some(false));
        assert_eq!(raises(Api::Chat, "data: {\"choices\":[{\"finish_reason\":\"error\"}]}\n\n"), Some(false));
        assert_eq!(
            raises(Api::Responses, "event: error\ndata: {\"type\":\"error\",\"code\":\"x\"}\n\n"),
            Some(false)
        );
        assert_eq!(raises(Api::Responses, "event: response.failed\ndata: {\"response\":{}}\n\n"), Some(true));
        assert_eq!(
            raises(Api::Messages, "event: error\ndata: {\"type\":\"error\",\"error\":{}}\n\n"),
            Some(true)
        );
        assert_eq!(raises(Api::Messages, "data: {\"type\":\"error\",\"error\":{}}\n\n"), Some(false));
    }

    #[test]
    fn a_report_tells_where_its_event_begins() {
        let before = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
        let events = format!("{before}data: {{\"error\":{{}}}}\n\ndata: [DONE]\n\n");
        let report = in_events(Api::Completions, events.as_bytes());
        assert_eq!(report.map(|report| report.at), Some(before.len()));
    }

    #[test]
    fn whole_answers_that_failed_are_known() {
        let fault = |api, text: &str| {
            let object = Object::scan(Bytes::copy_from_slice(text.as_bytes()), ScanLimits::default());
            of_object(api, &object.unwrap())
        };
        let failed = r#"{"choices":[{"message":{"role":"assistant"},"finish_reason":"error"}]}"#;
        assert_eq!(fault(Api::Chat, failed), Some(Fault::Engine));
        assert_eq!(
            fault(Api::Generate, r#"{"choices":[{"token_ids":[],"finish_reason":"error"}]}"#),
            Some(Fault::Engine)
        );
        assert_eq!(fault(Api::Chat, r#"{"object":"error","code":400}"#), Some(Fault::Request));
        assert_eq!(fault(Api::Responses, r#"{"status":"failed","error":null}"#), Some(Fault::Engine));
        assert_eq!(fault(Api::Responses, r#"{"status":"completed","error":null}"#), None);
        assert_eq!(
            fault(Api::Messages, r#"{"type":"error","error":{"type":"api_error"}}"#),
            Some(Fault::Engine)
        );
        assert_eq!(fault(Api::Chat, r#"{"choices":[{"finish_reason":"stop"}]}"#), None);
    }

    #[test]
    fn a_stream_that_begins_with_an_error_of_the_request_is_a_refusal() {
        let refusal = |api, events: &str, skip: usize| {
            let event = sse::frames(events.as_bytes()).filter(sse::Frame::has_data).nth(skip)?;
            let report = of_event(api, &event).filter(|report| report.fault == Fault::Request)?;
            let found = LateRefusal::of_event(&event)?;
            assert_eq!(report.status, Some(found.status));
            Some((found.status, String::from_utf8(found.body.to_vec()).unwrap()))
        };
        let error = r#"{"error":{"message":"m","type":"NotFoundError","code":404}}"#;
        let begun = format!("data: {{\"choices\":[]}}\n\ndata: {error}\n\ndata: [DONE]\n\n");
        assert_eq!(refusal(Api::Chat, &begun, 1), Some((404, error.into())));
        assert_eq!(refusal(Api::Chat, &begun, 0), None, "an answer has begun");
        let flat = r#"{"type":"error","code":"rate_limit_exceeded","message":"m"}"#;
        let event = format!("event: error\ndata: {flat}\n\n");
        assert_eq!(refusal(Api::Responses, &event, 0), Some((429, flat.into())));
        let failed = r#"{"response":{"status":"failed","error":{"code":"invalid_prompt"}}}"#;
        let event = format!("event: response.failed\ndata: {failed}\n\n");
        let error = r#"{"error":{"code":"invalid_prompt"}}"#;
        assert_eq!(refusal(Api::Responses, &event, 0), Some((400, error.into())));
        assert_eq!(refusal(Api::Chat, "data: {\"error\":{\"code\":500}}\n\n", 0), None);
        assert_eq!(refusal(Api::Chat, ": a comment\n\n", 0), None);
    }

    #[test]
    fn status_of_an_error_is_its_code_or_that_of_its_name() {
        let status = |text: &'static str| {
            request_status(&Object::scan(Bytes::from_static(text.as_bytes()), ScanLimits::default()).unwrap())
        };
        assert_eq!(status(r#"{"error":{"code":404}}"#), 404);
        assert_eq!(status(r#"{"object":"error","code":"413"}"#), 413);
        assert_eq!(status(r#"{"error":{"type":"BadRequestError"}}"#), 400);
        assert_eq!(status(r#"{"error":{"code":"rate_limit_exceeded"}}"#), 429);
        assert_eq!(status(r#"{"type":"error","error":{"type":"permission_error"}}"#), 403);
        assert_eq!(status(r#"{"error":{"type":"invalid_value","code":500}}"#), 400);
    }
}
