//! One value of a scanned object, still as text.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use super::scan::{Scanner, Span};
use super::{JsonError, Object, ScanLimits, text};

/// A value's bytes where they lie; the readers interpret on demand and answer `None` for another
/// type.
#[derive(Clone, Copy)]
pub struct Value<'a> {
    bytes: &'a Bytes,
    span: Span,
    limits: ScanLimits,
}

impl<'a> Value<'a> {
    pub(super) fn new(bytes: &'a Bytes, span: Span, limits: ScanLimits) -> Self {
        Self { bytes, span, limits }
    }

    /// The value as it is spelled, without the white space around it.
    pub fn raw(&self) -> &'a [u8] {
        &self.bytes[self.range()]
    }

    /// The same as a slice of the object's buffer: shared, not copied.
    pub fn to_bytes(&self) -> Bytes {
        self.bytes.slice(self.range())
    }

    /// Place where it lies in [`Object::bytes`].
    pub fn range(&self) -> Range<usize> {
        self.span.start()..self.span.end()
    }

    /// True if it is `null`.
    pub fn is_null(&self) -> bool {
        self.raw() == b"null"
    }

    /// True if it is `{…}`.
    pub fn is_object(&self) -> bool {
        self.raw().starts_with(b"{")
    }

    /// True if it is `[…]`.
    pub fn is_array(&self) -> bool {
        self.raw().starts_with(b"[")
    }

    /// True if it is `"…"`.
    pub fn is_string(&self) -> bool {
        self.raw().starts_with(b"\"")
    }

    /// `true` or `false`.
    pub fn as_bool(&self) -> Option<bool> {
        match self.raw() {
            b"true" => Some(true),
            b"false" => Some(false),
            _ => None,
        }
    }

    /// A whole number spelled with digits alone: no sign, fraction or exponent, at most `u64::MAX`.
    pub fn as_u64(&self) -> Option<u64> {
        let digits = self.raw();
        if !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// A string with its escapes decoded; `None` too for a bad escape or a lone surrogate.
    pub fn as_str(&self) -> Option<Cow<'a, str>> {
        let inside = self.raw().strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        match text::unescape(inside)? {
            Cow::Borrowed(text) => std::str::from_utf8(text).ok().map(Cow::Borrowed),
            Cow::Owned(text) => String::from_utf8(text).ok().map(Cow::Owned),
        }
    }

    /// The members of an object value, under the limits of the object it came from; offsets count
    /// from its `{`.
    ///
    /// # Errors
    /// As [`Object::scan`]; [`super::JsonErrorKind::NotAnObject`] for any other type.
    pub fn object(&self) -> Result<Object, JsonError> {
        Object::scan_utf8(self.to_bytes(), self.limits)
    }

    /// Number of elements of an array, or `cap` if it has more; `None` too when it is malformed
    /// before that.
    pub fn array_len_capped(&self, cap: usize) -> Option<usize> {
        let mut scanner = self.inside_array()?;
        for count in 0..cap {
            if scanner.element(count == 0).ok()?.is_none() {
                return Some(count);
            }
        }
        Some(cap)
    }

    /// The first element of an array, if it has one.
    pub fn first_element(&self) -> Option<Value<'a>> {
        let span = self.inside_array()?.element(true).ok()??;
        Some(Value { span, ..*self })
    }

    /// The elements of an array, up to the first that is malformed; none of any other type.
    pub fn elements(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let this = *self;
        let mut scanner = self.inside_array();
        let mut first = true;
        std::iter::from_fn(move || {
            let span = scanner.as_mut()?.element(std::mem::take(&mut first)).ok()??;
            Some(Value { span, ..this })
        })
    }

    fn inside_array(&self) -> Option<Scanner<'a>> {
        self.is_array()
            .then(|| Scanner::new(&self.bytes[..self.span.end()], self.span.start() + 1, self.limits))
    }
}

/// The place only: the text may be somebody's prompt.
impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Value").field(&self.range()).finish()
    }
}
