//! The single pass: where members, values and array elements start and end.

use memchr::memchr2;
use smallvec::SmallVec;

use super::media::{self, MOST_MEDIA, Medium};
use super::{JsonError, JsonErrorKind, ScanLimits, text};

/// The longest text: what a [`Span`] can point into. Bodies are bounded far below.
pub(super) const MOST_BYTES: usize = u32::MAX as usize;
/// Words of eight bytes looked at before a vectorised search pays for its set-up.
const NEAR_WORDS: usize = 4;
/// Bytes tested at once for brackets and quotes; a multiple of the vector width of every target.
const LANE_BYTES: usize = 32;

/// Half-open byte range in the scanned text. Half as large as a [`std::ops::Range`]: an object,
/// which a request moves often, has two for each of its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// Of a text that is no longer than [`MOST_BYTES`].
    #[expect(
        clippy::cast_possible_truncation,
        reason = "longer texts are refused before anything is looked for"
    )]
    pub(super) fn new(start: usize, end: usize) -> Span {
        Span { start: start as u32, end: end as u32 }
    }

    pub(super) fn start(self) -> usize {
        self.start as usize
    }

    pub(super) fn end(self) -> usize {
        self.end as usize
    }
}

/// A member of an object: `"key": value`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    /// The key with its quotes.
    pub(super) key: Span,
    /// The value without the white space around it.
    pub(super) value: Span,
    /// True if the key is written with a backslash and must be decoded before it is compared.
    pub(super) escaped: bool,
}

/// Most requests and answers have no more.
pub(super) type Members = SmallVec<[Member; 16]>;

/// A position in a text that is valid UTF-8.
pub(super) struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    limits: ScanLimits,
    /// Strings that are no text, as far as the scan has come.
    media: Vec<Medium>,
}

/// Facts of an object, beside its members.
pub(super) struct Document {
    /// Offset just behind the opening brace.
    pub(super) inside: usize,
    /// Strings that are no text.
    pub(super) media: Vec<Medium>,
}

/// The kinds of the open brackets, one bit each (set: `{`), so that `[}` is noticed.
#[derive(Default)]
struct Brackets {
    bits: SmallVec<[u64; 8]>,
    depth: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a [u8], at: usize, limits: ScanLimits) -> Self {
        Self { text, at, limits, media: Vec::new() }
    }

    /// Reads one object and white space, up to the end of the text, into `members`, which is empty:
    /// filled where it stays, since it is large.
    pub(super) fn document(mut self, members: &mut Members) -> Result<Document, JsonError> {
        if self.text.len() > MOST_BYTES {
            return Err(JsonError {
                kind: JsonErrorKind::TooLong { limit_bytes: MOST_BYTES },
                at: MOST_BYTES,
            });
        }
        if self.text.starts_with("\u{feff}".as_bytes()) {
            return Err(self.syntax("a byte order mark is not allowed"));
        }
        self.skip_space();
        if self.peek()? != b'{' {
            return Err(self.error(JsonErrorKind::NotAnObject));
        }
        if self.limits.depth == 0 {
            return Err(self.error(JsonErrorKind::TooDeep { limit: 0 }));
        }
        self.at += 1;
        let inside = self.at;
        self.members(members)?;
        self.skip_space();
        if self.at < self.text.len() {
            return Err(self.error(JsonErrorKind::Trailing));
        }
        Ok(Document { inside, media: self.media })
    }

    /// From behind `{` to behind its `}`.
    fn members(&mut self, members: &mut Members) -> Result<(), JsonError> {
        self.skip_space();
        if self.eat(b'}') {
            return Ok(());
        }
        loop {
            if members.len() >= self.limits.members {
                return Err(self.error(JsonErrorKind::TooManyMembers { limit: self.limits.members }));
            }
            members.push(self.member()?);
            self.skip_space();
            if self.eat(b'}') {
                return Ok(());
            }
            self.expect(b',', "expected ',' or '}' after a value")?;
            self.skip_space();
        }
    }

    fn member(&mut self) -> Result<Member, JsonError> {
        let start = self.at;
        if self.peek()? != b'"' {
            return Err(self.syntax("expected a key in double quotes"));
        }
        let escaped = self.string()?;
        let key = Span::new(start, self.at);
        if escaped && text::unescape(&self.text[key.start() + 1..key.end() - 1]).is_none() {
            return Err(JsonError { kind: JsonErrorKind::Syntax("invalid escape in the key"), at: start });
        }
        self.skip_space();
        self.expect(b':', "expected ':' after a key")?;
        self.skip_space();
        Ok(Member { key, value: self.value()?, escaped })
    }

    /// One value of any kind, starting here.
    pub(super) fn value(&mut self) -> Result<Span, JsonError> {
        let start = self.at;
        match self.peek()? {
            b'"' => self.string_value()?,
            b'{' | b'[' => self.nested()?,
            _ => self.scalar()?,
        }
        Ok(Span::new(start, self.at))
    }

    /// The next element of the array whose `[` or whose last element lies just behind; `None` at
    /// its `]`.
    pub(super) fn element(&mut self, first: bool) -> Result<Option<Span>, JsonError> {
        self.skip_space();
        if self.eat(b']') {
            return Ok(None);
        }
        if !first {
            self.expect(b',', "expected ',' or ']' after an element")?;
            self.skip_space();
        }
        self.value().map(Some)
    }

    /// Steps over a string that may be a value, and notes it if it is no text.
    #[inline]
    fn string_value(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        self.string()?;
        if media::may_be(self.text, start, self.at) {
            self.note_medium(start);
        }
        Ok(())
    }

    #[cold]
    fn note_medium(&mut self, start: usize) {
        if self.media.len() < MOST_MEDIA
            && let Some(medium) = media::find(self.text, start, self.at, self.media.last())
        {
            self.media.push(medium);
        }
    }

    /// Steps over a string; tells whether it holds a backslash.
    fn string(&mut self) -> Result<bool, JsonError> {
        let mut at = self.at + 1;
        let mut escaped = false;
        loop {
            let Some(hit) = quote_or_backslash(self.text, at) else {
                return Err(self.end());
            };
            at = hit + 1;
            if self.text[hit] == b'"' {
                self.at = at;
                return Ok(escaped);
            }
            // The first byte of an escaped character cannot end the string, and later bytes of a
            // character never do.
            escaped = true;
            at += 1;
        }
    }

    /// Steps over an object or array by its brackets alone.
    fn nested(&mut self) -> Result<(), JsonError> {
        let mut open = Brackets::default();
        loop {
            let Some(at) = next_mark(self.text, self.at) else {
                return Err(self.end());
            };
            self.at = at;
            match self.text[at] {
                b'"' => self.string_value()?,
                mark @ (b'{' | b'[') => {
                    // The outermost object, which this value sits in, is not on this stack: hence
                    // `+ 1`.
                    if open.depth + 1 >= self.limits.depth {
                        return Err(self.error(JsonErrorKind::TooDeep { limit: self.limits.depth }));
                    }
                    open.push(mark == b'{');
                    self.at += 1;
                }
                mark => {
                    if open.pop() != (mark == b'}') {
                        return Err(self.syntax("mismatched bracket"));
                    }
                    self.at += 1;
                    if open.depth == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Steps over a number or one of the words.
    fn scalar(&mut self) -> Result<(), JsonError> {
        let rest = &self.text[self.at..];
        let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']') || is_space(*byte);
        let token = &rest[..rest.iter().position(ends).unwrap_or(rest.len())];
        let word = matches!(token, b"true" | b"false" | b"null" | b"NaN" | b"Infinity" | b"-Infinity");
        if !word && !is_number(token) {
            return Err(self.syntax("expected a value"));
        }
        self.at += token.len();
        Ok(())
    }

    fn skip_space(&mut self) {
        while self.text.get(self.at).is_some_and(|byte| is_space(*byte)) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Result<u8, JsonError> {
        self.text.get(self.at).copied().ok_or_else(|| self.end())
    }

    fn eat(&mut self, byte: u8) -> bool {
        let here = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(here);
        here
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), JsonError> {
        if self.peek()? != byte {
            return Err(self.syntax(what));
        }
        self.at += 1;
        Ok(())
    }

    fn syntax(&self, what: &'static str) -> JsonError {
        self.error(JsonErrorKind::Syntax(what))
    }

    fn error(&self, kind: JsonErrorKind) -> JsonError {
        JsonError { kind, at: self.at }
    }

    fn end(&self) -> JsonError {
        JsonError { kind: JsonErrorKind::UnexpectedEnd, at: self.text.len() }
    }
}

impl Brackets {
    fn push(&mut self, brace: bool) {
        let (word, bit) = (self.depth / 64, self.depth % 64);
        if word == self.bits.len() {
            self.bits.push(0);
        }
        self.bits[word] = self.bits[word] & !(1 << bit) | u64::from(brace) << bit;
        self.depth += 1;
    }

    /// True if the innermost open bracket is a brace; at least one must be open.
    fn pop(&mut self) -> bool {
        self.depth -= 1;
        self.bits[self.depth / 64] >> (self.depth % 64) & 1 == 1
    }
}

/// JSON's white space, and CPython's: nothing else counts.
pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// `-? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?`
fn is_number(token: &[u8]) -> bool {
    fn digits(text: &[u8]) -> (usize, &[u8]) {
        let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        (count, &text[count..])
    }
    let unsigned = token.strip_prefix(b"-").unwrap_or(token);
    let (whole, mut rest) = digits(unsigned);
    if whole == 0 || (whole > 1 && unsigned[0] == b'0') {
        return false;
    }
    if let Some(fraction) = rest.strip_prefix(b".") {
        let (count, after) = digits(fraction);
        if count == 0 {
            return false;
        }
        rest = after;
    }
    if let [b'e' | b'E', power @ ..] = rest {
        let power = power.strip_prefix(b"+").or(power.strip_prefix(b"-")).unwrap_or(power);
        let (count, after) = digits(power);
        return count > 0 && after.is_empty();
    }
    rest.is_empty()
}

/// Offset of the first `"` or `\` at or after `from`. Keys and small values are short and prose has
/// an escape every line or so, while attached documents run for kilobytes.
#[inline]
fn quote_or_backslash(text: &[u8], from: usize) -> Option<usize> {
    match near_hit(text, from, |word| equal(word, b'"') | equal(word, b'\\')) {
        Ok(hit) => Some(hit),
        Err(far) => memchr2(b'"', b'\\', text.get(far..)?).map(|hit| far + hit),
    }
}

/// Offset of the first bracket or quote at or behind `from`.
#[inline]
pub(super) fn next_mark(text: &[u8], from: usize) -> Option<usize> {
    let hits = |word| {
        let curly = word | repeat(0x20);
        equal(curly, b'{') | equal(curly, b'}') | equal(word, b'"')
    };
    near_hit(text, from, hits).map_or_else(|far| far_mark(text, far), Some)
}

/// The same, where none is near: whole lanes without one are skipped, which is what long arrays of
/// token ids consist of. Apart from [`next_mark`], which is small enough then to become part of who
/// calls it.
#[inline(never)]
fn far_mark(text: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(lane) = text.get(at..at + LANE_BYTES) {
        // No early exit inside a lane: this is what lets the compiler use vector instructions.
        if lane.iter().fold(false, |hit, byte| hit | is_mark(*byte)) {
            break;
        }
        at += LANE_BYTES;
    }
    text.get(at..)?.iter().position(|byte| is_mark(*byte)).map(|hit| at + hit)
}

/// One of `{ } [ ] "`: bit 5 is all that tells a square bracket from a curly one.
fn is_mark(byte: u8) -> bool {
    (byte | 0x20 == b'{') | (byte | 0x20 == b'}') | (byte == b'"')
}

/// Offset of the first byte that `hits` marks (see [`equal`]) in the next few words; else where to
/// look on.
fn near_hit(text: &[u8], from: usize, hits: impl Fn(u64) -> u64) -> Result<usize, usize> {
    let mut at = from;
    for _ in 0..NEAR_WORDS {
        let Some(word) = text.get(at..).and_then(|rest| rest.first_chunk()) else {
            break;
        };
        let found = hits(u64::from_le_bytes(*word));
        if found != 0 {
            return Ok(at + found.trailing_zeros() as usize / 8);
        }
        at += size_of::<u64>();
    }
    Err(at)
}

/// Has the top bit of every byte of `word` set that equals `byte`, and perhaps those of bytes above
/// such a one. The lowest bit set is exact (Hacker's Delight, 6-1, "find first 0-byte").
fn equal(word: u64, byte: u8) -> u64 {
    let zero_if_equal = word ^ repeat(byte);
    zero_if_equal.wrapping_sub(repeat(0x01)) & !zero_if_equal & repeat(0x80)
}

const fn repeat(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}
