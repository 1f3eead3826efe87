//! The store: one server, or the one that sentinels or a cluster name at the moment.

use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, RedisConnectionInfo};

use super::cluster::Cluster;
use super::{ANSWER_TIME, CONNECT_TIME, ShareError};
use crate::config::share::StoreUrl;

/// Way to the store.
pub enum Store {
    /// One server alone.
    Server(Box<Client>),
    /// Sentinels, which know the server.
    Sentinels(Box<tokio::sync::Mutex<SentinelClient>>),
    /// Nodes of a cluster, one of which keeps all names.
    Cluster(Cluster),
}

/// A server, and a connection to it.
pub struct Connected {
    /// Client of the server that was reached.
    pub client: Client,
    /// Connection for commands.
    pub commands: MultiplexedConnection,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store")
    }
}

impl Store {
    /// The way to the store that a URL names, for names that begin with `prefix`. Nothing is
    /// connected yet.
    ///
    /// # Errors
    /// The URL has a part that can't be read.
    pub fn new(url: &StoreUrl, prefix: &str) -> Result<Store, ShareError> {
        match url {
            StoreUrl::Server(url) => Ok(Store::Server(Box::new(Client::open(url.as_str())?))),
            StoreUrl::Sentinels { sentinels, name, credentials } => {
                let login = login(credentials)?;
                let node = SentinelNodeConnectionInfo::default().set_redis_connection_info(login);
                let client = SentinelClient::build(
                    sentinels.clone(),
                    name.clone(),
                    Some(node),
                    SentinelServerType::Master,
                )?;
                Ok(Store::Sentinels(Box::new(client.into())))
            }
            StoreUrl::Cluster { nodes } => Ok(Store::Cluster(Cluster::new(nodes, prefix)?)),
        }
    }

    /// Connects to the server as it is known now. Each answer may take [`ANSWER_TIME`].
    ///
    /// # Errors
    /// Fails as [`client`](Self::client) does, or the server can't be reached.
    pub async fn connect(&self) -> Result<Connected, ShareError> {
        let client = self.client().await?;
        let commands = client.get_multiplexed_async_connection_with_config(&answers_in_time()).await?;
        Ok(Connected { client, commands })
    }

    /// The server, as it is known now.
    ///
    /// # Errors
    /// No sentinel or node of a cluster answers, or none knows it.
    pub async fn client(&self) -> Result<Client, ShareError> {
        match self {
            Store::Server(client) => Ok(client.as_ref().clone()),
            Store::Sentinels(sentinels) => Ok(sentinels.lock().await.async_get_client().await?),
            Store::Cluster(cluster) => cluster.keeper().await,
        }
    }
}

/// Settings of connections: each answer may take [`ANSWER_TIME`].
pub(super) fn answers_in_time() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIME))
        .set_response_timeout(Some(ANSWER_TIME))
}

/// The login of `user:password`, as a URL would have it.
fn login(credentials: &str) -> Result<RedisConnectionInfo, ShareError> {
    if credentials.is_empty() {
        return Ok(RedisConnectionInfo::default());
    }
    Ok(format!("redis://{credentials}@localhost").into_connection_info()?.redis_settings().clone())
}
