//! The first event of a stream: until it is here the client has seen nothing, and another decoder
//! can take over.

use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use memchr::memmem::Finder;

use crate::codec::json::{Object, ScanLimits};
use crate::codec::sse::{self, Framer};
use crate::dialect::Api;
use crate::dialect::fault::{self, Fault, LateRefusal, Report};
use crate::dialect::finish::names_a_reason;
use crate::dialect::resume::only_names_the_role;
use crate::relay::ask::Ask;
use crate::relay::failure::{Failure, FailureKind};
use crate::upstream::Reply;

/// Most events that announce an answer (`response.created`, `queued`, `in_progress`;
/// `message_start`). Each may repeat the request's tools, and be as large as an event may be.
const ANNOUNCEMENTS: usize = 3;

/// The first event of a stream that is not passed over.
pub(super) enum FirstEvent {
    /// The answer itself begins.
    Answer(Opened),
    /// It reports an error that blames the request.
    Refusal(LateRefusal),
}

/// A stream, up to and including its first event.
pub(super) struct Opened {
    /// Whole events, the first of the stream.
    pub(super) first: Bytes,
    pub(super) framer: Framer,
    pub(super) rest: Reply,
}

/// Waits for the first event of the answer itself. Neither a comment nor an announcement is one,
/// and neither is a chat's event that only names the role: a decoder that fails after it can still
/// be replaced. A response in the background needs no more than the announcement.
///
/// # Errors
/// A failure, if the stream breaks, ends or reports a failure of its engine before it has anything
/// of an answer, or if a flood of comments, roles or empty events comes before that.
pub(super) async fn event(mut body: Reply, ask: &Ask, frame_bytes: usize) -> Result<FirstEvent, Failure> {
    let broken = |detail: String| Failure::new(FailureKind::Broken, true, detail);
    let mut framer = Framer::new(frame_bytes);
    let mut first = BytesMut::new();
    let waits = !ask.shape.background;
    let most_bytes = if waits { frame_bytes.saturating_mul(1 + ANNOUNCEMENTS) } else { frame_bytes };
    loop {
        let ended = || broken("the stream ended before anything of the answer".into());
        let frame = body.frame().await.ok_or_else(ended)?;
        let data = frame.map_err(|e| broken(e.to_string()))?.into_data().unwrap_or_default();
        let events = framer.push(data).unwrap_or_default();
        first.extend_from_slice(&events);
        let has_event = framer.mid_frame() || framer.frames() > 0 && !waits;
        if has_event || has_text(ask.api, &events) {
            break;
        }
        if first.len() > most_bytes {
            // Large announcements go out; what else comes in such numbers is no answer.
            if sse::frames(&first).any(|event| announces(ask.api, &event)) {
                break;
            }
            let detail = format!("more than {most_bytes} bytes of a stream, and nothing of an answer");
            return Err(Failure::new(FailureKind::BadReply, true, detail));
        }
    }
    if let Some((event, report)) = reported_at_once(ask.api, &first) {
        let refusal = (report.fault == Fault::Request).then(|| LateRefusal::of_event(&event)).flatten();
        let failed = || broken("the stream began with an error of the engine".into());
        return refusal.map(FirstEvent::Refusal).ok_or_else(failed);
    }
    if !begins_with_an_answer(&first) {
        return Err(Failure::new(FailureKind::BadReply, true, "the stream's first event is no JSON object"));
    }
    if given_up_at_once(ask, &first) {
        return Err(Failure::given_up());
    }
    if ends_at_once(ask.api, &framer, &first) {
        let detail = "the stream ended without anything of the answer, and without a reason";
        return Err(Failure::new(FailureKind::BadReply, true, detail));
    }
    Ok(FirstEvent::Answer(Opened { first: first.freeze(), framer, rest: body }))
}

/// True if some of these whole events is of the answer itself.
fn has_text(api: Api, events: &[u8]) -> bool {
    sse::frames(events).filter(sse::Frame::has_data).any(|event| !precedes_text(api, &event))
}

/// True for events that come before anything of an answer: announcements, events without data and,
/// in chats and completions, those that only name the role or have no choice.
fn precedes_text(api: Api, event: &sse::Frame<'_>) -> bool {
    if announces(api, event) {
        return true;
    }
    let data = event.data();
    data.trim_ascii().is_empty()
        || api == Api::Chat && only_names_the_role(&data)
        || matches!(api, Api::Chat | Api::Completions) && says_nothing(api, event)
}

/// True for a JSON object without a choice that reports no failure.
fn says_nothing(api: Api, event: &sse::Frame<'_>) -> bool {
    /// As engines write nearly all events.
    static CHOICE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"choices\":[{"));
    let data = event.data();
    if CHOICE.find(&data).is_some() || fault::of_event(api, event).is_some() {
        return false;
    }
    let object = Object::scan(Bytes::copy_from_slice(&data), ScanLimits::default());
    object.is_ok_and(|object| !api.is_answer(&object))
}

fn announces(api: Api, event: &sse::Frame<'_>) -> bool {
    event.event().is_some_and(|name| api.announces_with_event(name))
}

/// True if all there is of an answer is that its engine gave it up.
fn given_up_at_once(ask: &Ask, first: &[u8]) -> bool {
    let Some(at) = ask.shape.given_up.in_events(first) else { return false };
    let mut before = sse::frames(&first[..at]).filter(sse::Frame::has_data);
    before.all(|event| precedes_text(ask.api, &event))
}

/// True if a chat or completion is over before any text of it, and no choice has ended: its engine
/// ended the request.
fn ends_at_once(api: Api, framer: &Framer, first: &[u8]) -> bool {
    let has_reasons = matches!(api, Api::Chat | Api::Completions);
    if !has_reasons || !framer.ended() || names_a_reason(first) || fault::in_events(api, first).is_some() {
        return false;
    }
    let is_empty =
        |event: &sse::Frame<'_>| precedes_text(api, event) || event.data().trim_ascii() == b"[DONE]";
    sse::frames(first).filter(sse::Frame::has_data).all(|event| is_empty(&event))
}

/// True if a stream's first event can be one of an answer. An end without anything before it is
/// none; events without anything in them say nothing.
fn begins_with_an_answer(first: &[u8]) -> bool {
    let event = sse::frames(first).find(|event| !event.data().trim_ascii().is_empty());
    event.is_none_or(|event| event.data().trim_ascii_start().starts_with(b"{"))
}

/// The failure that a stream reports before anything of an answer, and its event; the client need
/// not see that.
fn reported_at_once(api: Api, first: &[u8]) -> Option<(sse::Frame<'_>, Report)> {
    let mut events = sse::frames(first).filter(sse::Frame::has_data);
    let begins = events.find(|event| !precedes_text(api, event))?;
    fault::of_event(api, &begins).map(|report| (begins, report))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed_at_once(api: Api, first: &[u8]) -> bool {
        reported_at_once(api, first).is_some_and(|(_, report)| report.fault == Fault::Engine)
    }

    #[test]
    fn only_a_failed_engine_is_kept_from_the_client() {
        let first = |code: &str| {
            failed_at_once(
                Api::Chat,
                format!(": hi\n\ndata: {{\"error\":{{\"code\":{code}}}}}\n\n").as_bytes(),
            )
        };
        assert!(first("500") && first("503") && first("null") && first("\"x\""));
        assert!(!first("400") && !first("\"404\""));
        assert!(
            !failed_at_once(Api::Chat, b"data: {\"choices\":[{\"text\":\"{\\\"error\\\"\"}]}\n\n")
                && !failed_at_once(Api::Chat, b": only a comment\n\n")
        );
        let behind = |event: &str| {
            let announced = "event: response.created\ndata: {\"response\":{\"error\":null}}\n\n";
            failed_at_once(Api::Responses, format!("{announced}{event}\n\n").as_bytes())
        };
        for failed in [
            r#"data: {"error":{"code":500}}"#,
            "event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\"}",
            "event: response.failed\ndata: {\"response\":{\"error\":{\"code\":\"server_error\"}}}",
        ] {
            assert!(behind(failed), "{failed}");
        }
        for told in [
            r#"data: {"error":{"code":400}}"#,
            "event: error\ndata: {\"type\":\"error\",\"code\":\"invalid_prompt\"}",
            "event: response.failed\ndata: {\"response\":{\"error\":{\"code\":\"invalid_prompt\"}}}",
            "event: response.completed\ndata: {\"response\":{\"error\":null}}",
            "event: response.output_text.delta\ndata: {\"delta\":\"x\",\"code\":\"server_error\"}",
        ] {
            assert!(!behind(told), "{told}");
        }
    }

    #[test]
    fn a_message_that_is_an_error_of_the_engine_is_none() {
        let start = "event: message_start\ndata: {\"type\":\"message_start\"}\n\n";
        let first = |start: &str, kind: &str| {
            let error =
                format!("event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"{kind}\"}}}}\n\n");
            failed_at_once(Api::Messages, format!("{start}{error}").as_bytes())
        };
        assert!(first("", "internal_error") && first(start, "internal_error") && first("", "api_error"));
        assert!(!first("", "invalid_request_error") && !first("", "rate_limit_error"));
        assert!(!has_text(Api::Messages, start.as_bytes()));
    }

    #[test]
    fn a_stream_that_is_over_or_unreadable_at_once_is_no_answer() {
        for bad in ["data: [DONE]\n\n", ": hi\n\ndata: <html>\n\n"] {
            assert!(!begins_with_an_answer(bad.as_bytes()), "{bad}");
        }
        for good in
            ["event: x\ndata: {\"a\":1}\n\n", ": hi\n\ndata:{}\n\n", "data: {\"unfinished", "data:\n\n"]
        {
            assert!(begins_with_an_answer(good.as_bytes()), "{good}");
        }
    }

    #[test]
    fn an_announcement_is_no_answer() {
        let event = |name: &str| format!("event: {name}\ndata: {{\"type\":\"{name}\"}}\n\n");
        let [created, begun] = [event("response.created"), event("response.in_progress")];
        for nothing in [created.clone(), created.clone() + &begun, format!(": hi\n\n{created}")] {
            assert!(!has_text(Api::Responses, nothing.as_bytes()), "{nothing}");
            assert!(has_text(Api::Generate, nothing.as_bytes()), "{nothing}");
        }
        for something in ["response.output_item.added", "error", "response.failed", "response.completed"] {
            let all = format!("{created}{begun}{}", event(something));
            assert!(has_text(Api::Responses, all.as_bytes()), "{all}");
        }
        assert!(has_text(Api::Responses, b"data: {\"type\":\"response.created\"}\n\n"), "no name");
    }
}
