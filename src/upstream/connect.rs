//! Makes connections to engines: by TCP, or by a substitute in tests.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use http::uri::{Authority, Scheme};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::Service;

use super::wire::{Pipe, Wire};
use crate::tls::EngineTls;

/// A host that vanished (power, network) is noticed after this long a silence on the connection,
/// times the probes.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// Reason why a connection was not made.
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
    tls: EngineTls,
    limit: Duration,
    other: Option<Arc<dyn Dial>>,
}

impl Connector {
    /// Gives up on a connection after `limit`, and on a handshake over it after another; `other`,
    /// if there is one, is asked in place of sockets.
    pub fn new(limit: Duration, tls: EngineTls, other: Option<Arc<dyn Dial>>) -> Connector {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(limit));
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.set_keepalive_interval(Some(KEEPALIVE));
        tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
        Connector { tcp, tls, limit, other }
    }

    /// TLS settings for engines at `https://`.
    pub(super) fn tls(&self) -> &EngineTls {
        &self.tls
    }
}

impl Connector {
    /// Opens a connection to `authority`.
    pub(super) async fn connect(&self, authority: &Authority, secure: bool) -> Result<Wire, ConnectError> {
        let scheme = if secure { Scheme::HTTPS } else { Scheme::HTTP };
        let to = Uri::builder().scheme(scheme).authority(authority.clone()).path_and_query("/").build()?;
        if let Some(other) = &self.other {
            return Ok(Wire::Other(tokio::time::timeout(self.limit, other.dial(&to)).await??));
        }
        let host = to.host().unwrap_or_default().to_owned();
        let tcp = reached(self.tcp.clone(), to, self.limit).await?;
        if !secure {
            return Ok(Wire::Tcp(tcp));
        }
        tokio::time::timeout(self.limit, wrapped(&self.tls, tcp, &host)).await?
    }
}

/// A connection to the host of `to`. The connector's own limit begins when the name is resolved, so
/// this one is around both.
async fn reached<C>(mut tcp: C, to: Uri, limit: Duration) -> Result<TcpStream, ConnectError>
where
    C: Service<Uri, Response = TokioIo<TcpStream>, Error: Into<ConnectError>>,
{
    // It is always ready.
    match tokio::time::timeout(limit, tcp.call(to)).await {
        Ok(made) => Ok(made.map_err(Into::into)?.into_inner()),
        Err(late) => Err(io::Error::new(io::ErrorKind::TimedOut, late).into()),
    }
}

#[cfg(feature = "tls")]
async fn wrapped(tls: &EngineTls, tcp: TcpStream, host: &str) -> Result<Wire, ConnectError> {
    Ok(Wire::Tls(Box::new(tls.connect(tcp, host).await?)))
}

/// No configuration leads here, and nobody else may.
#[cfg(not(feature = "tls"))]
async fn wrapped(tls: &EngineTls, _tcp: TcpStream, _host: &str) -> Result<Wire, ConnectError> {
    tls.check()?;
    Err("this build has no TLS".into())
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::net::SocketAddr;

    use hyper_util::client::legacy::connect::dns::Name;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_name_server_that_never_answers_takes_no_longer_than_an_engine_that_does_not() {
        let limit = Duration::from_secs(3);
        let silent =
            tower::service_fn(|_: Name| pending::<Result<std::iter::Empty<SocketAddr>, io::Error>>());
        let mut tcp = HttpConnector::new_with_resolver(silent);
        tcp.set_connect_timeout(Some(limit));
        let begun = Instant::now();
        let ended =
            tokio::time::timeout(10 * limit, reached(tcp, Uri::from_static("http://engine:8000"), limit))
                .await;
        let why = ended.expect("it ends by itself").unwrap_err();
        assert_eq!(begun.elapsed().as_secs(), limit.as_secs());
        let why = why.downcast::<io::Error>().unwrap();
        assert_eq!((why.kind(), why.to_string().as_str()), (io::ErrorKind::TimedOut, "deadline has elapsed"));
    }
}
