//! HTTP to the engines: one pooled client for the legs of requests.
//!
//! It answers one question besides the exchange itself: had the request been written when it failed? A hand-off whose
//! request never left us may be given to another decoder; any other may have been used already.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::codec::json::Parts;
use crate::endpoint::Endpoint;
use crate::fleet::Instance;
use crate::tls::{EngineTls, TlsError};

mod body;
mod connect;
mod wire;

pub use body::LegBody;
pub use connect::{ConnectError, Connector, Dial, Dialling};
pub use wire::{Pipe, Wire};

/// vLLM closes idle connections after 5 s (`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`): we let go first.
pub const POOL_IDLE: Duration = Duration::from_secs(4);

/// The client for all legs.
#[derive(Clone, Debug)]
pub struct Upstream {
    client: Client<Connector, LegBody>,
    tls: EngineTls,
}

/// One request to one engine.
#[derive(Debug)]
pub struct Leg<'a> {
    /// Who is asked.
    pub instance: &'a Instance,
    /// `POST` for the legs of a generating request.
    pub method: Method,
    /// Path and query, as the client sent them.
    pub target: &'a PathAndQuery,
    /// Headers for the engine.
    pub headers: HeaderMap,
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

    /// Whether the engine may have the whole request.
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

impl Upstream {
    /// A client whose connections are made by `connector`.
    pub fn new(connector: Connector) -> Upstream {
        let tls = connector.tls().clone();
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(POOL_IDLE)
            .pool_timer(TokioTimer::new())
            .retry_canceled_requests(true)
            .build(connector);
        Upstream { client, tls }
    }

    /// Whether `engine` could be spoken to as its address says; to be asked before it becomes a member.
    ///
    /// # Errors
    /// [`TlsError`] where it is at `https://` and nobody could be believed there.
    pub fn check(&self, engine: &Endpoint) -> Result<(), TlsError> {
        if engine.tls { self.tls.check() } else { Ok(()) }
    }

    /// Sends `leg` and waits for the head of the answer. Dropping the future hangs up on the engine.
    ///
    /// # Errors
    /// [`SendError`] when no head arrived; `written` tells whether the engine may have seen the request.
    pub async fn send(&self, leg: Leg<'_>, written: &Written) -> Result<Response<Incoming>, SendError> {
        self.exchange(request(leg, written.clone())?).await
    }

    /// Asks something beside an engine, without TLS and without credentials, and waits for the head of the answer.
    ///
    /// # Errors
    /// [`SendError`] when no head arrived.
    pub async fn get(&self, at: &Endpoint, path: &'static str) -> Result<Response<Incoming>, SendError> {
        let mut request = Request::new(LegBody::empty());
        let uri = Uri::try_from(at.url(path));
        *request.uri_mut() = uri.map_err(|e| SendError { connect: true, source: e.into() })?;
        self.exchange(request).await
    }

    async fn exchange(&self, request: Request<LegBody>) -> Result<Response<Incoming>, SendError> {
        self.client
            .request(request)
            .await
            .map_err(|e| SendError { connect: e.is_connect(), source: Box::new(e) })
    }
}

fn request(leg: Leg<'_>, written: Written) -> Result<Request<LegBody>, SendError> {
    let unusable = |e: Box<dyn std::error::Error + Send + Sync>| SendError { connect: true, source: e };
    let authority =
        leg.instance.authority().ok_or_else(|| unusable("the host name is not valid in a URL".into()))?;
    let uri = Uri::builder()
        .scheme(if leg.instance.endpoint().tls { Scheme::HTTPS } else { Scheme::HTTP })
        .authority(authority.clone())
        .path_and_query(leg.target.clone())
        .build()
        .map_err(|e| unusable(e.into()))?;
    let mut request = Request::new(LegBody::new(leg.body, written));
    *request.method_mut() = leg.method;
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_11;
    *request.headers_mut() = leg.headers;
    Ok(request)
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
pub async fn collect(mut body: Incoming, limit_bytes: usize) -> Result<Bytes, CollectError> {
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
