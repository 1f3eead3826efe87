//! Reading within the bytes at hand.

use super::{HAS_LITERAL, WireError};

/// Rest of a body, and the width of its lengths.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    /// Bytes of every length: 1, 2, 4 or 8.
    width: usize,
}

/// A body up to its payload.
#[derive(Debug)]
pub(super) struct Open<'a> {
    /// The type code, low bit clear.
    pub code: u32,
    /// The type literal, if there is one, without its end.
    pub literal: Option<&'a [u8]>,
    /// Fields of a later version may follow the last one.
    pub extensible: bool,
    pub payload: Cursor<'a>,
}

/// Reads a body up to its payload.
pub(super) fn open(body: &[u8]) -> Result<Open<'_>, WireError> {
    let mut at = Cursor::new(body);
    let code = u32::from_le_bytes(at.array()?);
    let mut open = Open { code: code & !1, literal: None, extensible: false, payload: at };
    if code & 1 == 0 {
        return Ok(open);
    }
    let at = &mut open.payload;
    let meta = at.byte()?;
    at.width = 1 << (meta >> 3 & 3);
    let skipped = [0, 2, 4, 8][usize::from(meta & 3)];
    at.bytes(skipped)?;
    open.extensible = skipped > 0;
    if meta & HAS_LITERAL != 0 {
        let end = memchr::memchr(0, at.rest).ok_or(WireError::Truncated)?;
        open.literal = Some(at.bytes(end)?);
        at.byte()?;
    }
    Ok(open)
}

impl<'a> Cursor<'a> {
    /// Over `rest`, with lengths of one byte.
    pub(super) fn new(rest: &'a [u8]) -> Self {
        Self { rest, width: 1 }
    }

    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(*array)
    }

    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8, WireError> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    pub(super) fn flag(&mut self) -> Result<bool, WireError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Malformed("a truth value is neither 0 nor 1")),
        }
    }

    pub(super) fn i32(&mut self) -> Result<i32, WireError> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    /// A number of items of at least `item_bytes` each, never more than there are bytes for.
    pub(super) fn count(&mut self, item_bytes: usize) -> Result<usize, WireError> {
        let count = match self.width {
            1 => u64::from(self.byte()?),
            2 => u64::from(u16::from_le_bytes(self.array()?)),
            4 => u64::from(u32::from_le_bytes(self.array()?)),
            _ => u64::from_le_bytes(self.array()?),
        };
        let fits = |count: &usize| count.checked_mul(item_bytes).is_some_and(|bytes| bytes <= self.left());
        usize::try_from(count).ok().filter(fits).ok_or(WireError::Truncated)
    }

    pub(super) fn string(&mut self) -> Result<&'a [u8], WireError> {
        let len = self.count(1)?;
        self.bytes(len)
    }
}

impl Open<'_> {
    /// Nothing may be left behind the last value.
    pub(super) fn end(&self) -> Result<(), WireError> {
        if self.payload.left() == 0 || self.extensible { Ok(()) } else { Err(WireError::Trailing) }
    }
}
