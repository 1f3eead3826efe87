//! Connectors whose two engines find each other by a name: the prefiller keeps KV under it, the
//! decoder waits until it is there.
//!
//! Sources: vLLM 0.32.0 (MooncakeConnector, NixlPushConnector) and SGLang (bootstrap rooms). NIXL's
//! push is a pull here: what matters to a gateway is who may come first, what must be named, and
//! what happens when one of the two never comes.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::ask::Api;
use super::fail::ApiFailure;
use super::handoff::{Handoff, Source};
use super::http::{ReceivedRequest, short_id};
use super::hub::Hub;
use super::ledger::Release;
use super::side;
use super::spec::{Connector, Role};

/// Pause between looks for the other side. Each look is a call over the side channel.
const LOOK: Duration = Duration::from_millis(5);

/// Reads the request to the engine, where engines find each other by names; else it is `handoff`.
pub fn read(
    hub: &Hub,
    api: Api,
    asked: &ReceivedRequest,
    body: &Value,
    handoff: Handoff,
) -> Result<Handoff, ApiFailure> {
    let params = body.get("kv_transfer_params").unwrap_or(&Value::Null);
    match hub.spec.connector {
        Connector::Handoff | Connector::Pool | Connector::Layerwise => Ok(handoff),
        Connector::Mooncake => Ok(mooncake(hub, params)),
        Connector::Push => Ok(push(params, base_id(api, asked, body))),
        Connector::Sglang => sglang(hub, body),
        Connector::Moriio => Ok(moriio(hub, params, handoff)),
    }
}

fn text<'a>(params: &'a Value, name: &str) -> Option<&'a str> {
    params.get(name).and_then(Value::as_str)
}

fn flag(params: &Value, name: &str) -> bool {
    params.get(name).and_then(Value::as_bool).unwrap_or(false)
}

/// Without a name a prefiller keeps nothing, and its decoder computes the prompt itself; one that
/// is told to fetch dies, and a decoder that is not told from where waits for ever.
fn mooncake(hub: &Hub, params: &Value) -> Handoff {
    let name = text(params, "transfer_id").map(str::to_owned);
    if flag(params, "do_remote_prefill") {
        if hub.spec.role == Role::Prefill {
            return Handoff::Broken("assert not self.is_kv_producer");
        }
        let at = text(params, "remote_bootstrap_addr").and_then(address);
        return match (name, text(params, "remote_engine_id"), at) {
            (Some(name), Some(engine_id), Some(at)) => meet(Some(engine_id), at, name),
            _ => Handoff::Never,
        };
    }
    match name.filter(|_| flag(params, "do_remote_decode")) {
        Some(name) => Handoff::KeepAs(name),
        None => Handoff::None,
    }
}

/// The name is the request's id, which must be the same on both sides.
fn push(params: &Value, name: String) -> Handoff {
    if flag(params, "do_remote_prefill") {
        if params.get("remote_request_id").is_none() {
            return Handoff::Broken("KeyError: 'remote_request_id'");
        }
        let port =
            params.get("remote_port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
        return match (text(params, "remote_engine_id"), text(params, "remote_host"), port) {
            (Some(engine_id), Some(host), Some(port)) => {
                meet(Some(engine_id), Address { host: host.to_owned(), port }, name)
            }
            _ => Handoff::Broken("KeyError: 'remote_host'"),
        };
    }
    if flag(params, "do_remote_decode") { Handoff::KeepAs(name) } else { Handoff::None }
}

/// A server of either role takes no request without a room.
fn sglang(hub: &Hub, body: &Value) -> Result<Handoff, ApiFailure> {
    let room = body.get("bootstrap_room").and_then(Value::as_i64);
    let Some(room) = room else {
        return Err(ApiFailure::bad_request(
            "Invalid request: Disaggregated request received without bootstrap room id.",
        ));
    };
    let port = body.get("bootstrap_port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
    let at =
        text(body, "bootstrap_host").zip(port).map(|(host, port)| Address { host: host.to_owned(), port });
    match (hub.role(), at) {
        (Role::Prefill, _) => Ok(Handoff::KeepAs(room.to_string())),
        (_, Some(at)) => Ok(meet(None, at, room.to_string())),
        (_, None) => Ok(Handoff::Never),
    }
}

/// A prefiller needs the transfer's name; a decoder that is not told where to read from would
/// answer from nothing.
fn moriio(hub: &Hub, params: &Value, handoff: Handoff) -> Handoff {
    match handoff {
        Handoff::Keep if text(params, "transfer_id").is_none() => Handoff::Broken("KeyError: 'transfer_id'"),
        Handoff::None if hub.spec.role == Role::Decode => Handoff::Broken("no KV was ever sent"),
        other => other,
    }
}

fn meet(engine_id: Option<&str>, Address { host, port }: Address, name: String) -> Handoff {
    let engine_id = engine_id.unwrap_or_default().to_owned();
    Handoff::Meet(Source { engine_id, request_id: name, host, port, block_ids: Vec::new() })
}

/// A peer's address.
struct Address {
    host: String,
    port: u16,
}

fn address(url: &str) -> Option<Address> {
    let (host, port) = url.strip_prefix("http://")?.trim_end_matches('/').rsplit_once(':')?;
    Some(Address { host: host.to_owned(), port: port.parse().ok()? })
}

/// A request's id without what an engine adds to it at random. A response has one of its own,
/// whatever the header says.
fn base_id(api: Api, asked: &ReceivedRequest, body: &Value) -> String {
    if api == Api::Responses {
        return text(body, "request_id").map_or_else(|| format!("resp_{}", short_id()), str::to_owned);
    }
    let given = asked.header("x-request-id").unwrap_or_default();
    format!("{}{given}", if api == Api::Completions { "cmpl-" } else { "chatcmpl-" })
}

/// Waits until the prefiller keeps KV under the name; gives the blocks.
pub async fn find(hub: &Hub, source: &Source) -> Result<Vec<u32>, ApiFailure> {
    loop {
        match side::kept(hub.gate.net(), source).await {
            Ok(Some(blocks)) => return Ok(blocks),
            Ok(None) => tokio::time::sleep(LOOK).await,
            Err(_) => return Err(ApiFailure::internal()),
        }
    }
}

/// KV that a prefiller keeps under a name for as long as its own answer is not written.
#[derive(Debug)]
pub struct NamedKvGuard {
    hub: Arc<Hub>,
    name: String,
}

impl NamedKvGuard {
    /// Keeps the KV under this name.
    #[must_use]
    pub fn new(hub: &Arc<Hub>, name: &str) -> NamedKvGuard {
        NamedKvGuard { hub: hub.clone(), name: name.to_owned() }
    }

    /// Waits until a decoder has fetched it; an error when none came within the lease.
    pub async fn fetched(&self) -> Result<(), ApiFailure> {
        loop {
            let (there, expired) = self.hub.with(|core, now_us| core.kept(now_us, &self.name));
            match (there.is_some(), expired) {
                (true, _) => tokio::time::sleep(LOOK).await,
                (false, false) => return Ok(()),
                (false, true) => return Err(ApiFailure::internal()),
            }
        }
    }
}

impl Drop for NamedKvGuard {
    fn drop(&mut self) {
        self.hub.with(|core, now_us| core.release(now_us, &self.name, Release::Unread));
    }
}
