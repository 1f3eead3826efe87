//! One member of an object that comes in pieces, caught as it passes by: nothing else of the text
//! is kept.

use memchr::memchr2;

use super::scan::next_mark;

/// Catches the value of one top-level member. Of several texts in a row, or several members of this
/// name, the last one counts. A text that is no JSON leads to a wrong value or none, never further.
#[derive(Debug)]
pub struct Catch {
    key: &'static [u8],
    limit_bytes: usize,
    /// Brackets that are open.
    depth: usize,
    /// Inside a string; behind a backslash in it.
    string: bool,
    escape: bool,
    /// The next string at the top is a key.
    at_key: bool,
    /// The part of the name that has come, at most a byte longer than the name that is looked for.
    name: Vec<u8>,
    /// The value that is just being caught.
    catching: Option<Vec<u8>>,
    caught: Option<Vec<u8>>,
}

impl Catch {
    /// Of the member `key`, if its value has no more than `limit_bytes`. A key that is spelled with
    /// escapes is another one.
    pub fn new(key: &'static str, limit_bytes: usize) -> Catch {
        Catch {
            key: key.as_bytes(),
            limit_bytes,
            depth: 0,
            string: false,
            escape: false,
            at_key: false,
            name: Vec::new(),
            catching: None,
            caught: None,
        }
    }

    /// The next piece of the text.
    pub fn push(&mut self, piece: &[u8]) {
        let mut at = 0;
        while at < piece.len() {
            let rest = &piece[at..];
            let skipped = self.uninteresting(rest);
            self.keep(&rest[..skipped]);
            if let Some(byte) = rest.get(skipped) {
                self.step(*byte);
            }
            at += skipped + 1;
        }
    }

    /// The value as it is written, with the white space around it.
    pub fn caught(&self) -> Option<&[u8]> {
        self.caught.as_deref()
    }

    /// So many bytes change nothing of where we are.
    fn uninteresting(&self, rest: &[u8]) -> usize {
        let next = match (self.string, self.escape) {
            (_, true) => Some(0),
            (true, false) => memchr2(b'"', b'\\', rest),
            (false, _) if self.depth > 1 => next_mark(rest, 0),
            (false, _) => Some(0),
        };
        next.unwrap_or(rest.len())
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.in_key() {
            let room = (self.key.len() + 1).saturating_sub(self.name.len());
            self.name.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
        if let Some(value) = &mut self.catching {
            if value.len() + bytes.len() > self.limit_bytes {
                self.catching = None;
            } else {
                value.extend_from_slice(bytes);
            }
        }
    }

    fn in_key(&self) -> bool {
        self.string && self.depth == 1 && self.at_key
    }

    fn step(&mut self, byte: u8) {
        if self.string {
            if self.escape || byte != b'"' {
                self.keep(&[byte]);
                self.escape = !self.escape && byte == b'\\';
                return;
            }
            self.string = false;
            self.keep(&[byte]);
            return;
        }
        match byte {
            b'{' | b'[' => {
                self.depth += 1;
                self.at_key = self.depth == 1 && byte == b'{';
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    self.end();
                }
            }
            b',' if self.depth == 1 => {
                self.end();
                self.at_key = true;
            }
            b':' if self.depth == 1 && self.at_key => {
                self.at_key = false;
                self.catching = (self.name == self.key).then(Vec::new);
                return;
            }
            b'"' => {
                self.string = true;
                if self.in_key() {
                    self.name.clear();
                    return;
                }
            }
            _ => {}
        }
        self.keep(&[byte]);
    }

    /// A member is over.
    fn end(&mut self) {
        if let Some(value) = self.catching.take() {
            self.caught = Some(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn caught(pieces: &[&[u8]]) -> Option<Value> {
        let mut catch = Catch::new("usage", 64);
        pieces.iter().for_each(|piece| catch.push(piece));
        catch.caught().map(|text| serde_json::from_slice(text).unwrap())
    }

    /// The oracle is another reader of JSON.
    #[test]
    fn a_member_is_caught_wherever_the_text_is_cut() {
        for text in [
            r#"{"id":"a","choices":[{"usage":1,"s":"\"usage\":{}, } \\"}],"usage":{"p":[1,{"x":"}"}],"n":null} ,"z":{}}"#,
            r#" {"usage" : 7}"#,
            r#"{"a":"\\","usage":"a\"b,}"}"#,
            r#"{"usage":1,"usages":2,"usag":3,"b":{"usage":4},"usage":{"last":true}}"#,
            r#"{"no":[[["usage"]]],"usage_":{"a":1}}"#,
            r#"[{"usage":1},"usage",{"usage":2}]"#,
            "{}",
        ] {
            let whole: Value = serde_json::from_str(text).unwrap();
            let expected = whole.get("usage").cloned();
            assert_eq!(caught(&[text.as_bytes()]), expected, "{text}");
            let bytes = text.as_bytes();
            assert_eq!(caught(&bytes.chunks(1).collect::<Vec<_>>()), expected, "{text}");
            for cut in 0..bytes.len() {
                assert_eq!(caught(&[&bytes[..cut], &bytes[cut..]]), expected, "{text} at {cut}");
            }
        }
    }

    #[test]
    fn overlong_or_cut_value_is_not_caught() {
        let long = format!(r#"{{"usage":"{}"}}"#, "x".repeat(64));
        assert_eq!(caught(&[long.as_bytes()]), None);
        assert_eq!(caught(&[br#"{"usage":{"p":1}"#]), None);
        assert_eq!(caught(&[b"}}]],,::\"", br#"usage":1}"#]), None);
    }
}
