//! The bytes of MemCache's binary protocol (acc_links framing, 1.1 to 1.3). Pure; all integers are
//! little-endian.
//!
//! ```text
//! hello   i16 magic, i16 version, 4 zero bytes, u64 rank      answer  i16 0 = welcome
//! frame   i16 type, i16 op, u32 body bytes, u32 sequence, u32 crc (0), body
//! body    i16 version, i16 message, u32 destination rank, fields
//! string  u32 bytes, bytes        vector  u64 count, items
//! ```

use bytes::{Buf, Bytes, BytesMut};

mod answer;
mod request;

pub use answer::{Object, Rank, exist, query};
pub use request::{KeyTooLong, request};

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 16;
/// Bytes of the answer to a hello.
pub const WELCOME_BYTES: usize = 2;
/// Most bytes of a body that is read: 64 times what 1 024 keys with two replicas take.
pub const MAX_BODY_BYTES: usize = 8 << 20;

const MAGIC: i16 = 3867;
const LINK_VERSION: i16 = 1;
const FRAME_TYPE: i16 = 0;
/// Rank of a client that has none. The service ends the objects of a hello's rank when its link
/// ends, and this one owns nothing.
const NO_RANK: u64 = u64::MAX;

/// Operations that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Presence of many keys: the same bytes in all versions.
    Exist,
    /// Ranks and tiers of many keys.
    Query(Form),
}

/// The two forms of [`Op::Query`]. A service answers the form that it doesn't know with an empty
/// vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// 1.1: the keys alone; an answer does not tell whether an object can be read yet.
    Plain,
    /// 1.2 and later: an operation's number and a flag before the keys. Flag 0 leaves leases alone.
    Flagged,
}

/// A frame from the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Operation, as asked.
    pub op: i16,
    /// The question's number.
    pub seq: u32,
    /// The body, from its version on.
    pub body: Bytes,
}

/// Bytes that are not what this protocol has at their place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end too early.
    #[error("the answer ends early")]
    Short,
    /// More bytes than the answer has a use for, or lengths that don't add up to them.
    #[error("the answer's lengths don't add up to its {0} bytes")]
    Layout(usize),
    /// A frame of another type, or an announced length beyond [`MAX_BODY_BYTES`].
    #[error("a frame of type {kind} with {bytes} bytes")]
    Frame {
        /// The frame's type.
        kind: i16,
        /// Its body's length.
        bytes: usize,
    },
    /// The body is another message's.
    #[error("message {0} instead of the answer")]
    Message(i16),
    /// Not as many entries as keys. None at all: the question had the wrong form, or could not be
    /// read.
    #[error("{got} entries for {asked} keys")]
    Count {
        /// Number of entries.
        got: u64,
        /// Keys asked for.
        asked: usize,
    },
}

impl Op {
    /// Its number in a frame and in a request's body.
    pub fn number(self) -> i16 {
        match self {
            Self::Exist => 9,
            Self::Query(_) => 14,
        }
    }

    /// The message that answers it.
    fn answer(self) -> i16 {
        match self {
            Self::Exist => 5,
            Self::Query(_) => 10,
        }
    }
}

/// The first bytes on a connection. There is no other hello: no rank can be given.
pub fn hello() -> [u8; 16] {
    let [m0, m1] = MAGIC.to_le_bytes();
    let [v0, v1] = LINK_VERSION.to_le_bytes();
    let [r0, r1, r2, r3, r4, r5, r6, r7] = NO_RANK.to_le_bytes();
    [m0, m1, v0, v1, 0, 0, 0, 0, r0, r1, r2, r3, r4, r5, r6, r7]
}

/// Takes the next whole frame out of `buffer`; `None` until it is all there.
///
/// # Errors
/// [`WireError::Frame`], as soon as its header is there: the connection is of no use any more.
pub fn take_frame(buffer: &mut BytesMut) -> Result<Option<Frame>, WireError> {
    let Some(mut header) = buffer.get(..HEADER_BYTES) else { return Ok(None) };
    let (kind, op) = (header.get_i16_le(), header.get_i16_le());
    let bytes = usize::try_from(header.get_u32_le()).unwrap_or(usize::MAX);
    let seq = header.get_u32_le();
    if kind != FRAME_TYPE || bytes > MAX_BODY_BYTES {
        return Err(WireError::Frame { kind, bytes });
    }
    if buffer.len() < HEADER_BYTES + bytes {
        return Ok(None);
    }
    buffer.advance(HEADER_BYTES);
    Ok(Some(Frame { op, seq, body: buffer.split_to(bytes).freeze() }))
}

#[cfg(test)]
mod tests;
