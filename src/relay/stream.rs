//! A stream from a decoder to the client: the decoder's own bytes, event by event, without a task
//! or a channel.
//!
//! Only complete events go out. So an answer that breaks off never leaves the client in the middle
//! of one: it gets an error event, no `[DONE]`, and a connection that does not end cleanly; unless
//! another pair can go on with it (`resume`).

mod ends;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::Instant;

use crate::dialect::event_members::{EventMembers, EventScanner};
use crate::dialect::fault::Fault;
use crate::dialect::finish::FinishWatch;
use crate::dialect::resume::AbortSign;
use crate::dialect::usage::{self, CacheCounts};
use crate::dialect::{Api, streamed_handoff};
use crate::error::{Error, Kind};
use crate::relay::Relay;
use crate::relay::account::Ledger;
use crate::relay::ask::Ask;
use crate::relay::idle_timeout::{self, BODY_END, IdleTimeout};
use crate::relay::resume::{Cause, Continuation, Follower, Pair};
use crate::relay::reusable_kv::StreamedOffer;
use crate::relay::sequence::LastEvents;
use crate::relay::shutdown;
use crate::relay::source::{Live, Source};

/// So long the connection has to write the error event, whatever is configured.
const LEAST_TELL: Duration = Duration::from_millis(1);

/// The body of a streamed answer.
#[derive(Debug)]
pub struct Stream {
    /// The decoder that writes it; `None` while another one is looked for.
    live: Option<Live>,
    state: State,
    api: Api,
    http2: bool,
    given_up: AbortSign,
    /// The last event has passed.
    over: bool,
    /// Time at which an engine whose body stays open after that is hung up on.
    over_until: Option<Instant>,
    /// Tells if a choice has ended, where `[DONE]` alone would not say so.
    finish: FinishWatch,
    /// Finds the members that are read of its events.
    scanner: EventScanner,
    /// Some of it has: the rest of one that is larger than is held back may still be missing.
    ending: bool,
    /// An error of the engine's has passed: why the request ended, then.
    errored: Option<&'static str>,
    /// Events of decoders before this one.
    events_before: u64,
    /// Tokens that the prefiller found in its caches, for the usage event.
    cached: Option<CacheCounts>,
    /// Knows how to go on after a break.
    follower: Option<Box<Follower>>,
    /// Collects what the decoder may offer back at its end.
    offer: Option<Box<StreamedOffer>>,
    silence: IdleTimeout,
    /// Lent to whoever looks for another pair.
    ledger: Option<Ledger>,
    relay: Arc<Relay>,
    /// Of a part of an answer: how it broke off, for who tells the client.
    part: Option<Box<Broke>>,
    /// Kept of `/v1/responses` alone, whose events are numbered.
    last_events: LastEvents,
}

/// Readers of the events of one stream.
#[derive(Debug)]
pub(super) struct StreamReaders {
    follower: Option<Box<Follower>>,
    offer: Option<Box<StreamedOffer>>,
}

impl StreamReaders {
    /// Those of the stream that answers `ask`.
    pub(super) fn of(relay: &Arc<Relay>, ask: &Arc<Ask>) -> StreamReaders {
        StreamReaders { follower: Follower::new(relay, ask), offer: StreamedOffer::of(ask) }
    }
}

#[derive(Debug, Default)]
struct Broke(Option<Error>);

/// The answer broke off; the error only makes the connection end uncleanly.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off")]
pub struct Cut;

enum State {
    /// The first piece has not gone out.
    First(Bytes),
    Running,
    /// The decoder's part is over before the answer is.
    Interrupted(Box<Error>, Cause),
    /// Another pair is looked for; the error is for the client if there is none.
    Resuming(Pair, Box<Error>),
    /// The error event has been handed to the connection. The client gets time to read it, and
    /// mostly hangs up then; with the connection cut at once, clients such as Node's `fetch` drop
    /// what they have received and not read yet.
    PausingAfterError,
    Done,
}

/// Result of one step of the stream.
enum Step {
    /// This goes out; `None` ends the body.
    Out(Option<Result<Frame<Bytes>, Cut>>),
    /// Nothing goes out: the next step follows from the state, at once.
    Again,
}

impl Step {
    fn data(bytes: Bytes) -> Step {
        Step::Out(Some(Ok(Frame::data(bytes))))
    }

    /// The step that shows these events, if there are any.
    fn showing(events: Option<Bytes>) -> Step {
        events.map_or(Step::Again, Step::data)
    }
}

const ENDED_EARLY: &str = "the answer ended before it was complete";

impl Stream {
    pub(super) fn new(
        relay: Arc<Relay>,
        source: Source,
        ledger: Ledger,
        readers: StreamReaders,
        end: Instant,
    ) -> Stream {
        Stream {
            state: State::First(source.first),
            live: Some(Live::new(source.rest, source.framer, source.reservation)),
            follower: readers.follower,
            offer: readers.offer,
            api: source.api,
            http2: source.http2,
            given_up: source.given_up,
            over: false,
            over_until: None,
            finish: FinishWatch::new(source.api),
            scanner: EventScanner::default(),
            ending: false,
            errored: None,
            events_before: 0,
            cached: ledger.cached_of_prefill(),
            silence: IdleTimeout::new(relay.settings.now().gap, end),
            ledger: Some(ledger),
            relay,
            part: None,
            last_events: LastEvents::default(),
        }
    }

    /// The same as a part of an answer: who puts that together tells the client how this broke off.
    pub(super) fn part(self) -> Stream {
        Stream { part: Some(Box::default()), ..self }
    }

    /// The error by which it broke off, once it is over.
    pub(super) fn take_break(&mut self) -> Option<Error> {
        self.part.as_mut()?.0.take()
    }

    /// From its error event until its connection is cut.
    pub(super) fn tell(&self) -> Duration {
        self.relay.settings.now().tell.max(LEAST_TELL)
    }

    /// Whole events of the decoder's: what of them may go out now.
    fn whole_events(&mut self, events: Bytes) -> Option<Bytes> {
        self.silence.heard();
        let events = match (&mut self.offer, &self.live) {
            (Some(offer), Some(live)) => offer.pass(&self.relay, live.reservation.instance(), events),
            _ => events,
        };
        let out = match &mut self.follower {
            Some(follower) => follower.pass(events),
            None => events,
        };
        let members = self.scanner.find(&out);
        let broke = self.follower.as_ref().and_then(|follower| follower.broke());
        let (out, broke) = match broke {
            None => self.without_what_was_given_up(out, members.reason),
            broke => (out, broke),
        };
        let (out, broke) = match broke {
            None => self.cut_hidden_failure(out),
            broke => (out, broke),
        };
        let (out, broke) = match broke {
            None => self.without_hollow_end(out),
            broke => (out, broke),
        };
        match broke {
            Some(cause) => {
                let what = match cause {
                    Cause::Ended => ENDED_EARLY,
                    Cause::HidToken => "the text of the rest of the answer is not certain",
                    _ => "the decoder failed in the middle of its answer",
                };
                let error = Error::new(Kind::DecodeFailed, what);
                self.state = State::Interrupted(Box::new(error), cause);
            }
            None => self.look_for_end(&out),
        }
        if self.api == Api::Responses {
            self.last_events.keep(&out);
        }
        Some(self.account(out, members)).filter(|out| !out.is_empty())
    }

    /// Looks at what goes out: how much it is, what of it is for engines alone, and if its usage
    /// is to be corrected. `members`: those of its events, and of such as were left out.
    fn account(&mut self, out: Bytes, members: EventMembers) -> Bytes {
        if out.is_empty() {
            return out;
        }
        let hidden = if members.handoff { streamed_handoff::without_handoffs(&out) } else { None };
        let out = hidden.unwrap_or(out);
        let api = self.api;
        let events = self.events_before + self.live.as_ref().map_or(0, |live| live.framer.frames());
        let carries_usage = members.usage;
        if let Some(ledger) = &mut self.ledger {
            ledger.piece(self.silence.last(), events);
            if let Some(found) = carries_usage.then(|| usage::of_frames(api, &out)).flatten() {
                ledger.decoded(found);
            }
        }
        match self.cached.filter(|_| carries_usage) {
            Some(cached) => usage::frames_with_cached(api, out, cached),
            None => out,
        }
    }

    /// The decoder has sent its last byte.
    fn finish(&mut self, tail: Option<Bytes>) -> Step {
        let done_unterminated = tail.as_ref().is_some_and(|t| t.trim_ascii() == b"data: [DONE]");
        let may_end = self.api.ends_with_done() && (self.finish.is_named() || self.errored.is_some());
        if self.over || (done_unterminated && may_end) {
            let tail = match &mut self.follower {
                Some(follower) => tail.map(|tail| follower.pass(tail)),
                None => tail,
            };
            if !self.over {
                self.complete();
            }
            self.state = State::Done;
            return Step::Out(tail.filter(|t| !t.is_empty()).map(|t| Ok(Frame::data(t))));
        }
        let error = Error::new(Kind::DecodeFailed, ENDED_EARLY);
        self.interrupted(Box::new(error), Cause::Ended)
    }

    /// The decoder's part is over before the answer is: somebody goes on, or the client is told.
    fn interrupted(&mut self, error: Box<Error>, cause: Cause) -> Step {
        let live = self.live.take();
        if let Some(live) = live.as_ref().filter(|_| !self.over && self.errored.is_none()) {
            self.blame(live, cause);
        }
        let mid_frame = live.as_ref().is_some_and(|live| live.framer.mid_frame());
        let going = match (&mut self.follower, &live) {
            (Some(follower), Some(live)) if !self.over && !mid_frame && cause != Cause::Refused => {
                follower.go_on(cause, live.reservation.instance().id(), &mut self.ledger, self.silence.end())
            }
            _ => None,
        };
        self.events_before += live.as_ref().map_or(0, |live| live.framer.frames());
        match going {
            None => self.break_off(&error, mid_frame),
            Some(Continuation::Pair(pair)) => {
                self.state = State::Resuming(pair, error);
                Step::Again
            }
            Some(Continuation::End(rest)) => {
                let members = EventMembers::find(&rest);
                let rest = self.account(rest, members);
                self.over = true;
                self.complete();
                self.state = State::Done;
                Step::data(rest)
            }
        }
    }

    /// A decoder that breaks answers off is left alone as one that refuses is, and one that gives
    /// them up is busy. One that was cut off at the request's own time limit did nothing wrong.
    fn blame(&self, live: &Live, cause: Cause) {
        let instance = live.reservation.instance();
        if let Some(why) = cause.failure().filter(|_| Instant::now() < self.silence.end()) {
            instance.health().broke_off();
            self.relay.fleet.report(instance, why.outcome());
            instance.meter().failed(why.name());
            if cause == Cause::Broken {
                self.relay.fleet.doubt_process(instance);
            }
        }
    }

    /// Another pair has been found, or not.
    fn resumed(&mut self, ledger: Ledger, found: Result<Box<Source>, Error>, error: Error) -> Step {
        self.ledger = Some(ledger);
        match found {
            Ok(source) => {
                let Source { first, framer, rest, reservation, .. } = *source;
                self.live = Some(Live::new(rest, framer, reservation));
                self.offer.iter_mut().for_each(|offer| offer.restart());
                self.silence.begins();
                self.state = State::First(first);
                Step::Again
            }
            Err(why) => self.break_off(&error.detail(why.log_line()), false),
        }
    }

    /// Ends the stream with an error. Bytes after the last event, or their lack, are no concern of
    /// the client.
    fn break_off(&mut self, error: &Error, mid_frame: bool) -> Step {
        if self.over {
            self.state = State::Done;
            return Step::Out(None);
        }
        if let Some(mut ledger) = self.ledger.take() {
            // Its account is closed now: what follows is for the client's sake alone.
            ledger.broken(error);
        }
        if let Some(Broke(told)) = self.part.as_deref_mut() {
            *told = Some(error.clone());
            self.state = State::Done;
            return Step::Out(None);
        }
        // Over HTTP/2 a reset would take the event along; the missing last event tells the client
        // that the answer is cut.
        self.state = if self.http2 { State::Done } else { State::PausingAfterError };
        self.silence.pause(self.tell());
        let mut event = self.api.error_event(error, self.last_events.next_number());
        if mid_frame {
            event.insert_str(0, "\n\n");
        }
        Step::data(event.into())
    }

    /// Ends a stream that is over, though its engine's body is not: the connection is dropped with
    /// what is left in it.
    fn hang_up(&mut self) -> Step {
        self.live = None;
        self.state = State::Done;
        Step::Out(None)
    }

    /// The step by the decoder's next piece.
    fn run(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        let Some(live) = &mut self.live else {
            self.state = State::Done;
            return Poll::Ready(Step::Out(None));
        };
        // What follows the last event is nobody's, however long it goes on.
        if self.over_until.is_some_and(|until| self.silence.last() >= until) {
            return Poll::Ready(self.hang_up());
        }
        if !self.over && self.relay.meters.cuts() {
            let mid_frame = live.framer.mid_frame();
            self.live = None;
            return Poll::Ready(self.break_off(&shutdown(), mid_frame));
        }
        // Data may always be ready for a slow reader, so that the deadline is checked here, too.
        if self.silence.last() >= self.silence.end() {
            self.state = State::Interrupted(Box::new(idle_timeout::too_long()), Cause::Silent);
            return Poll::Ready(Step::Again);
        }
        let piece = match Pin::new(&mut live.rest).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                live.came();
                frame.into_data().ok()
            }
            Poll::Ready(Some(Err(e))) => {
                let error =
                    Error::new(Kind::DecodeFailed, "the decoder broke off in the middle of its answer");
                self.state = State::Interrupted(Box::new(error.detail(e.to_string())), Cause::Broken);
                return Poll::Ready(Step::Again);
            }
            Poll::Ready(None) => {
                // Of an event that goes out in parts nothing is held, and that it has not ended is
                // still to be asked.
                let tail = if live.framer.mid_frame() { None } else { live.framer.finish() };
                return Poll::Ready(self.finish(tail));
            }
            Poll::Pending if self.over => {
                if self.over_until.is_none() {
                    self.over_until = Some(Instant::now() + BODY_END);
                    self.silence.pause(BODY_END);
                }
                return self.silence.poll_timer(cx).map(|()| self.hang_up());
            }
            Poll::Pending => {
                let engine = live.reservation.instance();
                let (is_away, is_cut) = (|| engine.health().is_silent(), || self.relay.fleet.is_cut());
                let too_long = self.silence.poll_too_long(cx, is_away, is_cut);
                if let Poll::Ready(error) = too_long {
                    self.state = State::Interrupted(Box::new(error), Cause::Silent);
                    return Poll::Ready(Step::Again);
                }
                return Poll::Pending;
            }
        };
        let events = piece.and_then(|piece| live.framer.push(piece));
        Poll::Ready(Step::showing(events.and_then(|events| self.whole_events(events))))
    }
}

/// Reason in metrics and log for an answer that failed by its engine's word.
pub(super) fn reason(fault: Fault) -> &'static str {
    match fault {
        Fault::Engine => Kind::DecodeFailed.code(),
        Fault::Request => "engine",
    }
}

impl Body for Stream {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = &mut *self;
        loop {
            // `Running` is a placeholder: each arm that does not go on running sets the next state.
            let step = match std::mem::replace(&mut this.state, State::Running) {
                State::First(first) => Step::showing(this.whole_events(first)),
                State::Running => ready!(this.run(cx)),
                State::Interrupted(error, cause) => this.interrupted(error, cause),
                State::Resuming(mut search, error) => match search.as_mut().poll(cx) {
                    Poll::Ready((ledger, found)) => this.resumed(ledger, found, *error),
                    // The account went with the search, and knows by itself how it ended.
                    Poll::Pending if this.relay.meters.cuts() => this.break_off(&shutdown(), false),
                    Poll::Pending => {
                        this.state = State::Resuming(search, error);
                        return Poll::Pending;
                    }
                },
                State::PausingAfterError => {
                    if this.silence.poll_timer(cx).is_pending() {
                        this.state = State::PausingAfterError;
                        return Poll::Pending;
                    }
                    this.state = State::Done;
                    Step::Out(Some(Err(Cut)))
                }
                State::Done => {
                    this.state = State::Done;
                    Step::Out(None)
                }
            };
            if let Step::Out(out) = step {
                return Poll::Ready(out);
            }
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::First(_) => "First",
            State::Running => "Running",
            State::Interrupted(..) => "Interrupted",
            State::Resuming(..) => "Resuming",
            State::PausingAfterError => "PausingAfterError",
            State::Done => "Done",
        })
    }
}
