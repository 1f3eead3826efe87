//! Opcodes of `Lib/pickle.py`, those that carry plain data.

pub(super) const PROTO: u8 = 0x80;
pub(super) const FRAME: u8 = 0x95;
pub(super) const STOP: u8 = b'.';
pub(super) const MARK: u8 = b'(';

pub(super) const NONE: u8 = b'N';
pub(super) const NEW_TRUE: u8 = 0x88;
pub(super) const NEW_FALSE: u8 = 0x89;
pub(super) const BIN_INT: u8 = b'J';
pub(super) const BIN_INT1: u8 = b'K';
pub(super) const BIN_INT2: u8 = b'M';
pub(super) const LONG1: u8 = 0x8A;
pub(super) const LONG4: u8 = 0x8B;

pub(super) const SHORT_BIN_BYTES: u8 = b'C';
pub(super) const BIN_BYTES: u8 = b'B';
pub(super) const BIN_BYTES8: u8 = 0x8E;
pub(super) const SHORT_BIN_UNICODE: u8 = 0x8C;
pub(super) const BIN_UNICODE: u8 = b'X';
pub(super) const BIN_UNICODE8: u8 = 0x8D;

pub(super) const EMPTY_TUPLE: u8 = b')';
pub(super) const TUPLE1: u8 = 0x85;
pub(super) const TUPLE2: u8 = 0x86;
pub(super) const TUPLE3: u8 = 0x87;
pub(super) const TUPLE: u8 = b't';
pub(super) const EMPTY_LIST: u8 = b']';
pub(super) const APPEND: u8 = b'a';
pub(super) const APPENDS: u8 = b'e';
pub(super) const EMPTY_DICT: u8 = b'}';
pub(super) const SET_ITEM: u8 = b's';
pub(super) const SET_ITEMS: u8 = b'u';

pub(super) const MEMOIZE: u8 = 0x94;
pub(super) const BIN_PUT: u8 = b'q';
pub(super) const LONG_BIN_PUT: u8 = b'r';
pub(super) const BIN_GET: u8 = b'h';
pub(super) const LONG_BIN_GET: u8 = b'j';
