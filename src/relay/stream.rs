//! A stream from a decoder to the client: the decoder's own bytes, event by event, without a task or a channel.
//!
//! Only complete events go out. So an answer that breaks off never leaves the client in the middle of one: it gets an
//! error event, no `[DONE]`, and a connection that does not end cleanly.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use crate::codec::sse::{self, Framer};
use crate::dialect::{Api, usage};
use crate::error::{Error, Kind};
use crate::fleet::Seat;
use crate::relay::account::Ledger;
use crate::relay::settings::Settings;

/// What a decode leg leaves to be streamed.
pub(super) struct Source {
    /// Whole events, the first with data among them.
    pub(super) first: Bytes,
    pub(super) framer: Framer,
    pub(super) rest: Incoming,
    pub(super) seat: Seat,
    pub(super) api: Api,
    pub(super) http2: bool,
}

/// The body of a streamed answer.
#[derive(Debug)]
pub struct Stream {
    state: State,
    rest: Incoming,
    framer: Framer,
    api: Api,
    http2: bool,
    /// The last event has passed.
    over: bool,
    /// What the prefiller found in its caches, for the usage event.
    cached: Option<u64>,
    timer: Pin<Box<Sleep>>,
    gap: Duration,
    last: Instant,
    end: Instant,
    ledger: Ledger,
    seat: Seat,
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
            framer: source.framer,
            api: source.api,
            http2: source.http2,
            over: false,
            cached: ledger.cached_of_prefill(),
            timer: Box::pin(tokio::time::sleep_until((now + settings.gap).min(end))),
            gap: settings.gap,
            last: now,
            end,
            ledger,
            seat: source.seat,
        }
    }

    /// What of a piece may go out now.
    fn pass(&mut self, piece: Bytes) -> Option<Bytes> {
        let out = self.framer.push(piece)?;
        Some(self.whole_events(out))
    }

    /// Looks at what goes out: how much, whether it is the last, and whether its usage is to be corrected.
    fn whole_events(&mut self, out: Bytes) -> Bytes {
        self.last = Instant::now();
        self.ledger.piece(self.last, self.framer.frames());
        let (api, framer, was_over) = (self.api, &self.framer, self.over);
        self.over |= match api.ends_with_done() {
            true => framer.ended(),
            false => sse::frames(&out).filter_map(|f| f.event()).any(|name| api.ends_with_event(name)),
        };
        let carries_usage = usage::may_carry_usage(&out);
        if let Some(found) = carries_usage.then(|| usage::of_frames(api, &out)).flatten() {
            self.ledger.decoded(found);
        }
        if self.over && !was_over {
            self.complete();
        }
        if !carries_usage {
            return out;
        }
        match self.cached {
            Some(cached) => usage::frames_with_cached(api, out, cached),
            None => out,
        }
    }

    fn complete(&mut self) {
        self.ledger.complete();
        if let Some(pace) = self.ledger.pace() {
            self.seat.observe(pace);
        }
    }

    /// The decoder has sent its last byte.
    fn finish(&mut self) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let tail = self.framer.finish();
        let done_unterminated = tail.as_ref().is_some_and(|t| t.trim_ascii() == b"data: [DONE]");
        if self.over || (done_unterminated && self.api.ends_with_done()) {
            if !self.over {
                self.complete();
            }
            self.state = State::Done;
            return Poll::Ready(tail.map(|t| Ok(Frame::data(t))));
        }
        self.break_off(Error::new(Kind::DecodeFailed, "the answer ended before it was complete"))
    }

    /// What comes after the last event, or does not come, is no concern of the client.
    fn break_off(&mut self, error: Error) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if self.over {
            self.state = State::Done;
            return Poll::Ready(None);
        }
        self.ledger.broken(&error);
        // Over HTTP/2 a reset would take the event along; the missing last event tells the client that the answer is cut.
        self.state = if self.http2 { State::Done } else { State::Telling };
        let mut event = self.api.error_event(&error);
        if self.framer.mid_frame() {
            event.insert_str(0, "\n\n");
        }
        Poll::Ready(Some(Ok(Frame::data(event.into()))))
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
            self.timer.as_mut().reset(next);
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
                State::First(first) => return Poll::Ready(Some(Ok(Frame::data(this.whole_events(first))))),
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
