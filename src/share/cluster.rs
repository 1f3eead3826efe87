//! A cluster of Redis or Valkey: the node that keeps what gateways share.
//!
//! All names have one hash tag, so that one node has them all, and is used like a server alone. A
//! node that does not have them answers `MOVED` and says which one does
//! ([specification](https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/)).

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{Client, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisError, ServerErrorKind};

use super::ShareError;

/// Way to a cluster.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Client>,
    /// A name that is kept where all others are.
    name: String,
}

impl Cluster {
    /// The cluster that has these nodes, each named by a URL, where all names begin with `prefix`.
    ///
    /// # Errors
    /// A URL can't be read.
    pub fn new(urls: &[String], prefix: &str) -> Result<Cluster, ShareError> {
        let nodes = urls.iter().map(|url| Client::open(url.as_str())).collect::<Result<_, _>>()?;
        Ok(Cluster { nodes, name: format!("{prefix}:leader") })
    }

    /// The node that keeps the names at the moment, as the first one says that answers. All are
    /// asked at once: one that swallows packets delays nobody.
    ///
    /// # Errors
    /// That of the node that failed last, if none tells.
    pub async fn keeper(&self) -> Result<Client, ShareError> {
        let mut asked: FuturesUnordered<_> = self.nodes.iter().map(|node| self.told_by(node)).collect();
        let mut error = ShareError::Closed;
        while let Some(told) = asked.next().await {
            match told {
                Ok(keeper) => return Ok(keeper),
                Err(why) => error = why,
            }
        }
        Err(error)
    }

    async fn told_by(&self, node: &Client) -> Result<Client, ShareError> {
        let config = super::store::answers_in_time();
        let mut link: MultiplexedConnection =
            node.get_multiplexed_async_connection_with_config(&config).await?;
        let asked: Result<Option<Vec<u8>>, RedisError> =
            redis::cmd("GET").arg(&self.name).query_async(&mut link).await;
        let Err(error) = asked else { return Ok(node.clone()) };
        let keeper =
            error.redirect_node().and_then(|(at, _)| elsewhere(node.get_connection_info().addr(), at));
        let Some(keeper) = keeper else { return Err(error.into()) };
        Ok(Client::open(node.get_connection_info().clone().set_addr(keeper).into_connection_info()?)?)
    }
}

/// The address that `MOVED` names, reached as the node that said so. A node that does not know its
/// own address leaves the host out: it is that of the node that was asked.
fn elsewhere(asked: &ConnectionAddr, at: &str) -> Option<ConnectionAddr> {
    let (named, port) = at.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let host = |own: &str| if named.is_empty() { own.to_owned() } else { named.to_owned() };
    match asked.clone() {
        ConnectionAddr::Tcp(own, _) => Some(ConnectionAddr::Tcp(host(&own), port)),
        ConnectionAddr::TcpTls { host: own, insecure, tls_params, .. } => {
            Some(ConnectionAddr::TcpTls { host: host(&own), port, insecure, tls_params })
        }
        _ => None,
    }
}

/// True for answers of a server that keeps the names no longer: another one does.
pub fn is_elsewhere(error: &ShareError) -> bool {
    let ShareError::Store(error) = error else { return false };
    let ErrorKind::Server(kind) = error.kind() else { return false };
    matches!(kind, ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::ReadOnly)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_names_a_node_that_is_reached_like_the_one_that_was_asked() {
        let plain = ConnectionAddr::Tcp("a".to_owned(), 1);
        let at = |told| elsewhere(&plain, told);
        assert_eq!(at("10.0.0.2:6380"), Some(ConnectionAddr::Tcp("10.0.0.2".to_owned(), 6_380)));
        assert_eq!(at("::1:6380"), Some(ConnectionAddr::Tcp("::1".to_owned(), 6_380)));
        assert_eq!(at(":6380"), Some(ConnectionAddr::Tcp("a".to_owned(), 6_380)));
        for told in ["", "10.0.0.2", "10.0.0.2:", "10.0.0.2:x", "10.0.0.2:70000"] {
            assert_eq!(at(told), None, "{told}");
        }
        let tls = |host: &str, port| ConnectionAddr::TcpTls {
            host: host.to_owned(),
            port,
            insecure: false,
            tls_params: None,
        };
        assert_eq!(elsewhere(&tls("a", 1), "b:2"), Some(tls("b", 2)));
    }

    #[test]
    fn a_store_is_elsewhere_where_its_server_may_not_write() {
        let said = |kind| ShareError::Store(RedisError::from((ErrorKind::Server(kind), "said")));
        assert!(
            is_elsewhere(&said(ServerErrorKind::Moved)) && is_elsewhere(&said(ServerErrorKind::ReadOnly))
        );
        assert!(!is_elsewhere(&said(ServerErrorKind::ClusterDown)) && !is_elsewhere(&ShareError::Closed));
    }
}
