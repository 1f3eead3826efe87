//! Media types of answers (RFC 9110 §8.3.1).

use http::{HeaderMap, header};

/// The media type of server-sent events.
const EVENT_STREAM: &[u8] = b"text/event-stream";

/// True if `Content-Type` names server-sent events, in letters of any case and with any parameters.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(|kind| kind.as_bytes()).unwrap_or_default();
    let (Some(name), rest) = (kind.get(..EVENT_STREAM.len()), kind.get(EVENT_STREAM.len())) else {
        return false;
    };
    name.eq_ignore_ascii_case(EVENT_STREAM) && rest.is_none_or(|next| matches!(next, b';' | b' ' | b'\t'))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn event_streams_are_known_in_any_spelling() {
        let is = |kind: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            is_event_stream(&headers)
        };
        for kind in ["text/event-stream", "Text/Event-Stream; charset=utf-8", "TEXT/EVENT-STREAM ;charset=x"]
        {
            assert!(is(kind), "{kind}");
        }
        for kind in ["", "text/event-streams", "text/event", "application/json; of=text/event-stream"] {
            assert!(!is(kind), "{kind}");
        }
        assert!(!is_event_stream(&HeaderMap::new()));
    }
}
