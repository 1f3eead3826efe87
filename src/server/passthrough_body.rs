//! The answer of one engine on its way to the client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use crate::error::Error;
use crate::fleet::Reservation;
use crate::relay::Relay;
use crate::relay::failure::{Failure, FailureKind};
use crate::relay::idle_timeout::IdleTimeout;
use crate::server::begun::BegunBody;
use crate::server::passthrough_accounting::PassthroughAccount;
use crate::upstream::ReplyError;

/// An engine's answer on its way to the client, with what it holds: its account and its
/// reservation. It is cut when the engine falls silent, and at the deadline.
pub(super) struct PassthroughBody {
    body: BegunBody,
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
}

impl PassthroughBody {
    pub(super) fn new(
        body: BegunBody,
        silence: IdleTimeout,
        relay: Arc<Relay>,
        account: PassthroughAccount,
        reservation: Reservation,
    ) -> PassthroughBody {
        let mut held = PassthroughBody { body, silence, account, reservation, relay };
        held.complete_if_ended();
        held
    }

    /// Completes the account once the body has ended, since it is not polled again.
    fn complete_if_ended(&mut self) {
        if self.body.is_end_stream() {
            self.account.complete();
        }
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
        match Pin::new(&mut this.body).poll_frame(cx) {
            // Data may always be ready for a slow reader: the deadline is checked here, too.
            Poll::Ready(Some(Ok(_))) if Instant::now() >= this.silence.end() => {
                this.account.broken();
                Poll::Ready(Some(Err(Cut::Late)))
            }
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(piece) = frame.data_ref() {
                    this.account.passes(piece);
                }
                this.silence.heard();
                this.complete_if_ended();
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(e))) => {
                this.broken(FailureKind::Broken, e.to_string());
                Poll::Ready(Some(Err(e.into())))
            }
            Poll::Ready(None) => {
                this.complete_if_ended();
                Poll::Ready(None)
            }
            Poll::Pending => {
                let engine = this.reservation.instance();
                this.silence.poll_too_long(cx, || engine.health().is_silent()).map(|error| {
                    this.broken(FailureKind::Timeout, error.to_string());
                    Some(Err(Cut::Silent(error)))
                })
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
