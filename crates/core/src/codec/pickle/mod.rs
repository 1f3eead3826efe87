//! Python's pickle, protocols 2 to 5, of plain data: integers, strings, bytes, tuples, lists,
//! dicts, `None`, booleans.
//!
//! Engines hash the bytes that CPython's C pickler writes, so [`Writer`] has its memo and frame
//! rules to the byte; they are the same from CPython 3.8 to 3.13. [`read`] takes what a peer sent:
//! it knows no opcode that imports or calls anything, and everything in it is bounded.

mod block;
mod op;
mod read;
#[cfg(test)]
mod tests;
mod tokens;
mod write;

pub use block::plain_block;
pub use read::{ReadError, ReadLimits, read};
pub use write::{Identity, Unwritable, Writer, write};

/// Deepest nesting that is written or read.
pub const MAX_DEPTH: usize = 64;

/// A Python object of plain data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Python's value `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An `int` of up to 127 bits and a sign.
    Int(i128),
    /// Python's type `bytes`.
    Bytes(Vec<u8>),
    /// `str`; lone surrogates can't be had.
    Str(String),
    /// Python's type `tuple`.
    Tuple(Vec<Value>),
    /// Python's type `list`.
    List(Vec<Value>),
    /// `dict`, in the order of insertion; the reader keeps duplicate keys.
    Dict(Vec<(Value, Value)>),
}

/// Pickle protocols that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// Python 2.3 and later. Has no bytes.
    V2 = 2,
    /// Python 3.0 and later.
    V3 = 3,
    /// Python 3.4 and later: frames. The default of CPython 3.8 to 3.13.
    V4 = 4,
    /// Python 3.8 and later. Block hashes use it.
    V5 = 5,
}
