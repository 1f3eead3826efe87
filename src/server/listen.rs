//! Sockets: accepting, serving, shutting down.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::Version;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use metrics::Gauge;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::server::bind::{Bound, KEEPALIVE};
use crate::server::cut::CutWaker;
use crate::server::fast_path::Front;
use crate::server::idle::{self, Activity, End};
use crate::server::operator_access::ListenerScope;
use crate::server::routes::{admin_router, public_router, router};
use crate::server::stall::TimedSocket;
#[cfg(feature = "tls")]
use crate::server::tls::HandshakenStream;
use crate::server::{Gateway, h2_stream_timeout};
use crate::tls::ListenerTls;

/// Connections to the listener of operators: scrapers, and people. Clients can't take these places
/// from them.
const ADMIN_CONNECTIONS: usize = 256;

/// A pause after an accept that failed (out of descriptors): long enough for some to be closed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Time in which a client that is connected when a shutdown begins may still begin its first
/// request: it sent it before it could know, and a round trip is far shorter. At most half of
/// `server.drain_ms`, so that those who are silent are not cut at its end.
const LAST_OPENING: Duration = Duration::from_secs(1);

/// Time in which clients are told that their requests are cut.
pub const CUT_NOTICE: Duration = Duration::from_secs(1);

/// With this a client opens an HTTP/2 connection (RFC 9113 §3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Pause before the second look at an incomplete preface: the rest of what was sent in two pieces
/// is there by then.
const PREFACE_PAUSE: Duration = Duration::from_millis(5);

/// The pause doubles up to this: thousands of clients that stop within it cost nothing to speak of,
/// and who goes on after so long has no hurry.
const PREFACE_PAUSE_MAX: Duration = Duration::from_secs(1);

/// The parsers take this many times the configured sizes, so that it is we who answer what is over
/// them.
const PARSER_SLACK: usize = 4;

/// And so many lines more than configured. The HTTP/1 parser sets memory aside for all it may take,
/// for each request anew: a clear answer to some more lines is worth that, not one to any number.
const LINES_SLACK: usize = 28;

// What HTTP/2 lets a client have or make us do, per connection: said here and not left to a
// library's defaults, since `limit.connections` times these is what clients can hold.

/// Requests at once; gateways in front of us open another connection for more.
const H2_STREAMS: u32 = 128;
/// Streams that were reset before we looked at them: more is a rapid reset (CVE-2023-44487), and
/// the connection ends.
const H2_PENDING_RESETS: usize = 20;
/// Streams that we reset for a client's errors; more is a flood of them, and the connection ends.
const H2_ERROR_RESETS: usize = 1_024;
/// Bytes of one body that may be under way before we have taken them.
const H2_STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// The same of all bodies of a connection: those of requests that wait to be let in, which nobody
/// reads yet, leave room for that whose turn it is.
const H2_CONNECTION_WINDOW_BYTES: u32 = H2_STREAMS * H2_STREAM_WINDOW_BYTES;
/// The least that the protocol allows; CONTINUATION frames are counted by it.
const H2_FRAME_BYTES: u32 = 16 << 10;
/// Bytes of one answer that wait for the client's window.
const H2_SEND_BYTES: usize = 400 << 10;
/// An idle connection whose client does not answer a PING for so long is closed.
const H2_PING_TIME: Duration = Duration::from_secs(20);

/// Serves clients, and operators if they have a listener of their own, until `gateway.stop` is
/// cancelled; then lets open requests finish for at most `drain`. Returns how many connections were
/// cut.
pub async fn serve(
    gateway: &Arc<Gateway>,
    bound: Bound,
    admin: Option<Bound>,
    tls: Option<Arc<ListenerTls>>,
    drain: Duration,
) -> usize {
    let router = if admin.is_some() { public_router } else { router };
    let places = gateway.edge.now().connections;
    let reach = ListenerScope::of_clients(&bound.addresses());
    let front = Front::of_clients(gateway, router(gateway.clone()), reach);
    let clients = Face { bound, front, places, tls: tls.clone() }.serve(gateway, drain);
    let Some(bound) = admin else { return clients.await };
    let front = Front::of_operators(gateway, admin_router(gateway.clone()));
    let operators = Face { bound, front, places: ADMIN_CONNECTIONS, tls }.serve(gateway, drain);
    let (clients, operators) = tokio::join!(clients, operators);
    clients + operators
}

/// The sockets of one audience with their routes.
struct Face {
    bound: Bound,
    front: Front,
    /// Connections at once.
    places: usize,
    tls: Option<Arc<ListenerTls>>,
}

impl Face {
    /// Accepts connections until the gateway stops. Returns how many were cut.
    async fn serve(self, gateway: &Arc<Gateway>, drain: Duration) -> usize {
        let places = Arc::new(Semaphore::new(self.places.min(Semaphore::MAX_PERMITS)));
        let mut acceptors = JoinSet::new();
        let takes_queue = self.bound.is_one_of_group();
        for listener in self.bound.into_listeners() {
            let (front, tls) = (self.front.clone(), self.tls.clone());
            let places = places.clone();
            let last_opening = LAST_OPENING.min(drain / 2);
            let door = Door { gateway: gateway.clone(), front, tls, places, takes_queue, last_opening };
            acceptors.spawn(door.accept(listener, drain));
        }
        acceptors.join_all().await.into_iter().sum()
    }
}

struct Door {
    gateway: Arc<Gateway>,
    front: Front,
    tls: Option<Arc<ListenerTls>>,
    places: Arc<Semaphore>,
    /// Connections that the kernel has queued for the listener are taken before it closes: they
    /// would be reset.
    takes_queue: bool,
    /// Time for clients' first requests once a shutdown has begun.
    last_opening: Duration,
}

impl Door {
    async fn accept(self, listener: TcpListener, drain: Duration) -> usize {
        let door = Arc::new(self);
        let mut connections = JoinSet::new();
        loop {
            let (place, socket) = tokio::select! {
                () = door.gateway.stop.cancelled() => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                next = door.next(&listener) => next,
            };
            connections.spawn(door.clone().connection(socket, place));
        }
        if door.takes_queue {
            while let Some(Ok((socket, _))) = listener.accept().now_or_never() {
                connections.spawn(door.clone().connection(socket, None));
            }
        }
        drop(listener);
        end_within(&mut connections, drain).await;
        let cut = connections.len();
        if cut > 0 {
            door.gateway.cut_all();
            end_within(&mut connections, CUT_NOTICE).await;
        }
        connections.shutdown().await;
        cut
    }

    /// The next client and its place. At the limit, clients wait in the kernel's queue instead of
    /// costing us memory.
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

    /// One connection, from its first byte to its end. Not an async function, as `speak` is none:
    /// those keep what they are given twice, for as long as they run.
    fn connection(
        self: Arc<Self>,
        socket: TcpStream,
        place: Option<OwnedSemaphorePermit>,
    ) -> impl Future<Output = ()> + Send {
        let counted = Counted::new(self.gateway.meters.connections.clone());
        let _ = socket.set_nodelay(true);
        async move {
            match &self.tls {
                // On the side: it is three times as large as what a plain connection needs, and
                // would be set aside for each of those, too.
                Some(tls) => Box::pin(self.secured(tls, socket)).await,
                None => {
                    let limit = self.gateway.edge.now().header_time;
                    if let Some(version) = self.before_stop(limit, version(&socket)).await {
                        self.speak(socket, version).await;
                    }
                }
            }
            drop((counted, place));
        }
    }

    #[cfg(feature = "tls")]
    async fn secured(&self, tls: &ListenerTls, socket: TcpStream) {
        let (handshake_time, header_time) = {
            let edge = self.gateway.edge.now();
            (edge.handshake_time, edge.header_time)
        };
        let opened = self.before_stop(handshake_time, super::tls::open(tls, socket)).await;
        let Some((stream, version)) = opened else { return };
        let begun = match version {
            // hyper would wait for what a client begins with without a limit, and through a
            // shutdown.
            Version::HTTP_2 => self.before_stop(header_time, HandshakenStream::over_http2(stream)).await,
            _ => self.before_stop(header_time, HandshakenStream::over_http1(stream)).await,
        };
        if let Some(stream) = begun {
            self.speak(stream, version).await;
        }
    }

    #[cfg(not(feature = "tls"))]
    async fn secured(&self, tls: &ListenerTls, _socket: TcpStream) {
        match *tls {}
    }

    /// Waits for the client's opening before its first request, unless it takes too long, or longer
    /// than [`LAST_OPENING`] once a shutdown has begun.
    async fn before_stop<T>(&self, limit: Duration, opening: impl Future<Output = Option<T>>) -> Option<T> {
        let too_late = async {
            self.gateway.stop.cancelled().await;
            tokio::time::sleep(self.last_opening).await;
        };
        tokio::select! {
            biased;
            opened = tokio::time::timeout(limit, opening) => opened.ok().flatten(),
            () = too_late => None,
        }
    }

    /// HTTP with one client, to its end.
    fn speak<S>(&self, socket: S, version: Version) -> impl Future<Output = ()> + Send + use<S>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (write_time, idle_time) = {
            let edge = self.gateway.edge.now();
            (edge.write_time, edge.header_time)
        };
        let stop = self.gateway.stop.clone();
        let io = TokioIo::new(TimedSocket::new(socket, write_time, stop.clone()));
        let service = TowerToHyperService::new(self.front.of_connection(version));
        let activity = (version == Version::HTTP_2).then(Activity::new);
        let connection = self.http(version, activity.clone()).serve_connection(io, service).into_owned();
        let (cut, idle) = (self.gateway.cut.clone(), activity.map(|activity| (activity, idle_time)));
        idle::until_end(connection, End { stop, cut, idle })
    }

    fn http(&self, version: Version, activity: Option<Activity>) -> auto::Builder<Tasks> {
        let edge = &self.gateway.edge.now();
        let tracker = self.gateway.tasks.clone();
        let cut = self.gateway.cut.clone();
        let mut http = auto::Builder::new(Tasks { tracker, write_time: edge.write_time, activity, cut });
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(edge.header_time)
            .max_headers(edge.headers.saturating_add(LINES_SLACK))
            .max_buf_size(edge.header_bytes.saturating_mul(PARSER_SLACK).max(64 << 10));
        let list_bytes = edge.header_bytes.saturating_mul(PARSER_SLACK);
        http.http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(H2_PING_TIME)
            .max_concurrent_streams(H2_STREAMS)
            .max_pending_accept_reset_streams(H2_PENDING_RESETS)
            .max_local_error_reset_streams(H2_ERROR_RESETS)
            .initial_stream_window_size(H2_STREAM_WINDOW_BYTES)
            .initial_connection_window_size(H2_CONNECTION_WINDOW_BYTES)
            .max_frame_size(H2_FRAME_BYTES)
            .max_send_buf_size(H2_SEND_BYTES)
            .max_header_list_size(u32::try_from(list_bytes).unwrap_or(u32::MAX));
        if version == Version::HTTP_2 { http.http2_only() } else { http.http1_only() }
    }
}

/// The HTTP that a client speaks, told from its first bytes; `None` when it leaves before. hyper
/// would find out by itself, but without a time limit.
async fn version(socket: &TcpStream) -> Option<Version> {
    let (mut first, mut pause) = ([0; PREFACE.len()], PREFACE_PAUSE);
    loop {
        let n = socket.peek(&mut first).await.ok().filter(|n| *n > 0)?;
        if first[..n] == *PREFACE {
            return Some(Version::HTTP_2);
        }
        if first[..n] != PREFACE[..n] {
            return Some(Version::HTTP_11);
        }
        // A socket that has something to read is ready at once, however often it is asked for more.
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PREFACE_PAUSE_MAX);
    }
}

/// Waits for connections to end, at most for `limit`.
async fn end_within(connections: &mut JoinSet<()>, limit: Duration) {
    let ended = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(limit, ended).await;
    while connections.try_join_next().is_some() {}
}

/// One more in a gauge, until dropped.
struct Counted(Gauge);

impl Counted {
    fn new(gauge: Gauge) -> Counted {
        gauge.increment(1.0);
        Counted(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Runs the requests of an HTTP/2 connection for hyper; a shutdown waits for them.
#[derive(Clone)]
struct Tasks {
    tracker: TaskTracker,
    /// The longest that a client may leave a piece of an answer lying.
    write_time: Duration,
    /// Counts them; None over HTTP/1.1, where hyper runs none here.
    activity: Option<Activity>,
    /// Cancelled when open requests are to end.
    cut: CancellationToken,
}

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        let open = self.activity.as_ref().map(Activity::open);
        let cut = CutWaker::new(self.cut.clone());
        self.tracker.spawn(h2_stream_timeout::served(task, self.write_time, cut, open));
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use tokio::io::AsyncWriteExt;
    use tokio::time::Instant;

    use super::*;

    /// A connection of ours to a client that has sent `first`.
    async fn begun(first: &[u8]) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(first).await.unwrap();
        let (ours, _) = listener.accept().await.unwrap();
        ours.readable().await.unwrap();
        (ours, client)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_within_its_first_bytes_is_rarely_looked_at() {
        let (ours, _client) = begun(b"P").await;
        let (mut told, mut looks) = (pin!(version(&ours)), 0);
        let counted = poll_fn(|cx| {
            looks += 1;
            told.as_mut().poll(cx)
        });
        assert!(
            tokio::time::timeout(Duration::from_secs(75), counted).await.is_err(),
            "it said nothing more"
        );
        assert!(looks < 100, "looked at {looks} times");
    }

    #[tokio::test(start_paused = true)]
    async fn prompt_client_is_served_promptly() {
        for (first, rest, version_told) in
            [(&b"P"[..], &b"OST"[..], Version::HTTP_11), (&PREFACE[..3], &PREFACE[3..], Version::HTTP_2)]
        {
            let (ours, mut client) = begun(first).await;
            let start = Instant::now();
            let rest_sent = async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                client.write_all(rest).await.unwrap();
            };
            let (told, ()) = tokio::join!(version(&ours), rest_sent);
            assert_eq!(told, Some(version_told));
            assert!(start.elapsed() <= Duration::from_millis(40), "{:?}", start.elapsed());
        }
    }
}
