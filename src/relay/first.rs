//! The first event of a stream: until it is here the client has seen nothing, and another decoder can take over.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;

use crate::codec::json::{Object, ScanLimits};
use crate::codec::sse::{self, Framer};
use crate::dialect::{Api, resume};
use crate::relay::ask::Ask;
use crate::relay::failure::{Failure, Why};
use crate::upstream::Reply;

/// A stream, up to and including its first event.
pub(super) struct Opened {
    /// Whole events.
    pub(super) first: Bytes,
    pub(super) framer: Framer,
    pub(super) rest: Reply,
}

/// Waits for the first event that says anything. Comments that keep the connection alive are none, and neither is the word that the
/// answer has begun, which engines give before they have computed anything.
pub(super) async fn event(mut body: Reply, ask: &Ask, frame_bytes: usize) -> Result<Opened, Failure> {
    let broken = |detail: String| Failure::new(Why::Broken, true, detail);
    let mut framer = Framer::new(frame_bytes);
    let mut first = BytesMut::new();
    while !framer.mid_frame() && (framer.frames() == 0 || only_announced(ask.api, &first)) {
        let frame =
            body.frame().await.ok_or_else(|| broken("the stream ended before its first event".into()))?;
        let data = frame.map_err(|e| broken(e.to_string()))?.into_data().unwrap_or_default();
        first.extend_from_slice(&framer.push(data).unwrap_or_default());
        if first.len() > frame_bytes {
            break;
        }
    }
    if ask.api.ends_with_done() && failed_at_once(&first) {
        return Err(broken("the stream began with an error of the engine".into()));
    }
    if !begins_with_an_answer(&first) {
        return Err(Failure::new(Why::BadReply, true, "the stream's first event is no JSON object"));
    }
    if resume::may_be_given_up(ask.api, &ask.body) && given_up_at_once(&first) {
        return Err(Failure::given_up());
    }
    Ok(Opened { first: first.freeze(), framer, rest: body })
}

/// Whether all there is says no more than that the answer will come.
fn only_announced(api: Api, first: &[u8]) -> bool {
    let announces = |frame: sse::Frame<'_>| frame.event().is_some_and(|name| api.announces_with_event(name));
    let mut events = sse::frames(first).filter(sse::Frame::has_data).peekable();
    events.peek().is_some() && events.all(announces)
}

fn given_up_at_once(first: &[u8]) -> bool {
    resume::given_up_at(first).is_some_and(|at| !sse::frames(&first[..at]).any(|frame| frame.has_data()))
}

/// Whether a stream's first event can be one of an answer. An end without anything before it is none; events without
/// anything in them say nothing.
fn begins_with_an_answer(first: &[u8]) -> bool {
    let event = sse::frames(first).find(|event| !event.data().trim_ascii().is_empty());
    event.is_none_or(|event| event.data().trim_ascii_start().starts_with(b"{"))
}

/// Whether a stream's first event says that the engine itself failed; the client need not see that.
fn failed_at_once(first: &[u8]) -> bool {
    let Some(event) = sse::frames(first).find(sse::Frame::has_data) else {
        return false;
    };
    let data = event.data();
    if !data.starts_with(b"{\"error\"") {
        return false;
    }
    let code = Object::scan(Bytes::copy_from_slice(&data), ScanLimits::default())
        .ok()
        .and_then(|o| o.get("error")?.object().ok()?.get("code")?.as_u64());
    code.is_some_and(|c| c >= 500)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failed_engine_is_kept_from_the_client() {
        let first = |code: &str| {
            failed_at_once(format!(": hi\n\ndata: {{\"error\":{{\"code\":{code}}}}}\n\n").as_bytes())
        };
        assert!(first("500") && first("503"));
        assert!(!first("400") && !first("null") && !first("\"x\""));
        assert!(
            !failed_at_once(b"data: {\"choices\":[{\"text\":\"{\\\"error\\\"\"}]}\n\n")
                && !failed_at_once(b": only a comment\n\n")
        );
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
            assert!(only_announced(Api::Responses, nothing.as_bytes()), "{nothing}");
            assert!(!only_announced(Api::Chat, nothing.as_bytes()), "{nothing}");
        }
        for something in ["response.output_item.added", "error", "response.failed", "response.completed"] {
            let all = format!("{created}{begun}{}", event(something));
            assert!(!only_announced(Api::Responses, all.as_bytes()), "{all}");
        }
        assert!(!only_announced(Api::Responses, b"data: {\"type\":\"response.created\"}\n\n"), "no name");
    }
}
