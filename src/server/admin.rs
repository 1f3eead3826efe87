//! Routes for operators and their tools: health, readiness, metrics.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

use crate::error::{Error, Kind};
use crate::fleet::Role;
use crate::server::{Gateway, every_engine, instances, reply};

/// The process serves. Says nothing about engines: a supervisor that restarts us for a dead engine
/// would make it worse.
pub async fn alive() -> Response<Body> {
    reply::empty(StatusCode::OK)
}

/// The reference proxy's `/healthcheck`, member by member.
pub async fn healthcheck(State(gateway): State<Arc<Gateway>>) -> Response<Body> {
    let (prefill, decode) = gateway.serving();
    let text = json!({
        "status": "ok",
        "prefill_instances": prefill,
        "decode_instances": decode,
        "request_num": gateway.gate.inside(),
    });
    reply::json(StatusCode::OK, text.to_string())
}

/// `/status` of vLLM's `disagg_proxy_demo.py`, and those that drain, which are not counted.
pub async fn status(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    if let Some(refusal) = instances::refusal(request.extensions()) {
        return refusal;
    }
    let (prefill, decode) = (gateway.names(Role::Prefill), gateway.names(Role::Decode));
    let text = json!({
        "prefill_node_count": prefill.len(),
        "decode_node_count": decode.len(),
        "prefill_nodes": prefill,
        "decode_nodes": decode,
        "prefill_draining_nodes": gateway.draining(Role::Prefill),
        "decode_draining_nodes": gateway.draining(Role::Decode),
    });
    reply::json(StatusCode::OK, text.to_string())
}

/// Answers with the metrics in Prometheus' text format.
pub async fn metrics(State(gateway): State<Arc<Gateway>>) -> Response<Body> {
    for fleet in gateway.fleets().iter() {
        fleet.relay.fleet.show(&fleet.relay.meters);
    }
    let mut response = Response::new(Body::from(gateway.exposition.render()));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Tells every engine to forget its prefix cache, and answers as vLLM's proxy does: 200 when all
/// did, else 500 with the base URLs of those that did not.
pub async fn reset_prefix_cache(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    let order = match every_engine::read(&gateway, request).await {
        Ok(order) => order,
        Err(refused) => return *refused,
    };
    let Ok(outcomes) = gateway.tasks.spawn(every_engine::carry_out(order)).await else {
        return reply::error(&Error::new(Kind::Internal, "the caches could not be reset"));
    };
    let failed: Vec<String> =
        outcomes.iter().filter(|outcome| !outcome.is_success()).map(every_engine::Outcome::base).collect();
    if failed.is_empty() {
        return reply::empty(StatusCode::OK);
    }
    reply::json(StatusCode::INTERNAL_SERVER_ERROR, json!({"failed": failed}).to_string())
}

impl Gateway {
    /// Prefillers and decoders that may be chosen, of all fleets.
    pub fn serving(&self) -> (usize, usize) {
        let fleets = self.fleets();
        let count = |role| fleets.iter().map(|fleet| fleet.relay.fleet.serving(role)).sum();
        (count(Role::Prefill), count(Role::Decode))
    }

    /// `host:port` of those that serve in `role`, of all fleets.
    pub fn names(&self, role: Role) -> Vec<String> {
        self.fleets().iter().flat_map(|fleet| fleet.engine_names(role)).collect()
    }

    /// `host:port` of those that leave `role` when their work is done.
    fn draining(&self, role: Role) -> Vec<String> {
        self.fleets().iter().flat_map(|fleet| fleet.draining_names(role)).collect()
    }
}
