//! `/sim/…`: the side channel of the engines, and the handle of tests that run in another process.

use std::sync::Arc;

use http::{Method, Response};
use serde_json::{Value, json};

use super::fail::ApiFailure;
use super::faults::Fault;
use super::http::{ReceivedRequest, respond_json};
use super::hub::Hub;
use super::ledger::Release;
use super::spec::Connector;
use super::sse::Body;

/// Answers a request under `/sim/`.
pub fn answer(hub: &Arc<Hub>, asked: &ReceivedRequest) -> Result<Response<Body>, ApiFailure> {
    let query = Query(asked.parts.uri.query().unwrap_or(""));
    let answer = match (&asked.parts.method, asked.parts.uri.path()) {
        (&Method::GET, "/sim/ledger") => ledger(hub),
        (&Method::GET, "/sim/kv") => read(hub, &query)?,
        (&Method::POST, "/sim/kv/write") => write(hub, asked)?,
        (&Method::GET, "/sim/kept") => kept(hub, &query)?,
        (&Method::POST, "/sim/kv/release") => release(hub, asked)?,
        (&Method::POST, "/sim/faults") => add_fault(hub, asked)?,
        (&Method::DELETE, "/sim/faults") => {
            hub.clear_faults();
            json!({})
        }
        _ => return Err(ApiFailure::detail(404, "Not Found")),
    };
    Ok(respond_json(&answer))
}

struct Query<'a>(&'a str);

impl Query<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0
            .split('&')
            .find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name).map(|(_, value)| value))
    }
}

fn kept(hub: &Hub, query: &Query<'_>) -> Result<Value, ApiFailure> {
    own_engine(hub, query.get("engine_id"))?;
    let name = query.get("name").unwrap_or_default();
    let (blocks, expired) = hub.with(|core, now_us| core.kept(now_us, name));
    if expired { Err(ApiFailure::detail(404, "no longer kept")) } else { Ok(json!(blocks)) }
}

/// Rooms have no engine ids.
fn own_engine(hub: &Hub, engine_id: Option<&str>) -> Result<(), ApiFailure> {
    if hub.spec.connector == Connector::Sglang || engine_id == Some(hub.engine_id.as_str()) {
        Ok(())
    } else {
        Err(ApiFailure::detail(404, "unknown engine id"))
    }
}

/// The handshake of vLLM's NIXL connectors compares a hash that has the release in it
/// (`nixl/metadata.py`).
fn same_release(hub: &Hub, reader: Option<&str>) -> Result<(), ApiFailure> {
    let is_nixl = matches!(hub.spec.connector, Connector::Handoff | Connector::Push);
    let compares = is_nixl && hub.spec.compares_versions;
    if compares && reader.is_some_and(|version| version != hub.spec.version) {
        return Err(ApiFailure::detail(409, "NIXL compatibility hash mismatch"));
    }
    Ok(())
}

fn read(hub: &Hub, query: &Query<'_>) -> Result<Value, ApiFailure> {
    own_engine(hub, query.get("engine_id"))?;
    same_release(hub, query.get("version"))?;
    let ids: Option<Vec<u32>> = query
        .get("blocks")
        .filter(|ids| !ids.is_empty())
        .map_or(Some(Vec::new()), |ids| ids.split(',').map(|id| id.parse().ok()).collect());
    let contents = ids.and_then(|ids| hub.with(|core, _| core.read(&ids)));
    contents.map(|contents| json!(contents)).ok_or_else(|| ApiFailure::detail(404, "no such block"))
}

fn write(hub: &Hub, asked: &ReceivedRequest) -> Result<Value, ApiFailure> {
    let body = super::api::read_json(asked)?;
    own_engine(hub, body.get("engine_id").and_then(Value::as_str))?;
    let list = |name: &str| body.get(name).cloned().unwrap_or_default();
    let blocks: Vec<u32> =
        serde_json::from_value(list("blocks")).map_err(|_| ApiFailure::detail(400, "no list of blocks"))?;
    let contents: Vec<u64> = serde_json::from_value(list("contents"))
        .map_err(|_| ApiFailure::detail(400, "no list of contents"))?;
    let name = body.get("request_id").and_then(Value::as_str).unwrap_or("");
    let known = hub.with(|core, now_us| core.written(now_us, name, &blocks, &contents));
    Ok(json!({"known": known}))
}

fn release(hub: &Hub, asked: &ReceivedRequest) -> Result<Value, ApiFailure> {
    let body: Value = serde_json::from_slice(&asked.body).map_err(|_| ApiFailure::detail(400, "not JSON"))?;
    own_engine(hub, body.get("engine_id").and_then(Value::as_str))?;
    let request_id = body.get("request_id").and_then(Value::as_str).unwrap_or_default();
    let read = body.get("read").and_then(Value::as_bool).unwrap_or(false);
    let why = if read { Release::Read } else { Release::Unread };
    let released = hub.with(|core, now_us| core.release(now_us, request_id, why));
    Ok(json!({ "released": released }))
}

fn add_fault(hub: &Hub, asked: &ReceivedRequest) -> Result<Value, ApiFailure> {
    let fault = serde_json::from_slice(&asked.body).ok().as_ref().and_then(Fault::from_json);
    let fault = fault.ok_or_else(|| ApiFailure::detail(400, "not a fault"))?;
    if hub.inject(fault) { Ok(json!({})) } else { Err(ApiFailure::detail(409, "too many faults")) }
}

fn ledger(hub: &Hub) -> Value {
    let ledger = hub.ledger();
    json!({
        "pinned_handoffs": ledger.pinned_handoffs, "pinned_blocks": ledger.pinned_blocks,
        "released_by_decode": ledger.released_by_decode, "released_by_reject": ledger.released_by_reject,
        "expired": ledger.expired, "running": ledger.running, "waiting": ledger.waiting,
        "used_blocks": ledger.used_blocks, "dead": ledger.dead,
    })
}
