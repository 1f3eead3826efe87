//! Members of streamed events that the gateway reads, found in one pass over what differs from
//! event to event: looking for each by itself is a tenth of what an event costs, and a pass over
//! all of each event a sixth. The module is pure.

use std::iter::{self, zip};
use std::sync::LazyLock;

use memchr::memchr2;
use memchr::memmem::Finder;

use crate::dialect::member::value_after;

/// The name `kv_transfer_params` from its first `_` on, with the quote behind it.
const HANDOFF_END: &[u8] = b"_transfer_params\"";

/// Members that whole events have. Names are found as text: one in an answer's text would have its
/// quotes escaped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventMembers {
    /// A `finish_reason` or `stop_reason` that names a reason.
    pub reason: bool,
    /// A `kv_transfer_params` that is not null.
    pub handoff: bool,
    /// A `usage` that is an object.
    pub usage: bool,
}

impl EventMembers {
    /// Looks at the two bytes of the names that text has least of: the `_` of `…_reason` and of
    /// `kv_transfer_params`, and the `g` of `usage`.
    pub fn find(events: &[u8]) -> EventMembers {
        let mut found = EventMembers::default();
        let mut from = 0;
        while let Some(hit) = memchr2(b'_', b'g', &events[from..]) {
            let (before, rest) = events.split_at(from + hit);
            from = before.len() + 1;
            if rest.starts_with(b"g") {
                let value = rest.strip_prefix(b"ge\"").filter(|_| before.ends_with(b"\"usa"));
                found.usage |= value.and_then(value_after).is_some_and(|value| value.starts_with(b"{"));
            } else if let Some(value) = rest.strip_prefix(b"_reason\"") {
                found.reason |= value_after(value).is_some_and(|value| value.starts_with(b"\""));
            } else if let Some(value) = rest.strip_prefix(HANDOFF_END) {
                found.handoff |= before.ends_with(b"\"kv") && value_after(value).is_some();
                // Each event of vLLM 0.33 has it: its second `_` would be one more look.
                from = before.len() + HANDOFF_END.len();
            }
        }
        found
    }

    /// The same for text that is so short that a search for bytes costs more than a look at each.
    fn find_in_little(events: &[u8]) -> EventMembers {
        match events.iter().any(|byte| matches!(byte, b'_' | b'g')) {
            true => EventMembers::find(events),
            false => EventMembers::default(),
        }
    }
}

/// Longer events are not learned from: what streams repeat in each event is shorter, and a stream
/// keeps a copy.
const LEARNED_BYTES: usize = 1 << 10;

/// The end of an event as engines write it.
static EVENT_END: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"}\n\n"));

/// A stream learns anew from an event that differs from the one before in more bytes.
const LITTLE_BYTES: usize = 32;

/// So often a stream learns anew, twice for each kind of its events: role, reasoning, answer and
/// calls of tools. After that it only learns what all of its events share.
const MOST_LESSONS: u8 = 8;

/// Finds the [`EventMembers`] of a stream's events. Between their text, the events of a stream are
/// the same bytes: those are compared with an event before, and not searched again.
///
/// The known ends of events are cut so that no member lies across a cut: the result is that of
/// [`EventMembers::find`] for any bytes.
#[derive(Debug, Default)]
pub struct EventScanner {
    /// An event in which nothing was found.
    plain: Box<[u8]>,
    /// Bytes of it that others begin with; the last two are `:"`, or it is 0.
    head: usize,
    /// Offset of what others end with: a quote that ends no name, or the end.
    tail: usize,
    /// Number of events that were learned from anew.
    lessons: u8,
}

impl EventScanner {
    /// The members of `events`.
    pub fn find(&mut self, events: &[u8]) -> EventMembers {
        if let Some(between) = self.between(events).filter(|it| it.len() <= LITTLE_BYTES) {
            return EventMembers::find_in_little(between);
        }
        let mut found = EventMembers::default();
        for event in split(events) {
            let members = self.find_in_one(event);
            found.reason |= members.reason;
            found.handoff |= members.handoff;
            found.usage |= members.usage;
        }
        found
    }

    fn find_in_one(&mut self, event: &[u8]) -> EventMembers {
        match self.between(event) {
            Some(between) if between.len() <= LITTLE_BYTES => EventMembers::find_in_little(between),
            Some(between) if self.lessons == MOST_LESSONS => EventMembers::find(between),
            _ => {
                let found = EventMembers::find(event);
                if found == EventMembers::default() {
                    self.learn(event);
                }
                found
            }
        }
    }

    /// The text between the known ends of `events`, with the quotes at which they are cut; `None`
    /// if `events` begin or end otherwise.
    fn between<'a>(&self, events: &'a [u8]) -> Option<&'a [u8]> {
        let (head, tail) = (&self.plain[..self.head], &self.plain[self.tail..]);
        let is_known = !(head.is_empty() && tail.is_empty());
        let rest = events.strip_prefix(head).filter(|_| is_known)?;
        let rest = rest.strip_suffix(tail)?;
        let from = head.len() - usize::from(!head.is_empty());
        let to = head.len() + rest.len() + usize::from(!tail.is_empty());
        Some(&events[from..to])
    }

    /// Learns from an event in which nothing was found what it has in common with those before.
    fn learn(&mut self, event: &[u8]) {
        if event.len() > LEARNED_BYTES {
            return;
        }
        let anew = self.lessons < MOST_LESSONS;
        let (head, tail) = match anew {
            true => (&self.plain[..], &self.plain[..]),
            false => (&self.plain[..self.head], &self.plain[self.tail..]),
        };
        let same_head = zip(head, event).take_while(|(one, other)| one == other).count();
        let same_tail =
            zip(tail.iter().rev(), event.iter().rev()).take_while(|(one, other)| one == other).count();
        let head = end_of_head(&event[..same_head]);
        // The two do not overlap in either event.
        let room = self.plain.len().min(event.len()) - head;
        let tail = len_of_tail(&event[event.len() - same_tail.min(room)..]);
        if anew {
            self.plain = event.into();
            self.lessons += 1;
        }
        (self.head, self.tail) = (head, self.plain.len() - tail);
    }
}

/// The events of `events`, where each ends as engines write it; others stay together. No member
/// lies in two of them, since each ends with a brace.
fn split(events: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = events;
    iter::from_fn(move || {
        let end = EVENT_END.find(rest).map_or(rest.len(), |at| at + EVENT_END.needle().len());
        let event = rest.split_off(..end)?;
        (!event.is_empty()).then_some(event)
    })
}

/// Length of the longest beginning of `head` that ends with the quote before a value's text.
fn end_of_head(head: &[u8]) -> usize {
    memchr::memmem::rfind(head, b":\"").map_or(0, |at| at + 2)
}

/// Length of the longest end of `tail` that begins with a quote behind which no member's value is.
fn len_of_tail(tail: &[u8]) -> usize {
    let quotes = memchr::memchr_iter(b'"', tail);
    let ends_no_name = |at: &usize| value_after(&tail[at + 1..]).is_none();
    quotes.into_iter().find(ends_no_name).map_or(0, |at| tail.len() - at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dialect::finish::names_a_reason;
    use crate::dialect::streamed_handoff::without_handoffs;
    use crate::dialect::usage::may_carry_usage;

    /// The same, each by the module that reads it.
    fn one_by_one(events: &[u8]) -> EventMembers {
        EventMembers {
            reason: names_a_reason(events),
            handoff: without_handoffs(events).is_some(),
            usage: may_carry_usage(events),
        }
    }

    #[test]
    fn members_of_real_events_are_found() {
        let members = |reason, handoff, usage| EventMembers { reason, handoff, usage };
        for (events, expected) in [
            (
                r#"data: {"choices":[{"text":"a","finish_reason":null,"stop_reason":null}],"usage":null}"#,
                members(false, false, false),
            ),
            (r#"data: {"choices":[{"text":"_g","finish_reason":"stop"}]}"#, members(true, false, false)),
            (
                r#"data: {"choices":[{"finish_reason": "length"}],"kv_transfer_params": {"a":1}}"#,
                members(true, true, false),
            ),
            (r#"data: {"choices":[],"usage":{"prompt_tokens":3}}"#, members(false, false, true)),
            (
                r#"data: {"text":"\"usage\":{} \"kv_transfer_params\":1 \"finish_reason\":\"stop\""}"#,
                members(false, false, false),
            ),
        ] {
            assert_eq!(EventMembers::find(events.as_bytes()), expected, "{events}");
        }
    }

    /// Text of fewer than `most` parts of members.
    fn parts(most: usize) -> impl Strategy<Value = String> {
        let part = prop::sample::select(vec![
            "\"finish_reason\"",
            "\"stop_reason\"",
            "_reason\"",
            "\"usage\"",
            "\"kv_transfer_params\"",
            ":",
            " ",
            ": ",
            "null",
            "{}",
            "{\"a\":1}",
            "\"stop\"",
            "1",
            ",",
            "g",
            "_",
            "\\",
            "\"",
            "\ndata: ",
            "\r\n",
            "\n\n",
            "data: {",
            "}",
            "text",
            "}\n\ndata: {",
        ]);
        proptest::collection::vec(part, 0..most).prop_map(|parts| parts.concat())
    }

    fn event(delta: &str) -> String {
        format!(
            "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"gpt-oss\",\
             \"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":null}}],\
             \"kv_transfer_params\":null}}\n\n"
        )
    }

    #[test]
    fn events_alike_are_searched_between_what_is_known_of_them() {
        let mut scanner = EventScanner::default();
        for (delta, between) in [
            ("{\"role\":\"assistant\",\"content\":\"\"}", None),
            ("{\"content\":\"a\"}", None),
            ("{\"content\":\" word\"}", None),
            ("{\"content\":\" or \\\"two\\\"\"}", Some("\" or \\\"two\\\"\"")),
            ("{\"reasoning\":\"a\"}", None),
            ("{\"reasoning\":\"b\"}", None),
            ("{\"reasoning\":\"c\"}", Some("\"c\"")),
        ] {
            let events = event(delta);
            let found = scanner.between(events.as_bytes()).filter(|it| it.len() <= LITTLE_BYTES);
            assert_eq!(found.map(String::from_utf8_lossy).as_deref(), between, "{delta}");
            assert_eq!(scanner.find(events.as_bytes()), EventMembers::default());
        }
        let two = ["d", "e"].map(|text| event(&format!("{{\"reasoning\":\"{text}\"}}"))).concat();
        let lessons = scanner.lessons;
        assert_eq!((scanner.find(two.as_bytes()), scanner.lessons), (EventMembers::default(), lessons));
        let last = event("{\"reasoning\":\"\"}").replace("reason\":null", "reason\":\"stop\"");
        assert!(scanner.find(last.as_bytes()).reason);
    }

    #[test]
    fn scanner_learns_what_all_events_share_in_the_end() {
        let mut scanner = EventScanner::default();
        for time in 0..4 * u32::from(MOST_LESSONS) {
            let events = event(&format!("{{\"content\":\"word {time}\"}}"));
            let events = events.replace("created\":1", &format!("created\":{time}"));
            assert_eq!(scanner.find(events.as_bytes()), EventMembers::default());
        }
        let events = event("{\"content\":\"b\"}").replace("created\":1", "created\":77");
        let between = scanner.between(events.as_bytes()).map(String::from_utf8_lossy);
        assert!(between.is_some_and(|it| it.starts_with("\"chat.completion.chunk") && it.ends_with("\"b\"")));
        assert!(scanner.plain.len() <= LEARNED_BYTES);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn scanner_finds_in_every_event_what_one_pass_does(
            ends in prop::array::uniform2(parts(8)),
            texts in proptest::collection::vec(parts(4), 1..24),
        ) {
            let mut scanner = EventScanner::default();
            for text in texts {
                let events = format!("{}{text}{}", ends[0], ends[1]);
                let found = scanner.find(events.as_bytes());
                prop_assert_eq!(found, EventMembers::find(events.as_bytes()), "{}", events);
            }
        }

        #[test]
        fn one_pass_finds_what_each_reader_would(events in parts(24)) {
            prop_assert_eq!(EventMembers::find(events.as_bytes()), one_by_one(events.as_bytes()));
        }
    }
}
