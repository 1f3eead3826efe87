//! One lookup server: its one socket, and what is known of its health.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::frame::{self, AnswerError, Request};
use super::health::{AllowedAction, Change, Event, Health};
use super::socket::{Socket, SocketError};
use crate::endpoint::Endpoint;
use crate::pool::PoolError;

/// A host that vanished is noticed after this long a silence on an idle socket, times the system's
/// probes.
const KEEPALIVE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Server {
    endpoint: Endpoint,
    pub(super) host: Arc<str>,
    born: Instant,
    health: Mutex<Health>,
    /// Held while a question is open; empty until the first and after one that failed.
    line: tokio::sync::Mutex<Option<Socket<TcpStream>>>,
}

/// A question that is under way. Dropped without a verdict it was given up, which is the worst
/// thing to know of a server: it may still be busy with it.
struct Open<'a> {
    server: &'a Server,
    judged: bool,
}

impl Server {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        let host = endpoint.host.as_str().into();
        Self {
            endpoint,
            host,
            born: Instant::now(),
            health: Mutex::default(),
            line: tokio::sync::Mutex::default(),
        }
    }

    /// Leading blocks of `hashes` that the server's pool has.
    pub(super) async fn ask(&self, hashes: &[i64]) -> Result<usize, PoolError> {
        // Behind another question it would only wait, and the engine's scheduler behind both.
        let Ok(mut line) = self.line.try_lock() else { return Err(PoolError::Busy) };
        let turn = lock(&self.health).turn(self.now_ms());
        match turn {
            AllowedAction::Ask => self.question(&mut line, hashes).await,
            AllowedAction::Check => {
                self.question(&mut line, &[]).await?;
                Err(PoolError::Refused(format!("{} was in trouble and is watched", self.endpoint)))
            }
            AllowedAction::Rest => {
                Err(PoolError::Refused(format!("{} is in trouble and left alone", self.endpoint)))
            }
        }
    }

    async fn question(
        &self,
        line: &mut Option<Socket<TcpStream>>,
        hashes: &[i64],
    ) -> Result<usize, PoolError> {
        let request = Request::new(hashes).map_err(|error| PoolError::TooLarge(error.to_string()))?;
        let open = Open { server: self, judged: false };
        let outcome = self.exchange(line, &request).await;
        open.close(if outcome.is_ok() { Event::Good } else { Event::Bad });
        outcome
    }

    async fn exchange(
        &self,
        line: &mut Option<Socket<TcpStream>>,
        request: &Request,
    ) -> Result<usize, PoolError> {
        let socket = match line.take().filter(Socket::is_idle) {
            Some(socket) => socket,
            None => self.connect().await.map_err(|error| self.describe(&error))?,
        };
        let (answer, socket) = socket.ask(&request.body).await.map_err(|error| self.describe(&error))?;
        let found = frame::count(&answer, request.blocks);
        // The server has answered, so the socket is good for the next question in any case.
        *line = Some(socket);
        found.map_err(|error| {
            let text = format!("{}: {error}", self.endpoint);
            match error {
                AnswerError::Impossible => PoolError::Refused(text),
                AnswerError::Pickle(_) | AnswerError::NoCount => PoolError::Protocol(text),
            }
        })
    }

    async fn connect(&self) -> Result<Socket<TcpStream>, SocketError> {
        let stream = TcpStream::connect((self.endpoint.host.as_str(), self.endpoint.port)).await?;
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
        Socket::open(stream).await
    }

    fn describe(&self, error: &SocketError) -> PoolError {
        let text = format!("{}: {error}", self.endpoint);
        match error {
            SocketError::Io(_) => PoolError::Unreachable(text),
            SocketError::Zmtp(_) => PoolError::Protocol(text),
        }
    }

    fn judge(&self, event: Event) {
        let change = lock(&self.health).step(self.now_ms(), event);
        match change {
            Change::None => {}
            Change::Down => {
                tracing::warn!(server = %self.endpoint, "EMS lookup server in trouble; checked only")
            }
            Change::Up => tracing::info!(server = %self.endpoint, "EMS lookup server is asked again"),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Open<'_> {
    fn close(mut self, event: Event) {
        self.judged = true;
        self.server.judge(event);
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.judged {
            self.server.judge(Event::Bad);
        }
    }
}

/// A panic elsewhere leaves it whole.
fn lock(health: &Mutex<Health>) -> MutexGuard<'_, Health> {
    health.lock().unwrap_or_else(PoisonError::into_inner)
}
