//! Sockets of engines: TCP, or a pipe in memory.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::gate::Gate;
use super::net::{MemoryListener, Net, Pipe};

/// A connection of an engine.
#[derive(Debug)]
pub enum Socket {
    /// A TCP connection.
    Tcp(TcpStream),
    /// A pipe in memory.
    Pipe(Pipe),
}

/// Entry of an engine, where it is reached.
#[derive(Debug)]
pub enum Entry {
    /// A TCP port.
    Tcp(Gate),
    /// An address in memory.
    MemoryListener(MemoryListener),
}

impl Socket {
    /// Connects to an engine: in `net` if there is one, else over TCP.
    ///
    /// # Errors
    /// Nothing listens at the address.
    pub async fn connect(net: Option<&Arc<Net>>, host: &str, port: u16) -> io::Result<Socket> {
        match net {
            Some(net) => Ok(Socket::Pipe(net.dial_host(host, port)?)),
            None => Ok(Socket::Tcp(TcpStream::connect((host, port)).await?)),
        }
    }

    /// Without it a stream's events would wait for the other side's acknowledgements.
    pub fn hurry(&self) {
        if let Socket::Tcp(tcp) = self {
            let _ = tcp.set_nodelay(true);
        }
    }

    /// The close will be a reset.
    pub fn reset(&self) {
        match self {
            // Zero linger does it; if the socket is already gone there is nothing to reset.
            Socket::Tcp(tcp) => drop(SockRef::from(tcp).set_linger(Some(Duration::ZERO))),
            Socket::Pipe(pipe) => pipe.reset(),
        }
    }
}

impl Entry {
    /// The address, the port being the real one.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        match self {
            Entry::Tcp(gate) => gate.addr(),
            Entry::MemoryListener(dock) => dock.addr(),
        }
    }

    /// The network in memory, if it is in one.
    #[must_use]
    pub fn net(&self) -> Option<&Arc<Net>> {
        match self {
            Entry::Tcp(_) => None,
            Entry::MemoryListener(dock) => Some(dock.net()),
        }
    }

    /// Refuses from now on. Gives how often it has been closed.
    pub fn close(&self) -> u64 {
        match self {
            Entry::Tcp(gate) => gate.close(),
            Entry::MemoryListener(dock) => dock.close(),
        }
    }

    /// Listens again at the same address.
    ///
    /// # Errors
    /// The address is taken.
    pub fn open(&self) -> io::Result<()> {
        match self {
            Entry::Tcp(gate) => gate.open(),
            Entry::MemoryListener(dock) => dock.open(),
        }
    }

    /// The next connection, and how often the entry had been closed before it.
    ///
    /// # Errors
    /// The system's.
    pub async fn accept(&self) -> io::Result<(Socket, u64)> {
        match self {
            Entry::Tcp(gate) => gate.accept().await.map(|(tcp, closings)| (Socket::Tcp(tcp), closings)),
            Entry::MemoryListener(dock) => {
                let (pipe, closings) = std::future::poll_fn(|cx| dock.poll_accept(cx)).await;
                Ok((Socket::Pipe(pipe), closings))
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(tcp) => Pin::new(tcp).poll_read(cx, into),
            Socket::Pipe(pipe) => Pin::new(pipe).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Tcp(tcp) => Pin::new(tcp).poll_write(cx, data),
            Socket::Pipe(pipe) => Pin::new(pipe).poll_write(cx, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(tcp) => Pin::new(tcp).poll_flush(cx),
            Socket::Pipe(pipe) => Pin::new(pipe).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Socket::Pipe(pipe) => Pin::new(pipe).poll_shutdown(cx),
        }
    }
}
