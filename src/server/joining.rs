//! Engines that an operator adds, from the order to the member.
//!
//! A new engine is asked for its models first. One that answers joins at once; one that does not
//! (it may still be loading its weights) is asked again in the background, `fleet.probe_attempts`
//! times. One that says that it sleeps or pauses joins when an order has woken it.

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::endpoint::Endpoint;
use crate::fleet::Role;
use crate::server::Gateway;
use crate::server::asleep::OwnWord;
use crate::server::fleets::ServedFleet;
use crate::server::instances::{FleetChange, Later, message};

/// Asks the engines of a change, takes in those that answer, and returns the text of what was done.
pub(super) async fn join(gateway: Arc<Gateway>, change: FleetChange) -> String {
    let FleetChange { fleet, role, endpoints } = change;
    let mut asked = JoinSet::new();
    for (position, endpoint) in endpoints.into_iter().enumerate() {
        let fleet = fleet.clone();
        // Before it is asked, which takes time: who takes it out in between has the last word.
        fleet.waiting.note(role, &endpoint);
        asked.spawn(async move { (position, fleet.own_word(&endpoint).await, endpoint) });
    }
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(position, ..)| *position);
    let (mut added, mut waiting, mut asleep) = (Vec::new(), Vec::new(), Vec::new());
    for (_, word, endpoint) in answers {
        let name = endpoint.to_string();
        if !matches!(word, OwnWord::Silent) {
            if fleet.waiting.forget(role, &endpoint) {
                fleet.take_in(role, &endpoint, &word);
            }
            if fleet.serves(role, &endpoint) {
                added.push(name);
            } else if fleet.asleep.has(role, &endpoint) {
                asleep.push(name);
            }
        } else if let Some(askers) = fleet.waiting.askers(role, &endpoint) {
            match askers {
                1 => {
                    let stop = gateway.stop.clone();
                    drop(gateway.tasks.spawn(keep_asking(fleet.clone(), stop, role, endpoint)));
                }
                _ => fleet.waiting.give_up(role, &endpoint),
            }
            waiting.push(name);
        }
    }
    let done = format!("add {} instances", role.name());
    let later = [
        Later { engines: &waiting, state: "waiting to be added" },
        Later { engines: &asleep, state: "asleep, and join when POST /wake_up or /resume has woken them" },
    ];
    message(&done, &added, &later)
}

async fn keep_asking(fleet: Arc<ServedFleet>, stop: CancellationToken, role: Role, endpoint: Endpoint) {
    for _ in 0..fleet.access.now().probe_attempts {
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(fleet.access.now().probe_interval) => {}
        }
        if fleet.waiting.askers(role, &endpoint).is_none() {
            return;
        }
        let word = fleet.own_word(&endpoint).await;
        if !matches!(word, OwnWord::Silent) && fleet.waiting.forget(role, &endpoint) {
            fleet.take_in(role, &endpoint, &word);
            let is_asleep = !fleet.serves(role, &endpoint);
            tracing::info!(role = role.name(), engine = %endpoint, is_asleep, "added");
            return;
        }
    }
    fleet.waiting.give_up(role, &endpoint);
    tracing::warn!(role = role.name(), engine = %endpoint, "given up: it never answered /v1/models");
}
