//! Meanings of an API server's refusals, with their remedies.

use std::error::Error;

use kube::core::Status;
use kube::runtime::watcher;

use super::Kind;
use super::access::Access;

/// Verb of the operation, as Kubernetes' rights name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    List,
    Watch,
}

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Verb::List => "list",
            Verb::Watch => "watch",
        }
    }
}

/// Meaning of an interruption of a watch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Interruption {
    /// The server has dropped the version to resume from: a new list follows.
    VersionExpired,
    /// The connection ended; reopening it shows if that is a fault.
    Disconnected,
    /// A fault to be fixed, as text. Its kind comes before the first colon; the rest may differ
    /// from time to time.
    Fault(String),
}

/// Reason why a watch was interrupted.
pub(super) fn watch_interruption<K: Kind>(error: &watcher::Error, access: &Access) -> Interruption {
    match error {
        watcher::Error::InitialListFailed(error) => Interruption::Fault(of::<K>(Verb::List, error, access)),
        watcher::Error::WatchStartFailed(error) => Interruption::Fault(of::<K>(Verb::Watch, error, access)),
        watcher::Error::WatchError(status) if status.code == GONE => Interruption::VersionExpired,
        watcher::Error::WatchError(status) => Interruption::Fault(refused::<K>(Verb::Watch, status, access)),
        watcher::Error::WatchFailed(_) => Interruption::Disconnected,
        watcher::Error::NoResourceVersion => {
            Interruption::Fault(format!("{} does not answer as an API server does: {error}", access.server))
        }
    }
}

/// Reason why one exchange went wrong.
pub(super) fn of<K: Kind>(verb: Verb, error: &kube::Error, access: &Access) -> String {
    match error {
        kube::Error::Api(status) => refused::<K>(verb, status, access),
        error => format!("the API server at {} can't be asked: {}", access.server, chain(error)),
    }
}

/// HTTP 410: the version from which to go on is forgotten.
const GONE: u16 = 410;

fn refused<K: Kind>(verb: Verb, status: &Status, access: &Access) -> String {
    let (resource, group, namespace) = (K::RESOURCE, K::GROUP, &access.namespace);
    let said = if status.message.is_empty() { &status.reason } else { &status.message };
    match status.code {
        401 => format!(
            "{} does not know this token (401): is the service account's token mounted, or the kubeconfig up to date?",
            access.server
        ),
        403 => format!(
            "no right to {} {resource} in namespace {namespace} (403): give the gateway's service account get, list and watch on \
             {resource} ({group}) there, see the Role in config/kubernetes/rbac.yaml",
            verb.name()
        ),
        404 => format!(
            "{} knows no {resource} of {group} (404): Kubernetes 1.21 and newer have endpoint slices, and pods are found by \
             prefill_selector and decode_selector everywhere",
            access.server
        ),
        code => format!("{} answers {code} when asked to {} {resource}: {said}", access.server, verb.name()),
    }
}

/// An error and what led to it. What says nothing new is left out.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
