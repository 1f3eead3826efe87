//! A toy tokenizer that can be inverted without a vocabulary file.
//!
//! A token is up to three ASCII characters or one other code point, packed into its id. The two
//! chat marks and the note are one token each, so that the packing starts afresh at every message
//! and a longer conversation keeps its prefix.

use super::text::string_print;

/// Ids at or above this are out of vocabulary.
pub const VOCAB: u32 = 1 << 25;
/// Token that begins a turn: `<|im_start|>`.
pub const TURN_START: u32 = 1;
/// Token that ends a turn: `<|im_end|>`.
pub const TURN_END: u32 = 2;
/// A piece of a code point that has no text yet: a real tokenizer's incomplete UTF-8.
pub const HELD: u32 = 3;
/// Special token within answers: `<|note|>`. Engines show it or leave it out
/// (`skip_special_tokens`).
pub const NOTE: u32 = 4;

const TURN_START_TEXT: &str = "<|im_start|>";
const TURN_END_TEXT: &str = "<|im_end|>";
const NOTE_TEXT: &str = "<|note|>";
/// Bits of one ASCII character.
const ASCII_BITS: u32 = 7;
/// ASCII characters per token.
const ASCII_CHARS: u32 = 3;
/// Bit position of the number of ASCII characters (1 to 3).
const COUNT_SHIFT: u32 = ASCII_BITS * ASCII_CHARS;
/// Marks a token that is one code point (21 bits).
const POINT_FLAG: u32 = 1 << 24;

/// Meaning of a token id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// One to three ASCII characters, the first `usize` of the array.
    Ascii([u8; 3], usize),
    /// One code point.
    Point(char),
    /// A special token, as a chat mark.
    Mark(&'static str),
    /// Nothing to show.
    Silent,
    /// An id this tokenizer never makes.
    Unknown,
}

/// The meaning of `token`.
#[must_use]
pub fn piece(token: u32) -> Piece {
    match token {
        TURN_START => return Piece::Mark(TURN_START_TEXT),
        TURN_END => return Piece::Mark(TURN_END_TEXT),
        HELD => return Piece::Silent,
        NOTE => return Piece::Mark(NOTE_TEXT),
        _ => {}
    }
    if token & POINT_FLAG != 0 {
        return char::from_u32(token & (POINT_FLAG - 1)).map_or(Piece::Unknown, Piece::Point);
    }
    let count = token >> COUNT_SHIFT;
    if token >= VOCAB || count == 0 || count > ASCII_CHARS {
        return Piece::Unknown;
    }
    let at = |i: u32| u8::try_from((token >> (ASCII_BITS * i)) & 0x7f).unwrap_or(0);
    Piece::Ascii([at(0), at(1), at(2)], count as usize)
}

/// Text to tokens; every string has exactly one encoding.
#[must_use]
pub fn encode(text: &str) -> Vec<u32> {
    let mut out = Vec::with_capacity(text.len() / 3 + 1);
    encode_into(text, &mut out);
    out
}

/// The token that stands for each part of an image, which is no text.
#[must_use]
pub fn of_image(url: &str) -> u32 {
    let print = string_print(url) & u64::from(POINT_FLAG - 1);
    POINT_FLAG | u32::try_from(print).unwrap_or(0)
}

/// Like [`encode`], appending.
pub fn encode_into(text: &str, out: &mut Vec<u32>) {
    let (mut packed, mut count) = (0u32, 0u32);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let mark = mark_at(rest);
        if mark.is_some() || !c.is_ascii() || count == ASCII_CHARS {
            flush(&mut packed, &mut count, out);
        }
        if let Some((token, length)) = mark {
            out.push(token);
            rest = rest.get(length..).unwrap_or("");
            continue;
        }
        if c.is_ascii() {
            packed |= u32::from(c) << (ASCII_BITS * count);
            count += 1;
        } else {
            out.push(POINT_FLAG | u32::from(c));
        }
        rest = rest.get(c.len_utf8()..).unwrap_or("");
    }
    flush(&mut packed, &mut count, out);
}

fn flush(packed: &mut u32, count: &mut u32, out: &mut Vec<u32>) {
    if *count > 0 {
        out.push((*count << COUNT_SHIFT) | *packed);
    }
    (*packed, *count) = (0, 0);
}

fn mark_at(text: &str) -> Option<(u32, usize)> {
    if !text.starts_with('<') {
        return None;
    }
    [(TURN_START, TURN_START_TEXT), (TURN_END, TURN_END_TEXT), (NOTE, NOTE_TEXT)]
        .into_iter()
        .find(|(_, mark)| text.starts_with(mark))
        .map(|(token, mark)| (token, mark.len()))
}

/// Appends the text of `token`; an unknown id becomes U+FFFD.
pub fn decode_into(token: u32, out: &mut String) {
    match piece(token) {
        Piece::Ascii(bytes, count) => out.extend(bytes.iter().take(count).map(|&b| char::from(b))),
        Piece::Point(c) => out.push(c),
        Piece::Mark(mark) => out.push_str(mark),
        Piece::Silent => {}
        Piece::Unknown => out.push(char::REPLACEMENT_CHARACTER),
    }
}

/// Tokens to text.
#[must_use]
pub fn decode(tokens: &[u32]) -> String {
    let mut out = String::with_capacity(tokens.len() * 3);
    for &token in tokens {
        decode_into(token, &mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn three_ascii_characters_or_one_other_per_token() {
        assert_eq!(encode("abcdefg").len(), 3);
        assert_eq!(encode("ab\u{4e2d}c").len(), 3);
        assert_eq!(encode("<|im_start|>user").len(), 3);
        assert_eq!(encode(""), Vec::<u32>::new());
        assert_eq!(decode(&[HELD, 100]), "\u{fffd}");
    }

    #[test]
    fn a_longer_conversation_keeps_its_prefix() {
        let one = encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
        let two = encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n");
        assert_eq!(two[..one.len() - 1], one[..one.len() - 1]);
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(text in any::<String>()) {
            let tokens = encode(&text);
            prop_assert!(tokens.iter().all(|&t| t < VOCAB));
            prop_assert_eq!(decode(&tokens), text);
        }
    }
}
