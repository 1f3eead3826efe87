//! Streams, one per prompt, as one: events in the order in which they come.

use bytes::{Bytes, BytesMut};

use super::{OF_ONE, choices_of, sum, whole_id};
use crate::codec::json::{Object, ScanLimits, Value};
use crate::codec::sse::{self, Frame};
use crate::dialect::patch::Patch;

const DONE: &[u8] = b"[DONE]";

/// Makes one stream of several.
#[derive(Debug)]
pub struct Merge {
    choices: u64,
    /// The answer's `id` and `created`, as JSON: those of the first event.
    common: Option<(Bytes, Bytes)>,
    parts: Vec<Part>,
    ended: bool,
    events: u64,
}

/// One prompt's stream.
#[derive(Debug, Default)]
struct Part {
    /// Its last event but `[DONE]`, where that tells counts alone.
    counts: Option<Object>,
    complete: bool,
}

/// A part's stream has something that is no event of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a stream has an event that can't be read")]
pub struct Unreadable;

impl Merge {
    /// Of so many prompts with so many choices each.
    pub fn new(prompts: usize, choices: u64) -> Merge {
        let parts = std::iter::repeat_with(Part::default).take(prompts).collect();
        Merge { choices, common: None, parts, ended: false, events: 0 }
    }

    /// Writes whole frames of the prompt `at` as they are in the common stream. The frames that
    /// complete the last part are followed by the end of the stream.
    ///
    /// # Errors
    /// [`Unreadable`] names an event that can't be read.
    pub fn pass(&mut self, at: usize, frames: &Bytes) -> Result<Bytes, Unreadable> {
        let mut out = BytesMut::with_capacity(frames.len() + 16);
        for frame in sse::frames(frames) {
            if self.ended {
                break;
            }
            self.frame(at, &frame, &mut out)?;
        }
        Ok(out.freeze())
    }

    /// The last event is out.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// An engine's own error was the last event: other parts may have more to say, which nobody
    /// reads.
    pub fn failed(&self) -> bool {
        self.ended && self.parts.iter().any(|part| !part.complete)
    }

    /// Events with data that are out.
    pub fn events(&self) -> u64 {
        self.events
    }

    fn frame(&mut self, at: usize, frame: &Frame<'_>, out: &mut BytesMut) -> Result<(), Unreadable> {
        let data = frame.data();
        if data.trim_ascii() == DONE {
            if let Some(part) = self.parts.get_mut(at) {
                part.complete = true;
            }
            if self.parts.iter().all(|part| part.complete) {
                self.end(out);
            }
            return Ok(());
        }
        if !frame.is_complete() {
            return Err(Unreadable);
        }
        if data.trim_ascii().is_empty() {
            out.extend_from_slice(frame.whole());
            return Ok(());
        }
        let event = Object::scan(Bytes::copy_from_slice(&data), ScanLimits::default());
        self.event(at, event.map_err(|_| Unreadable)?, out)
    }

    fn event(&mut self, at: usize, event: Object, out: &mut BytesMut) -> Result<(), Unreadable> {
        if event.get("error").is_some_and(|error| !error.is_null()) {
            // An engine ends the whole answer with it.
            self.push(event.bytes(), out);
            self.done(out);
            return Ok(());
        }
        let mut patch = Patch::default();
        let readable = choices_of(&event, (at, self.choices), |choice, start, index| {
            let span = choice.get("index").map(|index| index.range());
            patch.set(span.map(|span| start + span.start..start + span.end), index.to_string());
        });
        if !readable {
            return Err(Unreadable);
        }
        if event.get("choices").is_some_and(|choices| choices.array_len_capped(1) == Some(0)) {
            if let Some(part) = self.parts.get_mut(at).filter(|_| event.contains("usage")) {
                part.counts = Some(event);
            }
            return Ok(());
        }
        self.name(at, &event, &mut patch);
        let text = patch.apply(event.bytes());
        self.push(&text, out);
        Ok(())
    }

    /// Gives an event the common `id` and `created`.
    fn name(&mut self, at: usize, event: &Object, patch: &mut Patch) {
        let (Some(id), Some(created)) = (event.get("id"), event.get("created")) else { return };
        let (whole, since) = self.common.get_or_insert_with(|| (whole_id(&id, at), created.to_bytes()));
        patch.set(Some(id.range()), &*whole);
        patch.set(Some(created.range()), &*since);
    }

    /// All parts are complete: their counts, if they told any, and the end.
    fn end(&mut self, out: &mut BytesMut) {
        let told: Vec<Object> = self.parts.iter_mut().filter_map(|part| part.counts.take()).collect();
        if let Some(first) = told.first() {
            let usages: Vec<Object> =
                told.iter().filter_map(|event| event.get("usage")?.object().ok()).collect();
            let span = |key: &str| first.get(key).as_ref().map(Value::range);
            let mut patch = Patch::default();
            self.name(0, first, &mut patch);
            patch.set(span("usage").filter(|_| !usages.is_empty()), sum::sum(&usages).unwrap_or_default());
            for key in OF_ONE {
                patch.set(span(key), "null");
            }
            let text = patch.apply(first.bytes());
            self.push(&text, out);
        }
        self.done(out);
    }

    fn done(&mut self, out: &mut BytesMut) {
        self.push(DONE, out);
        self.ended = true;
    }

    fn push(&mut self, data: &[u8], out: &mut BytesMut) {
        self.events += 1;
        out.extend_from_slice(b"data: ");
        // Line ends between the values of a JSON text are white space.
        out.extend(data.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }));
        out.extend_from_slice(b"\n\n");
    }
}
