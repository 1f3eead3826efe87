//! The body of an engine's answer, read where it is used: no task and no channel between the socket
//! and the client, and no buffer while nothing comes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::chunked::{BadChunk, Chunked};
use super::head::Framing;
use super::idle::{Idle, Key};
use super::room;
use super::wire::Wire;

/// The body of an engine's answer. Dropped before its end it hangs up; after it, the connection
/// waits for its next request.
#[derive(Debug)]
pub struct Reply {
    /// Place where the connection may go afterwards.
    home: Option<Home>,
    /// First bytes of the body, which came with the head.
    early: Bytes,
    /// `None` once the body has ended or broken.
    wire: Option<Wire>,
    left: Left,
}

/// Place where a connection waits for its next request.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) idle: Idle,
    pub(super) key: Key,
}

#[derive(Debug)]
enum Left {
    Length(u64),
    Chunked(Chunked),
    Close,
}

/// A body that did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum ReplyError {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// The engine closed it too early.
    #[error("the connection was closed before the end of the answer")]
    Early,
    /// Nonsense on the wire.
    #[error("{0}")]
    Chunk(#[from] BadChunk),
}

/// Bytes of one read.
struct Taken {
    data: Bytes,
    /// The body is complete.
    ended: bool,
    /// More came than the body.
    excess: bool,
}

impl Reply {
    /// A body that begins with `early`; afterwards the connection goes `home`.
    pub(super) fn new(wire: Wire, framing: Framing, early: Bytes, home: Option<Home>) -> Reply {
        let left = match framing {
            Framing::Length(bytes) => Left::Length(bytes),
            Framing::Chunked => Left::Chunked(Chunked::default()),
            Framing::Close => Left::Close,
        };
        let mut reply = Reply { wire: Some(wire), left, early, home };
        if reply.early.is_empty() && framing == Framing::Length(0) {
            reply.end(false);
        }
        reply
    }

    /// It comes in small pieces, over some time ([`Wire::acknowledge_by_twos`]).
    pub(crate) fn in_small_pieces(&self) {
        if let Some(wire) = &self.wire {
            wire.acknowledge_by_twos();
        }
    }

    /// Takes the body's bytes out of `bytes`, fresh from the wire.
    fn read(&mut self, bytes: &[u8]) -> Result<Taken, ReplyError> {
        match &mut self.left {
            Left::Close => {
                Ok(Taken { data: Bytes::copy_from_slice(bytes), ended: bytes.is_empty(), excess: false })
            }
            _ if bytes.is_empty() => Err(ReplyError::Early),
            Left::Length(left) => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= here as u64;
                let data = Bytes::copy_from_slice(&bytes[..here]);
                Ok(Taken { data, ended: *left == 0, excess: here < bytes.len() })
            }
            Left::Chunked(coding) => {
                let (data, read) = room::piece(bytes.len(), |data| {
                    coding.read(bytes, |piece| {
                        // Most often there is one piece, or all of them are about what was read.
                        let one = piece.len() + 16 > bytes.len();
                        data.reserve(if one { piece.len() } else { bytes.len() - data.len() });
                        data.extend_from_slice(piece);
                    })
                });
                Ok(Taken { data, ended: coding.ended(), excess: read? < bytes.len() })
            }
        }
    }

    fn end(&mut self, excess: bool) {
        if let (Some(wire), Some(Home { idle, key }), false) = (self.wire.take(), self.home.take(), excess) {
            idle.keep(key, wire);
        }
    }

    fn poll_taken(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Taken>, ReplyError>> {
        if !self.early.is_empty() {
            let early = std::mem::take(&mut self.early);
            return Poll::Ready(self.read(&early).map(Some));
        }
        let Some(mut wire) = self.wire.take() else { return Poll::Ready(Ok(None)) };
        let taken = wire.poll_take(cx, |bytes| self.read(bytes));
        if !matches!(taken, Poll::Ready(Err(_) | Ok(Err(_)))) {
            self.wire = Some(wire);
        }
        Poll::Ready(ready!(taken)?.map(Some))
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = ReplyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ReplyError>>> {
        loop {
            let taken = match ready!(self.poll_taken(cx)) {
                Ok(Some(taken)) => taken,
                Ok(None) => return Poll::Ready(None),
                Err(e) => {
                    self.wire = None;
                    return Poll::Ready(Some(Err(e)));
                }
            };
            if taken.ended {
                self.end(taken.excess);
            }
            if !taken.data.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(taken.data))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.wire.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.left {
            Left::Length(left) => SizeHint::with_exact(left),
            _ if self.wire.is_none() => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        }
    }
}
