//! A reader of msgpack over the bytes at hand: it borrows, allocates nothing, and steps over values
//! that are not asked for.
//!
//! Format: <https://github.com/msgpack/msgpack/blob/master/spec.md>.

/// Reasons why bytes are no msgpack, or not the shape that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The bytes end within a value.
    #[error("the bytes end within a value")]
    Truncated,
    /// Another type than the field has.
    #[error("a {0} was expected")]
    Expected(&'static str),
    /// More than anybody sends in earnest.
    #[error("it has more {0} than are read")]
    TooMany(&'static str),
    /// Bytes behind the value.
    #[error("bytes are left behind the value")]
    Trailing,
}

/// The next value, with its length where it has one. Scalars are read whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Item<'a> {
    Nil,
    Bool,
    /// Unsigned, or signed and not negative.
    Unsigned(u64),
    /// Signed and negative.
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    Ext,
    /// An array, whose values follow.
    Array(u32),
    /// Pairs of values follow.
    Map(u32),
}

/// The bytes not read yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Most values that can still follow: each takes a byte or more.
    pub(super) fn room(self) -> usize {
        self.0.len()
    }

    pub(super) fn finish(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Trailing) }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    fn length(&mut self, width: u8) -> Result<u32, Malformed> {
        Ok(match width {
            0 => u32::from(self.array::<1>()?[0]),
            1 => u32::from(u16::from_be_bytes(self.array()?)),
            _ => u32::from_be_bytes(self.array()?),
        })
    }

    fn run(&mut self, width: u8) -> Result<&'a [u8], Malformed> {
        let length = self.length(width)?;
        self.take(usize::try_from(length).map_err(|_| Malformed::Truncated)?)
    }

    /// The next value; of arrays and maps only the head.
    pub(super) fn item(&mut self) -> Result<Item<'a>, Malformed> {
        let [tag] = self.array::<1>()?;
        Ok(match tag {
            0x00..=0x7f => Item::Unsigned(u64::from(tag)),
            0x80..=0x8f => Item::Map(u32::from(tag & 0x0f)),
            0x90..=0x9f => Item::Array(u32::from(tag & 0x0f)),
            0xa0..=0xbf => Item::Text(self.take(usize::from(tag & 0x1f))?),
            0xc0 => Item::Nil,
            0xc1 => return Err(Malformed::Expected("value")),
            0xc2 | 0xc3 => Item::Bool,
            0xc4..=0xc6 => Item::Bytes(self.run(tag - 0xc4)?),
            0xca => Item::Float(f64::from(f32::from_be_bytes(self.array()?))),
            0xcb => Item::Float(f64::from_be_bytes(self.array()?)),
            0xcc..=0xcf => Item::Unsigned(self.unsigned(tag)?),
            0xd0..=0xd3 => Self::signed(self.negative(tag)?),
            0xc7..=0xc9 | 0xd4..=0xd8 => self.ext(tag)?,
            0xd9..=0xdb => Item::Text(self.run(tag - 0xd9)?),
            0xdc | 0xdd => Item::Array(self.length(tag - 0xdc + 1)?),
            0xde | 0xdf => Item::Map(self.length(tag - 0xde + 1)?),
            0xe0..=0xff => Item::Negative(i64::from(tag.cast_signed())),
        })
    }

    fn unsigned(&mut self, tag: u8) -> Result<u64, Malformed> {
        Ok(match tag {
            0xcc => u64::from(u8::from_be_bytes(self.array()?)),
            0xcd => u64::from(u16::from_be_bytes(self.array()?)),
            0xce => u64::from(u32::from_be_bytes(self.array()?)),
            _ => u64::from_be_bytes(self.array()?),
        })
    }

    fn negative(&mut self, tag: u8) -> Result<i64, Malformed> {
        Ok(match tag {
            0xd0 => i64::from(i8::from_be_bytes(self.array()?)),
            0xd1 => i64::from(i16::from_be_bytes(self.array()?)),
            0xd2 => i64::from(i32::from_be_bytes(self.array()?)),
            _ => i64::from_be_bytes(self.array()?),
        })
    }

    fn signed(value: i64) -> Item<'a> {
        u64::try_from(value).map_or(Item::Negative(value), Item::Unsigned)
    }

    /// An extension: a length (fixed ones have it in the tag), a type byte, data.
    fn ext(&mut self, tag: u8) -> Result<Item<'a>, Malformed> {
        let length = match tag {
            0xc7..=0xc9 => self.length(tag - 0xc7)?,
            _ => 1 << (tag - 0xd4),
        };
        self.take(1)?;
        self.take(usize::try_from(length).map_err(|_| Malformed::Truncated)?)?;
        Ok(Item::Ext)
    }

    /// Steps over one value with all that is in it. No recursion: nesting costs nothing.
    pub(super) fn skip(&mut self) -> Result<(), Malformed> {
        let mut open: u64 = 1;
        while open > 0 {
            open -= 1;
            match self.item()? {
                Item::Array(count) => open += u64::from(count),
                Item::Map(count) => open += 2 * u64::from(count),
                _ => {}
            }
            // Each open value needs a byte, which also keeps the sum from overflowing.
            if open > self.0.len() as u64 {
                return Err(Malformed::Truncated);
            }
        }
        Ok(())
    }

    /// An array's length.
    pub(super) fn array_len(&mut self) -> Result<u32, Malformed> {
        match self.item()? {
            Item::Array(count) => Ok(count),
            _ => Err(Malformed::Expected("array")),
        }
    }

    /// A text, or None for nil and for what is not UTF-8 text.
    pub(super) fn text_or_none(&mut self) -> Result<Option<&'a str>, Malformed> {
        let mut ahead = *self;
        if let Item::Text(bytes) = ahead.item()? {
            *self = ahead;
            return Ok(std::str::from_utf8(bytes).ok());
        }
        self.skip()?;
        Ok(None)
    }

    /// A number that is not negative, or None for anything else.
    pub(super) fn unsigned_or_none(&mut self) -> Result<Option<u64>, Malformed> {
        let mut ahead = *self;
        if let Item::Unsigned(value) = ahead.item()? {
            *self = ahead;
            return Ok(Some(value));
        }
        self.skip()?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(bytes: &[u8]) -> Item<'_> {
        let mut reader = Reader::new(bytes);
        let item = reader.item().unwrap();
        reader.finish().unwrap();
        item
    }

    #[test]
    fn every_form_of_a_number() {
        assert_eq!(one(&[0x7f]), Item::Unsigned(127));
        assert_eq!(one(&[0xe0]), Item::Negative(-32));
        assert_eq!(one(&[0xcc, 200]), Item::Unsigned(200));
        assert_eq!(one(&[0xcd, 1, 0]), Item::Unsigned(256));
        assert_eq!(one(&[0xce, 0, 1, 0, 0]), Item::Unsigned(65_536));
        assert_eq!(one(&[0xcf, 255, 255, 255, 255, 255, 255, 255, 255]), Item::Unsigned(u64::MAX));
        assert_eq!(one(&[0xd0, 0x80]), Item::Negative(-128));
        assert_eq!(one(&[0xd0, 5]), Item::Unsigned(5));
        assert_eq!(one(&[0xd1, 0xff, 0]), Item::Negative(-256));
        assert_eq!(one(&[0xd2, 0xff, 0xff, 0, 0]), Item::Negative(-65_536));
        assert_eq!(one(&[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0]), Item::Negative(i64::MIN));
        assert_eq!(one(&[0xca, 0x3f, 0xc0, 0, 0]), Item::Float(1.5));
        assert_eq!(one(&[0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0]), Item::Float(1.5));
    }

    #[test]
    fn runs_and_heads() {
        assert_eq!(one(&[0xa2, b'a', b'b']), Item::Text(b"ab"));
        assert_eq!(one(&[0xd9, 1, b'a']), Item::Text(b"a"));
        assert_eq!(one(&[0xda, 0, 1, b'a']), Item::Text(b"a"));
        assert_eq!(one(&[0xdb, 0, 0, 0, 1, b'a']), Item::Text(b"a"));
        assert_eq!(one(&[0xc4, 1, 9]), Item::Bytes(&[9]));
        assert_eq!(one(&[0xc6, 0, 0, 0, 1, 9]), Item::Bytes(&[9]));
        assert_eq!(one(&[0xdc, 1, 0]), Item::Array(256));
        assert_eq!(one(&[0xdd, 0, 1, 0, 0]), Item::Array(65_536));
        assert_eq!(one(&[0xde, 0, 8]), Item::Map(8));
        assert_eq!(one(&[0xdf, 0, 0, 0, 8]), Item::Map(8));
        assert_eq!(one(&[0xd6, 1, 0, 0, 0, 0]), Item::Ext);
        assert_eq!(one(&[0xc7, 2, 1, 0, 0]), Item::Ext);
        assert_eq!(Reader::new(&[0xc1]).item(), Err(Malformed::Expected("value")));
    }

    #[test]
    fn stepping_over_is_bounded_by_the_bytes() {
        // [[], {1: [nil, "x"]}, 2]
        let nested = [0x93, 0x90, 0x81, 1, 0x92, 0xc0, 0xa1, b'x', 2];
        let mut reader = Reader::new(&nested);
        reader.skip().unwrap();
        reader.finish().unwrap();
        for cut in 0..nested.len() {
            assert_eq!(Reader::new(&nested[..cut]).skip(), Err(Malformed::Truncated), "cut at {cut}");
        }
        assert_eq!(Reader::new(&[0xdf, 255, 255, 255, 255, 0]).skip(), Err(Malformed::Truncated));
        let deep = vec![0x91; 100_000];
        assert_eq!(Reader::new(&deep).skip(), Err(Malformed::Truncated));
    }
}
