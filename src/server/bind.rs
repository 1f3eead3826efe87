//! Listening sockets: opened here, or passed on by a service manager.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, lookup_host};

/// Connections that the kernel keeps for us while we are busy.
const BACKLOG: i32 = 4096;

/// An idle client connection is probed this often.
pub(super) const KEEPALIVE: Duration = Duration::from_secs(60);

/// Listening sockets, bound and not served yet.
#[derive(Debug)]
pub struct Bound {
    listeners: Vec<TcpListener>,
    /// Another process may listen on the same address with a socket of its own (`SO_REUSEPORT`).
    is_one_of_group: bool,
}

/// An address that can't be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {host}:{port} ({keys}): {source}; choose another {flags}, or stop what uses it")]
pub struct ListenError {
    host: String,
    port: u16,
    keys: &'static str,
    flags: &'static str,
    source: io::Error,
}

/// An address to listen on.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// An address or a name; an IPv6 address comes without brackets. `localhost` means both
    /// loopback addresses.
    pub host: &'a str,
    /// TCP port; 0 takes any free one.
    pub port: u16,
    /// True if another process of the same user may listen there as well (`SO_REUSEPORT`).
    pub shares: bool,
}

impl Bound {
    /// Place where clients may connect.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|l| l.local_addr().ok()).collect()
    }

    /// Sockets that a service manager has opened and keeps open.
    ///
    /// # Errors
    /// The system refuses an option, or to watch one of them.
    pub fn passed(sockets: Vec<std::net::TcpListener>) -> io::Result<Bound> {
        let listeners = sockets.into_iter().map(|socket| {
            SockRef::from(&socket).set_tcp_keepalive(&keepalive())?;
            socket.set_nonblocking(true)?;
            TcpListener::from_std(socket)
        });
        // Their queues stay when this process closes them: the manager has them open, too.
        Ok(Bound { listeners: listeners.collect::<io::Result<_>>()?, is_one_of_group: false })
    }

    /// True if the kernel resets what is queued for these sockets when they close, though another
    /// process listens on the same address: each socket of a group has a queue of its own.
    pub(super) fn is_one_of_group(&self) -> bool {
        self.is_one_of_group
    }

    /// The sockets, to be served.
    pub(super) fn into_listeners(self) -> Vec<TcpListener> {
        self.listeners
    }
}

/// Binds the address of clients.
///
/// # Errors
/// [`ListenError`] with the cause and the remedy.
pub async fn bind(place: Place<'_>) -> Result<Bound, ListenError> {
    let (keys, flags) = ("server.host, server.port", "--host or --port");
    bind_either(place).await.map_err(|source| place.error(keys, flags, source))
}

/// The same for the routes of operators, which have a listener of their own.
///
/// # Errors
/// [`ListenError`] with the cause and the remedy.
pub async fn bind_admin(place: Place<'_>) -> Result<Bound, ListenError> {
    let (keys, flags) = ("server.admin_host, server.admin_port", "address or port");
    bind_either(place).await.map_err(|source| place.error(keys, flags, source))
}

impl Place<'_> {
    fn error(self, keys: &'static str, flags: &'static str, source: io::Error) -> ListenError {
        ListenError { host: self.host.to_owned(), port: self.port, keys, flags, source }
    }

    fn listen(self, ip: IpAddr) -> io::Result<TcpListener> {
        listen((ip, self.port).into(), self.shares)
    }
}

async fn bind_either(place: Place<'_>) -> io::Result<Bound> {
    let is_one_of_group = place.shares;
    if place.host == "localhost" {
        let first = place.listen(Ipv4Addr::LOCALHOST.into())?;
        let port = first.local_addr()?.port();
        let second = match (Place { port, ..place }).listen(Ipv6Addr::LOCALHOST.into()) {
            Ok(second) => Some(second),
            // Clients that try IPv6 first would reach whoever has it.
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => return Err(e),
            // A machine without IPv6 has no such address, and needs none.
            Err(_) => None,
        };
        let listeners = std::iter::once(first).chain(second).collect();
        return Ok(Bound { listeners, is_one_of_group });
    }
    let address = lookup_host((place.host, place.port)).await?.next();
    let address = address.ok_or_else(|| io::Error::other("the name has no address"))?;
    Ok(Bound { listeners: vec![listen(address, place.shares)?], is_one_of_group })
}

fn listen(address: SocketAddr, shares: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // `::` serves IPv4 as well, as operators expect of a wildcard; `::1` can't.
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    if shares {
        socket.set_reuse_port(true)?;
    }
    // Accepted sockets inherit it: a client whose host vanished is noticed in the end.
    socket.set_tcp_keepalive(&keepalive())?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE)
}
