//! Orders of operators to every engine of a role: sleep, wake up, pause, load an adapter, profile.
//!
//! One engine that sleeps among others that don't, or has an adapter that others lack, is worse
//! than all or none: so each member is asked, side by side, and the answer says what came of it at
//! each. Its status is 200 where all did as they were told; that of the engines where all refused
//! alike; else 502, which scripts notice that look at no more than the status.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Response, StatusCode, header};
use serde_json::{Value, json};

use crate::dialect::guard;
use crate::error::{Error, Kind};
use crate::fleet::{Instance, Role};
use crate::server::asleep::{self, Rested};
use crate::server::fleets::ServedFleet;
use crate::server::queries::{NamedPairs, drain_wait, value_of};
use crate::server::{Gateway, body, instances, printable, reply};
use crate::tokenization::exchange::{authorized, exchange};

/// Engines that are asked at once: a fleet's head node opens no thousand connections for one order.
const AT_ONCE: usize = 64;

/// Of each engine's answer so much is read, bytes: with the largest fleet 64 MB.
const ANSWER_BYTES: usize = 16 << 10;

/// An order with the name of an adapter and its path, or the ids of requests.
const ORDER_BYTES: usize = 1 << 20;

/// After these an engine's prefix cache is empty.
const EMPTYING: [&str; 4] = ["/reset_prefix_cache", "/flush_cache", "/sleep", "/release_memory_occupation"];

/// Members of the query that name the roles, the fleet and the time to drain; engines don't see
/// them.
const ROLE: &str = "role";
const FLEET: &str = "fleet";
const DRAIN: &str = "drain_ms";

/// Orders about a model, which only one fleet can know.
const OF_ONE_FLEET: [&str; 4] =
    ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load_lora_adapter", "/unload_lora_adapter"];

/// Order to every engine of a role, in one fleet or in all.
#[derive(Debug)]
pub(super) struct Order {
    fleets: Vec<Arc<ServedFleet>>,
    method: Method,
    path: String,
    query: String,
    roles: &'static [Role],
    /// The longest that each engine may drain before it is asked; None = it is asked at once.
    drain: Option<Duration>,
    kind: Option<HeaderValue>,
    /// Header of the caller, for fleets without a key of their own.
    authorization: Option<HeaderValue>,
    body: Bytes,
}

/// Outcome at one engine.
#[derive(Debug)]
pub(super) struct Outcome {
    fleet: Arc<ServedFleet>,
    instance: Arc<Instance>,
    roles: Vec<Role>,
    /// Status and body; or why there are none.
    answer: Result<(StatusCode, Bytes), String>,
}

impl Outcome {
    /// True if the engine did as it was told.
    pub(super) fn is_success(&self) -> bool {
        self.answer.as_ref().is_ok_and(|(status, _)| status.is_success())
    }

    /// The engine's URL without a path, as vLLM's proxy lists those that failed.
    pub(super) fn base(&self) -> String {
        self.instance.endpoint().url("")
    }

    fn to_json(&self) -> Value {
        let roles: Vec<&str> = self.roles.iter().map(|role| role.name()).collect();
        let mut outcome = json!({ "instance": self.instance.endpoint().to_string(), "roles": roles });
        match &self.answer {
            Ok((status, body)) => {
                outcome["status"] = status.as_u16().into();
                outcome["body"] = serde_json::from_slice(body)
                    .unwrap_or_else(|_| String::from_utf8_lossy(body).into_owned().into());
            }
            Err(why) => {
                outcome["status"] = Value::Null;
                outcome["error"] = why.as_str().into();
            }
        }
        outcome
    }
}

/// Answers an operator's order when every engine has answered it.
pub(super) async fn ask(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    let order = match read(&gateway, request).await {
        Ok(order) => order,
        Err(refused) => return *refused,
    };
    let (path, no_member) = (order.path.clone(), nobody(order.roles));
    // In a task of its own: a caller that hangs up must not leave half of the engines undone.
    let in_task = gateway.clone();
    let done = gateway.tasks.spawn(async move {
        let outcomes = carry_out(order).await;
        in_task.fleets().refresh_names();
        outcomes
    });
    match done.await {
        Ok(outcomes) if outcomes.is_empty() => reply::error(&no_member),
        Ok(outcomes) => list_outcomes(&path, &outcomes),
        Err(_) => reply::error(&Error::new(Kind::Internal, "the order could not be carried out")),
    }
}

/// Reads an order; what is no order of an operator is refused.
pub(super) async fn read(gateway: &Gateway, request: Request) -> Result<Order, Box<Response<Body>>> {
    let refuse = |e: Error| Box::new(reply::error(&e));
    let (head, body) = request.into_parts();
    if let Some(refusal) = instances::refusal(&head.extensions) {
        return Err(Box::new(refusal));
    }
    let named = FleetQuery::read(head.uri.query().unwrap_or_default()).map_err(refuse)?;
    let drained = DrainQuery::read(head.uri.path(), &named.rest).map_err(refuse)?;
    let (roles, query) = roles(&drained.rest).map_err(refuse)?;
    let fleets = match &named.fleet {
        None if !OF_ONE_FLEET.contains(&head.uri.path()) => gateway.fleets().iter().cloned().collect(),
        name => vec![gateway.fleet_for_operator(name.as_deref()).map_err(refuse)?],
    };
    let body = body::read(gateway, &head, body, ORDER_BYTES).await.map_err(refuse)?;
    // Engines are named to each other by the gateway alone, here as elsewhere.
    let body = match body.is_empty() {
        true => body,
        false => gateway.scan(body).map_err(refuse)?.splice(&guard::edit()).to_bytes(),
    };
    let kind = (!body.is_empty()).then(|| HeaderValue::from_static("application/json"));
    Ok(Order {
        fleets,
        method: head.method,
        path: head.uri.path().to_owned(),
        query,
        roles,
        drain: drained.limit,
        kind,
        authorization: head.headers.get(header::AUTHORIZATION).cloned(),
        body,
    })
}

/// An order to one engine.
struct Question {
    call: reqwest::RequestBuilder,
    drain: Option<Duration>,
    wakes: bool,
}

impl Question {
    async fn ask(self, fleet: Arc<ServedFleet>, engine: Rested) -> Outcome {
        let time = fleet.relay.settings.now().answer;
        let Rested { instance, roles } = engine.clone();
        let of = fleet.clone();
        let drained = match self.drain {
            Some(limit) => of.rest(&engine.instance, limit).await.map(Some),
            None => Ok(None),
        };
        let drained = match drained {
            Ok(drained) => drained,
            Err(why) => return Outcome { fleet, instance, roles, answer: Err(why) },
        };
        let answer = exchange(self.call, time, ANSWER_BYTES).await;
        let outcome = Outcome { fleet, instance, roles, answer };
        let is_success = outcome.is_success();
        if let Some(order) = drained {
            order.end(is_success);
        } else if self.wakes && is_success {
            outcome.fleet.wake(outcome.instance.endpoint()).await;
        }
        outcome
    }
}

/// Asks every member, and forgets what those had cached that have emptied their cache.
pub(super) async fn carry_out(order: Order) -> Vec<Outcome> {
    let empties = EMPTYING.contains(&order.path.as_str());
    let mut asked = Vec::new();
    for fleet in &order.fleets {
        if empties {
            fleet.relay.offers.clear();
        }
        for (instance, roles) in members(fleet, order.roles) {
            let (call, fleet) = (call(fleet, &order, &instance), fleet.clone());
            let question = Question { call, drain: order.drain, wakes: asleep::wakes(&order.path) };
            asked.push(question.ask(fleet, Rested { instance, roles }));
        }
    }
    let mut outcomes: Vec<Outcome> = stream::iter(asked).buffer_unordered(AT_ONCE).collect().await;
    outcomes.sort_by_key(Outcome::base);
    for outcome in outcomes.iter().filter(|outcome| empties && outcome.is_success()) {
        outcome.fleet.relay.fleet.emptied(&outcome.instance);
    }
    // Names of models lead to fleets and to engines.
    if OF_ONE_FLEET.contains(&&*order.path) {
        let is_loaded = !order.path.contains("unload");
        let name = adapter_name(&order.body).unwrap_or_default();
        for Outcome { fleet, instance, .. } in outcomes.iter().filter(|it| it.is_success()) {
            fleet.relay.fleet.record_adapter(instance, &name, is_loaded);
        }
    }
    let succeeded = outcomes.iter().filter(|outcome| outcome.is_success()).count();
    tracing::info!(path = %printable(&order.path), asked = outcomes.len(), succeeded, "order to engines");
    outcomes
}

/// Name of the adapter in an order about one, as vLLM and SGLang call it.
fn adapter_name(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    body.get("lora_name")?.as_str().map(str::to_owned)
}

fn call(fleet: &ServedFleet, order: &Order, instance: &Instance) -> reqwest::RequestBuilder {
    let access = fleet.access.now();
    let authorization = access.authorization.as_ref().or(order.authorization.as_ref());
    let url = instance.endpoint().url(&format!("{}{}", order.path, order.query));
    let mut call = authorized(fleet.control.request(order.method.clone(), url), authorization);
    if let Some(kind) = &order.kind {
        call = call.header(header::CONTENT_TYPE, kind.clone()).body(order.body.clone());
    }
    // The client's own limit is for short questions.
    call.timeout(fleet.relay.settings.now().answer)
}

/// The members of these roles, those that drain and those that sleep included; an engine with
/// several roles is asked once.
fn members(fleet: &ServedFleet, roles: &[Role]) -> Vec<(Arc<Instance>, Vec<Role>)> {
    let mut all: Vec<(Arc<Instance>, Vec<Role>)> = Vec::new();
    for role in roles {
        for member in fleet.relay.fleet.members(*role).iter() {
            match all.iter_mut().find(|(known, _)| known.endpoint() == member.endpoint()) {
                Some((_, roles)) => roles.push(*role),
                None => all.push((member.clone(), vec![*role])),
            }
        }
    }
    for Rested { instance, roles } in fleet.asleep.of_roles(roles) {
        if !all.iter().any(|(known, _)| known.endpoint() == instance.endpoint()) {
            all.push((instance, roles));
        }
    }
    all
}

/// A query without the time for which engines drain.
struct DrainQuery {
    limit: Option<Duration>,
    rest: String,
}

impl DrainQuery {
    /// Reads `drain_ms`, which orders have after which an engine serves nothing.
    fn read(path: &str, query: &str) -> Result<DrainQuery, Error> {
        let NamedPairs { named, rest } = NamedPairs::of(query, DRAIN);
        let wrong = |message: String| Error::new(Kind::InvalidField, message).param(DRAIN);
        match named.as_slice() {
            [] => Ok(DrainQuery { limit: None, rest }),
            [one] if asleep::rests(path) => {
                Ok(DrainQuery { limit: Some(drain_wait(one).map_err(wrong)?), rest })
            }
            [_] => Err(wrong(format!("{path} drains nothing: leave it out"))),
            _ => Err(wrong("expected once".to_owned())),
        }
    }
}

/// A query without the fleet that it names.
pub(super) struct FleetQuery {
    pub(super) fleet: Option<String>,
    pub(super) rest: String,
}

impl FleetQuery {
    /// Reads the fleet that a query names.
    ///
    /// # Errors
    /// `InvalidField` where it names one more than once.
    pub(super) fn read(query: &str) -> Result<FleetQuery, Error> {
        let NamedPairs { named, rest } = NamedPairs::of(query, FLEET);
        if named.len() > 1 {
            let said = printable(&named.join("&"));
            let message = format!("`{said}` in the query: expected fleet=NAME once");
            return Err(Error::new(Kind::InvalidField, message).param("fleet"));
        }
        Ok(FleetQuery { fleet: named.first().map(|pair| value_of(pair)), rest })
    }
}

/// Path and query of a request, without the fleet that the query names.
pub(super) struct FleetTarget {
    pub(super) target: PathAndQuery,
    /// Name of the fleet, where there are several.
    pub(super) fleet: Option<String>,
}

impl FleetTarget {
    /// Takes the fleet out of the query of `target`, where there are several fleets.
    ///
    /// # Errors
    /// Those of [`FleetQuery::read`].
    pub(super) fn read(gateway: &Gateway, target: PathAndQuery) -> Result<FleetTarget, Error> {
        let query = target.query().filter(|_| gateway.fleets().single().is_none());
        let Some(query) = query else { return Ok(FleetTarget { target, fleet: None }) };
        let FleetQuery { fleet: Some(fleet), rest } = FleetQuery::read(query)? else {
            return Ok(FleetTarget { target, fleet: None });
        };
        let path = target.path();
        let text = if rest.is_empty() { path.to_owned() } else { format!("{path}?{rest}") };
        Ok(FleetTarget { target: text.parse().unwrap_or(target), fleet: Some(fleet) })
    }
}

/// The roles that a query names, and the query without them, with its question mark.
fn roles(query: &str) -> Result<(&'static [Role], String), Error> {
    let NamedPairs { named, rest } = NamedPairs::of(query, ROLE);
    let values: Vec<String> = named.iter().map(|pair| value_of(pair)).collect();
    let roles: &[Role] = match values.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] | ["all"] => &Role::ALL,
        ["prefill"] => &[Role::Prefill],
        ["decode"] => &[Role::Decode],
        ["encode"] => &[Role::Encode],
        _ => {
            let said = printable(&named.join("&"));
            let message = format!(
                "`{said}` in the query: expected role=prefill, role=decode, role=encode or role=all, once"
            );
            return Err(Error::new(Kind::InvalidField, message).param("role"));
        }
    };
    let rest = if rest.is_empty() { rest } else { format!("?{rest}") };
    Ok((roles, rest))
}

fn nobody(roles: &[Role]) -> Error {
    match roles {
        [Role::Prefill] => Error::new(Kind::NoPrefiller, "there is no prefiller"),
        [Role::Encode] => Error::new(Kind::EngineFailed, "there is no encoder"),
        _ => Error::new(Kind::NoDecoder, "there is no engine of this role"),
    }
}

fn list_outcomes(path: &str, outcomes: &[Outcome]) -> Response<Body> {
    let failed: Vec<String> =
        outcomes.iter().filter(|outcome| !outcome.is_success()).map(Outcome::base).collect();
    let text = json!({
        "path": path,
        "asked": outcomes.len(),
        "succeeded": outcomes.len() - failed.len(),
        "failed": failed,
        "engines": outcomes.iter().map(Outcome::to_json).collect::<Vec<_>>(),
    });
    let statuses = outcomes.iter().map(|outcome| outcome.answer.as_ref().ok().map(|(status, _)| *status));
    reply::json(status(statuses), text.to_string())
}

/// The status for what came of an order at all engines; `None` of one that did not answer.
fn status(of_engines: impl Iterator<Item = Option<StatusCode>> + Clone) -> StatusCode {
    if of_engines.clone().all(|status| status.is_some_and(|status| status.is_success())) {
        return StatusCode::OK;
    }
    let mut refusals = of_engines.clone();
    match refusals.next().flatten() {
        Some(first) if first.as_u16() >= 400 && refusals.all(|status| status == Some(first)) => first,
        _ => reply::status(Kind::EngineFailed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_names_the_roles_and_engines_get_the_rest() {
        let read = |query: &str| roles(query).map(|(roles, rest)| (roles.len(), rest)).ok();
        assert_eq!(read(""), Some((3, String::new())));
        assert_eq!(read("level=1"), Some((3, "?level=1".to_owned())));
        assert_eq!(read("role=all&level=1"), Some((3, "?level=1".to_owned())));
        assert_eq!(read("tags=a&role=decode&tags=b"), Some((1, "?tags=a&tags=b".to_owned())));
        assert_eq!(read("role=%64ecode"), Some((1, String::new())));
        for bad in ["role=", "role=x", "role=prefill&role=decode", "role=Decode"] {
            let error = roles(bad).unwrap_err().to_string();
            assert!(
                error.contains("role=prefill") && error.contains(bad.split('&').next().unwrap()),
                "{error}"
            );
        }
    }

    #[test]
    fn fleet_of_a_query_is_read_once() {
        let read = |query: &str| FleetQuery::read(query).map(|it| (it.fleet, it.rest));
        assert_eq!(read("level=1").unwrap(), (None, "level=1".to_owned()));
        assert_eq!(read("a=1&fleet=x&b=2").unwrap(), (Some("x".to_owned()), "a=1&b=2".to_owned()));
        assert_eq!(read("fleet=%78%2Dy&b=%32").unwrap(), (Some("x-y".to_owned()), "b=%32".to_owned()));
        for twice in ["fleet=x&fleet=y", "fleet=x&a=1&fleet=x", "fleet=&fleet=x"] {
            let error = read(twice).unwrap_err().to_string();
            assert!(error.contains("expected fleet=NAME once") && error.contains("fleet=x"), "{error}");
        }
    }

    #[test]
    fn time_to_drain_is_for_orders_that_end_service() {
        let read = |path: &str, query: &str| {
            DrainQuery::read(path, query).map(|it| (it.limit.map(|limit| limit.as_millis()), it.rest))
        };
        assert_eq!(read("/sleep", "level=1").unwrap(), (None, "level=1".to_owned()));
        assert_eq!(
            read("/sleep", "level=1&drain_ms=500&role=all").unwrap(),
            (Some(500), "level=1&role=all".to_owned())
        );
        assert_eq!(read("/sleep", "drain%5Fms=%35").unwrap(), (Some(5), String::new()));
        for (path, query) in [
            ("/sleep", "drain_ms="),
            ("/sleep", "drain_ms"),
            ("/sleep", "level=1&drain%5Fms=x"),
            ("/sleep", "drain_ms=3600001"),
            ("/sleep", "drain_ms=+5"),
            ("/sleep", "drain_ms=1&drain_ms=1"),
            ("/wake_up", "drain_ms=1"),
        ] {
            assert!(read(path, query).is_err(), "{path} {query}");
        }
    }

    #[test]
    fn one_status_sums_up_all_engines() {
        let of = |codes: &[u16]| {
            let codes = codes.iter().map(|&code| StatusCode::from_u16(code).ok().filter(|_| code > 0));
            status(codes).as_u16()
        };
        assert_eq!((of(&[200, 200]), of(&[200, 204])), (200, 200));
        assert_eq!((of(&[404, 404]), of(&[400])), (404, 400), "all refuse alike");
        assert_eq!((of(&[200, 404]), of(&[404, 500]), of(&[200, 0]), of(&[0, 0])), (502, 502, 502, 502));
        assert_eq!(of(&[302, 302]), 502);
    }
}
