//! Type literals: what a message says about its own type. By them an answer of a later version is
//! read as far as presence goes.
//!
//! ```text
//! 01 i32 | 02 u32 | 03 i64 | 04 u64 | 05 i8 | 06 u8 | 07 i16 | 08 u16 | 0b bool | 0c char | fa nothing
//! 80 0c string | 84 T vector | 85 T optional | 82 K V map | 86 T… ff variant | 87 T E expected | fd T… ff struct
//! ```
//! A struct of plain numbers has two more bytes before its end, for size and alignment.

use super::WireError;
use super::read::Cursor;

/// Nested types of one literal.
const MAX_DEPTH: usize = 16;
/// Values read per byte of payload, and beside it: types may have parts that take no bytes.
const STEPS_PER_BYTE: usize = 8;
const STEPS_BESIDE: usize = 1 << 12;

const INT32: u8 = 0x01;
const STRING: u8 = 0x80;
const CHAR: u8 = 0x0c;
const MAP: u8 = 0x82;
const VECTOR: u8 = 0x84;
const OPTIONAL: u8 = 0x85;
const VARIANT: u8 = 0x86;
const EXPECTED: u8 = 0x87;
const NOTHING: u8 = 0xfa;
const STRUCT: u8 = 0xfd;
const END: u8 = 0xff;

/// A type in struct_pack's literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Literal {
    /// So many bytes.
    Plain(usize),
    /// Strings are vectors of one byte.
    Vector(Box<Literal>),
    Map(Box<[Literal; 2]>),
    Optional(Box<Literal>),
    Variant(Vec<Literal>),
    Expected(Box<[Literal; 2]>),
    Struct(Vec<Literal>),
}

impl Literal {
    /// Longest literal that is looked at; the longest known has 61 bytes.
    pub(super) const MAX_BYTES: usize = 512;

    /// The type that `literal` spells, if all of it is one.
    pub(super) fn parse(literal: &[u8]) -> Option<Self> {
        let mut rest = literal.get(..literal.len().min(Self::MAX_BYTES))?;
        let parsed = parse(&mut rest, MAX_DEPTH)?;
        (rest.is_empty() && literal.len() <= Self::MAX_BYTES).then_some(parsed)
    }

    /// Of `vector<expected<T, i32>>` or `expected<T, i32>`: whether it is the vector, and `T`.
    pub(super) fn into_response(self) -> Option<(bool, Self)> {
        let (many, entry) = match self {
            Literal::Vector(entry) => (true, *entry),
            entry => (false, entry),
        };
        match entry {
            Literal::Expected(parts) => match *parts {
                [response, Literal::Plain(4)] => Some((many, response)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Values that may be read of a payload.
    pub(super) fn steps(payload_bytes: usize) -> usize {
        payload_bytes.saturating_mul(STEPS_PER_BYTE).saturating_add(STEPS_BESIDE)
    }

    /// Goes past one value.
    pub(super) fn skip(&self, at: &mut Cursor<'_>, steps: &mut usize) -> Result<(), WireError> {
        *steps = steps.checked_sub(1).ok_or(WireError::Malformed("too many values for its bytes"))?;
        match self {
            Literal::Plain(bytes) => at.bytes(*bytes).map(drop),
            Literal::Vector(item) => {
                if let Literal::Plain(bytes @ 1..) = **item {
                    let count = at.count(bytes)?;
                    return at.bytes(count * bytes).map(drop);
                }
                (0..at.count(0)?).try_for_each(|_| item.skip(at, steps))
            }
            Literal::Map(pair) => {
                (0..at.count(0)?).try_for_each(|_| pair.iter().try_for_each(|part| part.skip(at, steps)))
            }
            Literal::Optional(item) => {
                if at.flag()? {
                    item.skip(at, steps)
                } else {
                    Ok(())
                }
            }
            Literal::Variant(items) => {
                let item = items.get(usize::from(at.byte()?));
                item.ok_or(WireError::Malformed("a variant that its type does not have"))?.skip(at, steps)
            }
            Literal::Expected(parts) => {
                let [value, error] = &**parts;
                if at.flag()? { value.skip(at, steps) } else { error.skip(at, steps) }
            }
            Literal::Struct(parts) => parts.iter().try_for_each(|part| part.skip(at, steps)),
        }
    }
}

fn parse(rest: &mut &[u8], depth_left: usize) -> Option<Literal> {
    let below = depth_left.checked_sub(1)?;
    let (first, after) = rest.split_first()?;
    *rest = after;
    let mut one = || parse(rest, below);
    Some(match *first {
        0x05 | 0x06 | 0x0b | CHAR => Literal::Plain(1),
        0x07 | 0x08 => Literal::Plain(2),
        INT32 | 0x02 => Literal::Plain(4),
        0x03 | 0x04 => Literal::Plain(8),
        NOTHING => Literal::Plain(0),
        STRING | VECTOR => Literal::Vector(Box::new(one()?)),
        OPTIONAL => Literal::Optional(Box::new(one()?)),
        MAP => Literal::Map(Box::new([one()?, one()?])),
        EXPECTED => Literal::Expected(Box::new([one()?, one()?])),
        VARIANT => Literal::Variant(parts(rest, below)?),
        STRUCT => Literal::Struct(parts(rest, below)?),
        _ => return None,
    })
}

/// The parts up to the end mark.
fn parts(rest: &mut &[u8], depth_left: usize) -> Option<Vec<Literal>> {
    let mut parts = Vec::new();
    loop {
        match *rest {
            [END, after @ ..] => {
                *rest = after;
                return Some(parts);
            }
            // Size and alignment: no type consists of two such bytes.
            [MAP..NOTHING, MAP..NOTHING, END, after @ ..] => {
                *rest = after;
                return Some(parts);
            }
            _ => parts.push(parse(rest, depth_left)?),
        }
    }
}
