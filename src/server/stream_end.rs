//! The end of an event stream that is passed through. An engine that keeps its body open after the
//! last event holds neither a client nor a place.

use bytes::Bytes;
use http::HeaderMap;

use crate::codec::sse::{self, Framer};
use crate::dialect::Api;
use crate::util::media_type::is_event_stream;

/// Most bytes of an incomplete event that are kept to be looked into.
const EVENT_BYTES: usize = 16 << 10;

/// Watch for the last event of a stream.
#[derive(Debug)]
pub(super) struct StreamEnd {
    framer: Framer,
    /// The last event has begun.
    ending: bool,
}

impl StreamEnd {
    /// Watch over an answer with this head; `None` where it is no stream of events.
    pub(super) fn of(headers: &HeaderMap) -> Option<StreamEnd> {
        is_event_stream(headers).then(|| StreamEnd { framer: Framer::new(EVENT_BYTES), ending: false })
    }

    /// Looks at a piece that goes out. True once the last event is complete: `[DONE]`, or that of a
    /// stored response.
    pub(super) fn passes(&mut self, piece: &Bytes) -> bool {
        if let Some(events) = self.framer.push(piece.clone()) {
            let ends = |name| Api::Responses.ends_with_event(name);
            self.ending |= sse::frames(&events).any(|event| event.event().is_some_and(ends));
        }
        self.framer.ended() || self.ending && !self.framer.mid_frame()
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

    use super::*;

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
                let mut end = StreamEnd::of(&headers("text/event-stream; charset=utf-8")).unwrap();
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
        assert!(StreamEnd::of(&headers("application/json")).is_none());
        assert!(StreamEnd::of(&headers("text")).is_none());
        assert!(StreamEnd::of(&HeaderMap::new()).is_none());
        let mut end = StreamEnd::of(&headers("Text/Event-Stream")).unwrap();
        assert!(!end.passes(&Bytes::from_static(b"data: it says [DONE]\n\n: data: [DONE]\n\n")));
    }
}
