//! A connection to an engine, whatever carries it.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// What carries bytes to an engine where it is no socket: one end of a pipe in memory, in tests.
pub trait Pipe: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin + 'static> Pipe for T {}

/// A connection to an engine.
#[derive(Debug)]
pub enum Wire {
    /// Plain TCP.
    Tcp(TokioIo<TcpStream>),
    /// What a [`Dial`](super::Dial) brought.
    Other(TokioIo<Box<dyn Pipe>>),
}

/// Does the same on whatever carries the connection.
macro_rules! on_carrier {
    ($wire:expr, $io:ident => $what:expr) => {
        match $wire {
            Wire::Tcp($io) => $what,
            Wire::Other($io) => $what,
        }
    };
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        on_carrier!(&mut *self, io => Pin::new(io).poll_read(cx, buf))
    }
}

impl Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        on_carrier!(&mut *self, io => Pin::new(io).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_carrier!(&mut *self, io => Pin::new(io).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        on_carrier!(self, io => io.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_carrier!(&mut *self, io => Pin::new(io).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_carrier!(&mut *self, io => Pin::new(io).poll_shutdown(cx))
    }
}

impl Connection for Wire {
    fn connected(&self) -> Connected {
        match self {
            Wire::Tcp(io) => io.inner().connected(),
            Wire::Other(_) => Connected::new(),
        }
    }
}
