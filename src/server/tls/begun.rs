//! A client's connection, of which what it begins with may have been read already.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::server::listen::PREFACE;

/// Over TLS there is no looking at bytes without taking them: whoever serves the connection reads
/// them from here.
#[derive(Debug)]
pub(in crate::server) struct HandshakenStream<S> {
    stream: S,
    /// Bytes that were read, of which the first `len` are there, and how many of them were served.
    first: [u8; PREFACE.len()],
    len: usize,
    served: usize,
}

impl<S: AsyncRead + Unpin> HandshakenStream<S> {
    /// Waits for the first byte of a request; None when the client leaves. The time limit is the
    /// caller's. hyper would close a connection without one at once when a shutdown begins.
    pub(in crate::server) async fn over_http1(mut stream: S) -> Option<HandshakenStream<S>> {
        let mut first = [0; PREFACE.len()];
        let len = stream.read(&mut first).await.ok().filter(|n| *n > 0)?;
        Some(HandshakenStream { stream, first, len, served: 0 })
    }

    /// Waits for the beginning of HTTP/2; None when the client begins something else, or leaves.
    /// The time limit is the caller's.
    pub(in crate::server) async fn over_http2(mut stream: S) -> Option<HandshakenStream<S>> {
        let (mut first, mut read) = ([0; PREFACE.len()], 0);
        while read < PREFACE.len() {
            read += stream.read(&mut first[read..]).await.ok().filter(|n| *n > 0)?;
            if first[..read] != PREFACE[..read] {
                return None;
            }
        }
        Some(HandshakenStream { stream, first, len: read, served: 0 })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HandshakenStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.served == self.len {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let until = self.len.min(self.served + buf.remaining());
        buf.put_slice(&self.first[self.served..until]);
        self.served = until;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HandshakenStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::{sleep, timeout};

    use super::*;

    /// Outcome for a client that sends these pieces, with a pause before each, and closes or not.
    async fn begun(pieces: &[&[u8]], closes: bool) -> Option<HandshakenStream<DuplexStream>> {
        let (near, mut far) = duplex(1 << 10);
        let client = async move {
            for piece in pieces {
                sleep(Duration::from_millis(20)).await;
                far.write_all(piece).await.unwrap();
            }
            (!closes).then_some(far)
        };
        tokio::join!(timeout(Duration::from_secs(60), HandshakenStream::over_http2(near)), client)
            .0
            .unwrap_or_default()
    }

    #[tokio::test(start_paused = true)]
    async fn preface_is_replayed_before_the_rest() {
        for at in [0, 1, 23, PREFACE.len()] {
            let rest = [&PREFACE[at..], b"SETTINGS"].concat();
            let mut stream = begun(&[&PREFACE[..at], &rest], true).await.unwrap();
            let (mut first, mut all) = ([0; 5], Vec::new());
            stream.read_exact(&mut first).await.unwrap();
            stream.read_to_end(&mut all).await.unwrap();
            assert_eq!([&first[..], &all].concat(), [PREFACE, b"SETTINGS"].concat(), "{at}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn first_bytes_of_a_request_are_replayed_before_the_rest() {
        for request in ["G", "GET / HTTP/1.1\r\nhost: a\r\n\r\n"] {
            let (near, mut far) = duplex(1 << 10);
            far.write_all(request.as_bytes()).await.unwrap();
            drop(far);
            let mut stream = HandshakenStream::over_http1(near).await.unwrap();
            let (mut first, mut all) = ([0; 1], String::new());
            stream.read_exact(&mut first).await.unwrap();
            stream.read_to_string(&mut all).await.unwrap();
            assert_eq!(format!("{}{all}", char::from(first[0])), request);
        }
        let (near, far) = duplex(1 << 10);
        drop(far);
        assert!(HandshakenStream::over_http1(near).await.is_none(), "it has left");
    }

    #[tokio::test(start_paused = true)]
    async fn connection_without_preface_is_not_served() {
        let cases: [(&[&[u8]], bool); 5] = [
            (&[], true),
            (&[&PREFACE[..23]], true),
            (&[&PREFACE[..23]], false),
            (&[b"GET / HTTP/1.1\r\n"], false),
            (&[&PREFACE[..23], b"x"], false),
        ];
        for (pieces, closes) in cases {
            assert!(begun(pieces, closes).await.is_none(), "{pieces:?}");
        }
        let start = tokio::time::Instant::now();
        assert!(begun(&[b"POST"], false).await.is_none());
        assert!(start.elapsed() < Duration::from_secs(1), "it is known by the first byte that differs");
    }
}
