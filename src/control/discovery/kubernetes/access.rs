//! The way to the API server: the service account of the pod, or a kubeconfig.

use std::time::Duration;

use kube::{Api, Client};

use super::Kind;
use super::refusals::chain;
use crate::config::kubernetes::{By, Kubernetes};
use crate::tls;

/// Time for which one watch lasts until the server ends it and the next one begins. A connection
/// that died without a word is noticed soon after, so this bounds how long a partition goes unseen;
/// it costs a request a minute.
pub(super) const WATCH_S: u32 = 60;

/// Opening a connection to the API server.
const CONNECT: Duration = Duration::from_secs(5);

/// The longest silence of the server within an answer: longer than a watch lasts.
const SILENCE: Duration = Duration::from_secs(WATCH_S as u64 + 15);

/// Place where to ask.
#[derive(Clone)]
pub(super) struct Access {
    client: Client,
    /// The namespace that is looked at.
    pub(super) namespace: String,
    /// The server, as a URL.
    pub(super) server: String,
}

impl Access {
    /// As `KUBECONFIG` or `~/.kube/config` says, else as a pod's service account. Its token and
    /// authority are read again as they are renewed, which the client does by itself.
    ///
    /// # Errors
    /// The reason for which there is no way, in words.
    pub(super) async fn find(settings: &Kubernetes) -> Result<Access, String> {
        tls::install_provider();
        let mut config = kube::Config::infer().await.map_err(|e| nowhere(&chain(&e)))?;
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = Some(SILENCE);
        config.reset_reader_on_write = true;
        // Whoever asks has pauses of its own.
        config.default_retry = false;
        // As towards engines: `HTTPS_PROXY` is for what leaves the cluster.
        config.proxy_url = None;
        let named = settings.namespace.trim();
        let namespace = if named.is_empty() { config.default_namespace.trim() } else { named }.to_owned();
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config).map_err(|e| format!("{server}: {}", chain(&e)))?;
        Ok(Access { client, namespace, server: server.trim_end_matches('/').to_owned() })
    }

    /// The objects of one kind in the namespace.
    pub(super) fn api<K: Kind>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

/// The labels that are asked for.
pub(super) fn labels(by: &By) -> String {
    match by {
        By::Selector(selector) => selector.clone(),
        By::Service(name) => format!("kubernetes.io/service-name={name}"),
    }
}

fn nowhere(why: &str) -> String {
    format!("no API server is known: run in a pod with a service account's token, or set KUBECONFIG ({why})")
}
