//! Hand-offs in streamed events. vLLM 0.33 writes `kv_transfer_params` into each chunk of a chat or
//! completion (`entrypoints/openai/chat_completion/serving.py`, `completion/serving.py`): null in
//! all but those that carry a `finish_reason`, where it is what the decoder's connector returned.
//! Host, port, engine and blocks are no client's business. The module is pure.

use std::ops::Range;
use std::sync::LazyLock;

use bytes::Bytes;
use serde::de::IgnoredAny;

use crate::codec::sse::{self, Frame};
use crate::dialect::member::MemberName;

/// The member's name.
static MEMBER: LazyLock<MemberName> = LazyLock::new(|| MemberName::new("\"kv_transfer_params\""));

/// The value in the place of a hand-off, as engines write it that have none.
const NOTHING: &[u8] = b"null";

/// Events whose hand-offs are null. `None` if they carry none, as nearly all.
///
/// An event whose hand-off does not end within it is left out: it is no JSON, and an address is
/// not to leave the gateway. The piece of an event that is longer than what is held back stays.
pub fn without_handoffs(events: &[u8]) -> Option<Bytes> {
    if !carries_handoff(events) {
        return None;
    }
    let mut out = Vec::with_capacity(events.len());
    for frame in sse::frames(events) {
        match carries_handoff(frame.whole()) {
            true => hide_in_frame(&frame, &mut out),
            false => out.extend_from_slice(frame.whole()),
        }
    }
    Some(out.into())
}

/// The first hand-off in events, as JSON; `None` if there is none, as nearly always.
pub fn handoff(events: &[u8]) -> Option<Bytes> {
    let value = value_range(events, next_handoff(events, 0)?)?;
    Some(Bytes::copy_from_slice(&events[value]))
}

/// True if the member has another value than null.
fn carries_handoff(events: &[u8]) -> bool {
    next_handoff(events, 0).is_some()
}

/// Writes one event, without the values of its hand-offs.
fn hide_in_frame(frame: &Frame<'_>, out: &mut Vec<u8>) {
    let before = out.len();
    let hidden = match frame.data_range() {
        Some(data) => {
            out.extend_from_slice(&frame.whole()[..data.start]);
            let hidden = hide_in_json(&frame.whole()[data.clone()], out);
            out.extend_from_slice(&frame.whole()[data.end..]);
            hidden
        }
        None => hide_in_lines(frame, out),
    };
    if hidden.is_none() {
        out.truncate(before);
        if !frame.is_complete() {
            out.extend_from_slice(frame.whole());
        }
    }
}

/// The same for an event with several lines of data, which become one: between them there is
/// nothing but white space.
fn hide_in_lines(frame: &Frame<'_>, out: &mut Vec<u8>) -> Option<()> {
    if let Some(name) = frame.event() {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name);
        out.push(b'\n');
    }
    let data: Vec<u8> = frame.data().iter().map(|&byte| if byte == b'\n' { b' ' } else { byte }).collect();
    out.extend_from_slice(b"data: ");
    let hidden = hide_in_json(&data, out);
    out.extend_from_slice(b"\n\n");
    hidden
}

/// Appends JSON with null in the place of each hand-off; `None` if one of them has no end.
fn hide_in_json(json: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut passed = 0;
    while let Some(value) = next_handoff(json, passed) {
        let end = value_range(json, value)?.end;
        out.extend_from_slice(&json[passed..value]);
        out.extend_from_slice(NOTHING);
        passed = end;
    }
    out.extend_from_slice(&json[passed..]);
    Some(())
}

/// Offset of the next hand-off from `from` on.
fn next_handoff(json: &[u8], from: usize) -> Option<usize> {
    MEMBER.find_value(json, from, |_| true)
}

/// The bytes of the JSON value that begins at `at`.
fn value_range(json: &[u8], at: usize) -> Option<Range<usize>> {
    let mut values = serde_json::Deserializer::from_slice(&json[at..]).into_iter::<IgnoredAny>();
    values.next()?.ok()?;
    Some(at..at + values.byte_offset())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last chunk of a completion by vLLM 0.33, shortened.
    const LAST: &str = r#"data: {"id":"cmpl-1","choices":[{"index":0,"text":"x","finish_reason":"length"}],"kv_transfer_params":{"do_remote_decode":true,"remote_host":"10.0.0.3","remote_block_ids":[[1,2]],"note":"}\""},"usage":null}

"#;
    const HIDDEN: &str = r#"data: {"id":"cmpl-1","choices":[{"index":0,"text":"x","finish_reason":"length"}],"kv_transfer_params":null,"usage":null}

"#;

    fn hidden(events: &str) -> Option<String> {
        without_handoffs(events.as_bytes()).map(|out| String::from_utf8(out.to_vec()).unwrap())
    }

    #[test]
    fn the_value_becomes_null_and_nothing_else_changes() {
        assert_eq!(hidden(LAST).as_deref(), Some(HIDDEN));
        let around = |middle: &str| format!(": ping\n\n{HIDDEN}{middle}event: x\ndata: [DONE]\n\n");
        assert_eq!(hidden(&around(LAST)), Some(around(HIDDEN)));
        assert_eq!(hidden(&format!("{LAST}{LAST}")), Some(format!("{HIDDEN}{HIDDEN}")));
    }

    #[test]
    fn events_without_a_handoff_are_not_written_anew() {
        let quoted = r#"data: {"text":"\"kv_transfer_params\":{\"remote_host\":1}"}"#.to_owned() + "\n\n";
        let word = "data: {\"text\":\"kv_transfer_params\"}\n\n";
        for events in [HIDDEN, &quoted, word, "", "data: [DONE]\n\n", &LAST.replace("\"kv_", "\"ec_")] {
            assert_eq!(hidden(events), None, "{events}");
        }
    }

    #[test]
    fn any_spelling_of_the_event_is_read() {
        let ends = [("\n\n", "\n\n"), ("\r\n\r\n", "\r\n\r\n"), ("\r\r", "\r\r")];
        for (end, same) in ends {
            let (event, want) = (LAST.replace("\n\n", end), HIDDEN.replace("\n\n", same));
            assert_eq!(hidden(&event), Some(want.clone()));
            let spaced = event.replace("params\":{", "params\" : {");
            assert_eq!(hidden(&spaced), Some(want.replace("params\":n", "params\" : n")));
        }
        let lines =
            LAST.replace("params\":{", "params\":\ndata: {").replace("data: {\"id", "event: e\ndata: {\"id");
        let whole = hidden(&lines).unwrap();
        assert_eq!(whole, format!("event: e\n{}", HIDDEN.replace("params\":n", "params\": n")));
    }

    #[test]
    fn several_and_nested_handoffs_are_hidden() {
        let nested = r#"data: {"response":{"kv_transfer_params":[{"a":1}],"b":{"kv_transfer_params":"x"}}}"#;
        let want = r#"data: {"response":{"kv_transfer_params":null,"b":{"kv_transfer_params":null}}}"#;
        assert_eq!(hidden(&format!("{nested}\n\n")), Some(format!("{want}\n\n")));
    }

    #[test]
    fn a_handoff_without_an_end_does_not_go_out() {
        let broken = "data: {\"kv_transfer_params\":{\"remote_host\":\"10.0.0.3\"\n\n";
        assert_eq!(hidden(&format!("{broken}{HIDDEN}")).as_deref(), Some(HIDDEN));
        let part = broken.trim_end();
        assert_eq!(hidden(part).as_deref(), Some(part), "its beginning may be out already");
    }
}
