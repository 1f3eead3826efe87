//! `/instances/add` and `/instances/remove`, as the reference proxy has them.
//!
//! A new engine is asked for its models first. One that answers joins at once; one that does not (it may still be
//! loading its weights) is asked again in the background, `fleet.probe_attempts` times.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::extract::{Request, State};
use http::{HeaderMap, Response, StatusCode, header};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::endpoint::Endpoint;
use crate::error::{Error, Kind};
use crate::fleet::Role;
use crate::server::{Gateway, body, reply};

/// Header of vLLM's `disagg_proxy_demo.py` for its admin key.
const ADMIN_KEY: &str = "x-api-key";

/// A change with its list of engines.
const CHANGE_BYTES: usize = 64 << 10;

#[derive(Deserialize)]
struct Change {
    #[serde(rename = "type", default)]
    role: String,
    #[serde(default)]
    instances: OneOrMany,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Default for OneOrMany {
    fn default() -> OneOrMany {
        OneOrMany::Many(Vec::new())
    }
}

/// Adds engines.
pub(super) async fn add(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    let (role, endpoints) = match read(&gateway, request).await {
        Ok(change) => change,
        Err(refused) => return *refused,
    };
    // In a task of its own: a caller that hangs up must not leave half of its list undone.
    let joining = gateway.tasks.spawn(join(gateway.clone(), role, endpoints));
    match joining.await {
        Ok(message) => changed(&gateway, message),
        Err(_) => reply::error(&Error::new(Kind::Internal, "the change could not be carried out")),
    }
}

async fn join(gateway: Arc<Gateway>, role: Role, endpoints: Vec<Endpoint>) -> String {
    let mut asked = JoinSet::new();
    for (position, endpoint) in endpoints.into_iter().enumerate() {
        let gateway = gateway.clone();
        asked.spawn(async move { (position, gateway.answers(&endpoint).await, endpoint) });
    }
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(position, ..)| *position);
    let (mut added, mut waiting) = (Vec::new(), Vec::new());
    for (_, answers, endpoint) in answers {
        let name = endpoint.to_string();
        if answers {
            gateway.waiting.forget(role, &endpoint);
            gateway.relay.fleet.add(role, endpoint);
            added.push(name);
        } else {
            if gateway.waiting.note(role, &endpoint) {
                gateway.tasks.spawn(keep_asking(gateway.clone(), role, endpoint));
            }
            waiting.push(name);
        }
    }
    let done = format!("add {} instances", role.name());
    message(&done, &added, ("waiting to be added", &waiting))
}

/// Removes engines; those with work left drain first.
pub(super) async fn remove(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    let (role, endpoints) = match read(&gateway, request).await {
        Ok(change) => change,
        Err(refused) => return *refused,
    };
    let mut draining = Vec::new();
    let mut removed = Vec::new();
    for endpoint in &endpoints {
        if gateway.waiting.forget(role, endpoint) {
            removed.push(endpoint.to_string());
        }
        match gateway.relay.fleet.remove(role, endpoint) {
            Some(true) => draining.push(endpoint.to_string()),
            Some(false) => removed.push(endpoint.to_string()),
            None => {}
        }
    }
    let done = format!("remove {} instances", role.name());
    changed(&gateway, message(&done, &removed, ("isolated and waiting to be removed", &draining)))
}

async fn keep_asking(gateway: Arc<Gateway>, role: Role, endpoint: Endpoint) {
    for _ in 0..gateway.edge.probe_attempts {
        tokio::select! {
            () = gateway.stop.cancelled() => return,
            () = tokio::time::sleep(gateway.edge.probe_interval) => {}
        }
        if !gateway.waiting.knows(role, &endpoint) {
            return;
        }
        if gateway.answers(&endpoint).await && gateway.waiting.forget(role, &endpoint) {
            tracing::info!(role = role.name(), instance = %endpoint, "added");
            gateway.relay.fleet.add(role, endpoint);
            return;
        }
    }
    gateway.waiting.forget(role, &endpoint);
    tracing::warn!(role = role.name(), instance = %endpoint, "given up: it never answered /v1/models");
}

/// Engines that are asked in the background until they answer, or are removed.
#[derive(Debug, Default)]
pub struct Waiting(Mutex<HashSet<(Role, Endpoint)>>);

impl Waiting {
    fn set(&self) -> MutexGuard<'_, HashSet<(Role, Endpoint)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `false` when it is waiting already.
    fn note(&self, role: Role, endpoint: &Endpoint) -> bool {
        self.set().insert((role, endpoint.clone()))
    }

    fn knows(&self, role: Role, endpoint: &Endpoint) -> bool {
        self.set().contains(&(role, endpoint.clone()))
    }

    /// `true` when it was waiting.
    fn forget(&self, role: Role, endpoint: &Endpoint) -> bool {
        self.set().remove(&(role, endpoint.clone()))
    }
}

impl Gateway {
    async fn answers(&self, endpoint: &Endpoint) -> bool {
        let mut call = self.control.get(endpoint.url("/v1/models")).timeout(self.edge.probe_time);
        if let Some(authorization) = &self.edge.engine_authorization {
            call = call.header(header::AUTHORIZATION, authorization.clone());
        }
        call.send().await.is_ok_and(|r| r.status().is_success())
    }

    fn admitted(&self, headers: &HeaderMap) -> bool {
        let Some(key) = &self.edge.admin_key else {
            return true;
        };
        headers.get(ADMIN_KEY).is_some_and(|given| same(given.as_bytes(), key.as_bytes()))
    }
}

/// What somebody hears who is not the administrator; None for who is.
pub(super) fn refusal(gateway: &Gateway, headers: &HeaderMap) -> Option<Response<Body>> {
    let message = "this needs the admin key, in the header X-API-Key";
    (!gateway.admitted(headers)).then(|| reply::error(&Error::new(Kind::InvalidApiKey, message)))
}

/// The role and the endpoints of a change, or the answer that refuses it.
async fn read(gateway: &Gateway, request: Request) -> Result<(Role, Vec<Endpoint>), Box<Response<Body>>> {
    let refuse = |e: &Error| Box::new(reply::error(e));
    let (head, body) = request.into_parts();
    if let Some(refusal) = refusal(gateway, &head.headers) {
        return Err(Box::new(refusal));
    }
    let body = body::read(&head.headers, body, CHANGE_BYTES, gateway.edge.body_time)
        .await
        .map_err(|e| refuse(&e))?;
    let change: Change = serde_json::from_slice(&body).map_err(|e| {
        let message =
            format!("expected {{\"type\":\"prefill\"|\"decode\",\"instances\":[\"host:port\"]}}: {e}");
        refuse(&Error::new(Kind::InvalidJson, message))
    })?;
    let role = match change.role.as_str() {
        "prefill" => Role::Prefill,
        "decode" => Role::Decode,
        other => {
            let text =
                format!("Instance type '{other}' is not supported. Only 'prefill' and 'decode' are allowed.");
            return Err(Box::new(reply::json(StatusCode::BAD_REQUEST, json!({"error": text}).to_string())));
        }
    };
    let names = match change.instances {
        OneOrMany::One(name) => vec![name],
        OneOrMany::Many(names) => names,
    };
    let endpoint = |name: &String| {
        let wrong = |e| Error::new(Kind::InvalidField, format!("`{name}` {e}")).param("instances");
        name.parse::<Endpoint>().map_err(|e| refuse(&wrong(e)))
    };
    Ok((role, names.iter().map(endpoint).collect::<Result<_, _>>()?))
}

fn changed(gateway: &Gateway, message: String) -> Response<Body> {
    tracing::info!("{message}");
    gateway.count_instances();
    let text: Value = json!({
        "message": message,
        "current_prefill_instances": gateway.names(Role::Prefill),
        "current_decode_instances": gateway.names(Role::Decode),
    });
    reply::json(StatusCode::OK, text.to_string())
}

/// What was done and what is still to come, in the reference's sentences; it says only what there is to say.
fn message(done: &str, at_once: &[String], (state, later): (&str, &[String])) -> String {
    let mut sentences = Vec::new();
    if !at_once.is_empty() || later.is_empty() {
        sentences.push(format!("{done}: {}.", python_list(at_once)));
    }
    if !later.is_empty() {
        sentences.push(format!("Instances {} are {state}.", python_list(later)));
    }
    sentences.join(" ")
}

/// A list as Python prints it: scripts match the reference's messages.
fn python_list(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|n| format!("'{n}'")).collect();
    format!("[{}]", quoted.join(", "))
}

/// Comparison in a time that does not depend on where two keys differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_as_in_the_reference() {
        assert_eq!(
            python_list(&["10.0.0.1:8100".into(), "[::1]:8101".into()]),
            "['10.0.0.1:8100', '[::1]:8101']"
        );
        assert_eq!(python_list(&[]), "[]");
    }

    #[test]
    fn keys_are_compared_whole() {
        assert!(same(b"key", b"key") && !same(b"key", b"kex") && !same(b"key", b"ke"));
    }
}
