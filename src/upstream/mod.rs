//! HTTP to the engines: the client for the legs of requests.
//!
//! HTTP/1.1, as engines speak it. Reading and writing happen in the task of who asks: a stream
//! wakes one task for each piece that comes, and holds no buffer while nothing does. Connections
//! that are free wait in `idle` for the next leg.
//!
//! It answers one question besides the exchange itself: had the request been written when it
//! failed? A hand-off whose request never left us may be given to another decoder; any other may
//! have been used already.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, Method, Response, StatusCode};

use crate::codec::json::Parts;
use crate::endpoint::Endpoint;
use crate::fleet::Instance;
use crate::tls::TlsError;

pub mod chunked;
mod connect;
mod exchange;
pub mod head;
mod idle;
mod reply;
mod room;
#[cfg(test)]
mod tests;
mod wire;

use exchange::{Exchange, Failed, Pieces, StartedResponse};
use idle::{Idle, Key, Taken};

pub use connect::{ConnectError, Connector, Dial, Dialling};
pub use exchange::ExchangeError;
pub use idle::POOL_IDLE;
use reply::Home;
pub use reply::{Reply, ReplyError};
pub use wire::{Pipe, Wire};

/// The client for all legs.
#[derive(Clone, Debug)]
pub struct Upstream {
    connector: Arc<Connector>,
    idle: Idle,
}

/// One request to one engine.
#[derive(Debug)]
pub struct Leg<'a> {
    /// The engine that is asked.
    pub instance: &'a Instance,
    /// `POST` for the legs of a generating request.
    pub method: Method,
    /// Path and query, as the client sent them.
    pub target: &'a PathAndQuery,
    /// Headers for the engine.
    pub headers: Cow<'a, HeaderMap>,
    /// The body, in pieces.
    pub body: Parts,
}

/// Set once the last byte of a request has been handed to the socket layer.
#[derive(Clone, Debug, Default)]
pub struct Written(Arc<AtomicBool>);

/// An exchange that brought no answer.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct SendError {
    /// The connection could not be made.
    pub connect: bool,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl Written {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// True if the engine may have the whole request.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl SendError {
    /// The whole chain of causes in one line, for the log.
    pub fn causes(&self) -> String {
        let mut text = self.source.to_string();
        let mut cause = self.source.source();
        while let Some(c) = cause {
            text.push_str(": ");
            text.push_str(&c.to_string());
            cause = c.source();
        }
        text
    }
}

/// A request that is about to be written.
struct Outgoing {
    key: Key,
    /// The connection that waited for it, if one did.
    taken: Taken,
    pieces: Pieces,
}

impl Upstream {
    /// A client whose connections are made by `connector`.
    pub fn new(connector: Connector) -> Upstream {
        Upstream { connector: Arc::new(connector), idle: Idle::default() }
    }

    /// Checks that `engine` could be spoken to as its address says, before it becomes a member.
    ///
    /// # Errors
    /// [`TlsError`] if it is at `https://` and no certificate could be believed there.
    pub fn check(&self, engine: &Endpoint) -> Result<(), TlsError> {
        if engine.tls { self.connector.tls().check() } else { Ok(()) }
    }

    /// Closes connections that nobody came for in time; to be called now and then. Returns the
    /// engines that have closed theirs themselves.
    pub fn sweep(&self) -> Vec<Authority> {
        self.idle.sweep().into_iter().map(|key| key.authority).collect()
    }

    /// Sends `leg` and waits for the head of the answer. Dropping the future hangs up on the
    /// engine. If the engine has closed the connections that waited, its health is told before
    /// this returns, and nothing is sent before the future is polled.
    ///
    /// # Errors
    /// [`SendError`] when no head arrived; `written` tells whether the engine may have seen the
    /// request.
    pub fn send<'a>(
        &'a self,
        leg: Leg<'_>,
        written: &'a Written,
    ) -> impl Future<Output = Result<Response<Reply>, SendError>> + Send + 'a {
        // What only the head is made of is gone before the exchange begins: its future is as small
        // as can be.
        let (method, health) = (leg.method.clone(), leg.instance.health());
        let wanted = wanted(leg);
        let taken = wanted.as_ref().map_or(Taken::Nothing, |(key, _)| self.idle.take(key));
        if matches!(taken, Taken::Closed) {
            health.note_lost_connections();
        }
        async move {
            let (key, pieces) = wanted?;
            self.exchange(Outgoing { key, taken, pieces }, &method, written).await
        }
    }

    /// Asks something beside an engine, without TLS and without credentials, and waits for the head
    /// of the answer.
    ///
    /// # Errors
    /// [`SendError`] when no head arrived.
    pub async fn get(&self, at: &Endpoint, path: &'static str) -> Result<Response<Reply>, SendError> {
        let authority: Authority =
            at.authority().parse().map_err(|e: http::uri::InvalidUri| unusable(e.into()))?;
        let head = head::write(&Method::GET, path, authority.as_str(), &HeaderMap::new(), 0);
        let key = Key { tls: false, authority };
        let taken = self.idle.take(&key);
        let outgoing = Outgoing { key, taken, pieces: Pieces::from_iter([head]) };
        self.exchange(outgoing, &Method::GET, &Written::default()).await
    }

    /// Over the connection that was taken, or over a new one.
    async fn exchange(
        &self,
        Outgoing { key, mut taken, mut pieces }: Outgoing,
        method: &Method,
        written: &Written,
    ) -> Result<Response<Reply>, SendError> {
        loop {
            let (wire, used_before) = match taken {
                Taken::Waiting(wire) => (wire, true),
                Taken::Closed | Taken::Nothing => {
                    let connecting = Box::pin(self.connector.connect(&key.authority, key.tls));
                    (connecting.await.map_err(unusable)?, false)
                }
            };
            match Exchange::new(wire, pieces, method, written).run().await {
                // It was closed just now. Another one that still waits shows that the engine lives;
                // without one the caller decides whom to ask.
                Err(Failed { unsent: Some(again), why }) if used_before => {
                    taken = self.idle.take(&key);
                    if !matches!(taken, Taken::Waiting(_)) {
                        return Err(SendError { connect: false, source: Box::new(why) });
                    }
                    pieces = *again;
                }
                // It was about to be closed, which crossed the request (RFC 9110 §15.5.9).
                Ok(StartedResponse { head, .. }) if used_before && timed_out_idle(&head) => {
                    return Err(SendError { connect: false, source: Box::new(ExchangeError::TimedOutIdle) });
                }
                outcome => return self.begun(key, outcome),
            }
        }
    }

    fn begun(
        &self,
        key: Key,
        outcome: Result<StartedResponse, Failed>,
    ) -> Result<Response<Reply>, SendError> {
        let StartedResponse { wire, head, early, written } =
            outcome.map_err(|failed| SendError { connect: false, source: Box::new(failed.why) })?;
        let home = (head.keep && written).then(|| Home { idle: self.idle.clone(), key });
        let mut response = Response::new(Reply::new(wire, head.framing, early, home));
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        Ok(response)
    }
}

/// True for the answer with which a server closes a connection on which it heard nothing for long.
fn timed_out_idle(head: &head::Head) -> bool {
    head.status == StatusCode::REQUEST_TIMEOUT && !head.keep
}

/// The connection that a leg needs, and what is to be written to it.
fn wanted(leg: Leg<'_>) -> Result<(Key, Pieces), SendError> {
    let authority = leg.instance.authority().cloned();
    let authority = authority.ok_or_else(|| unusable("the host name is not valid in a URL".into()))?;
    let host = authority.as_str();
    let head = head::write(&leg.method, leg.target.as_str(), host, &leg.headers, leg.body.len_bytes());
    let mut pieces = Pieces::new();
    pieces.push(head);
    pieces.extend(leg.body.into_iter().filter(|piece| !piece.is_empty()));
    Ok((Key { tls: leg.instance.endpoint().tls, authority }, pieces))
}

fn unusable(source: Box<dyn std::error::Error + Send + Sync>) -> SendError {
    SendError { connect: true, source }
}

/// A body that was not read to its end.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectError {
    /// It ended before its time.
    #[error("{0}")]
    Broken(String),
    /// It is larger than the limit, by what was announced or by what came.
    #[error("it is larger than {0} bytes")]
    TooLarge(usize),
}

/// Reads a body of at most `limit_bytes`; one frame is passed on as it is.
///
/// # Errors
/// [`CollectError`] when the body breaks or is larger.
pub async fn collect(mut body: Reply, limit_bytes: usize) -> Result<Bytes, CollectError> {
    use http_body::Body;
    use http_body_util::BodyExt;
    if body.size_hint().lower() > limit_bytes as u64 {
        return Err(CollectError::TooLarge(limit_bytes));
    }
    let mut whole = bytes::BytesMut::new();
    let mut only: Option<Bytes> = None;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|e| CollectError::Broken(e.to_string()))?.into_data() else {
            continue;
        };
        let so_far = whole.len() + only.as_ref().map_or(0, Bytes::len);
        if so_far + data.len() > limit_bytes {
            return Err(CollectError::TooLarge(limit_bytes));
        }
        match only.take() {
            None if whole.is_empty() => only = Some(data),
            first => {
                whole.extend_from_slice(&first.unwrap_or_default());
                whole.extend_from_slice(&data);
            }
        }
    }
    Ok(only.unwrap_or_else(|| whole.freeze()))
}
