//! A connection to an engine, whatever carries it.

use std::fmt;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

#[cfg(feature = "tls")]
use crate::tls::EngineStream;

/// The most that is taken out of the kernel at a time. It lies on the stack: a connection that waits has no buffer.
const READ_BYTES: usize = 16 << 10;

/// What carries bytes to an engine where it is no socket: one end of a pipe in memory, in tests.
pub trait Pipe: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin + 'static> Pipe for T {}

/// A connection to an engine.
#[derive(Debug)]
pub enum Wire {
    /// Plain TCP.
    Tcp(TcpStream),
    /// TLS over TCP.
    #[cfg(feature = "tls")]
    Tls(Box<EngineStream>),
    /// What a [`Dial`](super::Dial) brought.
    Other(Box<dyn Pipe>),
}

/// Does the same on whatever carries the connection.
macro_rules! on_carrier {
    ($wire:expr, $io:ident => $what:expr) => {
        match $wire {
            Wire::Tcp($io) => $what,
            #[cfg(feature = "tls")]
            Wire::Tls($io) => $what,
            Wire::Other($io) => $what,
        }
    };
}

impl Wire {
    /// Gives what has come to `take`; nothing at the end of the stream.
    pub(super) fn poll_take<T>(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Poll<io::Result<T>> {
        let mut room = [MaybeUninit::uninit(); READ_BYTES];
        let mut read = ReadBuf::uninit(&mut room);
        ready!(on_carrier!(self, io => Pin::new(io).poll_read(cx, &mut read)))?;
        Poll::Ready(Ok(take(read.filled())))
    }

    /// Writes some of `pieces`.
    pub(super) fn poll_put(
        &mut self,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_carrier!(self, io => Pin::new(io).poll_write_vectored(cx, pieces))
    }

    /// Sees to it that what was written is under way.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_carrier!(self, io => Pin::new(io).poll_flush(cx))
    }

    /// Whether the engine has neither closed it nor sent what nobody asked for, as far as is known here.
    pub(super) fn is_quiet(&mut self) -> bool {
        let mut nobody = Context::from_waker(Waker::noop());
        self.poll_take(&mut nobody, |_| ()).is_pending()
    }
}
