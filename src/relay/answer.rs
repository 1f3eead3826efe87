//! What the client gets: a whole body that was complete before its first byte went out, or a stream.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response, header};
use http_body::{Body, Frame, SizeHint};
use smallvec::SmallVec;

use crate::relay::account::Ledger;
use crate::relay::merged::Merged;
use crate::relay::stream::Stream;

/// As much of a complete answer is handed on at once: what the layer below takes it keeps, outside of every limit, until a
/// client over HTTP/2 opens its window.
const PIECE_BYTES: usize = 16 << 10;

/// An answer to the client.
pub type Answer = Response<AnswerBody>;

/// The body of an answer: one of three, none of which has to ask at each piece which of them it is.
#[derive(Debug)]
pub enum AnswerBody {
    /// Complete.
    Whole(Whole),
    /// Arrives piece by piece.
    Stream(Box<Stream>),
    /// The same, of several prompts.
    Merged(Box<Merged>),
}

/// A complete answer. Its account is settled when the connection has taken all of it.
#[derive(Debug)]
pub struct Whole {
    pieces: Pieces,
    #[expect(dead_code, reason = "held for its Drop")]
    ledger: Box<Ledger>,
}

/// Bytes that are handed on piece by piece.
#[derive(Debug)]
struct Pieces(Bytes);

/// What an engine lets pages of other origins do. vLLM lets all of them read by default; behind us that is ours to say (`server.cors_origins`).
const CORS: &str = "access-control-";

/// Headers of an engine's answer that describe its connection or its framing, which ours replace.
static NOT_PASSED: [HeaderName; 11] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::DATE,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    HeaderName::from_static("proxy-connection"),
    header::SERVER,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Takes out of an engine's headers what belongs to its connection alone, what it says so of, and whose pages may read the answer.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    for name in named_by_connection(headers) {
        headers.remove(name);
    }
    // Comparing the few that are there is cheaper than looking up the many that could be.
    let ends_here = |name: &&HeaderName| NOT_PASSED.contains(name) || name.as_str().starts_with(CORS);
    let there: SmallVec<[HeaderName; 8]> = headers.keys().filter(ends_here).cloned().collect();
    for name in there {
        headers.remove(name);
    }
}

/// Headers that `Connection` lists (RFC 9110 §7.6.1): whoever passes a message on leaves them out.
pub fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let lines = headers.get_all(header::CONNECTION).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).filter_map(|name| name.trim().parse().ok()).collect()
}

impl Whole {
    /// These bytes, of a request with this account.
    pub fn of(body: Bytes, ledger: Ledger) -> Whole {
        Whole { pieces: Pieces(body), ledger: Box::new(ledger) }
    }
}

impl Whole {
    /// What has not been handed on yet.
    pub fn bytes(&self) -> &Bytes {
        &self.pieces.0
    }
}

impl Pieces {
    fn next(&mut self) -> Option<Bytes> {
        let piece = self.0.split_to(self.0.len().min(PIECE_BYTES));
        (!piece.is_empty()).then_some(piece)
    }
}

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.pieces.next().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.pieces.0.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_small_and_lose_nothing() {
        for length in [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES - 1] {
            let all: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let mut pieces = Pieces(all.clone().into());
            let taken: Vec<Bytes> = std::iter::from_fn(|| pieces.next()).collect();
            assert_eq!(taken.concat(), all);
            assert_eq!(taken.len(), length.div_ceil(PIECE_BYTES));
        }
    }
}
