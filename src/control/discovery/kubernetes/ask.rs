//! One question, for `pd-proxy check`: who is there now, and may it be watched.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use kube::api::{ListParams, WatchParams};

use super::SourceAnswer;
use super::access::{Access, labels};
use super::inventory::RoleInventory;
use super::refusals::{Verb, of};
use super::{Kind, MAX_ENGINES};
use crate::config::kubernetes::{By, Kubernetes, Wanted};

/// The longest that it may take, connections included.
const TIME: Duration = Duration::from_secs(5);

/// Objects in one answer.
const PAGE: u32 = 500;

/// Lists the pods once.
///
/// # Errors
/// The obstacle, in words that say what to change.
pub async fn ask(settings: &Kubernetes, wanted: &Wanted) -> Result<SourceAnswer, String> {
    let question = async {
        let access = Access::find(settings).await?;
        match wanted.by {
            By::Selector(_) => list::<Pod>(&access, wanted).await,
            By::Service(_) => list::<EndpointSlice>(&access, wanted).await,
        }
    };
    let answer = tokio::time::timeout(TIME, question).await;
    answer.unwrap_or_else(|_| Err(format!("the API server has not answered within {} s", TIME.as_secs())))
}

async fn list<K: Kind>(access: &Access, wanted: &Wanted) -> Result<SourceAnswer, String> {
    let (api, labels) = (access.api::<K>(), labels(&wanted.by));
    let mut inventory = RoleInventory::default();
    let mut page = ListParams::default().labels(&labels).limit(PAGE);
    let mut objects = 0;
    inventory.begin();
    let version = loop {
        let list = api.list(&page).await.map_err(|e| of::<K>(Verb::List, &e, access))?;
        objects += list.items.len();
        for object in list.items {
            inventory.listed(object.name_any(), object.found(wanted));
        }
        match list.metadata.continue_.filter(|token| !token.is_empty() && objects < MAX_ENGINES) {
            Some(token) => page = page.continue_token(&token),
            None => break list.metadata.resource_version.unwrap_or_default(),
        }
    };
    inventory.complete();
    // That it may be listed does not mean that it may be watched.
    let watch = WatchParams::default().labels(&labels).timeout(1);
    api.watch(&watch, &version).await.map(drop).map_err(|e| of::<K>(Verb::Watch, &e, access))?;
    let engines = inventory.engines();
    Ok(SourceAnswer {
        engines: engines.all,
        objects,
        resource: K::RESOURCE,
        namespace: access.namespace.clone(),
        lacks: engines.lacks,
    })
}
