//! The writer: byte for byte what `_pickle.c` writes.

use smallvec::SmallVec;

use super::tokens::{TOKEN_BYTES, encode, fit_a_lane};
use super::{MAX_DEPTH, Protocol, Value, op};

/// A frame that has reached this many bytes when the next object begins is closed; strings of this
/// size stand outside of frames (`FRAME_SIZE_TARGET`).
pub(super) const FRAME_BYTES: usize = 64 << 10;
/// Frames below this many bytes go without a header (`FRAME_SIZE_MIN`).
const MIN_FRAME_BYTES: usize = 4;
/// Opcode and length of a frame.
const HEADER_BYTES: usize = 9;
/// Items per mark in lists and dicts (`BATCHSIZE`).
const BATCH_ITEMS: usize = 1000;
/// Most tokens for which room is made at a time.
const BATCH_TOKENS: usize = 1024;
/// Longest integer in two's complement: an i128.
const INT_BYTES: usize = size_of::<i128>();

/// The Python that object a string is. An object that was written before is written as a reference
/// to it; CPython goes by identity there, not by equality.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// An object of its own, met once. (Strings of at most one latin-1 character are interned all
    /// the same.)
    Fresh,
    /// The object with this number, which the caller gives.
    Object(u32),
}

/// Writes one pickle, object by object, into a buffer.
///
/// A tuple is `open(n)`, n objects, `close(n)`. Exactly one object may stand at the top.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
    /// Place where the open frame's header begins.
    frame: Option<usize>,
    memoised: u32,
    known: SmallVec<[(Known, u32); 4]>,
}

/// Objects that may be met again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Object(u32),
    /// CPython keeps one object for each: empty, or one latin-1 character.
    Text(Option<char>),
    /// The same for bytes.
    Bytes(Option<u8>),
}

/// Reasons why a value can't be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unwritable {
    /// Bytes need protocol 3.
    #[error("bytes need pickle protocol 3 or later")]
    BytesInProtocol2,
    /// Nested beyond [`MAX_DEPTH`].
    #[error("nested more than {MAX_DEPTH} deep")]
    TooDeep,
}

/// The pickle of a value, all of whose strings are objects of their own.
pub fn write(value: &Value, protocol: Protocol) -> Result<Vec<u8>, Unwritable> {
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out, protocol);
    writer.value(value, MAX_DEPTH)?;
    writer.finish();
    Ok(out)
}

impl<'a> Writer<'a> {
    /// Begins a pickle behind what `out` holds.
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Self {
        out.extend_from_slice(&[op::PROTO, protocol as u8]);
        Self { out, protocol, frame: None, memoised: 0, known: SmallVec::new() }
    }

    /// Writes Python's `None`.
    pub fn none(&mut self) {
        self.begin();
        self.push(&[op::NONE]);
    }

    /// `True` or `False`.
    pub fn bool(&mut self, value: bool) {
        self.begin();
        self.push(&[if value { op::NEW_TRUE } else { op::NEW_FALSE }]);
    }

    /// Writes an integer.
    pub fn int(&mut self, value: i128) {
        self.begin();
        let le = value.to_le_bytes();
        match value {
            0..0x100 => self.push(&[op::BIN_INT1, le[0]]),
            0x100..0x1_0000 => self.push(&[op::BIN_INT2, le[0], le[1]]),
            -0x8000_0000..0x8000_0000 => self.push(&[op::BIN_INT, le[0], le[1], le[2], le[3]]),
            _ => {
                // The least bytes that keep the sign.
                let len = (1..INT_BYTES).find(|len| (value >> (8 * len - 1)) == value >> (INT_BYTES * 8 - 1));
                let len = len.unwrap_or(INT_BYTES);
                self.push(&[op::LONG1, u8::try_from(len).unwrap_or(u8::MAX)]);
                self.push(&le[..len]);
            }
        }
    }

    /// Each token as an integer object of its own; what `int` would write, faster.
    pub fn tokens(&mut self, tokens: &[u32]) {
        for batch in tokens.chunks(BATCH_TOKENS) {
            self.open_frame();
            // Larger ones need more than the four bytes of a lane, and in the last bytes of a frame
            // each object may begin another.
            if !fit_a_lane(batch) || self.frame_bytes() + batch.len() * TOKEN_BYTES >= FRAME_BYTES {
                batch.iter().for_each(|&token| self.int(i128::from(token)));
            } else {
                encode(batch, self.out);
            }
        }
    }

    /// Writes a string.
    pub fn text(&mut self, text: &str, identity: Identity) {
        self.begin();
        let mut chars = text.chars();
        let known = match (chars.next(), chars.next(), identity) {
            (None, _, _) => Some(Known::Text(None)),
            (Some(c), None, _) if u32::from(c) < 0x100 => Some(Known::Text(Some(c))),
            (_, _, Identity::Object(number)) => Some(Known::Object(number)),
            (_, _, Identity::Fresh) => None,
        };
        if self.recall(known) {
            return;
        }
        let short = (self.protocol >= Protocol::V4).then_some(op::SHORT_BIN_UNICODE);
        self.string(short, [op::BIN_UNICODE, op::BIN_UNICODE8], text.as_bytes());
        self.memoise(known);
    }

    /// A bytes object. Of no use in protocol 2, which spells them as a call.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.begin();
        let known = match bytes {
            [] => Some(Known::Bytes(None)),
            [byte] => Some(Known::Bytes(Some(*byte))),
            _ => None,
        };
        if !self.recall(known) {
            self.string(Some(op::SHORT_BIN_BYTES), [op::BIN_BYTES, op::BIN_BYTES8], bytes);
            self.memoise(known);
        }
    }

    /// Begins a tuple of `len` items.
    pub fn open(&mut self, len: usize) {
        self.begin();
        match len {
            0 => self.push(&[op::EMPTY_TUPLE]),
            1..=3 => {}
            _ => self.push(&[op::MARK]),
        }
    }

    /// Ends the tuple of `len` items that was begun last.
    pub fn close(&mut self, len: usize) {
        match len {
            0 => return,
            1 => self.push(&[op::TUPLE1]),
            2 => self.push(&[op::TUPLE2]),
            3 => self.push(&[op::TUPLE3]),
            _ => self.push(&[op::TUPLE]),
        }
        self.memoise(None);
    }

    /// Ends the pickle.
    pub fn finish(mut self) {
        self.push(&[op::STOP]);
        self.close_frame();
    }

    fn value(&mut self, value: &Value, depth_left: usize) -> Result<(), Unwritable> {
        let below = depth_left.checked_sub(1).ok_or(Unwritable::TooDeep)?;
        match value {
            Value::None => self.none(),
            Value::Bool(value) => self.bool(*value),
            Value::Int(value) => self.int(*value),
            Value::Bytes(_) if self.protocol == Protocol::V2 => return Err(Unwritable::BytesInProtocol2),
            Value::Bytes(bytes) => self.bytes(bytes),
            Value::Str(text) => self.text(text, Identity::Fresh),
            Value::Tuple(items) => {
                self.open(items.len());
                items.iter().try_for_each(|item| self.value(item, below))?;
                self.close(items.len());
            }
            Value::List(items) => {
                self.empty(op::EMPTY_LIST);
                let ops = [op::APPEND, op::APPENDS];
                self.batches(items, ops, |writer, item| writer.value(item, below))?;
            }
            Value::Dict(pairs) => {
                self.empty(op::EMPTY_DICT);
                self.batches(pairs, [op::SET_ITEM, op::SET_ITEMS], |writer, (key, value)| {
                    writer.value(key, below)?;
                    writer.value(value, below)
                })?;
            }
        }
        Ok(())
    }

    fn empty(&mut self, opcode: u8) {
        self.begin();
        self.push(&[opcode]);
        self.memoise(None);
    }

    /// The items of a list or dict: one by itself, more behind a mark.
    fn batches<T>(
        &mut self,
        items: &[T],
        [single, many]: [u8; 2],
        mut item: impl FnMut(&mut Self, &T) -> Result<(), Unwritable>,
    ) -> Result<(), Unwritable> {
        if let [only] = items {
            item(self, only)?;
            self.push(&[single]);
            return Ok(());
        }
        for batch in items.chunks(BATCH_ITEMS) {
            self.push(&[op::MARK]);
            batch.iter().try_for_each(|it| item(self, it))?;
            self.push(&[many]);
        }
        Ok(())
    }

    /// Head and bytes of a string; opcodes for lengths up to 8 (if any), 32 and 64 bits.
    fn string(&mut self, short: Option<u8>, [long, huge]: [u8; 2], bytes: &[u8]) {
        let outside = bytes.len() >= FRAME_BYTES && self.protocol >= Protocol::V4;
        if outside {
            self.close_frame();
        } else {
            self.open_frame();
        }
        match (short, u8::try_from(bytes.len()), u32::try_from(bytes.len())) {
            (Some(short), Ok(len), _) => self.out.extend_from_slice(&[short, len]),
            (_, _, Ok(len)) => {
                self.out.push(long);
                self.out.extend_from_slice(&len.to_le_bytes());
            }
            _ => {
                self.out.push(huge);
                self.out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            }
        }
        self.out.extend_from_slice(bytes);
    }

    /// Writes a reference if the object was met before.
    fn recall(&mut self, known: Option<Known>) -> bool {
        let Some(known) = known else {
            return false;
        };
        let Some(index) = self.known.iter().find(|(met, _)| *met == known).map(|(_, index)| *index) else {
            return false;
        };
        match u8::try_from(index) {
            Ok(index) => self.push(&[op::BIN_GET, index]),
            Err(_) => self.indexed(op::LONG_BIN_GET, index),
        }
        true
    }

    /// Gives the object just written the next place in the memo.
    fn memoise(&mut self, known: Option<Known>) {
        let index = self.memoised;
        self.memoised += 1;
        if let Some(known) = known {
            self.known.push((known, index));
        }
        match u8::try_from(index) {
            _ if self.protocol >= Protocol::V4 => self.push(&[op::MEMOIZE]),
            Ok(index) => self.push(&[op::BIN_PUT, index]),
            Err(_) => self.indexed(op::LONG_BIN_PUT, index),
        }
    }

    fn indexed(&mut self, opcode: u8, index: u32) {
        let [a, b, c, d] = index.to_le_bytes();
        self.push(&[opcode, a, b, c, d]);
    }

    /// Begins an object: here, and only here, a full frame ends.
    fn begin(&mut self) {
        if self.frame_bytes() >= FRAME_BYTES {
            self.close_frame();
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.open_frame();
        self.out.extend_from_slice(bytes);
    }

    fn frame_bytes(&self) -> usize {
        self.frame.map_or(0, |start| self.out.len() - start - HEADER_BYTES)
    }

    fn open_frame(&mut self) {
        if self.frame.is_none() && self.protocol >= Protocol::V4 {
            self.frame = Some(self.out.len());
            self.out.extend_from_slice(&[0; HEADER_BYTES]);
        }
    }

    fn close_frame(&mut self) {
        let len = self.frame_bytes();
        let Some(start) = self.frame.take() else {
            return;
        };
        if len < MIN_FRAME_BYTES {
            self.out.drain(start..start + HEADER_BYTES);
            return;
        }
        self.out[start] = op::FRAME;
        self.out[start + 1..start + HEADER_BYTES].copy_from_slice(&(len as u64).to_le_bytes());
    }
}
