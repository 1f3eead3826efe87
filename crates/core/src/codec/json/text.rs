//! JSON strings: decoding escapes, and writing a string.

use std::borrow::Cow;

use bytes::Bytes;
use memchr::memchr;

/// `text` as a JSON string with its quotes; only what JSON requires is escaped.
pub fn quote(text: &str) -> Bytes {
    let mut out = Vec::with_capacity(text.len() + 2);
    push_quoted(&mut out, text);
    Bytes::from(out)
}

/// Appends what [`quote`] returns.
pub(super) fn push_quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..0x20 => {
                out.extend_from_slice(b"\\u00");
                out.extend([byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

/// Decodes the inside of a string; `None` for an escape that JSON does not have.
///
/// The result is WTF-8 (<https://simonsapin.github.io/wtf-8/>): a lone surrogate, which CPython
/// lets pass, becomes its three-byte form, so it equals no name of ours and hides no prefix of one
/// either.
pub(super) fn unescape(raw: &[u8]) -> Option<Cow<'_, [u8]>> {
    let Some(mut plain) = memchr(b'\\', raw) else {
        return Some(Cow::Borrowed(raw));
    };
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    loop {
        out.extend_from_slice(&rest[..plain]);
        rest = &rest[plain..];
        if rest.is_empty() {
            return Some(Cow::Owned(out));
        }
        let (code, used) = escape(rest)?;
        push_code(&mut out, code);
        rest = &rest[used..];
        plain = memchr(b'\\', rest).unwrap_or(rest.len());
    }
}

/// WTF-8 as a string, with U+FFFD for what a string cannot hold.
pub(super) fn lossy(text: Cow<'_, [u8]>) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => String::from_utf8_lossy(text),
        Cow::Owned(text) => Cow::Owned(String::from_utf8_lossy(&text).into_owned()),
    }
}

/// The code point of the escape that `rest` starts with, and how many bytes spell it.
fn escape(rest: &[u8]) -> Option<(u32, usize)> {
    let code = match rest.get(1)? {
        plain @ (b'"' | b'\\' | b'/') => *plain,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'u' => return unicode(rest),
        _ => return None,
    };
    Some((u32::from(code), 2))
}

/// `\uXXXX`, or two of them when they are the halves of one character.
fn unicode(rest: &[u8]) -> Option<(u32, usize)> {
    let high = hex4(rest.get(2..6)?)?;
    let pair = (0xd800..0xdc00).contains(&high) && rest.get(6..8) == Some(b"\\u");
    let low = if pair { rest.get(8..12).and_then(hex4) } else { None };
    match low {
        Some(low @ 0xdc00..0xe000) => Some((0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00), 12)),
        _ => Some((high, 6)),
    }
}

fn hex4(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |code, digit| Some(code << 4 | char::from(*digit).to_digit(16)?))
}

fn push_code(out: &mut Vec<u8>, code: u32) {
    if let Some(char) = char::from_u32(code) {
        out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
        return;
    }
    // A surrogate: 1110xxxx 10xxxxxx 10xxxxxx, by hand because no Rust string may hold it.
    let [_, _, high, low] = code.to_be_bytes();
    out.extend_from_slice(&[0xe0 | high >> 4, 0x80 | (high & 15) << 2 | low >> 6, 0x80 | low & 63]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn decodes(raw: &str, expect: Option<&[u8]>) {
        assert_eq!(unescape(raw.as_bytes()).as_deref(), expect, "{raw}");
    }

    #[test]
    fn escapes_decode() {
        decodes("", Some(b""));
        decodes("plain", Some(b"plain"));
        decodes(r#"a\"b\\c\/d"#, Some(br#"a"b\c/d"#));
        decodes(r"\b\f\n\r\t", Some(b"\x08\x0c\n\r\t"));
        decodes(r"max\u005Ftokens", Some(b"max_tokens"));
        decodes(r"\u00e9\u20ac", Some("é€".as_bytes()));
        decodes(r"\ud83d\ude00!", Some("😀!".as_bytes()));
    }

    #[test]
    fn lone_surrogates_become_wtf8() {
        decodes(r"\ud83d", Some(b"\xed\xa0\xbd"));
        decodes(r"\ude00\ud83d", Some(b"\xed\xb8\x80\xed\xa0\xbd"));
        decodes(r"\ud83dx", Some(b"\xed\xa0\xbdx"));
        decodes(r"\ud83d\u0041", Some(b"\xed\xa0\xbdA"));
        decodes(r"\ud83d\ud83d\ude00", Some(b"\xed\xa0\xbd\xf0\x9f\x98\x80"));
    }

    #[test]
    fn unknown_escapes_are_refused() {
        for raw in [r"\x41", r"\u12", r"\u12g4", r"\u+123", r"\u 123", "\\", r"\U0041", r"\ud83d\u12"] {
            decodes(raw, None);
        }
    }

    #[test]
    fn quoting_escapes_what_json_requires() {
        assert_eq!(quote("a\"b\\c\n\u{1f}é"), r#""a\"b\\c\u000a\u001fé""#);
    }
}
