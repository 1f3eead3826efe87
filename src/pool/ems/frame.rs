//! Questions to a lookup server, and its answers. The module is pure.
//!
//! The server unpickles a question to `[request id, [block hashes]]` without a guard: one message
//! that is anything else ends its thread for good, and the engine's scheduler with it. So there is
//! one encoder without options, its bytes are those that CPython's pickler writes for the
//! scheduler's own questions (protocol 4), and a test hands them to CPython. The answer is one
//! pickled number, and nothing else is taken for one.

use std::num::NonZeroUsize;

use crate::codec::pickle::{self, Protocol, ReadError, ReadLimits, Unwritable, Value};
use crate::kvhash::ems;

/// Most blocks of one question: 2 million tokens at EMS's usual block of 128, and a millisecond of
/// the engine's thread.
pub const MAX_BLOCKS: usize = 16_384;

/// Request id of our questions, for the engine's log.
const REQUEST_ID: &str = "pd-proxy";

/// A number in any of pickle's forms, with frame and memo.
const LIMITS: ReadLimits = ReadLimits { max_bytes: 64, max_items: 8, max_text_bytes: 0 };

/// No tokenizer has this id.
const NO_TOKEN: [u32; 1] = [u32::MAX];

/// A question about leading blocks, and one more that no pool can have. A server whose pool raises
/// answers that all blocks are there, and betrays itself by claiming this one too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Pickle of the question.
    pub body: Vec<u8>,
    /// Blocks asked for, without the impossible one.
    pub blocks: usize,
}

/// Reasons why an answer tells nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// No pickle of a number.
    #[error("{0}")]
    Pickle(#[from] ReadError),
    /// Data, but no count of blocks.
    #[error("the answer is no count of the blocks in the question")]
    NoCount,
    /// It claims a block that does not exist: what EMS answers when its pool raises.
    #[error("the answer claims a block that does not exist: the pool behind it is in trouble")]
    Impossible,
}

impl Request {
    /// Asks for the first [`MAX_BLOCKS`] of `hashes`, which may be none: the answer to that is
    /// known, see [`count`].
    ///
    /// # Errors
    /// None that these values can have; the pickler's.
    pub fn new(hashes: &[i64]) -> Result<Self, Unwritable> {
        let hashes = hashes.get(..MAX_BLOCKS).unwrap_or(hashes);
        let all = hashes.iter().copied().chain([impossible(hashes.last().copied().unwrap_or(ems::START))]);
        Ok(Self { body: encode(REQUEST_ID, all)?, blocks: hashes.len() })
    }
}

/// Blocks that the server found, of a question about `blocks`; never more than these.
///
/// # Errors
/// [`AnswerError`].
pub fn count(answer: &[u8], blocks: usize) -> Result<usize, AnswerError> {
    let number = match pickle::read(answer, LIMITS)? {
        Value::Int(number) => number,
        Value::Bool(yes) => i128::from(yes),
        _ => return Err(AnswerError::NoCount),
    };
    match usize::try_from(number) {
        Ok(found) if found <= blocks => Ok(found),
        Ok(found) if found == blocks + 1 => Err(AnswerError::Impossible),
        _ => Err(AnswerError::NoCount),
    }
}

fn encode(request_id: &str, hashes: impl Iterator<Item = i64>) -> Result<Vec<u8>, Unwritable> {
    let hashes = hashes.map(|hash| Value::Int(i128::from(hash))).collect();
    pickle::write(&Value::List(vec![Value::Str(request_id.to_owned()), Value::List(hashes)]), Protocol::V4)
}

/// The hash of a block behind `parent` that no engine computes.
fn impossible(parent: i64) -> i64 {
    ems::chain(parent, &NO_TOKEN, NonZeroUsize::MIN).next().unwrap_or(parent)
}

#[cfg(test)]
mod tests;
