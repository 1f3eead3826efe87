//! How connections to engines are made: by TCP, or by whatever a test puts in its place.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tower::Service;

use super::wire::{Pipe, Wire};

/// A host that vanished (power, network) is noticed after this long a silence on the connection, times the probes.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// Why a connection was not made.
pub type ConnectError = Box<dyn std::error::Error + Send + Sync>;

/// A connection under way.
pub type Dialling<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// A way to engines other than sockets. With pipes in memory a whole gateway runs in virtual time.
pub trait Dial: fmt::Debug + Send + Sync {
    /// Opens a connection to the host and port of `to`; the time limit is the caller's.
    fn dial(&self, to: &Uri) -> Dialling<Box<dyn Pipe>, io::Error>;
}

/// Makes connections for the client of the legs.
#[derive(Clone, Debug)]
pub struct Connector {
    tcp: HttpConnector,
    limit: Duration,
    other: Option<Arc<dyn Dial>>,
}

impl Connector {
    /// Gives up on a connection after `limit`; `other`, if there is one, is asked in place of sockets.
    pub fn new(limit: Duration, other: Option<Arc<dyn Dial>>) -> Connector {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(limit));
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.set_keepalive_interval(Some(KEEPALIVE));
        tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
        Connector { tcp, limit, other }
    }
}

impl Service<Uri> for Connector {
    type Response = Wire;
    type Error = ConnectError;
    type Future = Dialling<Wire, ConnectError>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        if let Some(other) = &self.other {
            let dialling = tokio::time::timeout(self.limit, other.dial(&to));
            return Box::pin(async move { Ok(Wire::Other(TokioIo::new(dialling.await??))) });
        }
        let connecting = self.tcp.call(to);
        Box::pin(async move { Ok(Wire::Tcp(connecting.await?)) })
    }
}
