//! Requests that wait for a prefiller.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use crate::fleet::scheduler_handle::{Placement, SchedulerHandle};
use crate::route::Ticket;

/// A request that waits for its place.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most have their place at once, and a box of its own would be made for each"
)]
pub enum Waiting {
    /// It has it already; None when the last prefiller left.
    Placed(Option<Placement>),
    /// It stands in line.
    InLine(InLine),
}

/// A place in the line. Dropped, it is given up.
#[derive(Debug)]
pub struct InLine {
    pub(super) scheduler: Arc<SchedulerHandle>,
    pub(super) ticket: Ticket,
    pub(super) placed: oneshot::Receiver<Placement>,
}

impl Future for Waiting {
    /// None when the last prefiller left.
    type Output = Option<Placement>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Placement>> {
        match &mut *self {
            Waiting::Placed(placed) => Poll::Ready(placed.take()),
            Waiting::InLine(in_line) => Pin::new(&mut in_line.placed).poll(cx).map(Result::ok),
        }
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        self.scheduler.cancel(self.ticket);
    }
}
