//! Checks of an answer: it has text, it is complete, and a stream ends with `[DONE]`.

use serde_json::Value;

use super::trouble::Trouble;

/// Longest line of a stream, in bytes.
const LINE_BYTES: usize = 1 << 20;
/// Beginning of an error event; inside of a text its quotes would be escaped.
const ERROR: &[u8] = b"\"error\":{";

/// Checks that a whole answer has text.
///
/// # Errors
/// [`Trouble::Empty`] if it has none.
pub(crate) fn check_whole(body: &[u8]) -> Result<(), Trouble> {
    if has_text(body) { Ok(()) } else { Err(Trouble::Empty) }
}

/// Events of one stream, as far as it has been read.
#[derive(Debug, Default)]
pub(crate) struct Events {
    partial: Vec<u8>,
    /// Number of events with data, `[DONE]` aside.
    pub(crate) count: u64,
    /// True if an event had text; the first token alone may have none.
    text: bool,
    done: bool,
}

impl Events {
    /// Takes a piece of the stream and returns the number of events in it.
    ///
    /// # Errors
    /// A [`Trouble`] that no good stream has: a line that is too long, an error event, data after
    /// `[DONE]`.
    pub(crate) fn feed(&mut self, piece: &[u8]) -> Result<u64, Trouble> {
        let before = self.count;
        let mut rest = piece;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            if self.partial.is_empty() {
                self.line(line)?;
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                self.line(&whole)?;
            }
        }
        if self.partial.len() + rest.len() > LINE_BYTES {
            return Err(Trouble::TooLong);
        }
        self.partial.extend_from_slice(rest);
        Ok(self.count - before)
    }

    /// Judges the whole stream, which must have at least `least` events.
    ///
    /// # Errors
    /// [`Trouble::NoDone`], [`Trouble::Empty`] or [`Trouble::Short`], the first of them that
    /// applies.
    pub(crate) fn finish(&self, least: u64) -> Result<(), Trouble> {
        match (self.done && self.partial.is_empty(), self.text) {
            (false, _) => Err(Trouble::NoDone),
            (true, false) => Err(Trouble::Empty),
            (true, true) if self.count < least => Err(Trouble::Short),
            (true, true) => Ok(()),
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<(), Trouble> {
        let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else { return Ok(()) };
        if self.done {
            return Err(Trouble::AfterDone);
        }
        if data == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        if memchr::memmem::find(data, ERROR).is_some() {
            return Err(Trouble::ErrorEvent);
        }
        self.count += 1;
        // Reading all of them would cost the load more than it costs a proxy to pass them on.
        self.text = self.text || has_text(data);
        Ok(())
    }
}

/// True if a completion, a chat or an event of one has text.
fn has_text(json: &[u8]) -> bool {
    let value: Value = serde_json::from_slice(json).unwrap_or_default();
    let choices = value.get("choices").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    choices.iter().any(|choice| {
        let found =
            ["/text", "/message/content", "/delta/content"].into_iter().find_map(|at| choice.pointer(at));
        found.and_then(Value::as_str).is_some_and(|text| !text.is_empty())
    })
}
