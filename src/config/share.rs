//! `[share]`: other gateways in front of the same engines.

use super::table::{Rule, section};
use super::{Config, Invalid, Problem, Secret};

section! {
    /// `[share]`: other gateways in front of the same engines, and the store through which they
    /// decide as one.
    Share = "share" {
        /// Redis or Valkey through which gateways tell each other what they send where, as in
        /// `redis://user:password@host:6379`, `rediss://…` with TLS,
        /// `redis+sentinel://user:password@host:26379,host:26379/name`, or a cluster as in
        /// `redis+cluster://user:password@host:6379,host:6379` (`rediss+cluster://…` with TLS);
        /// none = this gateway decides alone.
        url: Option<Secret> = None, AfterRestart, Rule::Secret { variable: "PD_PROXY__SHARE__URL" };
        /// First part of all names there. Gateways with the same one share their engines.
        prefix: String = "pd-proxy".to_owned(), AfterRestart, Rule::NotEmpty;
    }
}

/// Beginnings of URLs of a cluster, and those of its nodes.
const CLUSTERS: [(&str, &str); 2] = [("redis+cluster://", "redis://"), ("rediss+cluster://", "rediss://")];
/// Beginning of a URL of sentinels.
const SENTINEL: &str = "redis+sentinel://";

/// A store, as its URL names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// One server alone.
    Server(String),
    /// Sentinels, which know the server.
    Sentinels {
        /// A URL for each sentinel.
        sentinels: Vec<String>,
        /// Name of the server there.
        name: String,
        /// User and password of the server, with a colon between; empty if it wants none.
        credentials: String,
    },
    /// Nodes of a cluster, of which one that is up is enough.
    Cluster {
        /// A URL for each node.
        nodes: Vec<String>,
    },
}

impl Share {
    /// The first part of all names in the store. In a cluster it is a hash tag, which keeps all of
    /// them at one node.
    pub fn prefix_in_store(&self) -> String {
        let in_cluster = matches!(self.store(), Ok(Some(StoreUrl::Cluster { .. })));
        if in_cluster && !self.prefix.contains('{') {
            format!("{{{}}}", self.prefix)
        } else {
            self.prefix.clone()
        }
    }

    /// The store; none where the gateway is alone.
    ///
    /// # Errors
    /// Description of what is wrong with the URL.
    pub fn store(&self) -> Result<Option<StoreUrl>, &'static str> {
        let Some(url) = self.url.as_ref().map(Secret::expose) else { return Ok(None) };
        if let Some(nodes) = cluster(url) {
            return nodes.map(|nodes| Some(StoreUrl::Cluster { nodes }));
        }
        let Some(rest) = url.strip_prefix(SENTINEL) else { return server(url).map(Some) };
        let (credentials, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (hosts, name) = rest.split_once('/').ok_or("names no server behind the sentinels")?;
        if name.is_empty() || name.contains('/') {
            return Err("names no server behind the sentinels");
        }
        if hosts.split(',').any(str::is_empty) {
            return Err("has a sentinel without a host");
        }
        let sentinels = hosts.split(',').map(|host| format!("redis://{host}")).collect();
        Ok(Some(StoreUrl::Sentinels {
            sentinels,
            name: name.to_owned(),
            credentials: credentials.to_owned(),
        }))
    }
}

/// URLs of the nodes that the URL of a cluster names; none if it is another one's.
fn cluster(url: &str) -> Option<Result<Vec<String>, &'static str>> {
    let (scheme, rest) = CLUSTERS.iter().find_map(|(whole, node)| Some((node, url.strip_prefix(whole)?)))?;
    let (login, hosts) = rest.rsplit_once('@').map_or(("", rest), |(login, hosts)| (login, hosts));
    let at = if login.is_empty() { "" } else { "@" };
    let node = |host: &str| format!("{scheme}{login}{at}{host}");
    Some(hosts.split(',').map(|host| server(&node(host)).map(|_| node(host))).collect())
}

fn server(url: &str) -> Result<StoreUrl, &'static str> {
    let rest = url.strip_prefix("redis://").or_else(|| url.strip_prefix("rediss://"));
    let rest = rest.ok_or(
        "does not begin with redis://, rediss://, redis+sentinel://, redis+cluster:// or rediss+cluster://",
    )?;
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    if host.is_empty() || host.starts_with([':', '/']) {
        return Err("has no host");
    }
    Ok(StoreUrl::Server(url.to_owned()))
}

/// Checks the store's URL, which is never shown: it may hold a password.
pub(super) fn validate(config: &Config, invalid: &mut Vec<Invalid>) {
    if let Err(why) = config.share.store() {
        invalid.push(("share.url", Problem::Store { why }));
    } else if config.share.url.is_some() && !cfg!(feature = "share") {
        invalid.push(("share.url", Problem::NoShare));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(url: &str) -> Result<Option<StoreUrl>, &'static str> {
        Share { url: Some(Secret::new(url.to_owned())), ..Share::default() }.store()
    }

    #[test]
    fn urls_name_a_server_or_sentinels() {
        let one = |url: &str| Ok(Some(StoreUrl::Server(url.to_owned())));
        for url in ["redis://a", "redis://a:6379/2", "rediss://user:p@ss@a:6380", "redis://[::1]:6379"] {
            assert_eq!(store(url), one(url));
        }
        let sentinels = StoreUrl::Sentinels {
            sentinels: vec!["redis://a:26379".to_owned(), "redis://b".to_owned()],
            name: "kv".to_owned(),
            credentials: "u:p".to_owned(),
        };
        assert_eq!(store("redis+sentinel://u:p@a:26379,b/kv"), Ok(Some(sentinels)));
        assert_eq!(Share::default().store(), Ok(None));
    }

    #[test]
    fn urls_name_the_nodes_of_a_cluster() {
        let of = |nodes: [&str; 2]| Ok(Some(StoreUrl::Cluster { nodes: nodes.map(str::to_owned).to_vec() }));
        assert_eq!(store("redis+cluster://a:1,b"), of(["redis://a:1", "redis://b"]));
        assert_eq!(store("rediss+cluster://u:p@a,b:2"), of(["rediss://u:p@a", "rediss://u:p@b:2"]));
        for url in ["redis+cluster://", "redis+cluster://a,", "redis+cluster://u:p@"] {
            assert!(store(url).is_err(), "{url}");
        }
    }

    #[test]
    fn names_in_a_cluster_have_one_hash_tag() {
        let prefix = |url: &str, prefix: &str| {
            let url = Some(Secret::new(url.to_owned()));
            Share { url, prefix: prefix.to_owned() }.prefix_in_store()
        };
        assert_eq!(prefix("redis://a", "team"), "team");
        assert_eq!(prefix("redis+cluster://a", "team"), "{team}");
        assert_eq!(prefix("rediss+cluster://a", "of{team}"), "of{team}");
    }

    #[test]
    fn urls_that_name_nothing_are_refused() {
        for url in ["", "a:6379", "http://a", "redis://", "redis://:6379", "redis://u:p@"] {
            assert!(store(url).is_err(), "{url}");
        }
        for url in ["redis+sentinel://a", "redis+sentinel://a/", "redis+sentinel://,a/x"] {
            assert!(store(url).is_err(), "{url}");
        }
    }
}
