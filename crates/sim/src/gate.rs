//! The listening socket, which can be closed and opened again while the engine lives.

use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::task::{Poll, Waker};

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Handle;

use super::hub::lock;

/// Connections that wait to be accepted, as std has it.
const BACKLOG: u32 = 128;

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
    /// Has the port while nobody listens: connections are refused all the same, and nobody who asks
    /// for any free port is given it.
    kept: Option<TcpSocket>,
    waker: Option<Waker>,
    closings: u64,
}

impl Gate {
    /// Listens on `addr`; port 0 takes a free one.
    pub async fn bind(addr: SocketAddr) -> io::Result<Gate> {
        let listener = TcpListener::bind(addr).await?;
        let addr = listener.local_addr()?;
        let inner = Inner { listener: Some(listener), kept: None, waker: None, closings: 0 };
        Ok(Gate { addr, runtime: Handle::current(), inner: Mutex::new(inner) })
    }

    /// The address, the port being the real one.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Refuses from now on; connections not yet accepted are reset. Gives how often the gate has
    /// been closed.
    pub fn close(&self) -> u64 {
        let mut inner = lock(&self.inner);
        if inner.listener.take().is_some() {
            inner.kept = bound(self.addr).ok();
        }
        inner.closings += 1;
        inner.closings
    }

    /// Listens again, on the same port.
    pub fn open(&self) -> io::Result<()> {
        let mut inner = lock(&self.inner);
        if inner.listener.is_none() {
            let socket = inner.kept.take().map_or_else(|| bound(self.addr), Ok)?;
            let _inside = self.runtime.enter();
            inner.listener = Some(socket.listen(BACKLOG)?);
            if let Some(waker) = inner.waker.take() {
                waker.wake();
            }
        }
        Ok(())
    }

    /// The next connection, and how often the gate had been closed before it; waits while the gate
    /// is closed.
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

/// A socket that has an address and does not listen.
fn bound(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Sockets in TIME_WAIT do not keep it from its port.
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::Ipv4Addr;

    use super::*;

    #[tokio::test]
    async fn a_closed_gate_refuses_until_it_is_opened() {
        let gate = Gate::bind((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
        for closings in 1..=2 {
            assert_eq!(gate.close(), closings);
            let refused = TcpStream::connect(gate.addr()).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            gate.open().unwrap();
            TcpStream::connect(gate.addr()).await.unwrap();
            assert_eq!(gate.accept().await.unwrap().1, closings);
        }
    }
}
