//! A connection whose peer must keep reading.
//!
//! The body of an answer is only polled while there is room for more, so a client that stops
//! reading stops every clock in it. This one stands below: when a write can't go on for too long,
//! the connection is given up, and with it the engine's work for it. How it is closed is said here,
//! too ([`parting`]).

mod parting;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::CancellationToken;

use self::parting::Parting;
use super::write_coalescing;

/// A socket, or what stands for one.
#[derive(Debug)]
pub(super) struct TimedSocket<S> {
    socket: S,
    limit: Duration,
    /// Made at the first write that has to wait; most connections never have one.
    timer: Option<Pin<Box<Sleep>>>,
    waiting: bool,
    stop: CancellationToken,
    /// Made when our side is closed.
    parting: Option<Box<Parting>>,
}

impl<S> TimedSocket<S> {
    /// Gives up on a peer that takes nothing for `limit`. Behind `stop` its end is not waited for.
    pub(super) fn new(socket: S, limit: Duration, stop: CancellationToken) -> TimedSocket<S> {
        TimedSocket { socket, limit, timer: None, waiting: false, stop, parting: None }
    }

    /// Lets a finished write pass; for one that waits, looks at the clock.
    fn watch<T>(&mut self, outcome: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.waiting = false;
            return outcome;
        }
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        if !self.waiting {
            self.waiting = true;
            timer.as_mut().reset(Instant::now() + limit);
        }
        let late = || io::Error::new(io::ErrorKind::TimedOut, "the client took nothing of its answer");
        timer.as_mut().poll(cx).map(|()| Err(late()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TimedSocket<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.watch(outcome, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = write_coalescing::poll_write(Pin::new(&mut self.socket), cx, bufs);
        self.watch(outcome, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.socket).poll_flush(cx);
        self.watch(outcome, cx)
    }

    /// Our side first, which over TLS is a write, then the client's. hyper keeps the socket until
    /// this is ready. Connections that it gives up, as at a break in an answer, it drops without
    /// asking, and their end is to look like that.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.parting.is_none() {
            let outcome = Pin::new(&mut this.socket).poll_shutdown(cx);
            ready!(this.watch(outcome, cx))?;
        }
        let parting = this.parting.get_or_insert_with(|| Box::new(Parting::new(&this.stop)));
        parting.poll(&mut this.socket, cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_given_up_and_a_slow_one_is_not() {
        let (near, mut far) = duplex(4);
        let mut socket = TimedSocket::new(near, Duration::from_secs(10), CancellationToken::new());
        let slow = async {
            for _ in 0..5 {
                sleep(Duration::from_secs(8)).await;
                let mut taken = [0; 4];
                far.read_exact(&mut taken).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(socket.write_all(&[7; 24]), slow);
        assert!(written.is_ok(), "something was taken every 8 s");
        let start = Instant::now();
        let stuck = socket.write_all(&[7; 24]).await;
        assert_eq!(stuck.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed().as_secs(), 10);
    }
}
