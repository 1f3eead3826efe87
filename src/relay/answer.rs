//! What the client gets: a whole body that was complete before its first byte went out, or a stream.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response, header};
use http_body::{Body, Frame, SizeHint};

use crate::relay::account::Ledger;
use crate::relay::stream::{Cut, Stream};

/// An answer to the client.
pub type Answer = Response<AnswerBody>;

/// The body of an answer.
#[derive(Debug)]
pub enum AnswerBody {
    /// Complete; taken by the first poll. The account is settled when the connection is done with it.
    Whole(Option<Bytes>, Box<Ledger>),
    /// Arrives piece by piece.
    Stream(Box<Stream>),
}

/// Headers of an engine's answer that describe its connection or its framing, which ours replace.
const NOT_PASSED: [HeaderName; 9] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::DATE,
    header::PROXY_AUTHENTICATE,
    header::SERVER,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Takes out of an engine's headers what belongs to its connection alone, and what it says so of.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    for name in named_by_connection(headers) {
        headers.remove(name);
    }
    for name in &NOT_PASSED {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

/// Headers that `Connection` lists (RFC 9110 §7.6.1): whoever passes a message on leaves them out.
pub fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let lines = headers.get_all(header::CONNECTION).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).filter_map(|name| name.trim().parse().ok()).collect()
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match &mut *self {
            AnswerBody::Whole(bytes, _) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            AnswerBody::Stream(stream) => Pin::new(stream.as_mut()).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, AnswerBody::Whole(None, _))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Whole(bytes, _) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            AnswerBody::Stream(_) => SizeHint::default(),
        }
    }
}
