//! One way to write Python objects for both formats that are hashed.

use crate::codec::{cbor, pickle};

/// Formats of a hash's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Pickle, protocol 5.
    Pickle,
    /// Canonical CBOR (RFC 8949 §4.2).
    Cbor,
}

/// Identity of string objects, see [`pickle::Identity`]: CBOR does not care.
pub(super) use crate::codec::pickle::Identity;

/// Objects in the order of the text: a tuple is `open(n)`, n objects, `close(n)`.
pub(super) trait Encode {
    fn none(&mut self);
    fn int(&mut self, value: i64);
    fn uint(&mut self, value: u64);
    fn text(&mut self, text: &str, identity: Identity);
    fn bytes(&mut self, bytes: &[u8]);
    fn open(&mut self, len: usize);
    fn close(&mut self, len: usize);
    /// Items of a tuple.
    fn tokens(&mut self, tokens: &[u32]);
}

/// A value that can be written in both formats. A trait rather than a closure, so that each format
/// gets code of its own: calls through a pointer cost as much as the digest of a small block.
pub(super) trait CanonicalValue {
    /// Writes exactly one object.
    fn spell(&self, out: &mut impl Encode);
}

impl Format {
    /// Appends one object to `out`.
    pub(super) fn append(self, out: &mut Vec<u8>, object: &impl CanonicalValue) {
        match self {
            Self::Pickle => {
                let mut writer = pickle::Writer::new(out, pickle::Protocol::V5);
                object.spell(&mut writer);
                writer.finish();
            }
            Self::Cbor => object.spell(&mut cbor::Writer::new(out)),
        }
    }

    /// Appends a block without extra keys, if there is a short way.
    pub(super) fn append_plain(self, out: &mut Vec<u8>, parent: &[u8], block: &[u32]) -> bool {
        self == Self::Pickle && pickle::plain_block(out, parent, block)
    }

    /// The bytes of a string by itself.
    pub(super) fn of_text(self, text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        self.append(&mut out, &Text(text));
        out
    }
}

/// A string by itself.
struct Text<'a>(&'a str);

impl CanonicalValue for Text<'_> {
    fn spell(&self, out: &mut impl Encode) {
        out.text(self.0, Identity::Fresh);
    }
}

impl Encode for pickle::Writer<'_> {
    fn none(&mut self) {
        self.none();
    }

    fn int(&mut self, value: i64) {
        self.int(i128::from(value));
    }

    fn uint(&mut self, value: u64) {
        self.int(i128::from(value));
    }

    fn text(&mut self, text: &str, identity: Identity) {
        self.text(text, identity);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes(bytes);
    }

    fn open(&mut self, len: usize) {
        self.open(len);
    }

    fn close(&mut self, len: usize) {
        self.close(len);
    }

    fn tokens(&mut self, tokens: &[u32]) {
        self.tokens(tokens);
    }
}

impl Encode for cbor::Writer<'_> {
    fn none(&mut self) {
        self.null();
    }

    fn int(&mut self, value: i64) {
        self.int(value);
    }

    fn uint(&mut self, value: u64) {
        self.uint(value);
    }

    fn text(&mut self, text: &str, _: Identity) {
        self.text(text);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes(bytes);
    }

    fn open(&mut self, len: usize) {
        self.array(len);
    }

    fn close(&mut self, _: usize) {}

    fn tokens(&mut self, tokens: &[u32]) {
        self.tokens(tokens);
    }
}
