//! Answers that an engine ended before they were complete, and wrote as if they were.
//!
//! * vllm-ascend's recompute scheduler ends a request with `stop_reason: "recomputed"`, and expects
//!   whoever is in front to send it again.
//! * A vLLM that is stopped, paused or put to sleep ends all its requests with `finish_reason:
//!   "abort"`, and one that drains those that still come (0.32). Nobody reads that but whom it was
//!   not meant for: a client that aborts has hung up. `/v1/messages` has no name for it and says
//!   `stop_reason: null`; `/v1/responses` says "completed", and `/inference/v1/generate` is for
//!   those who count tokens themselves.

use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::Finder;

use super::event::Event;
use crate::codec::json::{Object, ScanLimits, Value};
use crate::codec::sse;
use crate::dialect::Api;
use crate::dialect::finish::names_a_reason;

const RECOMPUTED: &[u8] = b"\"recomputed\"";
const ABORT: &[u8] = b"\"abort\"";

/// Look for the words themselves: a whole answer always has a reason. Such things are made once:
/// making one costs more than looking through an event. Only the choices are searched: beside them
/// a prefiller's answer names each block of its prompt.
static WORDS: LazyLock<[Finder<'static>; 2]> =
    LazyLock::new(|| [Finder::new(ABORT), Finder::new(RECOMPUTED)]);

/// Sign in the answer to one request that its engine gave it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortSign {
    api: Api,
    /// `"recomputed"` is one, unless it may be one of the request's stop strings: engines report
    /// these in the same place.
    recomputed: bool,
}

impl AbortSign {
    /// The signs in an answer to `body`.
    pub fn of(api: Api, body: &Object) -> AbortSign {
        let may_be = |text: Value<'_>| text.as_str().is_none_or(|text| text == "recomputed");
        let stop = body.get("stop").filter(|stop| !stop.is_null());
        let stops = stop.is_some_and(|stop| match stop.is_array() {
            true => stop.elements().any(may_be),
            false => may_be(stop),
        });
        AbortSign { api, recomputed: !stops }
    }

    /// True if a whole answer, or one event of a chat or completion, says so.
    pub fn in_answer(self, answer: &Object) -> bool {
        match self.api {
            Api::Chat | Api::Completions => {
                let names = |choices: &Value<'_>| WORDS.iter().any(|it| it.find(choices.raw()).is_some());
                let choices = answer.get("choices").filter(names);
                let choices = choices.into_iter().flat_map(|choices| choices.elements());
                choices.filter_map(|choice| choice.object().ok()).any(|choice| self.in_choice(&choice))
            }
            Api::Messages => {
                let is = |key: &str, text: &[u8]| answer.get(key).is_some_and(|v| v.raw() == text);
                is("type", b"\"message\"") && is("stop_reason", b"null")
            }
            _ => false,
        }
    }

    /// Place where the first event begins, of whole ones, that says so.
    pub fn in_events(self, events: &[u8]) -> Option<usize> {
        let names_a_reason = || matches!(self.api, Api::Chat | Api::Completions) && names_a_reason(events);
        (self.api == Api::Messages || names_a_reason()).then(|| self.in_last_events(events)).flatten()
    }

    /// The same, of events that name a reason, and so of the last ones of an answer. None other of
    /// a chat or a completion says so.
    pub fn in_last_events(self, events: &[u8]) -> Option<usize> {
        let read = |frame: &sse::Frame<'_>| {
            Object::scan(Bytes::copy_from_slice(&frame.data()), ScanLimits::default()).ok()
        };
        let says_so = |frame: &sse::Frame<'_>| match self.api {
            Api::Messages => {
                let delta = || read(frame)?.get("delta")?.object().ok();
                let reason = |delta: Object| delta.get("stop_reason").is_some_and(|v| v.is_null());
                frame.event().is_some_and(|name| name == b"message_delta") && delta().is_some_and(reason)
            }
            _ => read(frame).is_some_and(|event| self.in_answer(&event)),
        };
        sse::frames(events).find(says_so).map(|frame| frame.range().start)
    }

    /// True if a choice of a chat's or completion's says so.
    pub(super) fn in_choice(self, choice: &Object) -> bool {
        let is = |key: &str, text: &[u8]| choice.get(key).is_some_and(|reason| reason.raw() == text);
        is("finish_reason", ABORT) || self.recomputed && is("stop_reason", RECOMPUTED)
    }
}

/// True if an event of a chat has nothing for its reader but the role.
pub fn only_names_the_role(data: &[u8]) -> bool {
    let event = Event::read(Bytes::copy_from_slice(data));
    event.is_some_and(|event| event.look().role && !event.look().visible())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> Object {
        Object::scan(text.to_owned().into(), ScanLimits::default()).unwrap()
    }

    fn signs(api: Api) -> AbortSign {
        AbortSign::of(api, &object("{}"))
    }

    #[test]
    fn only_a_reason_says_so() {
        let at = |text: &str| signs(Api::Chat).in_events(text.as_bytes());
        let said =
            "data: {\"choices\":[{\"text\":\"recomputed\",\"finish_reason\":null,\"stop_reason\":null}]}\n\n";
        let ends = "data: {\"choices\":[{\"text\":\"\\\"abort\\\"\",\"finish_reason\":\"stop\"}]}\n\n";
        assert_eq!((at(said), at(ends), at("")), (None, None, None));
        for up in [
            r#"{"choices":[{"stop_reason":null},{"stop_reason":"recomputed"}]}"#,
            r#"{"choices":[{"finish_reason":"abort"}]}"#,
        ] {
            assert_eq!(at(&format!("{said}data: {up}\n\ndata: [DONE]\n\n")), Some(said.len()));
            assert!(signs(Api::Completions).in_answer(&object(up)));
            assert!(!signs(Api::Generate).in_answer(&object(up)));
        }
        assert!(
            !signs(Api::Chat).in_answer(&object(r#"{"stop_reason":"recomputed","finish_reason":"abort"}"#))
        );
    }

    #[test]
    fn abort_sign_may_be_a_clients_stop_string() {
        let recomputed = object(r#"{"choices":[{"finish_reason":"stop","stop_reason":"recomputed"}]}"#);
        let abort = object(r#"{"choices":[{"finish_reason":"abort","stop_reason":null}]}"#);
        for (body, may) in [
            ("{}", true),
            (r#"{"stop":[]}"#, true),
            (r#"{"stop":null}"#, true),
            (r#"{"stop":["a","Recomputed"," recomputed"]}"#, true),
            (r#"{"stop":"a"}"#, true),
            (r#"{"stop":"recomputed"}"#, false),
            (r#"{"stop":["a","recomp\u0075ted"]}"#, false),
            // What can't be read may be anything.
            (r#"{"stop":["a","\ud800"]}"#, false),
            (r#"{"stop":[["a"]]}"#, false),
            (r#"{"stop":7}"#, false),
        ] {
            let signs = AbortSign::of(Api::Chat, &object(body));
            assert_eq!((signs.in_answer(&recomputed), signs.in_answer(&abort)), (may, true), "{body}");
        }
    }

    #[test]
    fn a_message_that_ends_for_no_reason_was_given_up() {
        let whole = |reason: &str| {
            let text = format!(r#"{{"type":"message","content":[],"stop_reason":{reason}}}"#);
            signs(Api::Messages).in_answer(&object(&text))
        };
        assert!(whole("null") && !whole("\"end_turn\""));
        let start = "event: message_start\ndata: {\"message\":{\"stop_reason\":null}}\n\n";
        let stream = |reason: &str| {
            let end = format!("event: message_delta\ndata: {{\"delta\":{{\"stop_reason\":{reason}}}}}\n\n");
            signs(Api::Messages).in_events(format!("{start}{end}").as_bytes())
        };
        assert_eq!((stream("null"), stream("\"max_tokens\"")), (Some(start.len()), None));
    }

    #[test]
    fn a_role_is_no_word() {
        assert!(only_names_the_role(br#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#));
        assert!(!only_names_the_role(br#"{"choices":[{"delta":{"role":"assistant","content":"a"}}]}"#));
        assert!(!only_names_the_role(br#"{"choices":[{"delta":{"content":""}}]}"#));
    }
}
