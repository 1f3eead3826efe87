//! One event of a chat's or completion's stream, and where in its text things stand.

use std::ops::Range;

use bytes::Bytes;

use super::aborted_answer::AbortSign;
use crate::codec::json::{Object, ScanLimits, Value};

/// An object inside an event.
pub(super) struct Part {
    pub(super) object: Object,
    /// Place where it begins in the event's text.
    at: usize,
}

/// One event of a stream.
pub(super) struct Event {
    pub(super) top: Part,
    /// The first choice; the usage event has none.
    pub(super) choice: Option<Part>,
}

/// Facts of an event that are needed to continue its stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EventFacts {
    /// It names the role.
    pub(super) role: bool,
    /// It has text of the answer.
    pub(super) text: bool,
    /// It has text that precedes the answer.
    pub(super) reasoning: bool,
    /// It has something else, as calls of tools.
    pub(super) other: bool,
    /// Its delta is `{}`, which engines only send for the sake of token ids.
    pub(super) bare: bool,
    /// It is the last of its choice.
    pub(super) finish: bool,
}

impl Part {
    /// Place where the value of `key` stands in the event.
    pub(super) fn span(&self, key: &str) -> Option<Range<usize>> {
        let range = self.object.get(key)?.range();
        Some(self.at + range.start..self.at + range.end)
    }

    /// The value of `key`, unless it is null.
    pub(super) fn given(&self, key: &str) -> Option<Value<'_>> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// The object that is the value of `key`.
    pub(super) fn part(&self, key: &str) -> Option<Part> {
        self.inside(self.object.get(key)?)
    }

    fn inside(&self, value: Value<'_>) -> Option<Part> {
        Some(Part { object: value.object().ok()?, at: self.at + value.range().start })
    }

    /// The numbers of a list.
    pub(super) fn numbers<T: serde::de::DeserializeOwned>(&self, key: &str) -> Option<Vec<T>> {
        serde_json::from_slice(self.given(key)?.raw()).ok()
    }
}

impl Event {
    /// Reads one; `None` for what is no JSON object.
    pub(super) fn read(data: Bytes) -> Option<Event> {
        let top = Part { object: Object::scan(data, ScanLimits::default()).ok()?, at: 0 };
        let first = top.object.get("choices").and_then(|choices| choices.first_element());
        let choice = first.and_then(|first| top.inside(first));
        Some(Event { top, choice })
    }

    /// Payload of the event.
    pub(super) fn data(&self) -> &Bytes {
        self.top.object.bytes()
    }

    /// The engine gave the request up.
    pub(super) fn given_up(&self, by: AbortSign) -> bool {
        self.choice.as_ref().is_some_and(|choice| by.in_choice(&choice.object))
    }

    /// Reads the facts of the event.
    pub(super) fn look(&self) -> EventFacts {
        let mut look = EventFacts::default();
        let Some(choice) = &self.choice else { return look };
        look.finish = choice.given("finish_reason").is_some();
        let Some(delta) = choice.part("delta") else {
            look.text = choice.object.get("text").is_some_and(|text| shows(&text));
            return look;
        };
        look.bare = true;
        for (key, value) in delta.object.members() {
            look.bare = false;
            match key.as_ref() {
                "role" => look.role = true,
                "content" => look.text |= shows(&value),
                "reasoning" | "reasoning_content" => look.reasoning |= shows(&value),
                _ => look.other |= !value.is_null() && value.raw() != b"[]",
            }
        }
        look
    }

    /// Its text of the answer.
    pub(super) fn text(&self) -> Option<String> {
        let choice = self.choice.as_ref()?;
        let delta = choice.part("delta");
        let text = delta.as_ref().map_or_else(|| choice.given("text"), |delta| delta.given("content"));
        text?.as_str().map(|text| text.into_owned())
    }

    /// The ids of the prompt, where they are: in chats beside the choices, in completions inside.
    pub(super) fn prompt_ids(&self) -> Option<Vec<u32>> {
        let inside = || self.choice.as_ref()?.numbers("prompt_token_ids");
        self.top.numbers("prompt_token_ids").or_else(inside)
    }
}

/// True if a member holds any text.
fn shows(value: &Value<'_>) -> bool {
    !value.is_null() && value.raw() != b"\"\""
}

impl EventFacts {
    /// True if the client notices it.
    pub(super) fn visible(self) -> bool {
        self.text || self.reasoning || self.other || self.finish
    }
}
