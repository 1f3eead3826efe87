//! Answers that an engine gave up for others: vllm-ascend's recompute scheduler ends such a request as if it were complete,
//! with `stop_reason: "recomputed"`, and expects whoever is in front to send it again.

use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::Finder;

use crate::codec::json::{Object, ScanLimits};
use crate::codec::sse;
use crate::dialect::Api;

/// The value of `stop_reason`.
pub(super) const RECOMPUTED: &[u8] = b"\"recomputed\"";

/// Looks for it. Made once: making one costs more than looking through an event.
static WORD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(RECOMPUTED));

/// Whether these words would mean that in an answer to `body`: with stop strings they may be one of those.
pub fn may_be_given_up(api: Api, body: &Object) -> bool {
    let stop = body.get("stop").filter(|stop| !stop.is_null());
    let strings = stop.is_some_and(|stop| !stop.is_array() || stop.first_element().is_some());
    matches!(api, Api::Chat | Api::Completions) && !strings
}

/// Whether an answer, or one event of it, says so of any of its choices.
pub fn given_up(answer: &Object) -> bool {
    if WORD.find(answer.bytes()).is_none() {
        return false;
    }
    let choices = answer.get("choices").into_iter().flat_map(|choices| choices.elements());
    choices
        .filter_map(|choice| choice.object().ok())
        .any(|choice| choice.get("stop_reason").is_some_and(|reason| reason.raw() == RECOMPUTED))
}

/// Where the first event begins, of whole ones, that says so. Events without the word are not read.
pub fn given_up_at(events: &[u8]) -> Option<usize> {
    WORD.find(events)?;
    let says_so = |frame: &sse::Frame<'_>| {
        let data = Bytes::copy_from_slice(&frame.data());
        Object::scan(data, ScanLimits::default()).is_ok_and(|event| given_up(&event))
    };
    sse::frames(events).find(says_so).map(|frame| frame.range().start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> Object {
        Object::scan(text.to_owned().into(), ScanLimits::default()).unwrap()
    }

    #[test]
    fn only_a_stop_reason_says_so() {
        let at = |text: &str| given_up_at(text.as_bytes());
        let said = "data: {\"choices\":[{\"text\":\"recomputed\",\"stop_reason\":null}]}\n\n";
        assert_eq!((at(said), at("")), (None, None));
        let up = "data: {\"choices\":[{\"stop_reason\":null},{\"stop_reason\":\"recomputed\"}]}\n\n";
        assert_eq!(at(&format!("{said}{up}data: [DONE]\n\n")), Some(said.len()));
        assert!(!given_up(&object(r#"{"stop_reason":"recomputed"}"#)));
    }

    #[test]
    fn it_may_be_a_stop_string() {
        let may = |api, text| may_be_given_up(api, &object(text));
        assert!(may(Api::Chat, r#"{"stop":[]}"#) && may(Api::Completions, r#"{"stop":null}"#));
        assert!(!may(Api::Chat, r#"{"stop":"recomputed"}"#) && !may(Api::Chat, r#"{"stop":["a"]}"#));
        assert!(!may(Api::Responses, "{}"));
    }
}
