//! Engines found through the API server of Kubernetes: pods by their labels, or the endpoint slices
//! of a Service. Both are listed once and watched from then on, so that the fleet changes as the
//! cluster says, and a pod that is told to stop is drained at once.
//!
//! The API server is believed as it is: a role whose pods are all gone is empty. An API server
//! that is away, or refuses, says nothing, and the fleet stays as it was.

mod access;
mod answer;
mod ask;
mod inventory;
mod pods;
mod refusals;
mod slices;
mod watch;

use std::fmt::Debug;
use std::time::Duration;

use kube::core::NamespaceResourceScope;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::config::Config;
use crate::config::kubernetes::Wanted;
use crate::control::FleetHandles;
use crate::fleet::Role;
pub use answer::SourceAnswer;
pub use ask::ask;
use inventory::ObjectEngines;
use watch::RoleWatch;

/// Most engines of a role, as in a file.
const MAX_ENGINES: usize = 4_096;

/// Longest wait for the first lists at the start. An API server answers in milliseconds. One that
/// does not must not keep the gateway from engines of other sources.
const FIRST_LIST: Duration = Duration::from_secs(3);

/// A kind of object by which pods are found.
trait Kind:
    kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// As rights name it.
    const RESOURCE: &'static str;
    /// The API group that rights name, in words.
    const GROUP: &'static str;

    /// The engines of one object, and what is lacking in it.
    fn found(&self, wanted: &Wanted) -> ObjectEngines;
}

/// Watches as configured, in tasks of `tasks`; returns when the first lists are there, or are not
/// to be waited for.
pub async fn start(config: &Config, handles: &FleetHandles, tasks: &mut JoinSet<()>) {
    let settings = &config.discovery.kubernetes;
    let mut first = Vec::new();
    for (role, wanted) in [(Role::Prefill, settings.prefill()), (Role::Decode, settings.decode())] {
        let Some(wanted) = wanted else { continue };
        let (tell, signal_first) = oneshot::channel();
        first.push(signal_first);
        tasks.spawn(RoleWatch::new(handles.clone(), role, settings.clone(), wanted, tell).run());
    }
    let all = async {
        for signal_first in first {
            // A task that ended without a signal is not waited for.
            let _ = signal_first.await;
        }
    };
    if tokio::time::timeout(FIRST_LIST, all).await.is_err() {
        tracing::warn!(
            fleet = handles.fleet.log_name(),
            source = "kubernetes",
            "the API server has not answered yet: the gateway starts without its engines"
        );
    }
}
