//! The body of a streamed answer: made while it is read, dropped when the client is gone.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;
use tokio::time::Sleep;

use super::chunks::{DONE, Format};
use super::fail::ApiFailure;
use super::r#gen::{Finish, Gen, Piece};
use super::tokens;

/// A fault in a stream, and when it strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamTwist {
    /// The fault itself.
    pub fault: StreamFault,
    /// Events that are sent before.
    pub after_events: usize,
}

/// Events of a stream before [`super::FaultKind::ErrorEvent`] or
/// [`super::FaultKind::CloseWithoutDone`] strikes.
pub const EVENTS_BEFORE_FAULT: usize = 3;

/// A fault in the middle of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFault {
    /// The stream just ends.
    Truncate,
    /// An error event, then `[DONE]`.
    Error,
    /// Usage, where it is asked for, and `[DONE]`.
    Hollow,
    /// A last event that says that the request is to be prefilled again.
    Recompute,
}

impl StreamFault {
    /// The fault after so many events.
    #[must_use]
    pub fn after(self, events: usize) -> StreamTwist {
        StreamTwist { fault: self, after_events: events }
    }
}

/// Getting the KV, to be awaited inside the stream: as in vLLM the head is sent before the engine
/// has answered.
pub type Beginning = Pin<Box<dyn Future<Output = Result<Gen, ApiFailure>> + Send>>;

/// A streamed answer.
pub struct Sse {
    phase: Phase,
    format: Box<dyn Format>,
    out: std::collections::VecDeque<Bytes>,
    twist: Option<StreamTwist>,
    events: usize,
    id: String,
}

enum Phase {
    Beginning(Beginning),
    Writing(Box<Gen>, Option<Pin<Box<Sleep>>>),
    Ended,
}

impl Sse {
    /// The stream of response `id` that begins with `beginning`.
    #[must_use]
    pub fn new(
        beginning: Beginning,
        mut format: Box<dyn Format>,
        id: String,
        twist: Option<StreamTwist>,
    ) -> Sse {
        let mut out = Vec::new();
        format.announce(&mut out);
        Sse { phase: Phase::Beginning(beginning), format, out: out.into(), twist, events: 0, id }
    }

    /// The next event; None at the end.
    pub fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            if let Some(StreamTwist { fault, after_events }) = self.twist
                && self.events >= after_events
            {
                self.strike(fault);
            }
            if let Some(event) = self.out.pop_front() {
                self.events += 1;
                return Poll::Ready(Some(event));
            }
            if matches!(self.phase, Phase::Ended) {
                return Poll::Ready(None);
            }
            ready!(self.work(cx));
        }
    }

    /// The scripted fault: what was to come is dropped.
    fn strike(&mut self, twist: StreamFault) {
        self.out.clear();
        self.twist = None;
        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
        match (twist, phase) {
            (StreamFault::Error, _) => {
                self.out.extend([ApiFailure::internal().event(), Bytes::from_static(DONE)])
            }
            (StreamFault::Hollow, Phase::Writing(generation, _)) => {
                let mut made = Vec::new();
                self.format.end(generation.counts, &mut made);
                self.out.extend(made);
            }
            (StreamFault::Hollow, _) => self.out.push_back(Bytes::from_static(DONE)),
            (StreamFault::Recompute, Phase::Writing(generation, _)) => {
                let finish = Some(Finish::Stop("recomputed".to_owned()));
                let piece = Piece { choice: 0, token: tokens::HELD, text: String::new(), finish };
                let mut made = Vec::new();
                self.format.piece(&piece, generation.counts, true, &mut made);
                self.format.end(generation.counts, &mut made);
                self.out.extend(made);
            }
            _ => {}
        }
    }

    /// Makes events, or changes the phase.
    fn work(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut made = Vec::new();
        match &mut self.phase {
            Phase::Ended => {}
            Phase::Beginning(beginning) => match ready!(beginning.as_mut().poll(cx)) {
                Ok(generation) => {
                    self.format.begin(generation.counts, &mut made);
                    self.phase = Phase::Writing(Box::new(generation), None);
                }
                Err(fail) => {
                    made.extend([fail.event(), Bytes::from_static(DONE)]);
                    self.phase = Phase::Ended;
                }
            },
            Phase::Writing(generation, sleep) => {
                if let Some(sleep) = sleep {
                    ready!(sleep.as_mut().poll(cx));
                }
                match generation.step() {
                    Err(until_us) => *sleep = Some(Box::pin(generation.sleep_until_us(until_us))),
                    Ok(pieces) => {
                        let done = generation.done();
                        if done {
                            // The engine holds it also where streams don't tell.
                            self.format.hand_over(generation.settle(&self.id));
                        }
                        for (i, piece) in pieces.iter().enumerate() {
                            let last = done && i + 1 == pieces.len();
                            self.format.piece(piece, generation.counts, last, &mut made);
                        }
                        if done {
                            self.format.end(generation.counts, &mut made);
                            self.phase = Phase::Ended;
                        }
                    }
                }
            }
        }
        self.out.extend(made);
        Poll::Ready(())
    }
}

/// A response body.
pub enum Body {
    /// All of it.
    Whole(Option<Bytes>),
    /// A stream of events.
    Events(Box<Sse>),
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Body::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Body::Events(sse) => sse.poll_event(cx).map(|event| event.map(|event| Ok(Frame::data(event)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Whole(None))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Body::Whole(bytes) => {
                http_body::SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            Body::Events(_) => http_body::SizeHint::default(),
        }
    }
}
