//! One look at the store, for `pd-proxy check`: is it there, does it carry messages, may it be
//! used.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::Instant;

use super::ShareError;
use super::lease::Lease;
use super::retry::in_time;
use super::slices::Buckets;
use super::store::Store;
use crate::route::shared::message::ReplicaId;

/// Findings about a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Findings {
    /// Its name and version, as it tells.
    pub server: String,
    /// Time that a message took there and back.
    pub delay: Duration,
    /// True if the store may drop the lease when its memory is full: any policy of eviction but
    /// `noeviction`. Unknown if it does not tell.
    pub evicts: Option<bool>,
}

/// Looks at the store as a gateway would use it, under names of the look's own.
///
/// # Errors
/// It can't be reached, or refuses something that gateways need.
pub async fn look(store: &Store, prefix: &str, me: ReplicaId) -> Result<Findings, ShareError> {
    in_time(ask(store, prefix, me)).await
}

async fn ask(store: &Store, prefix: &str, me: ReplicaId) -> Result<Findings, ShareError> {
    let client = store.client().await?;
    let mut commands = client.get_multiplexed_async_connection().await?;
    let mut listener = client.get_async_pubsub().await?;
    let (channel, key) = (format!("{prefix}:check:messages"), format!("{prefix}:check:leader"));
    listener.subscribe(&channel).await?;
    let began = Instant::now();
    redis::cmd("PUBLISH").arg(&channel).arg("check").query_async::<()>(&mut commands).await?;
    listener.on_message().next().await.ok_or(ShareError::Closed)?;
    let delay = began.elapsed();
    Lease::new(key, me).take(&mut commands).await?;
    Buckets::new(&format!("{prefix}:check"), me).count_gateways(&mut commands).await?;
    let info: String = redis::cmd("INFO").query_async(&mut commands).await.unwrap_or_default();
    Ok(Findings {
        server: server(&info),
        delay,
        evicts: fact(&info, "maxmemory_policy").map(|it| it != "noeviction"),
    })
}

/// The value of one line of `INFO`.
fn fact<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Name and version: Valkey tells both, and the version of Redis that it is compatible with.
fn server(info: &str) -> String {
    match (fact(info, "valkey_version"), fact(info, "redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, Some(version)) => format!("Redis {version}"),
        (None, None) => "a server that does not tell its version".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of Redis 7.0.15 and Valkey 8.1.
    #[test]
    fn servers_tell_their_name_and_version() {
        let redis = "# Server\r\nredis_version:7.0.15\r\nmaxmemory_policy:allkeys-lru\r\n";
        let valkey = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.0\r\n";
        assert_eq!([server(redis), server(valkey)], ["Redis 7.0.15", "Valkey 8.1.0"]);
        assert_eq!(fact(redis, "maxmemory_policy"), Some("allkeys-lru"));
        assert_eq!(fact(valkey, "maxmemory_policy"), None);
    }
}
