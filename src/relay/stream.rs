//! A stream from a decoder to the client: the decoder's own bytes, event by event, without a task or a channel.
//!
//! Only complete events go out. So an answer that breaks off never leaves the client in the middle of one: it gets an
//! error event, no `[DONE]`, and a connection that does not end cleanly.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::time::Sleep;

use crate::codec::sse::Framer;
use crate::dialect::{Api, usage};
use crate::error::{Error, Kind};
use crate::fleet::Seat;
use crate::relay::account::Ledger;
use crate::relay::settings::Settings;

/// What a decode leg leaves to be streamed.
pub(super) struct Source {
    pub(super) first: Bytes,
    pub(super) rest: Incoming,
    pub(super) seat: Seat,
    pub(super) api: Api,
    pub(super) sse: bool,
}

/// The body of a streamed answer.
#[derive(Debug)]
pub struct Stream {
    state: State,
    rest: Incoming,
    framer: Option<Framer>,
    api: Api,
    /// What the prefiller found in its caches, for the usage event.
    cached: Option<u64>,
    timer: Pin<Box<Sleep>>,
    gap: Duration,
    last: Instant,
    end: Instant,
    ledger: Ledger,
    _seat: Seat,
}

/// The answer broke off; the error only makes the connection end uncleanly.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off")]
pub struct Cut;

#[derive(Debug)]
enum State {
    /// The first piece has not gone out.
    First(Bytes),
    Running,
    /// The error event has been handed to the connection, which gets one turn to write it.
    Telling,
    /// The connection is to be torn down.
    Broken,
    Done,
}

impl Stream {
    pub(super) fn new(source: Source, ledger: Ledger, settings: &Settings, end: Instant) -> Stream {
        let now = Instant::now();
        Stream {
            state: State::First(source.first),
            rest: source.rest,
            framer: source.sse.then(|| Framer::new(settings.frame_bytes)),
            api: source.api,
            cached: ledger.cached_tokens(),
            timer: Box::pin(tokio::time::sleep_until((now + settings.gap).min(end).into())),
            gap: settings.gap,
            last: now,
            end,
            ledger,
            _seat: source.seat,
        }
    }

    /// What of a piece may go out now.
    fn pass(&mut self, piece: Bytes) -> Option<Bytes> {
        self.last = Instant::now();
        let Some(framer) = &mut self.framer else {
            self.ledger.piece(self.last, 0);
            return Some(piece);
        };
        let out = framer.push(piece)?;
        self.ledger.piece(self.last, framer.frames());
        if !usage::may_carry_usage(&out) {
            return Some(out);
        }
        if let Some(found) = usage::of_frames(self.api, &out) {
            self.ledger.decoded(found);
        }
        Some(match self.cached {
            Some(cached) => usage::frames_with_cached(self.api, out, cached),
            None => out,
        })
    }

    /// The decoder has sent its last byte.
    fn finish(&mut self) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let Some(framer) = &mut self.framer else {
            return self.complete(None);
        };
        let tail = framer.finish();
        let done_unterminated = tail.as_ref().is_some_and(|t| t.trim_ascii() == b"data: [DONE]");
        let complete = match (&tail, self.api.ends_with_done()) {
            (Some(_), _) => done_unterminated,
            (None, true) => framer.ended(),
            (None, false) => true,
        };
        if complete {
            return self.complete(tail);
        }
        self.break_off(Error::new(Kind::DecodeFailed, "the answer ended before it was complete"))
    }

    fn complete(&mut self, tail: Option<Bytes>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        self.ledger.complete();
        self.state = State::Done;
        Poll::Ready(tail.map(|t| Ok(Frame::data(t))))
    }

    fn break_off(&mut self, error: Error) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        self.ledger.broken(&error);
        if self.framer.is_none() {
            self.state = State::Done;
            return Poll::Ready(Some(Err(Cut)));
        }
        self.state = State::Telling;
        Poll::Ready(Some(Ok(Frame::data(self.api.error_event(&error).into()))))
    }

    /// Looks whether the decoder has been silent for too long. One timer serves the whole stream: it is set again when it
    /// fires, not at every piece.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        loop {
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = Instant::now();
            if now >= self.end {
                return Poll::Ready(Error::new(
                    Kind::DecodeTimeout,
                    "the answer took longer than the total time limit",
                ));
            }
            if now >= self.last + self.gap {
                return Poll::Ready(Error::new(Kind::DecodeTimeout, "the decoder fell silent"));
            }
            let next = (self.last + self.gap).min(self.end);
            self.timer.as_mut().reset(next.into());
        }
    }
}

impl Body for Stream {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = &mut *self;
        loop {
            let piece = match std::mem::replace(&mut this.state, State::Running) {
                State::First(first) => Some(first),
                State::Running => match Pin::new(&mut this.rest).poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => frame.into_data().ok(),
                    Poll::Ready(Some(Err(e))) => {
                        let error = Error::new(
                            Kind::DecodeFailed,
                            "the decoder broke off in the middle of its answer",
                        );
                        return this.break_off(error.detail(e.to_string()));
                    }
                    Poll::Ready(None) => return this.finish(),
                    Poll::Pending => match this.poll_silence(cx) {
                        Poll::Ready(error) => return this.break_off(error),
                        Poll::Pending => return Poll::Pending,
                    },
                },
                State::Telling => {
                    this.state = State::Broken;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                State::Broken => {
                    this.state = State::Done;
                    return Poll::Ready(Some(Err(Cut)));
                }
                State::Done => {
                    this.state = State::Done;
                    return Poll::Ready(None);
                }
            };
            if let Some(out) = piece.and_then(|p| this.pass(p)) {
                return Poll::Ready(Some(Ok(Frame::data(out))));
            }
        }
    }
}
