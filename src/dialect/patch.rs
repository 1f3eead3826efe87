//! Replacements in a text by the spans of what is replaced; all other bytes stay.

use std::ops::Range;

use bytes::Bytes;

/// Replacements in one text, each of a span of it.
#[derive(Default)]
pub(super) struct Patch(Vec<(Range<usize>, Bytes)>);

impl Patch {
    /// Puts `value` in the place of a span, if there is one.
    pub(super) fn set(&mut self, span: Option<Range<usize>>, value: impl AsRef<[u8]>) {
        if let Some(span) = span {
            self.0.push((span, Bytes::copy_from_slice(value.as_ref())));
        }
    }

    /// Puts `text` behind the byte before `at`.
    pub(super) fn insert(&mut self, at: usize, text: &[u8]) {
        self.set(Some(at..at), text);
    }

    /// The text with all replacements; spans that overlap one before them are left out.
    pub(super) fn apply(mut self, text: &Bytes) -> Bytes {
        if self.0.is_empty() {
            return text.clone();
        }
        self.0.sort_by_key(|(span, _)| (span.start, span.end));
        let mut out = Vec::with_capacity(text.len() + 64);
        let mut at = 0;
        for (span, value) in self.0.iter().filter(|(span, _)| span.end <= text.len()) {
            if span.start < at {
                continue;
            }
            out.extend_from_slice(&text[at..span.start]);
            out.extend_from_slice(value);
            at = span.end;
        }
        out.extend_from_slice(&text[at..]);
        out.into()
    }
}
