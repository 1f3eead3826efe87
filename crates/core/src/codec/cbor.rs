//! Canonical CBOR (RFC 8949 §4.2.1) of the shapes that engines hash: what cbor2's `dumps(…,
//! canonical=True)` writes.
//!
//! Shortest heads, definite lengths, no tags and no string sharing. A Python tuple is an array.

/// Most tokens for which room is made at a time.
const BATCH_TOKENS: usize = 1024;
/// Tokens spelled side by side, which a compiler turns into vector instructions.
const LANES: usize = 16;
/// A token's head and argument, at most.
const TOKEN_BYTES: usize = 5;
/// Room of a lane group, and a mask that is not below its last offset: offsets need no further
/// check.
const ROOM_BYTES: usize = 135;
const OFFSET_MASK: usize = 127;

/// Appends items to a buffer.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

/// Major types of RFC 8949 §3.1, in place in the initial byte.
#[derive(Debug, Clone, Copy)]
enum Major {
    Unsigned = 0x00,
    Negative = 0x20,
    Bytes = 0x40,
    Text = 0x60,
    Array = 0x80,
}

impl<'a> Writer<'a> {
    /// Writes behind what `out` holds.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out }
    }

    /// Writes Python's `None`.
    pub fn null(&mut self) {
        self.out.push(0xF6);
    }

    /// An integer of up to 64 bits and a sign.
    pub fn int(&mut self, value: i64) {
        match u64::try_from(value) {
            Ok(argument) => self.head(Major::Unsigned, argument),
            Err(_) => self.head(Major::Negative, !value.cast_unsigned()),
        }
    }

    /// An unsigned integer.
    pub fn uint(&mut self, value: u64) {
        self.head(Major::Unsigned, value);
    }

    /// A byte string.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.head(Major::Bytes, bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }

    /// Writes a text string.
    pub fn text(&mut self, text: &str) {
        self.head(Major::Text, text.len() as u64);
        self.out.extend_from_slice(text.as_bytes());
    }

    /// The head of an array; its `len` items follow.
    pub fn array(&mut self, len: usize) {
        self.head(Major::Array, len as u64);
    }

    /// Each token as an unsigned integer, without a head around them.
    pub fn tokens(&mut self, tokens: &[u32]) {
        for batch in tokens.chunks(BATCH_TOKENS) {
            encode(batch, self.out);
        }
    }

    fn head(&mut self, major: Major, argument: u64) {
        let major = major as u8;
        let bytes = argument.to_be_bytes();
        match argument {
            0..24 => self.out.push(major | bytes[7]),
            24..0x100 => self.out.extend_from_slice(&[major | 24, bytes[7]]),
            0x100..0x1_0000 => {
                self.out.push(major | 25);
                self.out.extend_from_slice(&bytes[6..]);
            }
            0x1_0000..0x1_0000_0000 => {
                self.out.push(major | 26);
                self.out.extend_from_slice(&bytes[4..]);
            }
            _ => {
                self.out.push(major | 27);
                self.out.extend_from_slice(&bytes);
            }
        }
    }
}

/// Encodes without branches on the value, which is as good as random: eight bytes are stored for
/// each token, and the next one overwrites what is not the token's.
fn encode(batch: &[u32], out: &mut Vec<u8>) {
    const { assert!(OFFSET_MASK >= (LANES - 1) * TOKEN_BYTES && ROOM_BYTES >= OFFSET_MASK + 8) };
    let mut at = out.len();
    out.resize(at + batch.len() * TOKEN_BYTES + ROOM_BYTES, 0);
    let (groups, rest) = batch.as_chunks::<LANES>();
    for group in groups {
        let (mut spelled, mut len_bytes) = ([0; LANES], [0; LANES]);
        for lane in 0..LANES {
            (spelled[lane], len_bytes[lane]) = spell(group[lane]);
        }
        let Some(room) = out[at..].first_chunk_mut::<ROOM_BYTES>() else { return };
        let mut offset = 0;
        for lane in 0..LANES {
            let start = offset & OFFSET_MASK;
            room[start..start + 8].copy_from_slice(&spelled[lane].to_le_bytes());
            offset += len_bytes[lane] as usize;
        }
        at += offset;
    }
    for &token in rest {
        let (spelled, len_bytes) = spell(token);
        out[at..at + 8].copy_from_slice(&spelled.to_le_bytes());
        at += len_bytes as usize;
    }
    out.truncate(at);
}

/// The head and argument of a token, first byte lowest, and their length in bytes.
fn spell(token: u32) -> (u64, u32) {
    let tiny = u32::from(token >= 24);
    let (byte, word) = (u32::from(token >= 0x100), u32::from(token >= 0x1_0000));
    // 0, 1, 2 or 4 bytes follow the initial one.
    let tail_bytes = tiny + byte + 2 * word;
    let initial = if tiny == 0 { token } else { 23 + tiny + byte + word };
    let tail = u64::from(token.swap_bytes()) >> (32 - 8 * tail_bytes);
    (u64::from(initial) | tail << 8, 1 + tail_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut Writer::new(&mut out));
        out
    }

    /// Examples of RFC 8949, appendix A.
    #[test]
    fn integers_have_the_shortest_head() {
        let of = |value| written(|w| w.int(value));
        assert_eq!(of(0), [0]);
        assert_eq!(of(23), [0x17]);
        assert_eq!(of(24), [0x18, 0x18]);
        assert_eq!(of(1000), [0x19, 0x03, 0xE8]);
        assert_eq!(of(1_000_000), [0x1A, 0, 0x0F, 0x42, 0x40]);
        assert_eq!(of(1_000_000_000_000), [0x1B, 0, 0, 0, 0xE8, 0xD4, 0xA5, 0x10, 0]);
        assert_eq!(of(-1), [0x20]);
        assert_eq!(of(-100), [0x38, 0x63]);
        assert_eq!(of(i64::MIN), [0x3B, 0x7F, 255, 255, 255, 255, 255, 255, 255]);
        assert_eq!(written(|w| w.uint(u64::MAX)), [0x1B, 255, 255, 255, 255, 255, 255, 255, 255]);
    }

    #[test]
    fn tokens_are_spelled_like_single_integers() {
        let tokens: Vec<u32> = [0, 1, 22, 23, 24, 25, 255, 256, 65_535, 65_536, 1 << 31, u32::MAX].repeat(11);
        let one_by_one = written(|w| tokens.iter().for_each(|&token| w.uint(u64::from(token))));
        assert_eq!(written(|w| w.tokens(&tokens)), one_by_one);
    }

    #[test]
    fn strings_and_arrays_have_their_length_in_front() {
        let item = |w: &mut Writer<'_>| {
            w.array(3);
            w.bytes(&[1, 2]);
            w.text("é");
            w.null();
        };
        assert_eq!(written(item), [0x83, 0x42, 1, 2, 0x62, 0xC3, 0xA9, 0xF6]);
    }
}
