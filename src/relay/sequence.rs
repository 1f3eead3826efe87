//! The sequence numbers of a response's events: an error event that ends a broken stream carries
//! the next one.

use bytes::Bytes;

use crate::codec::json::{Object, ScanLimits};
use crate::codec::sse;

/// The last events of a stream that went out; read only if the stream breaks.
#[derive(Debug, Default)]
pub struct LastEvents(Bytes);

impl LastEvents {
    /// Keeps `events`, which are whole, in place of the events before them.
    pub fn keep(&mut self, events: &Bytes) {
        // Comments alone have no number.
        if !events.is_empty() && !events.starts_with(b":") {
            self.0 = events.clone();
        }
    }

    /// The `sequence_number` of the event to come: one more than the last one's, or 0.
    pub fn next_number(&self) -> u64 {
        let numbers = sse::frames(&self.0).filter_map(|event| {
            let data = Bytes::copy_from_slice(&event.data());
            Object::scan(data, ScanLimits::default()).ok()?.get("sequence_number")?.as_u64()
        });
        numbers.last().map_or(0, |last| last.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_number_follows_the_last_event_that_has_one() {
        let mut last = LastEvents::default();
        assert_eq!(last.next_number(), 0);
        for (events, next) in [
            ("event: response.created\ndata: {\"sequence_number\":0}\n\n", 1),
            (
                "data: {\"sequence_number\":1}\n\ndata: {\"delta\":\"\\\"sequence_number\\\":9\",\"sequence_number\":2}\n\n",
                3,
            ),
            ("data: {\"sequence_number\":7}\n\n: a comment\n\ndata: {}\n\n", 8),
            ("", 8),
            (": a comment\n\n", 8),
        ] {
            last.keep(&Bytes::copy_from_slice(events.as_bytes()));
            assert_eq!(last.next_number(), next, "{events}");
        }
    }
}
