//! The engine's end of a connection, with socket faults: cut, stall, dribble, reset.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Sleep;

use super::faults::ConnectionEnd;
use super::hub::lock;
use super::socket::Socket;

/// Between two pieces of a dribbled response: long enough that the other side reads them one by
/// one.
const DRIBBLE_GAP: Duration = Duration::from_millis(1);

/// Fate of the bytes written from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plan {
    /// They are sent.
    #[default]
    Free,
    /// This many are sent, then the connection ends.
    Cut(usize, ConnectionEnd),
    /// This many are sent, then none.
    Stall(usize),
    /// They are sent in pieces of this many.
    Dribble(usize),
}

/// The handle a request has on the connection it came over.
#[derive(Debug, Default)]
pub struct Control {
    plan: Mutex<Plan>,
    reset: AtomicBool,
    ended: Notify,
}

impl Control {
    /// Sets the fate of the bytes written from now on.
    pub fn plan(&self, plan: Plan) {
        *lock(&self.plan) = plan;
        if let Plan::Cut(0, how) = plan {
            self.end(how);
        }
    }

    /// Asks the connection's task to drop it.
    pub fn end(&self, how: ConnectionEnd) {
        self.reset.store(how == ConnectionEnd::Reset, Ordering::Release);
        self.ended.notify_one();
    }

    /// Completes when the connection is to be dropped.
    pub async fn ended(&self) {
        self.ended.notified().await;
    }
}

/// A connection that follows its [`Control`].
#[derive(Debug)]
pub struct Wire {
    socket: Socket,
    control: Arc<Control>,
    gap: Option<Pin<Box<Sleep>>>,
}

impl Wire {
    /// Wraps an accepted connection.
    #[must_use]
    pub fn new(socket: Socket, control: Arc<Control>) -> Wire {
        Wire { socket, control, gap: None }
    }

    fn write_at_most(&mut self, cx: &mut Context<'_>, data: &[u8], most: usize) -> Poll<io::Result<usize>> {
        let part = data.get(..most.min(data.len())).unwrap_or_default();
        Pin::new(&mut self.socket).poll_write(cx, part)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.control.reset.load(Ordering::Acquire) {
            self.socket.reset();
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, into)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let control = self.control.clone();
        let mut plan = lock(&control.plan);
        match &mut *plan {
            Plan::Free => self.write_at_most(cx, data, usize::MAX),
            // No waker: the connection's task drops the stream, or the other side does.
            Plan::Cut(0, _) | Plan::Stall(0) => Poll::Pending,
            Plan::Cut(left, how) => {
                let written = ready!(self.write_at_most(cx, data, *left))?;
                *left -= written;
                if *left == 0 {
                    control.end(*how);
                }
                Poll::Ready(Ok(written))
            }
            Plan::Stall(left) => {
                let written = ready!(self.write_at_most(cx, data, *left))?;
                *left -= written;
                Poll::Ready(Ok(written))
            }
            Plan::Dribble(step) => {
                if let Some(gap) = self.gap.as_mut() {
                    ready!(gap.as_mut().poll(cx));
                }
                let written = ready!(self.write_at_most(cx, data, (*step).max(1)))?;
                self.gap = Some(Box::pin(tokio::time::sleep(DRIBBLE_GAP)));
                Poll::Ready(Ok(written))
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
