//! Engines that are out of the choice because they were put to sleep or paused with `?drain_ms=`.
//!
//! vLLM ends the requests that an engine has when it is put to sleep (`mode=abort`, its default).
//! With a time to drain, an engine first leaves its roles and finishes them, and comes back once it
//! was woken and says itself that it neither sleeps nor pauses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use crate::endpoint::Endpoint;
use crate::fleet::{Instance, Role};
use crate::server::fleets::ServedFleet;
use crate::tokenization::exchange::{authorized, exchange};

/// Orders after which an engine serves nothing.
const RESTING: [&str; 4] = ["/sleep", "/release_memory_occupation", "/pause", "/pause_generation"];

/// Orders after which it may serve again.
const WAKING: [&str; 4] = ["/wake_up", "/resume_memory_occupation", "/resume", "/continue_generation"];

/// Questions by which an engine tells that it does not serve, with the member of the answer. SGLang
/// has none of them, and answers 404.
const STATES: [(&str, &str); 2] = [("/is_sleeping", "is_sleeping"), ("/is_paused", "is_paused")];

/// Bytes of such an answer that are read.
const STATE_BYTES: usize = 4 << 10;

/// True if an engine may be drained before this order.
pub(super) fn rests(path: &str) -> bool {
    RESTING.contains(&path)
}

/// True if engines may come back after this order.
pub(super) fn wakes(path: &str) -> bool {
    WAKING.contains(&path)
}

/// An engine and the roles that it left.
#[derive(Clone, Debug)]
pub(super) struct Rested {
    pub(super) instance: Arc<Instance>,
    pub(super) roles: Vec<Role>,
}

/// Engines that are out of the choice until they are woken.
#[derive(Debug, Default)]
pub struct Asleep(Mutex<BTreeMap<Endpoint, Rested>>);

impl Asleep {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Endpoint, Rested>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that had one of these roles.
    pub(super) fn of_roles(&self, roles: &[Role]) -> Vec<Rested> {
        let has = |it: &&Rested| it.roles.iter().any(|role| roles.contains(role));
        self.all().values().filter(has).cloned().collect()
    }

    /// Forgets an engine: an operator added or removed it. True if it was asleep.
    pub(super) fn forget(&self, engine: &Endpoint) -> bool {
        self.all().remove(engine).is_some()
    }

    /// The list for `/instances` and the status page.
    pub(super) fn to_json(&self) -> Vec<Value> {
        let shown = |it: &Rested| {
            let roles: Vec<&str> = it.roles.iter().map(|role| role.name()).collect();
            json!({ "instance": it.instance.endpoint().to_string(), "roles": roles })
        };
        self.all().values().map(shown).collect()
    }
}

impl ServedFleet {
    /// Takes an engine out of its roles and waits until it has no work left. True if it left one:
    /// it may be out of all of them already, because it sleeps or was removed.
    ///
    /// # Errors
    /// It still had work after `limit`, and serves on; it is being moved; or somebody has added,
    /// removed or woken it meanwhile.
    pub(super) async fn rest(&self, it: &Rested, limit: Duration) -> Result<bool, String> {
        let engine = it.instance.endpoint();
        if let Some(refusal) = self.moves.make_way(engine) {
            return Err(refusal.to_string());
        }
        let left: Vec<Role> = it.roles.iter().copied().filter(|role| self.serves(*role, engine)).collect();
        let leaves = !left.is_empty();
        if leaves {
            // Before it leaves: a change by an operator while it drains is the last word.
            let rested = Rested { instance: it.instance.clone(), roles: left.clone() };
            self.asleep.all().insert(engine.clone(), rested);
        }
        for role in left {
            self.relay.fleet.remove(role, engine);
        }
        if !self.drained(&it.roles, &[engine], limit).await {
            self.take_back(engine);
            return Err(format!("it still had requests after {} ms (drain_ms)", limit.as_millis()));
        }
        match leaves && !self.asleep.all().contains_key(engine) {
            true => Err("it was added, removed or woken while it drained".to_owned()),
            false => Ok(leaves),
        }
    }

    /// Takes an engine in again that left its roles, unless an operator has changed it since.
    pub(super) fn take_back(&self, engine: &Endpoint) {
        let found = self.asleep.all().remove(engine);
        if let Some(it) = found {
            self.come_back(&it);
        }
    }

    /// Takes an engine in again if it was asleep, and is awake by its own word.
    pub(super) async fn wake(&self, engine: &Endpoint) {
        if !self.asleep.all().contains_key(engine) || !self.is_awake(engine).await {
            return;
        }
        // Somebody else may have woken it, or taken it out, while it was asked.
        self.take_back(engine);
    }

    fn come_back(&self, it: &Rested) {
        for role in &it.roles {
            self.relay.fleet.add(*role, it.instance.endpoint().clone());
        }
    }

    async fn is_awake(&self, engine: &Endpoint) -> bool {
        let access = self.access.now();
        for (path, member) in STATES {
            let call = authorized(self.control.get(engine.url(path)), access.authorization.as_ref());
            let answer = exchange(call.timeout(access.probe_time), access.probe_time, STATE_BYTES).await;
            match answer {
                Ok((StatusCode::OK, body)) => {
                    let told: Value = serde_json::from_slice(&body).unwrap_or_default();
                    if told.get(member).and_then(Value::as_bool) == Some(true) {
                        return false;
                    }
                }
                Ok((StatusCode::NOT_FOUND, _)) => {}
                _ => return false,
            }
        }
        self.answers(engine).await
    }
}
