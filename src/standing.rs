//! A future that a task waits for beside its work: asked once, and then only when there is something new.
//!
//! The task of a stream is polled several times for each piece, and a clock or a signal that is asked each time takes a shared lock each
//! time, to say that it knows already whom to wake.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::task::coop::has_budget_remaining;

/// The future, and whom it wakes.
#[derive(Debug)]
pub struct Standing<F> {
    future: Pin<Box<F>>,
    waiter: Option<Waker>,
}

impl<F: Future> Standing<F> {
    /// Nobody waits yet.
    pub fn new(future: F) -> Standing<F> {
        Standing { future: Box::pin(future), waiter: None }
    }

    /// To change it: whoever waits asks again.
    pub fn reset(&mut self) -> Pin<&mut F> {
        self.waiter = None;
        self.future.as_mut()
    }

    /// Asks, unless whoever polls is known to be woken, and the future has nothing new by `news`, which is cheap.
    pub fn poll(&mut self, cx: &mut Context<'_>, news: impl FnOnce(&F) -> bool) -> Poll<F::Output> {
        let known = self.waiter.as_ref().is_some_and(|waiter| waiter.will_wake(cx.waker()));
        if known && !news(&self.future) {
            return Poll::Pending;
        }
        // A task that has used up its budget is told to wait without the future being looked at, and asked again at once.
        let looked_at = has_budget_remaining();
        let polled = self.future.as_mut().poll(cx);
        self.waiter = (polled.is_pending() && looked_at).then(|| cx.waker().clone());
        polled
    }
}
