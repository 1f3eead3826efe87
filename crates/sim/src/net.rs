//! A network in memory: engines have addresses in it, and dialling one gives a pipe. No socket is
//! involved, so that engines, and a gateway before them, run in virtual time.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};
use tokio::sync::mpsc;

use super::hub::lock;

/// Bytes that fit into one direction of a pipe, as a socket's buffer would hold some.
const PIPE_BYTES: usize = 64 << 10;
/// Connections that may wait to be accepted.
const BACKLOG: usize = 1024;

/// Network in memory: addresses and their listeners.
#[derive(Debug, Default)]
pub struct Net {
    places: Mutex<HashMap<SocketAddr, mpsc::Sender<Pipe>>>,
}

/// One end of a connection in memory.
#[derive(Debug)]
pub struct Pipe {
    io: DuplexStream,
    /// The end of this pipe is a reset, for both sides.
    reset: Arc<AtomicBool>,
}

/// An address in a [`Net`], which may be left and taken again.
#[derive(Debug)]
pub struct MemoryListener {
    net: Arc<Net>,
    addr: SocketAddr,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    coming: Option<mpsc::Receiver<Pipe>>,
    waker: Option<Waker>,
    closings: u64,
}

impl Net {
    /// Connects to the listener at `to`.
    ///
    /// # Errors
    /// `ConnectionRefused` if nothing listens there, or its backlog is full.
    pub fn dial(&self, to: SocketAddr) -> io::Result<Pipe> {
        let (near, far) = Pipe::pair();
        let place = lock(&self.places).get(&to).cloned();
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        place.ok_or_else(refused)?.try_send(far).map_err(|_| refused())?;
        Ok(near)
    }

    /// Connects by an address as text and a port.
    ///
    /// # Errors
    /// `InvalidInput` when `host` is no address; else as [`Net::dial`].
    pub fn dial_host(&self, host: &str, port: u16) -> io::Result<Pipe> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let ip: IpAddr = host.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
        self.dial(SocketAddr::new(ip, port))
    }

    fn listen(&self, at: SocketAddr) -> io::Result<mpsc::Receiver<Pipe>> {
        let (place, coming) = mpsc::channel(BACKLOG);
        let mut places = lock(&self.places);
        if places.contains_key(&at) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        places.insert(at, place);
        Ok(coming)
    }
}

impl Pipe {
    fn pair() -> (Pipe, Pipe) {
        let (near, far) = duplex(PIPE_BYTES);
        let reset = Arc::new(AtomicBool::new(false));
        (Pipe { io: near, reset: reset.clone() }, Pipe { io: far, reset })
    }

    /// The other side will read an error, not an end.
    pub fn reset(&self) {
        self.reset.store(true, Ordering::Release);
    }
}

impl MemoryListener {
    /// Takes `addr` in `net`.
    ///
    /// # Errors
    /// `AddrInUse`.
    pub fn bind(net: Arc<Net>, addr: SocketAddr) -> io::Result<MemoryListener> {
        let coming = Some(net.listen(addr)?);
        Ok(MemoryListener { net, addr, inner: Mutex::new(Inner { coming, waker: None, closings: 0 }) })
    }

    /// The network it is in.
    #[must_use]
    pub fn net(&self) -> &Arc<Net> {
        &self.net
    }

    /// Address as it was given.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Refuses from now on. Gives how often it has been closed.
    pub fn close(&self) -> u64 {
        let mut inner = lock(&self.inner);
        if inner.coming.take().is_some() {
            lock(&self.net.places).remove(&self.addr);
        }
        inner.closings += 1;
        inner.closings
    }

    /// Accepts connections again.
    ///
    /// # Errors
    /// `AddrInUse` if the address is taken.
    pub fn open(&self) -> io::Result<()> {
        let mut inner = lock(&self.inner);
        if inner.coming.is_none() {
            inner.coming = Some(self.net.listen(self.addr)?);
            if let Some(waker) = inner.waker.take() {
                waker.wake();
            }
        }
        Ok(())
    }

    /// The next connection; waits while it is closed.
    pub async fn accept(&self) -> Pipe {
        std::future::poll_fn(|cx| self.poll_accept(cx)).await.0
    }

    /// The next connection, and how often it had been closed before; waits while it is closed.
    pub(super) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<(Pipe, u64)> {
        let mut inner = lock(&self.inner);
        inner.waker = Some(cx.waker().clone());
        let closings = inner.closings;
        let Some(coming) = &mut inner.coming else { return Poll::Pending };
        match ready!(coming.poll_recv(cx)) {
            Some(pipe) => Poll::Ready((pipe, closings)),
            // The network holds the other end as long as we are in it.
            None => Poll::Pending,
        }
    }
}

impl Drop for MemoryListener {
    fn drop(&mut self) {
        self.close();
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, into))?;
        let ended = into.filled().len() == before && into.remaining() > 0;
        if ended && self.reset.load(Ordering::Acquire) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
