//! One request written, and the head of its answer read.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::Method;
use smallvec::SmallVec;

use super::Written;
use super::head::{self, BadHead, Head};
use super::wire::Wire;

/// Pieces that are given to the kernel at once: more than bodies have that were edited in a few
/// places.
const PIECES: usize = 16;

/// A request's head and its body.
pub(super) type Pieces = SmallVec<[Bytes; PIECES]>;

/// A request under way.
pub(super) struct Exchange<'a> {
    wire: Wire,
    out: Out,
    written: &'a Written,
    method: &'a Method,
    /// The answer so far.
    inbox: Bytes,
    /// Reason why writing stopped. The answer may be here all the same: engines refuse large bodies
    /// unread.
    stopped: Option<io::Error>,
}

/// The part of a request that has not been written yet.
struct Out {
    pieces: Pieces,
    first: usize,
    /// Something of it was.
    begun: bool,
    flushed: bool,
}

/// An answer's head, and the connection that brings the rest of it.
pub(super) struct StartedResponse {
    pub(super) wire: Wire,
    pub(super) head: Head,
    /// First bytes of the body, which came with the head.
    pub(super) early: Bytes,
    /// True if the request was written to its end: else the connection is of no more use.
    pub(super) written: bool,
}

/// An exchange that brought no head.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) why: ExchangeError,
    /// The request, if not a byte of it was taken: it may be sent over another connection as if
    /// nothing had been.
    pub(super) unsent: Option<Box<Pieces>>,
}

/// Reasons why no head came.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The connection broke while the request was written or the answer awaited.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// The engine closed it instead of answering.
    #[error("the connection was closed before an answer came")]
    Closed,
    /// The engine, or a balancer before it, had waited too long for a request.
    #[error("the connection was closed, as no request had come for long (408)")]
    TimedOutIdle,
    /// The engine's bytes are no answer.
    #[error(transparent)]
    BadHead(#[from] BadHead),
}

impl Out {
    fn left(&self) -> &[Bytes] {
        &self.pieces[self.first..]
    }

    fn advance(&mut self, mut taken_bytes: usize) {
        self.begun = true;
        while let Some(piece) = self.pieces.get_mut(self.first) {
            let here = piece.len().min(taken_bytes);
            piece.advance(here);
            taken_bytes -= here;
            if !piece.is_empty() {
                break;
            }
            // Its memory is of no more use.
            *piece = Bytes::new();
            self.first += 1;
        }
    }
}

/// The head of an answer, and where it ends in what was read.
struct HeadEnd {
    head: Head,
    end: usize,
}

impl<'a> Exchange<'a> {
    /// A request of this method over `wire`.
    pub(super) fn new(wire: Wire, pieces: Pieces, method: &'a Method, written: &'a Written) -> Exchange<'a> {
        let out = Out { pieces, first: 0, begun: false, flushed: false };
        Exchange { wire, out, written, method, inbox: Bytes::new(), stopped: None }
    }

    /// Drives it to the answer's head. Dropped meanwhile, it hangs up.
    pub(super) async fn run(mut self) -> Result<StartedResponse, Failed> {
        let end = poll_fn(|cx| self.poll(cx)).await;
        self.ended(end)
    }

    fn ended(self, end: Result<HeadEnd, ExchangeError>) -> Result<StartedResponse, Failed> {
        match end {
            Ok(HeadEnd { head, end }) => {
                let early = self.inbox.slice(end..);
                Ok(StartedResponse { wire: self.wire, head, early, written: self.out.flushed })
            }
            Err(why) => Err(Failed {
                why: self.stopped.map_or(why, ExchangeError::Broken),
                unsent: (!self.out.begun).then(|| Box::new(self.out.pieces)),
            }),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<HeadEnd, ExchangeError>> {
        if self.stopped.is_none()
            && let Poll::Ready(Err(e)) = self.poll_write(cx)
        {
            self.stopped = Some(e);
        }
        loop {
            let so_far = &mut self.inbox;
            match self.wire.poll_take(cx, |bytes| join(so_far, bytes)) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(ExchangeError::Closed)),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e.into())),
                // Nothing will come of a request that can't be written.
                Poll::Pending if self.stopped.is_some() => return Poll::Ready(Err(ExchangeError::Closed)),
                Poll::Pending => return Poll::Pending,
            }
            if let Some((head, end)) = head::read(&self.inbox, self.method)? {
                return Poll::Ready(Ok(HeadEnd { head, end }));
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.out.left().is_empty() {
            let taken = {
                let left = self.out.left().iter().take(PIECES);
                let slices: SmallVec<[IoSlice<'_>; PIECES]> = left.map(|piece| IoSlice::new(piece)).collect();
                ready!(self.wire.poll_put(cx, &slices))?
            };
            if taken == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.out.advance(taken);
            if self.out.left().is_empty() {
                self.written.set();
            }
        }
        if !self.out.flushed {
            ready!(self.wire.poll_flush(cx))?;
            self.out.flushed = true;
        }
        Poll::Ready(Ok(()))
    }
}

/// Appends `bytes`; returns how many they were.
fn join(so_far: &mut Bytes, bytes: &[u8]) -> usize {
    *so_far = if so_far.is_empty() { Bytes::copy_from_slice(bytes) } else { [so_far, bytes].concat().into() };
    bytes.len()
}
