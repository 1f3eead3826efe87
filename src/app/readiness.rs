//! Lines of the log about the start: what the gateway waits for, when it is ready, and a configured
//! model that no engine serves.

use std::sync::Arc;
use std::time::Duration;

use super::notify::{Notice, notify};
use crate::endpoint::same_model;
use crate::fleet::{Instance, Role};
use crate::server::Gateway;
use crate::server::fleets::{ModelAlias, ServedFleet};

/// Time between looks at whether the gateway is ready for the first time.
const LOOK: Duration = Duration::from_millis(50);
/// Time between looks at whether engines have listed their models, and the most looks: engines that
/// are up are asked right after their first good answer.
const MODELS_LOOK: Duration = Duration::from_secs(1);
const MODELS_LOOKS: u32 = 60;
/// The most names of models that are told.
const NAMES_TOLD: usize = 8;

/// Logs what the gateway waits for, and `ready` once a request has a chance, which the service
/// manager is told as well; then looks once at the models that engines list.
pub(super) async fn announce(gateway: Arc<Gateway>, policy: &'static str) {
    if let Some(reason) = gateway.not_ready() {
        tracing::info!("not ready yet, and /readyz says so: {reason}");
    }
    while gateway.not_ready().is_some() {
        tokio::time::sleep(LOOK).await;
    }
    let names = |role| gateway.names(role).join(" ");
    let (prefill, decode) = (names(Role::Prefill), names(Role::Decode));
    tracing::info!(prefill, decode, policy, "ready");
    notify(Notice::Ready);
    let mut fleets: Vec<Arc<ServedFleet>> = gateway.fleets().iter().cloned().collect();
    for _ in 0..MODELS_LOOKS {
        tokio::time::sleep(MODELS_LOOK).await;
        fleets.retain(|fleet| !is_judged(fleet));
        if fleets.is_empty() {
            return;
        }
    }
}

/// Warns of a configured model, or of one that an alias leads to, that no engine of the fleet
/// serves. True if nothing more is to be
/// learned.
fn is_judged(fleet: &ServedFleet) -> bool {
    let access = fleet.access.now();
    if access.model.is_none() && access.aliases.is_empty() {
        return true;
    }
    let Some(served) = listed_models(fleet) else { return false };
    let of_model = access.model.as_deref().and_then(|model| unserved(model, &served));
    for warning in of_model.into_iter().chain(access.aliases.iter().filter_map(|it| to_nowhere(it, &served)))
    {
        tracing::warn!(fleet = fleet.relay.meters.label().name(), "{warning}");
    }
    true
}

/// A warning if no engine serves the model that an alias leads to.
fn to_nowhere(alias: &ModelAlias, served: &[String]) -> Option<String> {
    let ModelAlias { name, model } = alias;
    let is_served = served.iter().any(|name| **name == **model);
    (!is_served).then(|| {
        format!(
            "fleet.aliases: {name:?} leads to {model:?}, which no engine serves: they list {}",
            told(served)
        )
    })
}

/// The first of these names, for people.
fn told(served: &[String]) -> String {
    let mut names = served.iter().take(NAMES_TOLD).cloned().collect::<Vec<_>>().join(", ");
    if served.len() > NAMES_TOLD {
        names.push_str(", …");
    }
    names
}

/// Models that engines list; `None` until those that have answered were asked and some have said.
fn listed_models(fleet: &ServedFleet) -> Option<Vec<String>> {
    let fleet = &fleet.relay.fleet;
    let members: Vec<Arc<Instance>> =
        Role::ALL.iter().flat_map(|role| fleet.members(*role).to_vec()).collect();
    let answered = || members.iter().filter(|it| it.health().has_answered());
    let asked = answered().all(|it| !it.health().identity().models_wanted());
    let mut served: Vec<String> = answered().flat_map(|it| it.models().to_vec()).collect();
    served.sort();
    served.dedup();
    (asked && !served.is_empty()).then_some(served)
}

/// A warning if no engine serves the model that requests must name.
fn unserved(model: &str, served: &[String]) -> Option<String> {
    if served.iter().any(|name| same_model(name, model)) {
        return None;
    }
    let names = told(served);
    Some(format!(
        "fleet.model = {model:?} is served by no engine: they list {names}; set fleet.model (--model) to one of these, or the \
         engines' --served-model-name"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_no_engine_lists_is_told_with_those_that_they_list() {
        let served = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(unserved("/models/Qwen3-8B", &served(&["x", "Qwen3-8B"])), None);
        let warning = unserved("qwen", &served(&["Qwen3-8B", "lora"])).unwrap();
        assert!(warning.contains("they list Qwen3-8B, lora;"), "{warning}");
        let alias = |model: &str| ModelAlias { name: "gpt-4o".into(), model: model.into() };
        assert_eq!(to_nowhere(&alias("lora"), &served(&["Qwen3-8B", "lora"])), None);
        let warning = to_nowhere(&alias("x"), &served(&["Qwen3-8B"])).unwrap();
        assert!(warning.contains("\"gpt-4o\" leads to \"x\""), "{warning}");
    }
}
