//! The end of an event stream that is passed through. An engine that keeps its body open after the
//! last event holds neither a client nor a place.

use bytes::Bytes;
use http::{HeaderMap, header};

use crate::codec::sse::{self, Framer};
use crate::dialect::Api;
use crate::error::Error;
use crate::relay::sequence::LastEvents;
use crate::util::media_type::is_event_stream;

/// Most bytes of an incomplete event that are kept to be looked into.
const EVENT_BYTES: usize = 16 << 10;

/// Watch for the last event of a stream.
#[derive(Debug)]
pub(super) struct StreamEnd {
    /// The API whose error events its clients know.
    api: Api,
    framer: Framer,
    /// The last event has begun.
    ending: bool,
    /// An event of ours may follow: no coding is in the way.
    may_add: bool,
    /// Kept of `/v1/responses` alone, whose events are numbered.
    last_events: LastEvents,
}

impl StreamEnd {
    /// Watch over an answer with this head; `None` where it is no stream of events.
    pub(super) fn of(headers: &HeaderMap, api: Api) -> Option<StreamEnd> {
        is_event_stream(headers).then(|| StreamEnd {
            api,
            framer: Framer::new(EVENT_BYTES),
            ending: false,
            may_add: !headers.contains_key(header::CONTENT_ENCODING),
            last_events: LastEvents::default(),
        })
    }

    /// Event that ends the stream with this error. None where it can't be said: in the middle of an
    /// event, which a client would then take for a whole one, or within a coding.
    pub(super) fn broken_by(&mut self, error: &Error) -> Option<Bytes> {
        let is_within_event = self.framer.mid_frame() || self.framer.finish().is_some();
        let may_add = self.may_add && !is_within_event;
        may_add.then(|| self.api.error_event(error, self.last_events.next_number()).into())
    }

    /// Looks at a piece that goes out. True once the last event is complete: `[DONE]`, or that of a
    /// stored response.
    pub(super) fn passes(&mut self, piece: &Bytes) -> bool {
        if let Some(events) = self.framer.push(piece.clone()) {
            let ends = |name| Api::Responses.ends_with_event(name);
            self.ending |= sse::frames(&events).any(|event| event.event().is_some_and(ends));
            if self.api == Api::Responses {
                self.last_events.keep(&events);
            }
        }
        self.framer.ended() || self.ending && !self.framer.mid_frame()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::error::Kind;
    use crate::server::reply;

    fn headers(kind: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))])
    }

    #[test]
    fn the_last_event_is_found_however_it_is_chunked() {
        let large = format!("event: response.completed\ndata: {}\n\n", "x".repeat(2 * EVENT_BYTES));
        for text in [
            "data: {\"text\":\"a\"}\n\ndata: [DONE]\n\n",
            "data: 1\r\n\r\ndata:[DONE]\r\n\r\n",
            "event: response.created\ndata: {}\n\nevent: response.completed\ndata: {}\n\n",
            "event: error\ndata: {}\n\n",
            &large,
        ] {
            for size in [1, 7, 4_096, text.len()] {
                let mut end =
                    StreamEnd::of(&headers("text/event-stream; charset=utf-8"), Api::Responses).unwrap();
                let pieces = text.as_bytes().chunks(size);
                let seen: Vec<bool> = pieces.map(|it| end.passes(&Bytes::copy_from_slice(it))).collect();
                let (last, before) = seen.split_last().unwrap();
                assert!(*last, "{size} {text:.80}");
                // Of CR LF the CR ends an event.
                let before = before.split_last().map_or(before, |(_, before)| before);
                assert!(before.iter().all(|it| !it), "{size} {text:.80}");
            }
        }
    }

    #[test]
    fn other_answers_have_no_last_event() {
        assert!(StreamEnd::of(&headers("application/json"), Api::Chat).is_none());
        assert!(StreamEnd::of(&headers("text"), Api::Chat).is_none());
        assert!(StreamEnd::of(&HeaderMap::new(), Api::Chat).is_none());
        let mut end = StreamEnd::of(&headers("Text/Event-Stream"), Api::Chat).unwrap();
        assert!(!end.passes(&Bytes::from_static(b"data: it says [DONE]\n\n: data: [DONE]\n\n")));
    }

    #[test]
    fn error_is_an_event_of_the_api_and_of_its_own() {
        let error = Error::new(Kind::Shutdown, "it ends");
        for (path, opening) in [
            ("/v1/responses/resp_1", "event: error\ndata: {"),
            ("/v1/messages/x", "event: error\ndata: {"),
            ("/v1/audio/transcriptions", "data: {\"error\""),
        ] {
            let mut end = StreamEnd::of(&headers("text/event-stream"), reply::stream_api_at(path)).unwrap();
            assert!(end.broken_by(&error).unwrap().starts_with(opening.as_bytes()), "{path}");
            end.passes(&Bytes::from_static(b"data: {\"sequence_number\":41}\n\ndata: {\"half"));
            assert_eq!(end.broken_by(&error), None, "{path}: a client would read half an event");
        }
        let mut end = StreamEnd::of(&headers("text/event-stream"), Api::Responses).unwrap();
        end.passes(&Bytes::from_static(b"data: {\"sequence_number\":41}\n\n"));
        let event = end.broken_by(&error).unwrap();
        assert!(String::from_utf8_lossy(&event).contains("\"sequence_number\":42"), "{event:?}");
        let mut coded = headers("text/event-stream");
        coded.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert_eq!(StreamEnd::of(&coded, Api::Chat).unwrap().broken_by(&error), None);
    }
}
