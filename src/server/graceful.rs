//! Connections that end when the gateway stops, as soon as they have nothing under way.
//!
//! What hyper-util has for it asks, at each poll of each connection, a list that all of them share.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper_util::server::graceful::GracefulConnection;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::standing::Standing;

/// One listener's word that no further requests are served.
#[derive(Clone, Debug, Default)]
pub(super) struct Closing {
    /// Set before the others are woken: it is looked at by each connection, and written once.
    on: Arc<AtomicBool>,
    token: CancellationToken,
}

/// A connection that hears it.
pub(super) struct Graceful<C> {
    connection: Pin<Box<C>>,
    closing: Arc<AtomicBool>,
    /// `None` once it was heard.
    word: Option<Standing<WaitForCancellationFutureOwned>>,
}

impl Closing {
    /// Says it.
    pub(super) fn begin(&self) {
        self.on.store(true, Ordering::Release);
        self.token.cancel();
    }

    /// Serves `connection` until then, and what it has under way to its end.
    pub(super) fn watch<C: GracefulConnection>(&self, connection: C) -> Graceful<C> {
        let word = Standing::new(self.token.clone().cancelled_owned());
        Graceful { connection: Box::pin(connection), closing: self.on.clone(), word: Some(word) }
    }
}

impl<C: GracefulConnection> Future for Graceful<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        let Graceful { connection, closing, word } = &mut *self;
        let heard = |word: &mut Standing<_>| word.poll(cx, |_| closing.load(Ordering::Acquire)).is_ready();
        if word.as_mut().is_some_and(heard) {
            *word = None;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(cx)
    }
}
