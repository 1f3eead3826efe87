//! The answer of one engine on its way to the client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use crate::error::Error;
use crate::fleet::Reservation;
use crate::relay::failure::{Failure, FailureKind};
use crate::relay::idle_timeout::{BODY_END, IdleTimeout};
use crate::relay::{Relay, shutdown};
use crate::server::begun::BegunBody;
use crate::server::passthrough_accounting::PassthroughAccount;
use crate::server::stream_end::StreamEnd;
use crate::upstream::ReplyError;

/// An engine's answer on its way to the client, with what it holds: its account and its
/// reservation. It is cut when the engine falls silent, and at the deadline, and ends soon after
/// the last event of a stream.
pub(super) struct PassthroughBody {
    body: BegunBody,
    /// Of a stream of events.
    end: Option<StreamEnd>,
    /// Time at which an engine is hung up on whose body stays open after the last event.
    over_until: Option<Instant>,
    /// The client has been told that the gateway's end cuts the stream.
    is_cut: bool,
    silence: IdleTimeout,
    account: PassthroughAccount,
    reservation: Reservation,
    relay: Arc<Relay>,
}

/// Reasons why an answer was cut.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cut {
    #[error(transparent)]
    Engine(#[from] ReplyError),
    #[error("the answer did not end in time")]
    Late,
    #[error(transparent)]
    Silent(Error),
    #[error("the gateway shuts down")]
    Shutdown,
}

impl PassthroughBody {
    pub(super) fn new(
        body: BegunBody,
        silence: IdleTimeout,
        relay: Arc<Relay>,
        account: PassthroughAccount,
        reservation: Reservation,
    ) -> PassthroughBody {
        let mut held = PassthroughBody {
            body,
            end: None,
            over_until: None,
            is_cut: false,
            silence,
            account,
            reservation,
            relay,
        };
        held.complete_if_ended();
        held
    }

    /// The same, of a stream whose last event tells that it is over.
    pub(super) fn with_end(self, end: Option<StreamEnd>) -> PassthroughBody {
        PassthroughBody { end, ..self }
    }

    /// A piece goes out. The last event ends the account, whatever the engine does with its body.
    fn passes(&mut self, piece: &Bytes) {
        self.account.passes(piece);
        self.silence.heard();
        if self.end.as_mut().is_some_and(|end| end.passes(piece)) && self.over_until.is_none() {
            self.account.complete();
            self.over_until = Some(Instant::now() + BODY_END);
            self.silence.pause(BODY_END);
        }
    }

    /// Completes the account once the body has ended, since it is not polled again.
    fn complete_if_ended(&mut self) {
        if self.body.is_end_stream() {
            self.account.complete();
        }
    }

    /// The gateway's own end. A stream of events ends with one that says so, where it can; what
    /// else has begun breaks off.
    fn cut(&mut self) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        self.is_cut = true;
        // What is left of a fixed length has no room for another event.
        let is_fixed = self.body.size_hint().exact().is_some();
        let end = self.end.as_mut().filter(|_| !is_fixed);
        let told = end.and_then(|end| end.broken_by(&shutdown()));
        Poll::Ready(Some(told.map(Frame::data).ok_or(Cut::Shutdown)))
    }

    /// An engine that breaks answers off, or falls silent, is left alone as one that refuses is;
    /// one that was cut off at the request's own time limit did nothing wrong.
    fn broken(&mut self, why: FailureKind, error: String) {
        self.account.broken();
        if Instant::now() < self.silence.end() {
            let failure = Failure::new(why, true, error);
            let _ = self.relay.record_outcome_of::<()>(
                self.account.id(),
                self.reservation.instance(),
                Err(failure),
            );
        }
    }
}

impl Body for PassthroughBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = &mut *self;
        if this.is_cut {
            return Poll::Ready(None);
        }
        match Pin::new(&mut this.body).poll_frame(cx) {
            // Data may always be ready for a slow reader: the deadline is checked here, too.
            Poll::Ready(Some(Ok(_))) if Instant::now() >= this.silence.end() => {
                this.account.broken();
                Poll::Ready(Some(Err(Cut::Late)))
            }
            // What follows the last event is nobody's, however long it goes on.
            Poll::Ready(Some(_)) if this.over_until.is_some_and(|until| Instant::now() >= until) => {
                Poll::Ready(None)
            }
            Poll::Ready(Some(Ok(frame))) => {
                frame.data_ref().into_iter().for_each(|piece| this.passes(piece));
                this.complete_if_ended();
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(_))) if this.over_until.is_some() => Poll::Ready(None),
            Poll::Ready(Some(Err(e))) => {
                this.broken(FailureKind::Broken, e.to_string());
                Poll::Ready(Some(Err(e.into())))
            }
            Poll::Ready(None) => {
                this.complete_if_ended();
                Poll::Ready(None)
            }
            Poll::Pending if this.over_until.is_some() => this.silence.poll_timer(cx).map(|()| None),
            Poll::Pending if this.relay.meters.cuts() => this.cut(),
            Poll::Pending => {
                let engine = this.reservation.instance();
                let (is_away, is_cut) = (|| engine.health().is_silent(), || this.relay.fleet.is_cut());
                this.silence.poll_too_long(cx, is_away, is_cut).map(|error| {
                    this.broken(FailureKind::Timeout, error.to_string());
                    Some(Err(Cut::Silent(error)))
                })
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_cut || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
