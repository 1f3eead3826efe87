//! Members of streamed events that the gateway reads, found in one pass: looking for each by itself
//! is a tenth of what an event costs. The module is pure.

use memchr::memchr2;

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

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn one_pass_finds_what_each_reader_would(
            parts in proptest::collection::vec(
                prop::sample::select(vec![
                    "\"finish_reason\"", "\"stop_reason\"", "_reason\"", "\"usage\"", "\"kv_transfer_params\"",
                    ":", " ", ": ", "null", "{}", "{\"a\":1}", "\"stop\"", "1", ",", "g", "_", "\\", "\"",
                    "\ndata: ", "\r\n", "\n\n", "data: {", "}", "text",
                ]),
                0..24,
            )
        ) {
            let events = parts.concat();
            prop_assert_eq!(EventMembers::find(events.as_bytes()), one_by_one(events.as_bytes()));
        }
    }
}
