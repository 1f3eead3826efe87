//! One way to write Python objects for both formats that are hashed.

use crate::codec::{cbor, pickle};

/// What a hash is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Protocol 5.
    Pickle,
    /// Canonical.
    Cbor,
}

/// Which string object is written, see [`pickle::Identity`]: CBOR does not care.
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

impl Format {
    /// Appends one object to `out`, written by `write`.
    pub(super) fn append(self, out: &mut Vec<u8>, write: impl FnOnce(&mut dyn Encode)) {
        match self {
            Self::Pickle => {
                let mut writer = pickle::Writer::new(out, pickle::Protocol::V5);
                write(&mut writer);
                writer.finish();
            }
            Self::Cbor => write(&mut cbor::Writer::new(out)),
        }
    }

    /// The bytes of a string by itself.
    pub(super) fn of_text(self, text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        self.append(&mut out, |encoder| encoder.text(text, Identity::Fresh));
        out
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
