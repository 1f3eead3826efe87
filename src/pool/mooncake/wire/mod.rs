//! The bytes between a client and a Mooncake master: yalantinglibs' `coro_rpc` framing around
//! `struct_pack` bodies.
//!
//! Written from messages of masters 0.3.7 to 0.3.13.post1 (`tests/captures`). All integers are
//! little-endian.
//!
//! ```text
//! request  = magic 15 | version 0 | serialiser 0 | kind 0 | sequence u32 | function u32 | body bytes u32
//!            | attachment bytes u32 | body
//! answer   = magic 15 | version 0 | error u8 | kind 0 | sequence u32 | body bytes u32 | attachment bytes u32
//!            | body | attachment
//! body     = type code u32, low bit: a metainfo byte follows | [metainfo] | [type literal, ends with 00] | payload
//! metainfo = bits 0-1: size of a length field to skip | bit 2: a literal follows | bits 3-4: width of every length
//! ```

mod answer;
mod literal;
mod read;
mod request;
#[cfg(test)]
mod tests;

pub(super) use answer::host_of;
pub use answer::{Answer, read_answer, read_service};
pub use request::{Call, Form, Function, write_request};

use read::Cursor;

use crate::pool::PoolError;

/// Bytes before the body of an answer.
pub const ANSWER_HEAD_BYTES: usize = 16;
/// Largest body, asked or answered: some 200 000 keys or a million replicas.
pub const MAX_BODY_BYTES: usize = 64 << 20;
/// The error of an answer whose master takes another argument list.
pub const INVALID_ARGUMENTS: u8 = 4;

const MAGIC: u8 = 0x15;
const VERSION: u8 = 0;
/// Bit 2 of the metainfo.
const HAS_LITERAL: u8 = 1 << 2;
/// Characters of a master's own words that are passed on.
const TEXT_CHARS: usize = 200;
/// Type code of `string`.
const STRING_CODE: u32 = 0x9dcf_fa76;

/// The head of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHead {
    /// 0, or why there is no answer; the body is then a text.
    pub error: u8,
    /// That of the question.
    pub sequence: u32,
    /// Length of the body.
    pub body_bytes: usize,
    /// Length of what follows the body and is of no interest.
    pub attachment_bytes: usize,
}

/// Faults of an answer, or of a question before it is sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A value goes on behind the end of the body.
    #[error("the answer is cut short")]
    Truncated,
    /// The body goes on behind the last value.
    #[error("bytes follow the end of the answer")]
    Trailing,
    /// The parts don't fit together.
    #[error("malformed answer: {0}")]
    Malformed(&'static str),
    /// A type that this client does not know, and whose literal does not help.
    #[error("unknown type code {code:08x} with literal {literal}")]
    Unknown {
        /// The type code, low bit clear.
        code: u32,
        /// The literal in hexadecimal, or `none`.
        literal: String,
    },
    /// Another number of entries than keys were asked about.
    #[error("{answered} entries for {asked} keys")]
    Count {
        /// Keys asked about.
        asked: usize,
        /// Entries in the answer.
        answered: usize,
    },
    /// The error of one entry that is none of those that mean absence.
    #[error("error {0} for a key")]
    Entry(i32),
    /// The error of the whole call.
    #[error("RPC error {code}: {text}")]
    Rpc {
        /// The error code of the head.
        code: u8,
        /// Text of the master.
        text: String,
    },
    /// A limit of the question.
    #[error("{0}")]
    TooLarge(&'static str),
    /// A question about a key that is not in the batch.
    #[error("no key {0} in the batch")]
    NoKey(u32),
}

impl AnswerHead {
    /// Reads a head.
    ///
    /// # Errors
    /// [`WireError::Malformed`] when these are not the first bytes of an answer, or the body is too
    /// large.
    pub fn read(head: &[u8; ANSWER_HEAD_BYTES]) -> Result<Self, WireError> {
        let mut at = Cursor::new(head);
        let [magic, version, error, _kind] = at.array()?;
        if (magic, version) != (MAGIC, VERSION) {
            return Err(WireError::Malformed("not the head of an RPC answer"));
        }
        let sequence = u32::from_le_bytes(at.array()?);
        let mut length = || -> Result<usize, WireError> {
            let bytes = usize::try_from(u32::from_le_bytes(at.array()?));
            let bytes = bytes.ok().filter(|bytes| *bytes <= MAX_BODY_BYTES);
            bytes.ok_or(WireError::Malformed("it announces more bytes than are read"))
        };
        Ok(Self { error, sequence, body_bytes: length()?, attachment_bytes: length()? })
    }
}

/// The error of an answer whose head has one: the body is a text, as far as it can be read.
pub fn rpc_error(code: u8, body: &[u8]) -> WireError {
    let text = answer::read_text(body).chars().filter(|c| !c.is_control()).take(TEXT_CHARS).collect();
    WireError::Rpc { code, text }
}

impl From<WireError> for PoolError {
    fn from(error: WireError) -> Self {
        let text = error.to_string();
        match error {
            WireError::Entry(_) => PoolError::Refused(text),
            // The arguments, the function or the protocol are another version's; all else may pass.
            WireError::Rpc { code: INVALID_ARGUMENTS | 11 | 12, .. } => PoolError::Protocol(text),
            WireError::Rpc { .. } => PoolError::Refused(text),
            WireError::TooLarge(_) => PoolError::TooLarge(text),
            _ => PoolError::Protocol(text),
        }
    }
}
