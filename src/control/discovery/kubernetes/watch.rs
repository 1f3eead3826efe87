//! Follows the pods of one role for as long as the gateway runs.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Kind;
use super::access::{Access, WATCH_S, labels};
use super::inventory::RoleInventory;
use super::refusals::{self, Interruption};
use crate::config::kubernetes::{By, Kubernetes, Wanted};
use crate::control::FleetHandles;
use crate::control::discovery::changed;
use crate::fleet::{Owner, Role};

/// Time for which changes are collected: a rollout of a hundred pods is not a hundred changes of
/// the fleet.
const CHANGE_DELAY: Duration = Duration::from_millis(100);

/// Objects in one answer: a page of pods is some megabytes of JSON while it is read.
const PAGE: u32 = 200;

/// The longest pause between attempts: rights that are granted, and a server that is back, count
/// soon.
const MAX_PAUSE: Duration = Duration::from_secs(15);

/// Number of failures in a row after which connection and list begin anew. A server that was
/// restored without its history can't resume from a version that it does not know.
const FAILURES: u32 = 4;

/// Time without failure after which a watch counts as established. It is longer than a connection
/// takes to be opened or refused.
const STABLE_AFTER: Duration = Duration::from_secs(6);

/// The source's name in logs and metrics.
const SOURCE: &str = "kubernetes";

/// Keeps one role of the fleet equal to the cluster's pods.
pub(super) struct RoleWatch {
    handles: FleetHandles,
    role: Role,
    settings: Kubernetes,
    wanted: Wanted,
    inventory: RoleInventory,
    /// Signals the end of the first list, or its failure.
    first: Option<oneshot::Sender<()>>,
    pause: DefaultBackoff,
    /// Failures in a row.
    failures: u32,
    /// Time at which the watch counts as established, if nothing comes between: a list that
    /// succeeds is no proof, as its watch may be refused.
    stable_at: Option<Instant>,
    /// The last errors of the server and of the pods, so that each is logged once.
    last_error: String,
    lacks: String,
}

impl RoleWatch {
    /// Creates the watch of one role for the wanted pods. `first` is signalled when the first list
    /// is complete, or fails.
    pub(super) fn new(
        handles: FleetHandles,
        role: Role,
        settings: Kubernetes,
        wanted: Wanted,
        first: oneshot::Sender<()>,
    ) -> RoleWatch {
        RoleWatch {
            handles,
            role,
            settings,
            wanted,
            inventory: RoleInventory::default(),
            first: Some(first),
            pause: DefaultBackoff::default(),
            failures: 0,
            stable_at: None,
            last_error: String::new(),
            lacks: String::new(),
        }
    }

    /// Follows the cluster for ever.
    pub(super) async fn run(mut self) {
        loop {
            match Access::find(&self.settings).await {
                Ok(access) => match self.wanted.by {
                    By::Selector(_) => self.follow::<Pod>(&access).await,
                    By::Service(_) => self.follow::<EndpointSlice>(&access).await,
                },
                Err(why) => {
                    self.fail(Interruption::Fault(why));
                    self.rest().await;
                }
            }
        }
    }

    /// Lists and watches until it fails again and again.
    async fn follow<K: Kind>(&mut self, access: &Access) {
        let settings =
            watcher::Config::default().labels(&labels(&self.wanted.by)).timeout(WATCH_S).page_size(PAGE);
        let mut events = pin!(watcher::watcher(access.api::<K>(), settings));
        // Time at which collected changes are applied to the fleet.
        let mut due: Option<Instant> = None;
        let mut listed = false;
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = wait_until(due) => {
                    due = None;
                    self.apply();
                    continue;
                }
                () = wait_until(self.stable_at) => {
                    self.recover();
                    continue;
                }
            };
            match event {
                None => return,
                Some(Ok(event)) => {
                    let complete = matches!(event, Event::InitDone);
                    if self.take(event) {
                        due.get_or_insert(Instant::now() + CHANGE_DELAY);
                    }
                    if complete {
                        (listed, due) = (true, None);
                        self.stable_at = Some(Instant::now() + STABLE_AFTER);
                        self.apply();
                    }
                }
                Some(Err(error)) => {
                    // Changes before the error are applied at once.
                    if due.take().is_some() {
                        self.apply();
                    }
                    self.fail(refusals::watch_interruption::<K>(&error, access));
                    self.rest().await;
                    if self.failures >= FAILURES {
                        return;
                    }
                    self.stable_at = listed.then(|| Instant::now() + STABLE_AFTER);
                }
            }
        }
    }

    /// True if the event changes anything by itself.
    fn take<K: Kind>(&mut self, event: Event<K>) -> bool {
        match event {
            Event::Init => self.inventory.begin(),
            Event::InitApply(object) => self.inventory.listed(object.name_any(), object.found(&self.wanted)),
            Event::InitDone => self.inventory.complete(),
            Event::Apply(object) => {
                self.recover();
                return self.inventory.insert(object.name_any(), object.found(&self.wanted));
            }
            Event::Delete(object) => {
                self.recover();
                return self.inventory.remove(&object.name_any());
            }
        }
        false
    }

    /// Applies the engines to the fleet, and logs faults of the others.
    fn apply(&mut self) {
        let mut engines = self.inventory.engines();
        engines.all.retain(|engine| match self.handles.upstream.check(engine) {
            Ok(()) => true,
            Err(why) => {
                engines.lacks.push(format!("{engine}: {why}"));
                false
            }
        });
        let (came, gone) = self.handles.fleet.want(Owner::Kubernetes, self.role, &engines.all);
        changed(&self.handles.fleet, SOURCE, came + gone);
        let lacks = engines.lacks.join("; ");
        if !lacks.is_empty() && lacks != self.lacks {
            tracing::warn!(
                fleet = self.handles.fleet.log_name(),
                source = SOURCE,
                "not all engines can be used: {lacks}"
            );
        }
        let outcome = match (lacks.is_empty(), came + gone) {
            (false, _) => "failed",
            (true, 0) => "same",
            (true, _) => "changed",
        };
        self.handles.meters.discovered(SOURCE, outcome);
        self.lacks = lacks;
        self.signal_first();
    }

    /// Records that the server answers.
    fn recover(&mut self) {
        if !std::mem::take(&mut self.last_error).is_empty() {
            tracing::info!(
                fleet = self.handles.fleet.log_name(),
                source = SOURCE,
                role = self.role.name(),
                "the API server answers again"
            );
        }
        self.failures = 0;
        self.stable_at = None;
        self.pause.reset();
    }

    /// Records an interruption. Those of a normal watch are logged only if they repeat.
    fn fail(&mut self, why: Interruption) {
        self.stable_at = None;
        self.failures += 1;
        let why = match why {
            Interruption::VersionExpired => return,
            Interruption::Disconnected if self.failures < FAILURES => return,
            Interruption::Disconnected => "watches break again and again".to_owned(),
            Interruption::Fault(why) => why,
        };
        let what = |text: &str| text.split(": ").next().map(str::to_owned);
        if what(&why) != what(&self.last_error) {
            tracing::warn!(
                fleet = self.handles.fleet.log_name(),
                source = SOURCE,
                role = self.role.name(),
                "the fleet stays as it was: {why}"
            );
        }
        self.handles.meters.discovered(SOURCE, "failed");
        self.last_error = why;
        self.signal_first();
    }

    async fn rest(&mut self) {
        let pause = self.pause.next().map_or(MAX_PAUSE, |pause| pause.min(MAX_PAUSE));
        tokio::time::sleep(pause).await;
    }

    fn signal_first(&mut self) {
        if let Some(first) = self.first.take() {
            // The receiver may be gone.
            let _ = first.send(());
        }
    }
}

/// Waits until `due`, or for ever if it is `None`.
async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
