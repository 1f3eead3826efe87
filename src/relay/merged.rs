//! The streams of several parts as one stream to the client, without a task or a channel: whichever
//! has an event is next.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{SelectAll, StreamExt};
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep};

use crate::dialect::Api;
use crate::dialect::batch::Merge;
use crate::dialect::fault;
use crate::error::{Error, Kind};
use crate::relay::account::Ledger;
use crate::relay::shutdown;
use crate::relay::stream::{self, Cut, Stream};

/// The body of a streamed answer to several prompts.
#[derive(Debug)]
pub struct Merged {
    // Before the ledger, to which they tell what they came to when they are dropped.
    parts: SelectAll<Part>,
    merge: Merge,
    state: State,
    http2: bool,
    /// `None` once it has broken off.
    ledger: Option<Ledger>,
    tell: Duration,
}

/// One part's stream, and which prompt it answers.
#[derive(Debug)]
struct Part {
    at: usize,
    stream: Stream,
    over: bool,
}

/// Items of a part's stream.
enum Item {
    /// Whole events of a part.
    Events(usize, Bytes),
    /// It broke, and nobody goes on with it.
    Broke(Error),
}

#[derive(Debug)]
enum State {
    Running,
    /// The error event has been handed to the connection, and the client gets time to read it.
    Telling(Pin<Box<Sleep>>),
    Done,
}

type Polled = Poll<Option<Result<Frame<Bytes>, Cut>>>;

impl Merged {
    /// Of these streams, in the order of the prompts, each with so many choices.
    pub(super) fn new(parts: Vec<Stream>, choices: u64, http2: bool, ledger: Ledger) -> Merged {
        let tell = parts.first().map(Stream::tell).unwrap_or_default();
        let merge = Merge::new(parts.len(), choices);
        let part = |(at, stream)| Part { at, stream, over: false };
        let parts = parts.into_iter().enumerate().map(part).collect();
        Merged { parts, merge, state: State::Running, http2, ledger: Some(ledger), tell }
    }

    /// True once the gateway cuts all requests, this one included.
    fn is_cut(&self) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| ledger.meters().cuts())
    }

    fn run(&mut self, cx: &mut Context<'_>) -> Polled {
        loop {
            // Parts that nothing has woken don't see by themselves that all is cut.
            let polled = match self.parts.poll_next_unpin(cx) {
                Poll::Pending if self.is_cut() && !self.merge.ended() => {
                    return self.break_off(&shutdown());
                }
                polled => ready!(polled),
            };
            let out = match polled {
                Some(Item::Events(at, events)) => match self.merge.pass(at, &events) {
                    Ok(out) => out,
                    Err(e) => return self.break_off(&Error::new(Kind::DecodeFailed, e.to_string())),
                },
                Some(Item::Broke(error)) if !self.merge.ended() => return self.break_off(&error),
                Some(Item::Broke(_)) => continue,
                None if self.merge.ended() => {
                    self.state = State::Done;
                    return Poll::Ready(None);
                }
                None => {
                    let error = Error::new(Kind::DecodeFailed, "the answer ended before it was complete");
                    return self.break_off(&error);
                }
            };
            if out.is_empty() {
                continue;
            }
            if self.merge.failed() {
                // Hung up on, the other engines stop.
                self.parts = SelectAll::new();
            }
            if let Some(ledger) = &mut self.ledger {
                ledger.piece(Instant::now(), self.merge.events());
                let failed = self.merge.failed().then(|| fault::in_events(Api::Completions, &out)).flatten();
                match failed {
                    Some(report) => ledger.said(stream::reason(report.fault)),
                    None if self.merge.ended() => ledger.complete(),
                    None => {}
                }
            }
            return Poll::Ready(Some(Ok(Frame::data(out))));
        }
    }

    /// One part's end is everybody's: the others are hung up on.
    fn break_off(&mut self, error: &Error) -> Polled {
        self.parts = SelectAll::new();
        if let Some(mut ledger) = self.ledger.take() {
            ledger.broken(error);
        }
        // Over HTTP/2 a reset would take the event along; the missing last event tells the client
        // that the answer is cut.
        self.state = if self.http2 { State::Done } else { State::Telling(Box::pin(sleep(self.tell))) };
        Poll::Ready(Some(Ok(Frame::data(Api::Completions.error_event(error, 0).into()))))
    }
}

impl Body for Merged {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        match &mut self.state {
            State::Running => self.run(cx),
            State::Telling(time) => {
                ready!(time.as_mut().poll(cx));
                self.state = State::Done;
                Poll::Ready(Some(Err(Cut)))
            }
            State::Done => Poll::Ready(None),
        }
    }
}

impl futures_util::Stream for Part {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        loop {
            match ready!(Pin::new(&mut self.stream).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Ok(events) = frame.into_data() {
                        return Poll::Ready(Some(Item::Events(self.at, events)));
                    }
                }
                Some(Err(Cut)) | None => {
                    self.over = true;
                    return Poll::Ready(self.stream.take_break().map(Item::Broke));
                }
            }
        }
    }
}
