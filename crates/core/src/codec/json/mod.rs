//! The members of a JSON object as byte spans, and edits that splice them.
//!
//! One pass finds where each top-level member starts and ends; nested values are stepped over by
//! matching brackets and skipping strings, and are left for an engine to judge. It promises that
//! whatever text CPython's `json.loads` accepts is either refused here or read here with the same
//! members. So no spelling of a key (duplicates, `\u` escapes, odd white space, nesting) can carry
//! a value past an [`Edit`].
//!
//! Stricter than CPython: no byte order mark, no UTF-16/32, no bare surrogates in the UTF-8,
//! bounded depth and member count. Looser: nested values and the insides of strings are not
//! validated.

mod catch;
mod media;
mod scan;
mod splice;
mod text;
mod value;

#[cfg(test)]
mod props;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

pub use catch::Catch;
pub use media::{MediaKind, Medium};
use scan::{Document, Member, Members, Scanner, Span};
pub use splice::{Edit, Parts};
pub use text::quote;
pub use value::Value;

/// Default of [`ScanLimits::depth`]: half of what CPython's own recursion limit lets through.
pub const MAX_DEPTH: usize = 512;
/// Default of [`ScanLimits::members`]: two orders of magnitude above any real request.
pub const MAX_MEMBERS: usize = 4096;

/// Bounds of one scan; a text beyond them is refused, not cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanLimits {
    /// Most brackets open at once, the outermost `{` included.
    pub depth: usize,
    /// Most top-level members, duplicates included.
    pub members: usize,
}

impl Default for ScanLimits {
    fn default() -> Self {
        Self { depth: MAX_DEPTH, members: MAX_MEMBERS }
    }
}

/// A JSON object (RFC 8259, plus `NaN` and `±Infinity`) that keeps its text and knows where its
/// members are.
#[derive(Clone)]
pub struct Object {
    bytes: Bytes,
    members: Members,
    /// Offset just behind the opening brace.
    inside: usize,
    limits: ScanLimits,
    /// Strings that are no text, in their order.
    media: Vec<Medium>,
}

/// Reason why a text is not an object we can edit, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{kind} at byte {at}")]
pub struct JsonError {
    /// Description of the fault.
    pub kind: JsonErrorKind,
    /// Offset of the offending byte in the scanned text.
    pub at: usize,
}

/// Faults of a text; the wording is fit for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JsonErrorKind {
    /// The text is not valid UTF-8.
    #[error("invalid UTF-8")]
    NotUtf8,
    /// The outermost value is not an object.
    #[error("expected a JSON object")]
    NotAnObject,
    /// More brackets are open than [`ScanLimits::depth`] allows.
    #[error("nested deeper than {limit} levels")]
    TooDeep {
        /// The bound that was hit.
        limit: usize,
    },
    /// The object has more members than [`ScanLimits::members`] allows.
    #[error("more than {limit} members")]
    TooManyMembers {
        /// The bound that was hit.
        limit: usize,
    },
    /// A byte that the grammar does not allow here.
    #[error("{0}")]
    Syntax(&'static str),
    /// The text is longer than can be pointed into.
    #[error("longer than {limit_bytes} bytes")]
    TooLong {
        /// The bound that was hit.
        limit_bytes: usize,
    },
    /// Something other than white space follows the object.
    #[error("unexpected text after the object")]
    Trailing,
    /// The text stops in the middle of the object.
    #[error("unexpected end of the text")]
    UnexpectedEnd,
}

/// The longest spelling of one byte of a key: a backslash, `u` and four digits.
const ESCAPE_BYTES: usize = 6;

impl Object {
    /// Reads `bytes` as one object with optional white space around it; `O(len)`, nothing is
    /// copied.
    ///
    /// # Errors
    /// The first thing that is wrong with the text, as far as it is looked at (see the module's
    /// text).
    pub fn scan(bytes: Bytes, limits: ScanLimits) -> Result<Self, JsonError> {
        match simdutf8::compat::from_utf8(&bytes) {
            Ok(_) => Self::scan_utf8(bytes, limits),
            Err(bad) => Err(JsonError { kind: JsonErrorKind::NotUtf8, at: bad.valid_up_to() }),
        }
    }

    /// As [`Object::scan`], for text that is known to be UTF-8.
    fn scan_utf8(bytes: Bytes, limits: ScanLimits) -> Result<Self, JsonError> {
        let mut object = Self { members: Members::new(), inside: 0, bytes, limits, media: Vec::new() };
        let found = Scanner::new(&object.bytes, 0, limits).document(&mut object.members)?;
        let Document { inside, media } = found;
        (object.inside, object.media) = (inside, media);
        Ok(object)
    }

    /// The value of `key`: of its last occurrence, as in CPython and in most other readers.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        let member = self.members.iter().rev().find(|member| self.is(member, key))?;
        Some(self.value(member.value))
    }

    /// True if `key` occurs at all.
    pub fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Every member in the order of the text, duplicates included, keys decoded; what cannot be a
    /// Rust string in a key (a lone surrogate) is shown as U+FFFD.
    pub fn members(&self) -> impl Iterator<Item = (Cow<'_, str>, Value<'_>)> {
        self.members.iter().map(|member| (text::lossy(self.key(member)), self.value(member.value)))
    }

    /// Images, sounds, films and files in it, whose data or addresses are no text, in the order of
    /// the text.
    pub fn media(&self) -> &[Medium] {
        &self.media
    }

    /// The bounds that it was scanned under.
    pub fn limits(&self) -> ScanLimits {
        self.limits
    }

    /// The text that was scanned, surrounding white space included.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// True if a member has this key. One that is too long to spell it is not decoded, since that
    /// costs as much as it is long, once for each key that is looked for.
    fn is(&self, member: &Member, key: &str) -> bool {
        let spelled_bytes = member.key.end() - member.key.start() - 2;
        if member.escaped {
            spelled_bytes <= ESCAPE_BYTES * key.len() && *self.key(member) == *key.as_bytes()
        } else {
            spelled_bytes == key.len() && self.bytes[member.key.start() + 1..].starts_with(key.as_bytes())
        }
    }

    /// A member's key with its escapes decoded, as WTF-8 (see [`text::unescape`]).
    fn key(&self, member: &Member) -> Cow<'_, [u8]> {
        let raw = &self.bytes[member.key.start() + 1..member.key.end() - 1];
        if !member.escaped {
            return Cow::Borrowed(raw);
        }
        // The scan refused keys that do not decode, so the fall-back is never taken.
        text::unescape(raw).unwrap_or(Cow::Borrowed(raw))
    }

    fn value(&self, span: Span) -> Value<'_> {
        Value::new(&self.bytes, span, self.limits)
    }
}

/// Sizes only: the text may be somebody's prompt.
impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("len_bytes", &self.bytes.len())
            .field("members", &self.members.len())
            .finish()
    }
}
