//! `GET /instances`: every engine, and what is known of it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::fleet::{Instance, Role};
use crate::server::{Gateway, instances, reply};

/// Lists them, prefillers first, those that drain included.
pub(super) async fn list(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    if let Some(refusal) = instances::refusal(request.extensions()) {
        return refusal;
    }
    let fleet = &gateway.relay.fleet;
    let now_ms = fleet.now_ms();
    let members = Role::ALL.map(|role| fleet.members(role));
    let all: Vec<Value> = members.iter().flat_map(|side| side.iter()).map(|it| member(it, now_ms)).collect();
    reply::json(StatusCode::OK, json!({ "instances": all }).to_string())
}

fn member(instance: &Instance, now_ms: u64) -> Value {
    let (load, health) = (instance.load(), instance.health());
    json!({
        "type": instance.role().name(),
        "instance": instance.endpoint().to_string(),
        "draining": instance.draining(),
        // Legs that have not ended, and hand-offs that it still holds: it is drained when there are none.
        "requests": load.requests(),
        "work_tokens": load.work_tokens(),
        "held_tokens": load.held_tokens(),
        "breaker": health.state(now_ms).name(),
        "rest_ms": health.rest_ms(now_ms),
        "share": health.share(now_ms),
        "failures": health.failures(),
    })
}
