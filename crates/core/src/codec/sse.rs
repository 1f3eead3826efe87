//! Server-sent events (WHATWG HTML §9.2): frame boundaries in a stream that arrives in arbitrary
//! chunks.
//!
//! A frame is everything up to and including the blank line that ends it. Lines end with LF, CR LF
//! or CR, mixed as a sender likes. A blank line that ends with a bare CR ends its frame at once,
//! although an LF may still follow and then belongs to it. If that LF comes with a later chunk, it
//! is passed on by itself.

use std::borrow::Cow;
use std::iter;
use std::ops::Range;
use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use memchr::memmem::Finder;
use memchr::{memchr2, memchr2_iter};

/// The payload of the frame with which an OpenAI-compatible stream says that it is complete.
const DONE: &[u8] = b"[DONE]";
/// The word that every frame has which reports a failure, in its `event` line or in its data.
static ERROR_WORD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"error"));
/// Frames longer than this are not looked into for [`DONE`]; room for an `event` line beside it.
const DONE_FRAME_BYTES: usize = 64;

/// Holds back incomplete frames, so that whoever is downstream only ever sees whole ones.
///
/// All bytes come out again, in order and unchanged. The bytes that have come out, and what
/// [`Framer::frames`] and [`Framer::ended`] say, depend on the bytes that went in and not on how
/// they were chunked. Frames beyond the cap are excepted: of these, more may be out already.
#[derive(Debug)]
pub struct Framer {
    cap_bytes: usize,
    held: BytesMut,
    edges: Edges,
    /// Bytes of the frame at hand that are not in `held`, having been passed on raw.
    released_bytes: usize,
    frames: u64,
    ended: bool,
    mentions_error: bool,
}

/// One frame of a text, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    whole: &'a [u8],
    start: usize,
    complete: bool,
}

/// The frames of a text, see [`frames`].
#[derive(Debug, Clone)]
pub struct Frames<'a> {
    bytes: &'a [u8],
    at: usize,
    edges: Edges,
}

/// Finds blank lines across chunks.
#[derive(Debug, Clone)]
struct Edges {
    /// Nothing has been seen of the current line.
    line_empty: bool,
    last_cr: LastCr,
}

/// The byte before the next one, as far as it matters to an LF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastCr {
    No,
    /// A CR that ended a line: an LF belongs to it.
    EndedLine,
    /// A CR that ended a frame: an LF belongs to that frame.
    EndedFrame,
}

/// A place where a frame ends.
struct Edge {
    /// Offset behind the frame's last byte.
    end: usize,
    /// Only the LF of a blank line whose CR was an edge already.
    late_lf: bool,
}

impl Framer {
    /// `cap_bytes`: most bytes of an incomplete frame that are held back.
    pub fn new(cap_bytes: usize) -> Self {
        let held = BytesMut::new();
        Self {
            cap_bytes,
            held,
            edges: Edges::new(),
            released_bytes: 0,
            frames: 0,
            ended: false,
            mentions_error: false,
        }
    }

    /// Takes the next chunk; returns all frames that are complete by now, if any, and keeps the
    /// incomplete rest.
    ///
    /// A chunk that ends with a frame while nothing is held is returned as it is, and so, without
    /// copying, is its part up to the last frame's end. If the rest exceeds the cap, framing is
    /// given up for that frame: its bytes are returned raw as they arrive, and holding back resumes
    /// behind its end.
    pub fn push(&mut self, chunk: Bytes) -> Option<Bytes> {
        if self.held.is_empty() {
            let cut = self.cut(&chunk, 0);
            self.held.extend_from_slice(&chunk[cut..]);
            let out = if cut == chunk.len() { chunk } else { chunk.slice(..cut) };
            return Some(out).filter(|out| !out.is_empty());
        }
        let seen = self.held.len();
        let mut joined = std::mem::take(&mut self.held);
        joined.extend_from_slice(&chunk);
        let cut = self.cut(&joined, seen);
        let out = joined.split_to(cut).freeze();
        self.held = joined;
        Some(out).filter(|out| !out.is_empty())
    }

    /// The held rest at the end of the stream, if any. By the standard a client ignores it.
    pub fn finish(&mut self) -> Option<Bytes> {
        self.edges = Edges::new();
        self.released_bytes = 0;
        Some(self.held.split().freeze()).filter(|out| !out.is_empty())
    }

    /// Complete frames seen that carry data: comments, bare `event:`/`id:`/`retry:` fields and
    /// blank lines do not count, frames beyond the cap do, whatever is in them.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// True if a part of a frame beyond the cap has come out and its end has not.
    pub fn mid_frame(&self) -> bool {
        self.released_bytes > 0
    }

    /// True if the last frame that counted was `data: [DONE]`, white space aside.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// True if a frame since the last call has the word `error` anywhere, so that it may report a
    /// failure.
    pub fn take_error_hint(&mut self) -> bool {
        std::mem::take(&mut self.mentions_error)
    }

    /// Number of leading bytes of `bytes` that can be released: `bytes[..seen]` was looked at
    /// before, and starts a frame if nothing was released.
    fn cut(&mut self, bytes: &[u8], seen: usize) -> usize {
        let mut cut = 0;
        let mut at = seen;
        while let Some(edge) = self.edges.next(bytes, at) {
            if !edge.late_lf {
                self.account(&bytes[cut..edge.end]);
            }
            cut = edge.end;
            at = edge.end;
        }
        let rest = bytes.len() - cut;
        if self.released_bytes > 0 || rest > self.cap_bytes {
            self.released_bytes += rest;
            cut = bytes.len();
        }
        cut
    }

    /// Notes a complete frame, of which `frame` is what was not released before.
    fn account(&mut self, frame: &[u8]) {
        // The LF of a last CR LF may as well come late and would then not be counted.
        let len =
            std::mem::take(&mut self.released_bytes) + frame.len() - usize::from(frame.ends_with(b"\r\n"));
        let oversized = len > self.cap_bytes;
        if oversized || has_data(frame) {
            self.frames += 1;
            self.mentions_error |= ERROR_WORD.find(frame).is_some();
            self.ended = !oversized && len <= DONE_FRAME_BYTES && data(frame).trim_ascii() == DONE;
        }
    }
}

/// The frames of `bytes` in order; together they are all of it. Bytes after the last blank line
/// come as a last frame that is not [`Frame::is_complete`].
pub fn frames(bytes: &[u8]) -> Frames<'_> {
    Frames { bytes, at: 0, edges: Edges::new() }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        let start = self.at;
        if start == self.bytes.len() {
            return None;
        }
        let edge = self.edges.next(self.bytes, start);
        self.at = edge.as_ref().map_or(self.bytes.len(), |edge| edge.end);
        Some(Frame { whole: &self.bytes[start..self.at], start, complete: edge.is_some() })
    }
}

impl<'a> Frame<'a> {
    /// All its bytes, the blank line included.
    pub fn whole(&self) -> &'a [u8] {
        self.whole
    }

    /// Place where it lies in the bytes given to [`frames`].
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.whole.len()
    }

    /// True if its blank line is there.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// True if it has a `data` line at all.
    pub fn has_data(&self) -> bool {
        has_data(self.whole)
    }

    /// The payload: its `data` lines joined with LF, borrowed if there is but one; empty if there
    /// is none.
    pub fn data(&self) -> Cow<'a, [u8]> {
        data(self.whole)
    }

    /// Place where in [`Frame::whole`] the payload lies, if it has one `data` line and no more.
    pub fn data_range(&self) -> Option<Range<usize>> {
        let mut found = lines(self.whole).filter_map(|line| {
            let value = field(&self.whole[line.clone()], b"data")?;
            Some(line.end - value.len()..line.end)
        });
        found.next().filter(|_| found.next().is_none())
    }

    /// The value of its last `event` line.
    pub fn event(&self) -> Option<&'a [u8]> {
        fields(self.whole, b"event").last()
    }
}

impl Edges {
    fn new() -> Self {
        Self { line_empty: true, last_cr: LastCr::No }
    }

    /// The first edge behind `from`; all bytes before `from` must have been through here.
    fn next(&mut self, bytes: &[u8], from: usize) -> Option<Edge> {
        let mut at = from;
        let before = std::mem::replace(&mut self.last_cr, LastCr::No);
        match bytes.get(at) {
            None => {
                self.last_cr = before;
                return None;
            }
            Some(b'\n') if before == LastCr::EndedFrame => return Some(Edge { end: at + 1, late_lf: true }),
            Some(b'\n') if before == LastCr::EndedLine => at += 1,
            Some(_) => {}
        }
        while let Some(hit) = memchr2(b'\n', b'\r', &bytes[at..]) {
            let blank = self.line_empty && hit == 0;
            self.line_empty = true;
            let cr = bytes[at + hit] == b'\r';
            at += hit + 1;
            if cr && at == bytes.len() {
                self.last_cr = if blank { LastCr::EndedFrame } else { LastCr::EndedLine };
            }
            at += usize::from(cr && bytes.get(at) == Some(&b'\n'));
            if blank {
                return Some(Edge { end: at, late_lf: false });
            }
        }
        self.line_empty &= at == bytes.len();
        None
    }
}

/// The ranges between the bytes that end lines. Between a CR and its LF there is none.
fn lines(frame: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    memchr2_iter(b'\n', b'\r', frame).chain(iter::once(frame.len())).map(move |end| {
        let line = start..end;
        start = end + 1;
        line
    })
}

/// The values of a frame's lines `name: value` or `name`, in order, without the one space that may
/// lead.
fn fields<'a>(frame: &'a [u8], name: &'static [u8]) -> impl Iterator<Item = &'a [u8]> {
    lines(frame).filter_map(move |line| field(&frame[line], name))
}

/// The value of a line that is `name: value` or `name`.
fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    match line.strip_prefix(name)? {
        [] => Some(&line[line.len()..]),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

fn has_data(frame: &[u8]) -> bool {
    // Nearly every frame is one `data: …` line: no need to look for its end.
    frame.starts_with(b"data:") || fields(frame, b"data").next().is_some()
}

fn data(frame: &[u8]) -> Cow<'_, [u8]> {
    let mut lines = fields(frame, b"data");
    let first = lines.next().unwrap_or_default();
    match lines.next() {
        None => Cow::Borrowed(first),
        Some(second) => {
            let rest: Vec<_> = [first, second].into_iter().chain(lines).collect();
            Cow::Owned(rest.join(&b'\n'))
        }
    }
}

#[cfg(test)]
mod tests;
