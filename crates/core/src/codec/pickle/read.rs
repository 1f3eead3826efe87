//! The reader: plain data from a peer that may send anything.
//!
//! Objects live in a table and refer to each other by index, so that a list that was put in the
//! memo before it was filled reads right. The tree is built at the end, under the same limits. That
//! also ends cycles, and chains of references that would multiply.

use std::collections::BTreeMap;

use super::{MAX_DEPTH, Value, op};

/// Longest integer taken: an i128.
const MAX_INT_BYTES: usize = size_of::<i128>();

/// Limits of a pickle that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimits {
    /// Length of the pickle.
    pub max_bytes: usize,
    /// Opcodes in the pickle, and objects in what it stands for, references followed.
    pub max_items: usize,
    /// Bytes of all strings in what it stands for, references followed.
    pub max_text_bytes: usize,
}

/// Reasons why a pickle was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The pickle ends in the middle.
    #[error("the pickle is cut short")]
    Truncated,
    /// Bytes behind the end.
    #[error("bytes follow the end of the pickle")]
    Trailing,
    /// A limit of [`ReadLimits`], or the depth.
    #[error("the pickle exceeds {0}")]
    TooLarge(&'static str),
    /// Protocols 2 to 5 are read.
    #[error("not a pickle of protocol 2 to 5")]
    Protocol,
    /// Not one of the opcodes for plain data.
    #[error("pickle opcode {0:#04x} is not plain data")]
    Opcode(u8),
    /// The opcodes don't fit together.
    #[error("malformed pickle: {0}")]
    Malformed(&'static str),
}

/// One object, its parts by their index in the table.
#[derive(Debug)]
enum Node<'a> {
    None,
    Bool(bool),
    Int(i128),
    Bytes(&'a [u8]),
    Str(&'a str),
    Tuple(Vec<usize>),
    List(Vec<usize>),
    /// Keys and values in turn.
    Dict(Vec<usize>),
}

struct Machine<'a> {
    rest: &'a [u8],
    nodes: Vec<Node<'a>>,
    stack: Vec<usize>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: BTreeMap<u32, usize>,
}

/// Rest of the limits while the tree is built.
struct Budget {
    items: usize,
    text_bytes: usize,
}

impl Default for ReadLimits {
    /// Room for an answer about a million blocks.
    fn default() -> Self {
        Self { max_bytes: 16 << 20, max_items: 2 << 20, max_text_bytes: 16 << 20 }
    }
}

/// The one object of a pickle.
pub fn read(pickle: &[u8], limits: ReadLimits) -> Result<Value, ReadError> {
    if pickle.len() > limits.max_bytes {
        return Err(ReadError::TooLarge("the size limit"));
    }
    let mut machine = Machine {
        rest: pickle,
        nodes: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: BTreeMap::new(),
    };
    if machine.byte()? != op::PROTO || !(2..=5).contains(&machine.byte()?) {
        return Err(ReadError::Protocol);
    }
    for _ in 0..limits.max_items {
        let opcode = machine.byte()?;
        if opcode == op::STOP {
            return machine.result(Budget { items: limits.max_items, text_bytes: limits.max_text_bytes });
        }
        machine.step(opcode)?;
    }
    Err(ReadError::TooLarge("the item limit"))
}

impl<'a> Machine<'a> {
    fn step(&mut self, opcode: u8) -> Result<(), ReadError> {
        match opcode {
            // A frame says how much to read at once; everything is here already.
            op::FRAME => self.length::<8>().map(drop),
            op::MARK => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            op::APPEND | op::APPENDS | op::SET_ITEM | op::SET_ITEMS => self.fill(opcode),
            op::MEMOIZE => {
                let index = u32::try_from(self.memo.len()).map_err(|_| ReadError::TooLarge("the memo"))?;
                self.put(index)
            }
            op::BIN_PUT => {
                let index = self.byte()?;
                self.put(u32::from(index))
            }
            op::LONG_BIN_PUT => {
                let index = u32::from_le_bytes(self.array()?);
                self.put(index)
            }
            op::BIN_GET => {
                let index = self.byte()?;
                self.get(u32::from(index))
            }
            op::LONG_BIN_GET => {
                let index = u32::from_le_bytes(self.array()?);
                self.get(index)
            }
            _ => {
                let node = self.object(opcode)?;
                self.stack.push(self.nodes.len());
                self.nodes.push(node);
                Ok(())
            }
        }
    }

    /// An opcode that makes an object.
    fn object(&mut self, opcode: u8) -> Result<Node<'a>, ReadError> {
        Ok(match opcode {
            op::NONE => Node::None,
            op::NEW_TRUE => Node::Bool(true),
            op::NEW_FALSE => Node::Bool(false),
            op::BIN_INT1 => Node::Int(i128::from(self.byte()?)),
            op::BIN_INT2 => Node::Int(i128::from(u16::from_le_bytes(self.array()?))),
            op::BIN_INT => Node::Int(i128::from(i32::from_le_bytes(self.array()?))),
            op::LONG1 => self.long::<1>()?,
            op::LONG4 => self.long::<4>()?,
            op::SHORT_BIN_BYTES => Node::Bytes(self.string::<1>()?),
            op::BIN_BYTES => Node::Bytes(self.string::<4>()?),
            op::BIN_BYTES8 => Node::Bytes(self.string::<8>()?),
            op::SHORT_BIN_UNICODE => text(self.string::<1>()?)?,
            op::BIN_UNICODE => text(self.string::<4>()?)?,
            op::BIN_UNICODE8 => text(self.string::<8>()?)?,
            op::EMPTY_TUPLE => Node::Tuple(Vec::new()),
            op::TUPLE1 => Node::Tuple(self.last(1)?),
            op::TUPLE2 => Node::Tuple(self.last(2)?),
            op::TUPLE3 => Node::Tuple(self.last(3)?),
            op::TUPLE => Node::Tuple(self.since_mark()?),
            op::EMPTY_LIST => Node::List(Vec::new()),
            op::EMPTY_DICT => Node::Dict(Vec::new()),
            _ => return Err(ReadError::Opcode(opcode)),
        })
    }

    /// Adds items to the list or dict below them.
    fn fill(&mut self, opcode: u8) -> Result<(), ReadError> {
        let items = match opcode {
            op::APPEND => self.last(1)?,
            op::SET_ITEM => self.last(2)?,
            _ => self.since_mark()?,
        };
        let target = self.top()?;
        match (self.nodes.get_mut(target), opcode) {
            (Some(Node::List(list)), op::APPEND | op::APPENDS) => list.extend(items),
            (Some(Node::Dict(dict)), op::SET_ITEM | op::SET_ITEMS) if items.len().is_multiple_of(2) => {
                dict.extend(items);
            }
            _ => return Err(ReadError::Malformed("items for an object that takes none")),
        }
        Ok(())
    }

    fn put(&mut self, index: u32) -> Result<(), ReadError> {
        let top = self.top()?;
        self.memo.insert(index, top);
        Ok(())
    }

    fn get(&mut self, index: u32) -> Result<(), ReadError> {
        let node = *self.memo.get(&index).ok_or(ReadError::Malformed("a reference to nothing"))?;
        self.stack.push(node);
        Ok(())
    }

    /// Height of the stack below which the last mark hides everything.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<usize, ReadError> {
        self.stack[self.floor().min(self.stack.len())..]
            .last()
            .copied()
            .ok_or(ReadError::Malformed("the stack is empty"))
    }

    fn last(&mut self, count: usize) -> Result<Vec<usize>, ReadError> {
        let at = self.stack.len().checked_sub(count).filter(|at| *at >= self.floor());
        Ok(self.stack.split_off(at.ok_or(ReadError::Malformed("the stack is empty"))?))
    }

    fn since_mark(&mut self) -> Result<Vec<usize>, ReadError> {
        let mark = self.marks.pop().ok_or(ReadError::Malformed("no mark"))?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn result(self, mut budget: Budget) -> Result<Value, ReadError> {
        match (self.rest, self.marks.as_slice(), self.stack.as_slice()) {
            ([], [], [root]) => self.build(*root, MAX_DEPTH, &mut budget),
            ([_, ..], _, _) => Err(ReadError::Trailing),
            _ => Err(ReadError::Malformed("not exactly one object")),
        }
    }

    fn build(&self, node: usize, depth_left: usize, budget: &mut Budget) -> Result<Value, ReadError> {
        let below = depth_left.checked_sub(1).ok_or(ReadError::TooLarge("the depth limit"))?;
        spend(&mut budget.items, 1, "the item limit")?;
        let all = |parts: &[usize], budget: &mut Budget| {
            parts.iter().map(|part| self.build(*part, below, budget)).collect::<Result<Vec<_>, _>>()
        };
        Ok(match self.nodes.get(node).ok_or(ReadError::Malformed("a reference to nothing"))? {
            Node::None => Value::None,
            Node::Bool(value) => Value::Bool(*value),
            Node::Int(value) => Value::Int(*value),
            Node::Bytes(bytes) => {
                spend(&mut budget.text_bytes, bytes.len(), "the text limit")?;
                Value::Bytes(bytes.to_vec())
            }
            Node::Str(text) => {
                spend(&mut budget.text_bytes, text.len(), "the text limit")?;
                Value::Str((*text).to_owned())
            }
            Node::Tuple(parts) => Value::Tuple(all(parts, budget)?),
            Node::List(parts) => Value::List(all(parts, budget)?),
            Node::Dict(parts) => {
                let (pairs, _) = parts.as_chunks::<2>();
                let pair = |[key, value]: &[usize; 2]| {
                    Ok((self.build(*key, below, budget)?, self.build(*value, below, budget)?))
                };
                Value::Dict(pairs.iter().map(pair).collect::<Result<_, _>>()?)
            }
        })
    }

    fn byte(&mut self) -> Result<u8, ReadError> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ReadError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(ReadError::Truncated)?;
        self.rest = rest;
        Ok(*array)
    }

    /// A little-endian length of `N` bytes, at most what is left.
    fn length<const N: usize>(&mut self) -> Result<usize, ReadError> {
        let spelled: [u8; N] = self.array()?;
        let len = spelled.iter().rev().fold(0_u64, |len, byte| len << 8 | u64::from(*byte));
        usize::try_from(len).ok().filter(|len| *len <= self.rest.len()).ok_or(ReadError::Truncated)
    }

    fn string<const N: usize>(&mut self) -> Result<&'a [u8], ReadError> {
        let len = self.length::<N>()?;
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(ReadError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// A little-endian integer in two's complement, of any length.
    fn long<const N: usize>(&mut self) -> Result<Node<'a>, ReadError> {
        let bytes = self.string::<N>()?;
        if bytes.len() > MAX_INT_BYTES {
            return Err(ReadError::TooLarge("128 bits in an integer"));
        }
        let negative = bytes.last().is_some_and(|byte| *byte >= 0x80);
        let mut whole = [if negative { 0xFF } else { 0 }; MAX_INT_BYTES];
        whole[..bytes.len()].copy_from_slice(bytes);
        Ok(Node::Int(i128::from_le_bytes(whole)))
    }
}

fn text(bytes: &[u8]) -> Result<Node<'_>, ReadError> {
    std::str::from_utf8(bytes).map(Node::Str).map_err(|_| ReadError::Malformed("a text is not UTF-8"))
}

fn spend(left: &mut usize, count: usize, what: &'static str) -> Result<(), ReadError> {
    *left = left.checked_sub(count).ok_or(ReadError::TooLarge(what))?;
    Ok(())
}
