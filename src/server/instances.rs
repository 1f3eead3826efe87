//! `/instances/add` and `/instances/remove`, as the reference proxy has them; `DELETE /instances`
//! is the same as the latter.
//!
//! `server/joining.rs` asks a new engine what it is before it joins.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use http::{Extensions, HeaderMap, HeaderValue, Response, StatusCode, header};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::endpoint::Endpoint;
use crate::error::{Error, Kind};
use crate::fleet::{Removal, Role};
use crate::server::fleets::ServedFleet;
use crate::server::joining::join;
use crate::server::queries::{NamedPairs, drain_wait};
use crate::server::{Gateway, auth, body, printable, reply};

/// Pause between looks at engines that drain.
pub(super) const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// Longest time for which a caller may wait until engines have drained.
pub(super) const DRAIN_WAIT: Duration = Duration::from_secs(3_600);

/// Member of a removal's query: the time to wait.
const WAIT: &str = "wait_ms";

/// A change with its list of engines.
const CHANGE_BYTES: usize = 64 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    #[serde(rename = "type", default)]
    role: String,
    /// Name of a fleet, where there are several.
    fleet: Option<String>,
    /// `disagg_proxy_demo.py` has one, under the other name.
    #[serde(alias = "instance")]
    instances: OneOrMany,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// A change of a fleet's members.
pub(super) struct FleetChange {
    pub(super) fleet: Arc<ServedFleet>,
    pub(super) role: Role,
    pub(super) endpoints: Vec<Endpoint>,
}

/// Adds engines to a fleet.
pub(super) async fn add(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    if let Err(refusal) = refuse_query(request.uri().query().unwrap_or_default(), "none") {
        return reply::error(&refusal);
    }
    let change = match read_change(&gateway, request).await {
        Ok(change) => change,
        Err(refused) => return *refused,
    };
    if let Some(refusal) = refuse_stranger(&gateway, &change) {
        return reply::error(&refusal);
    }
    let fleet = change.fleet.clone();
    for endpoint in &change.endpoints {
        if let Some(refusal) = refuse_others(&gateway, &fleet, endpoint) {
            return reply::error(&refusal);
        }
        if let Err(why) = fleet.relay.upstream.check(endpoint) {
            let wrong = Error::new(Kind::InvalidField, format!("`{endpoint}`: {why}")).param("instances");
            return reply::error(&wrong);
        }
    }
    if let Some(refusal) = change.endpoints.iter().find_map(|it| fleet.moves.make_way(it)) {
        return reply::error(&refusal);
    }
    if let Some(told) = change.endpoints.iter().find(|it| fleet.asleep.is_told(it)) {
        let message = format!("`{told}` is told to rest by another order (drain_ms): wait for its end");
        return reply::error(&Error::new(Kind::InvalidField, message).param("instances"));
    }
    // In a task of its own: a caller that hangs up must not leave half of its list undone.
    let joining = gateway.tasks.spawn(join(gateway.clone(), change));
    match joining.await {
        Ok(message) => changed(&fleet, message),
        Err(_) => reply::error(&Error::new(Kind::Internal, "the change could not be carried out")),
    }
}

/// The refusal of a change that names an engine of another fleet.
fn refuse_others(gateway: &Gateway, fleet: &Arc<ServedFleet>, endpoint: &Endpoint) -> Option<Error> {
    let fleets = gateway.fleets();
    let mut others = fleets.iter().filter(|other| !Arc::ptr_eq(other, fleet));
    let other = others.find(|other| Role::ALL.iter().any(|role| other.serves(*role, endpoint)))?;
    let message = format!("`{endpoint}`: is an engine of the fleet {}", other.name);
    Some(Error::new(Kind::InvalidField, message).param("instances"))
}

/// The refusal of an engine that would be sent `engine.api_key` though nobody had to show a key to
/// name it. Those that the configuration or a discovery names as well are no strangers.
fn refuse_stranger(gateway: &Gateway, change: &FleetChange) -> Option<Error> {
    let FleetChange { fleet, role, endpoints } = change;
    if auth::asks(gateway) || gateway.edge.now().open_admin || fleet.access.now().authorization.is_none() {
        return None;
    }
    let stranger = endpoints.iter().find(|endpoint| !fleet.relay.fleet.is_listed(*role, endpoint))?;
    let message = format!(
        "`{stranger}` would be sent engine.api_key (OPENAI_API_KEY), and anybody may name it here: set ADMIN_API_KEY \
         (server.admin_key) and send it in the header X-API-Key, or list the engine in the configuration, or set \
         server.open_admin = true"
    );
    Some(Error::new(Kind::AdminKeyNeeded, message).param("instances"))
}

/// Removes engines; those with work left drain first. With `?wait_ms=`, the answer comes when they
/// have, or after that time, as an error.
pub(super) async fn remove(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    let wait = match wait(request.uri().query().unwrap_or_default()) {
        Ok(wait) => wait,
        Err(error) => return reply::error(&error),
    };
    let FleetChange { fleet, role, endpoints } = match read_change(&gateway, request).await {
        Ok(change) => change,
        Err(refused) => return *refused,
    };
    // One that no fleet has is gone, as it should be: scripts that stop engines run twice. One that
    // another fleet has would go on to get requests.
    let elsewhere = endpoints.iter().filter(|endpoint| !fleet.has(role, endpoint));
    if let Some(refusal) = elsewhere.filter_map(|it| refuse_others(&gateway, &fleet, it)).next() {
        return reply::error(&refusal);
    }
    if let Some(refusal) = endpoints.iter().find_map(|it| fleet.moves.make_way(it)) {
        return reply::error(&refusal);
    }
    let mut known: Vec<&Endpoint> = Vec::new();
    for endpoint in &endpoints {
        let waited = fleet.waiting.forget(role, endpoint) | fleet.asleep.forget(role, endpoint);
        if fleet.relay.fleet.remove(role, endpoint) != Removal::Unknown || waited {
            known.push(endpoint);
        }
    }
    if let Some(limit) = wait {
        fleet.drained(&[role], &known, limit).await;
        let failures: Vec<String> =
            known.iter().filter_map(|it| fleet.removal_failure(role, it, limit)).collect();
        if !failures.is_empty() {
            fleet.relay.fleet.show(&fleet.relay.meters);
            return reply::error(&Error::new(Kind::EngineFailed, failures.join("; ")));
        }
    }
    let (draining, removed): (Vec<_>, Vec<_>) =
        known.into_iter().partition(|it| fleet.any_drains(role, &[it]));
    let [draining, removed] =
        [draining, removed].map(|side| side.into_iter().map(Endpoint::to_string).collect::<Vec<_>>());
    let done = format!("remove {} instances", role.name());
    let later = [Later { engines: &draining, state: "isolated and waiting to be removed" }];
    changed(&fleet, message(&done, &removed, &later))
}

/// Time for which the caller of a removal wants to wait; None if it does not.
fn wait(query: &str) -> Result<Option<Duration>, Error> {
    let NamedPairs { named, rest } = NamedPairs::of(query, WAIT);
    refuse_query(&rest, "wait_ms=MILLISECONDS alone")?;
    match named.as_slice() {
        [] => Ok(None),
        [one] => {
            let wrong = |message| Error::new(Kind::InvalidField, message).param(WAIT);
            drain_wait(one).map(Some).map_err(wrong)
        }
        _ => Err(Error::new(Kind::InvalidField, "`wait_ms` in the query: expected once").param(WAIT)),
    }
}

/// Refuses what is left of a query: nothing there is passed over.
fn refuse_query(rest: &str, expected: &str) -> Result<(), Error> {
    if rest.is_empty() {
        return Ok(());
    }
    let said = printable(rest);
    let message =
        format!("`{said}` in the query: expected {expected}; type, instances and fleet belong into the body");
    Err(Error::new(Kind::InvalidField, message))
}

/// Engines that are asked until they answer, or are removed, and how many ask each.
#[derive(Debug, Default)]
pub struct Waiting(Mutex<HashMap<(Role, Endpoint), usize>>);

impl Waiting {
    fn all(&self) -> MutexGuard<'_, HashMap<(Role, Endpoint), usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more asks.
    pub(super) fn note(&self, role: Role, endpoint: &Endpoint) {
        *self.all().entry((role, endpoint.clone())).or_default() += 1;
    }

    /// One asks no more; the others go on.
    pub(super) fn give_up(&self, role: Role, endpoint: &Endpoint) {
        let (mut all, key) = (self.all(), (role, endpoint.clone()));
        if let Some(askers) = all.get_mut(&key) {
            *askers -= 1;
            if *askers == 0 {
                all.remove(&key);
            }
        }
    }

    /// Number of callers that wait for it; `None` where it has joined, or was removed.
    pub(super) fn askers(&self, role: Role, endpoint: &Endpoint) -> Option<usize> {
        self.all().get(&(role, endpoint.clone())).copied()
    }

    /// Nobody asks any more. `true` when somebody did.
    pub(super) fn forget(&self, role: Role, endpoint: &Endpoint) -> bool {
        self.all().remove(&(role, endpoint.clone())).is_some()
    }
}

impl ServedFleet {
    /// Waits until none of these has work in a role that it leaves. False if one still has after
    /// `limit`.
    pub(super) async fn drained(&self, roles: &[Role], endpoints: &[&Endpoint], limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while roles.iter().any(|role| self.any_drains(*role, endpoints)) {
            if Instant::now() >= until {
                return false;
            }
            sleep(DRAIN_LOOK).await;
        }
        true
    }

    /// The reason why an engine has not drained, for the caller. The last decoders wait for prompts
    /// that are still to be handed over or let go.
    pub(super) fn busy_cause(&self, engine: &Endpoint) -> &'static str {
        let members = Role::ALL.map(|role| self.relay.fleet.members(role));
        let mut own = members.iter().flat_map(|of_role| of_role.iter()).filter(|it| it.endpoint() == engine);
        match own.any(|it| it.load().requests() > 0) {
            true => "it still had requests",
            false => "prompts under way still wanted a decoder",
        }
    }

    /// The reason why a removal has failed that was awaited for `limit`; None if the engine has
    /// left.
    fn removal_failure(&self, role: Role, engine: &Endpoint, limit: Duration) -> Option<String> {
        if self.serves(role, engine) {
            return Some(format!("`{engine}` was added again meanwhile, and serves"));
        }
        let (cause, ms) = (self.busy_cause(engine), limit.as_millis());
        self.any_drains(role, &[engine]).then(|| {
            format!("`{engine}`: {cause} after {ms} ms (wait_ms); it gets no new ones, and leaves when they have ended")
        })
    }

    /// True if any of these still has work and is to leave.
    fn any_drains(&self, role: Role, endpoints: &[&Endpoint]) -> bool {
        self.relay.fleet.sweep(role);
        let members = self.relay.fleet.members(role);
        members.iter().any(|it| it.draining() && endpoints.contains(&it.endpoint()))
    }

    /// True if this is an engine of the fleet, or is to become one.
    pub(super) fn has(&self, role: Role, endpoint: &Endpoint) -> bool {
        let members = self.relay.fleet.members(role);
        let is_waiting = || self.waiting.askers(role, endpoint).is_some();
        members.iter().any(|it| it.endpoint() == endpoint) || is_waiting()
    }

    pub(super) fn serves(&self, role: Role, endpoint: &Endpoint) -> bool {
        let members = self.relay.fleet.members(role);
        members.iter().any(|it| !it.draining() && it.endpoint() == endpoint)
    }

    /// True if it lists its models.
    pub(super) async fn answers(&self, endpoint: &Endpoint) -> bool {
        let mut call = self.control.get(endpoint.url("/v1/models")).timeout(self.access.now().probe_time);
        if let Some(authorization) = &self.access.now().authorization {
            call = call.header(header::AUTHORIZATION, authorization.clone());
        }
        call.send().await.is_ok_and(|r| r.status().is_success())
    }
}

/// True if any line of the header X-API-Key has `server.admin_key`; None where there is no such
/// key.
pub(super) fn has_admin_key(gateway: &Gateway, headers: &HeaderMap) -> Option<bool> {
    let edge = gateway.edge.now();
    let key = edge.admin_key.as_ref()?.as_bytes();
    Some(headers.get_all(auth::API_KEY).iter().any(|given| same(given.as_bytes(), key)))
}

/// Takes `server.admin_key` out of a request that goes on to an engine: all lines of X-API-Key
/// where one of them has it, and each line of Authorization that bears it.
pub(super) fn remove_admin_key(gateway: &Gateway, headers: &mut HeaderMap) {
    if has_admin_key(gateway, headers) == Some(true) {
        headers.remove(auth::API_KEY);
    }
    let edge = gateway.edge.now();
    let Some(key) = edge.admin_key.as_ref().map(String::as_bytes) else { return };
    let bears = |value: &HeaderValue| auth::bearer(value).is_some_and(|given| same(given, key));
    if headers.get_all(header::AUTHORIZATION).iter().any(bears) {
        let others: Vec<HeaderValue> =
            headers.get_all(header::AUTHORIZATION).iter().filter(|value| !bears(value)).cloned().collect();
        headers.remove(header::AUTHORIZATION);
        for value in others {
            headers.append(header::AUTHORIZATION, value);
        }
    }
}

/// Refusal for callers other than the administrator; `None` for the administrator.
pub(super) fn refusal(who: &Extensions) -> Option<Response<Body>> {
    let message = "this needs the admin key, in the header X-API-Key";
    (!auth::administers(who)).then(|| reply::error(&Error::new(Kind::InvalidApiKey, message)))
}

/// The fleet, the role and the endpoints of a change, or the answer that refuses it.
async fn read_change(gateway: &Gateway, request: Request) -> Result<FleetChange, Box<Response<Body>>> {
    let refuse = |e: &Error| Box::new(reply::error(e));
    let (head, body) = request.into_parts();
    if let Some(refusal) = refusal(&head.extensions) {
        return Err(Box::new(refusal));
    }
    let body = body::read(gateway, &head, body, CHANGE_BYTES).await.map_err(|e| refuse(&e))?;
    let change: Change = serde_json::from_slice(&body).map_err(|e| {
        let message = format!(
            "expected {{\"type\":\"prefill\"|\"decode\"|\"encode\",\"instances\":[\"host:port\"]}}: {e}"
        );
        refuse(&Error::new(Kind::InvalidJson, message))
    })?;
    let role = match change.role.as_str() {
        "prefill" => Role::Prefill,
        "decode" => Role::Decode,
        "encode" => Role::Encode,
        // The example proxy's message, which omits encoders: scripts match it exactly.
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
    let fleet = gateway.fleet_for_operator(change.fleet.as_deref()).map_err(|e| refuse(&e))?;
    Ok(FleetChange { fleet, role, endpoints: names.iter().map(endpoint).collect::<Result<_, _>>()? })
}

fn changed(fleet: &ServedFleet, message: String) -> Response<Body> {
    tracing::info!("{message}");
    fleet.relay.fleet.show(&fleet.relay.meters);
    let text: Value = json!({
        "message": message,
        "current_prefill_instances": fleet.engine_names(Role::Prefill),
        "current_decode_instances": fleet.engine_names(Role::Decode),
    });
    reply::json(StatusCode::OK, text.to_string())
}

/// Engines with which something is still to come.
pub(super) struct Later<'a> {
    pub(super) engines: &'a [String],
    pub(super) state: &'static str,
}

/// Text of the work that is done and that is still to come, in the reference's sentences; empty
/// parts are left out.
pub(super) fn message(done: &str, at_once: &[String], later: &[Later<'_>]) -> String {
    let mut sentences = Vec::new();
    let still_to_come = later.iter().filter(|it| !it.engines.is_empty());
    sentences
        .extend(still_to_come.map(|it| format!("Instances {} are {}.", python_list(it.engines), it.state)));
    if !at_once.is_empty() || sentences.is_empty() {
        sentences.insert(0, format!("{done}: {}.", python_list(at_once)));
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
    fn wait_ms_is_parsed() {
        let ms =
            |query| wait(query).map(|limit| limit.map(|limit| limit.as_millis())).map_err(|e| e.to_string());
        assert_eq!((ms(""), ms("wait_ms=0"), ms("wait_ms=250")), (Ok(None), Ok(Some(0)), Ok(Some(250))));
        for bad in ["wait_ms=x", "wait_ms=-1", "wait_ms=+1", "wait_ms=3600001", "wait_ms"] {
            assert!(ms(bad).is_err_and(|told| told.contains("from 0 to 3600000")), "{bad}");
        }
        for bad in ["x=1", "wait_ms=1&x=1", "wait_ms=1&wait_ms=1"] {
            assert!(ms(bad).is_err_and(|told| told.contains("in the query")), "{bad}");
        }
    }

    #[test]
    fn abandoned_wait_leaves_other_askers() {
        let (waiting, engine) = (Waiting::default(), Endpoint::new("d", 1));
        let askers = || waiting.askers(Role::Decode, &engine);
        waiting.note(Role::Decode, &engine);
        waiting.note(Role::Decode, &engine);
        waiting.give_up(Role::Decode, &engine);
        assert_eq!(askers(), Some(1), "and a good answer to it counts");
        waiting.give_up(Role::Decode, &engine);
        assert_eq!(askers(), None);
        waiting.note(Role::Decode, &engine);
        waiting.note(Role::Decode, &engine);
        assert!(waiting.forget(Role::Decode, &engine) && !waiting.forget(Role::Decode, &engine));
        waiting.give_up(Role::Decode, &engine);
        assert_eq!(askers(), None, "it was removed");
    }

    #[test]
    fn keys_are_compared_whole() {
        assert!(same(b"key", b"key") && !same(b"key", b"kex") && !same(b"key", b"ke"));
    }
}
