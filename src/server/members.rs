//! `GET /instances`: every engine, and what is known of it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::fleet::{Fleet, Instance, InstanceId, Role};
use crate::server::{Gateway, instances, reply};

/// Lists them, fleet by fleet, prefillers first, those that drain included.
pub(super) async fn list(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    if let Some(refusal) = instances::refusal(request.extensions()) {
        return refusal;
    }
    let fleets = gateway.fleets();
    let (mut all, mut moves, mut asleep) = (Vec::new(), Vec::new(), Vec::new());
    for served in fleets.iter() {
        moves.extend(served.moves.to_json());
        asleep.extend(served.asleep.to_json());
        let fleet = &served.relay.fleet;
        let now_ms = fleet.now_ms();
        for instance in Role::ALL.iter().flat_map(|role| fleet.members(*role).to_vec()) {
            let mut entry = member(fleet, &instance, now_ms);
            if fleets.single().is_none() {
                entry["fleet"] = Value::from(&*served.name);
            }
            all.push(entry);
        }
    }
    reply::json(StatusCode::OK, json!({ "instances": all, "moves": moves, "asleep": asleep }).to_string())
}

fn member(fleet: &Fleet, instance: &Instance, now_ms: u64) -> Value {
    let avoided = [fleet.avoided_consumers(instance.id()), fleet.avoided_producers(instance.id())].concat();
    let named = |id: &InstanceId| {
        let members = Role::ALL.iter().flat_map(|role| fleet.members(*role).to_vec());
        members.into_iter().find(|it| it.id() == *id).map(|it| it.endpoint().to_string())
    };
    let avoids: Vec<String> = avoided.iter().filter_map(named).collect();
    let (load, health) = (instance.load(), instance.health());
    json!({
        "type": instance.role().name(),
        "instance": instance.endpoint().to_string(),
        "state": instance.state(now_ms).name(),
        // Of its last failure, where it has not answered well since.
        "cause": health.cause(),
        "draining": instance.draining(),
        // Those among which the gateway chooses; 1 = the engine does, or has only one.
        "ranks": instance.rank_count(),
        // Legs that have not ended, and hand-offs that it still holds: it is drained when there are
        // none.
        "requests": load.requests(),
        "work_tokens": load.work_tokens(),
        "held_tokens": load.held_tokens(),
        // As it listed them last; an engine that serves another model than the fleet is left alone.
        "models": *instance.models(),
        "serves_other_model": health.serves_other_model(),
        // Of the gateway's key, or of requests without one: it is left alone where no client
        // brings another.
        "refuses_key": health.key_word().refuses(),
        // As it told it last; NIXL hands KV over between engines of one release alone.
        "release": instance.release().as_deref(),
        "lacks_partner": health.lacks_partner(),
        "breaker": health.state(now_ms).name(),
        "rest_ms": health.rest_ms(now_ms),
        "share": health.share(now_ms),
        "failures": health.failures(),
        // In a row, of those that may be its own trouble (401, 403, 404, …).
        "refusals": health.refusals(),
        // All answers with a 4xx, the clients' own mistakes among them.
        "refusals_total": instance.meter().refusals(),
        "handoff_failures": health.handoff_failures(),
        "rests_for_handoffs": health.rests_for_handoffs(now_ms),
        // Engines with which its hand-offs fail, while both do well with others.
        "avoids": avoids,
        // Prompts that it computed and did not hand over, though it should have.
        "without_handoff": instance.handoffs().missing(),
    })
}
