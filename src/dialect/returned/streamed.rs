//! KV that a decoder offers back at the end of a stream, as vLLM does from 0.33 on: the event with
//! the `finish_reason` has what its connector returned. The tokens of that KV are told event by
//! event, since nothing names them at the end; they are cut out of the events as text, and no event
//! is parsed before the one that has the offer.

use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::Finder;

use super::{IDS, Returned};
use crate::codec::json::{Object, ScanLimits};
use crate::codec::sse;
use crate::dialect::finish::names_a_reason;
use crate::dialect::member::MemberName;
use crate::dialect::shape::asks_for;
use crate::dialect::streamed_handoff;

/// The end of the names `token_ids` and `prompt_token_ids`.
static IDS_MEMBER: LazyLock<MemberName> = LazyLock::new(|| MemberName::new("token_ids\""));

/// A delta without anything in it, as chats have it for a token that has no text yet where ids are
/// asked for.
static BARE_DELTA: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"delta\":{}"));

/// Most tokens of prompt and answer that are kept of one stream, 4 bytes each: the longest context
/// of today's models.
const MOST_TOKENS: usize = 1 << 20;

/// Token ids of one stream, until its decoder offers their KV.
#[derive(Debug)]
pub struct StreamedIds {
    prompt: Vec<u32>,
    generated: Vec<u32>,
    /// False once an id could not be read, or was one too many.
    are_whole: bool,
    hiding: Hiding,
}

/// Members of events that exist for the sake of the offer alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hiding {
    /// The client asked for ids, or another reader takes them out.
    Nothing,
    Ids,
    /// Events without anything else, too.
    BareEvents,
}

/// A list of ids in an event.
struct IdList {
    at: std::ops::Range<usize>,
    is_prompt: bool,
}

impl StreamedIds {
    /// Those of the answer to a request with this `body`. `others_hide`: another reader takes them
    /// out of the events.
    pub fn new(body: &Object, others_hide: bool) -> StreamedIds {
        let hiding = if others_hide || asks_for(body, IDS) {
            Hiding::Nothing
        } else if asks_for(body, "logprobs") {
            // With log probabilities there is an event for each token in any case.
            Hiding::Ids
        } else {
            Hiding::BareEvents
        };
        StreamedIds { prompt: Vec::new(), generated: Vec::new(), are_whole: true, hiding }
    }

    /// Begins anew: another decoder goes on, which tells its prompt.
    pub fn restart(&mut self) {
        *self =
            StreamedIds { prompt: Vec::new(), generated: Vec::new(), are_whole: true, hiding: self.hiding };
    }

    /// Takes whole events; gives them as the client is to read them, and the offer that is among
    /// them.
    pub fn pass(&mut self, events: Bytes) -> (Bytes, Option<Returned>) {
        let lists = id_lists(&events);
        for list in &lists {
            self.take(&events[list.at.clone()], list.is_prompt);
        }
        let returned = streamed_handoff::handoff(&events).and_then(|params| self.returned(params));
        let out = match self.hiding {
            Hiding::Nothing => events,
            Hiding::Ids => without(events, &lists),
            Hiding::BareEvents => without_bare_events(without(events, &lists)),
        };
        (out, returned)
    }

    fn take(&mut self, list: &[u8], is_prompt: bool) {
        let room = MOST_TOKENS.saturating_sub(self.prompt.len() + self.generated.len());
        let ids = if is_prompt { &mut self.prompt } else { &mut self.generated };
        let is_expected = !is_prompt || ids.is_empty();
        self.are_whole = self.are_whole && is_expected && read_ids(list, room, ids);
        if !self.are_whole {
            (self.prompt, self.generated) = (Vec::new(), Vec::new());
        }
    }

    /// The offer of all that was told, if it is of as many tokens.
    fn returned(&mut self, params: Bytes) -> Option<Returned> {
        let (prompt, generated) = (std::mem::take(&mut self.prompt), std::mem::take(&mut self.generated));
        let told = prompt.len() + generated.len();
        if !self.are_whole || prompt.is_empty() || generated.is_empty() {
            return None;
        }
        let params = Object::scan(params, ScanLimits::default()).ok()?;
        // More than was told: some event kept its ids back, and the others are not where they seem.
        Returned::of(&params, prompt, generated).filter(|returned| returned.held <= told)
    }
}

/// Places of the lists of ids in events.
fn id_lists(events: &[u8]) -> smallvec::SmallVec<[IdList; 4]> {
    let mut lists = smallvec::SmallVec::new();
    let mut from = 0;
    while let Some(at) = IDS_MEMBER.find_value(events, from, |value| value.starts_with(b"[")) {
        let Some(length) = memchr::memchr(b']', &events[at..]) else { break };
        let end = at + length + 1;
        let before = events[from..at].trim_ascii_end();
        let name = before.strip_suffix(b":").map(<[u8]>::trim_ascii_end).unwrap_or(before);
        let is_prompt = name.ends_with(b"\"prompt_token_ids\"");
        if is_prompt || name.ends_with(b"\"token_ids\"") {
            lists.push(IdList { at: at..end, is_prompt });
        }
        from = end;
    }
    lists
}

/// Appends the numbers of a list, at most `room`; false where it has something else.
fn read_ids(list: &[u8], room: usize, ids: &mut Vec<u32>) -> bool {
    let inner = list.strip_prefix(b"[").and_then(|list| list.strip_suffix(b"]"));
    let Some(inner) = inner.map(<[u8]>::trim_ascii) else { return false };
    let before = ids.len();
    inner.is_empty()
        || inner.split(|&byte| byte == b',').all(|number| {
            let id: Option<u32> =
                std::str::from_utf8(number.trim_ascii()).ok().and_then(|id| id.parse().ok());
            ids.extend(id);
            id.is_some() && ids.len() - before <= room
        })
}

/// Events with null in the place of these lists.
fn without(events: Bytes, lists: &[IdList]) -> Bytes {
    if lists.is_empty() {
        return events;
    }
    let mut out = Vec::with_capacity(events.len());
    let mut passed = 0;
    for list in lists {
        out.extend_from_slice(&events[passed..list.at.start]);
        out.extend_from_slice(b"null");
        passed = list.at.end;
    }
    out.extend_from_slice(&events[passed..]);
    out.into()
}

/// Events without those that say nothing but ids.
fn without_bare_events(events: Bytes) -> Bytes {
    if BARE_DELTA.find(&events).is_none() {
        return events;
    }
    let says_something = |frame: &sse::Frame<'_>| {
        let whole = frame.whole();
        BARE_DELTA.find(whole).is_none() || names_a_reason(whole)
    };
    sse::frames(&events).filter(says_something).flat_map(|frame| frame.whole().to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn body(text: &str) -> Object {
        Object::scan(text.to_owned().into(), ScanLimits::default()).unwrap()
    }

    /// As vLLM 0.33 writes a chat's events.
    fn event(delta: &Value, ids: Value, prompt: Value, more: &Value) -> String {
        let finish = if more.is_null() { Value::Null } else { json!("length") };
        let choice =
            json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish, "token_ids": ids});
        let event =
            json!({"id": "x", "choices": [choice], "prompt_token_ids": prompt, "kv_transfer_params": more});
        format!("data: {event}\n\n")
    }

    fn params(held: usize) -> Value {
        json!({"do_remote_prefill": false, "do_remote_decode": true, "remote_block_ids": [[1, 2, 3]],
            "remote_engine_id": "e", "remote_request_id": "r", "remote_num_tokens": held})
    }

    fn stream(held: usize) -> [String; 5] {
        let null = Value::Null;
        [
            event(&json!({"role": "assistant", "content": ""}), null.clone(), json!([1, 2, 3]), &null),
            event(&json!({"content": "a \"token_ids\":[7]"}), json!([4]), null.clone(), &null),
            event(&json!({}), json!([5]), null.clone(), &null),
            event(&json!({"content": "b"}), json!([6, 7]), null.clone(), &null),
            event(&json!({"content": "c"}), json!([8]), null, &params(held)),
        ]
    }

    fn passed(ids: &mut StreamedIds, events: &[String]) -> (String, Option<Returned>) {
        let (mut out, mut last) = (String::new(), None);
        for event in events {
            let (events, returned) = ids.pass(event.clone().into());
            out.push_str(std::str::from_utf8(&events).unwrap());
            last = last.or(returned);
        }
        (out, last)
    }

    #[test]
    fn an_offer_has_the_tokens_that_the_events_told() {
        let mut ids = StreamedIds::new(&body(r#"{"stream":true}"#), false);
        let (out, returned) = passed(&mut ids, &stream(7));
        let returned = returned.unwrap();
        assert_eq!((returned.tokens(), returned.prompt()), (&[1, 2, 3, 4, 5, 6, 7][..], &[1, 2, 3][..]));
        let shown: Vec<String> =
            stream(7).iter().filter(|event| !event.contains("\"delta\":{}")).cloned().collect();
        let mut shown = shown.concat();
        for list in ["[1,2,3]", "[4]", "[6,7]", "[8]"] {
            shown = shown.replacen(list, "null", 1);
        }
        assert_eq!(out, shown, "the text keeps its own");
        // Several events at once are read as one by one.
        let mut ids = StreamedIds::new(&body("{}"), false);
        let at_once = passed(&mut ids, &[stream(7).concat()]);
        assert_eq!(at_once, (shown, Some(returned)));
    }

    #[test]
    fn ids_that_the_client_or_another_reader_wants_stay() {
        for (text, others_hide) in [(r#"{"return_token_ids":true}"#, false), ("{}", true)] {
            let mut ids = StreamedIds::new(&body(text), others_hide);
            let (out, returned) = passed(&mut ids, &stream(7));
            assert_eq!((out, returned.is_some()), (stream(7).concat(), true));
        }
        let mut ids = StreamedIds::new(&body(r#"{"logprobs":true}"#), false);
        let (out, _) = passed(&mut ids, &stream(7));
        assert!(out.contains(r#""delta":{},"#) && !out.contains("[5]"), "{out}");
    }

    #[test]
    fn tokens_that_were_not_all_told_offer_nothing() {
        let offered =
            |events: &[String]| passed(&mut StreamedIds::new(&body("{}"), false), events).1.is_some();
        assert!(offered(&stream(8)) && !offered(&stream(9)), "more tokens than events told");
        let changed = |at: usize, from: &str, to: &str| {
            let mut events = stream(7);
            events[at] = events[at].replace(from, to);
            offered(&events)
        };
        assert!(!changed(0, "[1,2,3]", "null") && !changed(3, "[6,7]", "[6,-7]"));
        assert!(!changed(3, "[6,7]", "[6.5,7]") && !changed(4, "[8]", "[null]"));
        assert!(changed(3, "[6,7]", "[ 6 , 7 ]") && changed(3, "[6,7]", "[6,7,8]"));
        assert!(!changed(4, "\"do_remote_decode\":true", "\"do_remote_decode\":false"));
    }

    #[test]
    fn another_decoder_that_goes_on_tells_its_own_prompt() {
        let mut ids = StreamedIds::new(&body("{}"), false);
        passed(&mut ids, &stream(7)[..3]);
        ids.restart();
        let null = Value::Null;
        let rest = [
            event(&json!({"role": "assistant", "content": ""}), null.clone(), json!([1, 2, 3, 4, 5]), &null),
            event(&json!({"content": "b"}), json!([6, 7]), null, &params(6)),
        ];
        assert_eq!(passed(&mut ids, &rest).1.unwrap().tokens(), [1, 2, 3, 4, 5, 6]);
    }
}
