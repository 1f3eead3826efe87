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

/// The most that is taken out of the kernel at a time. It lies on the stack: a connection that
/// waits has no buffer.
const READ_BYTES: usize = 16 << 10;

/// A substitute for a socket to an engine: one end of a pipe in memory, in tests.
pub trait Pipe: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin + 'static> Pipe for T {}

/// A connection to an engine.
#[derive(Debug)]
pub enum Wire {
    /// A plain TCP connection.
    Tcp(TcpStream),
    /// TLS over TCP.
    #[cfg(feature = "tls")]
    Tls(Box<EngineStream>),
    /// A connection made by a [`Dial`](super::Dial).
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

    /// Has the kernel acknowledge two pieces at once, if they come within 40 ms. It acknowledges
    /// each piece of a stream by itself otherwise, since nothing is written back that could carry
    /// it. An engine that waits for that (Nagle's algorithm; vLLM's server does not) waits once, 40
    /// ms: the kernel then goes back to its way.
    pub(super) fn acknowledge_by_twos(&self) {
        let socket = match self {
            Wire::Tcp(socket) => socket,
            #[cfg(feature = "tls")]
            Wire::Tls(stream) => stream.get_ref().0,
            Wire::Other(_) => return,
        };
        // Where it can't be had nothing is lost.
        #[cfg(target_os = "linux")]
        let _ = socket.set_quickack(false);
        #[cfg(not(target_os = "linux"))]
        let _ = socket;
    }

    /// True if the engine has neither closed it nor sent what nobody asked for, as far as is known
    /// here.
    pub(super) fn is_quiet(&mut self) -> bool {
        let mut nobody = Context::from_waker(Waker::noop());
        self.poll_take(&mut nobody, |_| ()).is_pending()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::Wire;

    #[tokio::test]
    async fn the_kernel_is_told_to_acknowledge_by_twos() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(socket.quickack().unwrap());
        let wire = Wire::Tcp(socket);
        wire.acknowledge_by_twos();
        assert!(matches!(wire, Wire::Tcp(socket) if !socket.quickack().unwrap()));
    }
}
