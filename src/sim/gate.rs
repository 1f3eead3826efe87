//! The listening socket, which can be closed and opened again while the engine lives.

use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::task::{Poll, Waker};

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;

use super::hub::lock;

/// A listener that may be away.
#[derive(Debug)]
pub struct Gate {
    addr: SocketAddr,
    runtime: Handle,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    listener: Option<TcpListener>,
    waker: Option<Waker>,
    closings: u64,
}

impl Gate {
    /// Listens on `addr`; port 0 takes a free one.
    pub async fn bind(addr: SocketAddr) -> io::Result<Gate> {
        let listener = TcpListener::bind(addr).await?;
        let addr = listener.local_addr()?;
        let inner = Inner { listener: Some(listener), waker: None, closings: 0 };
        Ok(Gate { addr, runtime: Handle::current(), inner: Mutex::new(inner) })
    }

    /// The address, the port being the real one.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Refuses from now on; connections not yet accepted are reset. Gives how often the gate has been closed.
    pub fn close(&self) -> u64 {
        let mut inner = lock(&self.inner);
        inner.listener = None;
        inner.closings += 1;
        inner.closings
    }

    /// Listens again, on the same port.
    pub fn open(&self) -> io::Result<()> {
        let mut inner = lock(&self.inner);
        if inner.listener.is_none() {
            let listener = std::net::TcpListener::bind(self.addr)?;
            listener.set_nonblocking(true)?;
            let _inside = self.runtime.enter();
            inner.listener = Some(TcpListener::from_std(listener)?);
            if let Some(waker) = inner.waker.take() {
                waker.wake();
            }
        }
        Ok(())
    }

    /// The next connection, and how often the gate had been closed before it; waits while the gate is closed.
    pub async fn accept(&self) -> io::Result<(TcpStream, u64)> {
        std::future::poll_fn(|cx| {
            let mut inner = lock(&self.inner);
            inner.waker = Some(cx.waker().clone());
            match &inner.listener {
                Some(listener) => listener.poll_accept(cx).map_ok(|(tcp, _)| (tcp, inner.closings)),
                None => Poll::Pending,
            }
        })
        .await
    }
}
