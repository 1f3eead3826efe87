//! Sockets: listening, accepting, shutting down.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tower::util::MapRequest;

use crate::server::{Arrived, Gateway};

/// Connections that the kernel keeps for us while we are busy.
const BACKLOG: i32 = 4096;

/// A pause after an accept that failed (out of descriptors): long enough for some to be closed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The HTTP/1 parser takes this many times the configured limits, so that it is we who answer what is over them.
const PARSER_SLACK: usize = 4;

/// Listening sockets, bound and not served yet.
#[derive(Debug)]
pub struct Bound(Vec<TcpListener>);

/// An address that can't be listened on.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {host}:{port} (server.host, server.port): {source}; choose another --host or --port, or stop what uses it"
)]
pub struct ListenError {
    host: String,
    port: u16,
    source: io::Error,
}

impl Bound {
    /// Where clients may connect.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.iter().filter_map(|l| l.local_addr().ok()).collect()
    }
}

/// Binds `host`:`port`. `localhost` means both loopback addresses; port 0 any free one.
///
/// # Errors
/// [`ListenError`] with the cause and the remedy.
pub async fn bind(host: &str, port: u16) -> Result<Bound, ListenError> {
    let error = |source| ListenError { host: host.to_owned(), port, source };
    if host == "localhost" {
        let first = listen((IpAddr::from(Ipv4Addr::LOCALHOST), port).into()).map_err(error)?;
        let port = first.local_addr().map_err(error)?.port();
        let second = match listen((IpAddr::from(Ipv6Addr::LOCALHOST), port).into()) {
            Ok(second) => Some(second),
            // Clients that try IPv6 first would reach whoever has it.
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => return Err(error(e)),
            // A machine without IPv6 has no such address, and needs none.
            Err(_) => None,
        };
        return Ok(Bound(std::iter::once(first).chain(second).collect()));
    }
    let host_alone = host.trim_start_matches('[').trim_end_matches(']');
    let address = lookup_host((host_alone, port)).await.map_err(error)?.next();
    let address = address.ok_or_else(|| error(io::Error::other("the name has no address")))?;
    Ok(Bound(vec![listen(address).map_err(error)?]))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // `::` serves IPv4 as well, as operators expect of a wildcard; `::1` can't.
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Serves until `gateway.stop` is cancelled, then lets open requests finish for at most `drain`. Returns how many
/// connections were cut.
pub async fn serve(bound: Bound, router: Router, gateway: Arc<Gateway>, drain: Duration) -> usize {
    let places = Arc::new(Semaphore::new(gateway.edge.connections.min(Semaphore::MAX_PERMITS)));
    let mut acceptors = JoinSet::new();
    for listener in bound.0 {
        let door = Door { gateway: gateway.clone(), router: router.clone(), places: places.clone() };
        acceptors.spawn(door.accept(listener, drain));
    }
    acceptors.join_all().await.into_iter().sum()
}

struct Door {
    gateway: Arc<Gateway>,
    router: Router,
    places: Arc<Semaphore>,
}

impl Door {
    async fn accept(self, listener: TcpListener, drain: Duration) -> usize {
        let http = self.http();
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        loop {
            let (place, socket) = tokio::select! {
                () = self.gateway.stop.cancelled() => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                next = self.next(&listener) => next,
            };
            let connection = graceful.watch(self.connection(&http, socket));
            let gauge = self.gateway.relay.meters.connections.clone();
            connections.spawn(async move {
                gauge.increment(1.0);
                // A connection that ends badly is the client's affair; its request has been accounted for.
                let _ = connection.await;
                gauge.decrement(1.0);
                drop(place);
            });
        }
        drop(listener);
        let _ = tokio::time::timeout(drain, graceful.shutdown()).await;
        while connections.try_join_next().is_some() {}
        let cut = connections.len();
        connections.shutdown().await;
        cut
    }

    /// The next client and its place. At the limit, clients wait in the kernel's queue instead of costing us memory.
    async fn next(&self, listener: &TcpListener) -> (Option<OwnedSemaphorePermit>, TcpStream) {
        let place = self.places.clone().acquire_owned().await.ok();
        loop {
            match listener.accept().await {
                Ok((socket, _)) => return (place, socket),
                Err(e) => {
                    tracing::warn!("accept: {e}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn http(&self) -> auto::Builder<TokioExecutor> {
        let edge = &self.gateway.edge;
        let mut http = auto::Builder::new(TokioExecutor::new());
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(edge.header_time)
            .max_headers(edge.headers.saturating_mul(PARSER_SLACK))
            .max_buf_size(edge.header_bytes.saturating_mul(PARSER_SLACK).max(64 << 10));
        http.http2().timer(TokioTimer::new()).max_header_list_size(
            u32::try_from(edge.header_bytes.saturating_mul(PARSER_SLACK)).unwrap_or(u32::MAX),
        );
        http
    }

    fn connection(
        &self,
        http: &auto::Builder<TokioExecutor>,
        socket: TcpStream,
    ) -> impl hyper_util::server::graceful::GracefulConnection + Send + 'static + use<> {
        let _ = socket.set_nodelay(true);
        let stamped =
            MapRequest::new(self.router.clone(), |mut request: http::Request<hyper::body::Incoming>| {
                request.extensions_mut().insert(Arrived(Instant::now()));
                request
            });
        http.serve_connection(TokioIo::new(socket), TowerToHyperService::new(stamped)).into_owned()
    }
}
