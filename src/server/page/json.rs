//! `/status.json`: all that the page shows, at one moment. docs/status-page.md has its shape;
//! `format` changes when that does.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{Request, State};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::fleet::health::{State as Breaker, StateCounts};
use crate::fleet::{Fleet, Instance, InstanceId, Role};
use crate::server::operator_access::ListenerScope;
use crate::server::page::{decisions, guarded, served};
use crate::server::{Gateway, instances, reply};

/// The shape of the answer.
const FORMAT: u32 = 2;
/// Engines that are shown; of larger fleets the others are counted.
const MOST_ENGINES: usize = 512;
/// Placements that are shown.
const MOST_DECISIONS: usize = 50;

/// Answers with it, for who has the admin key where there is one.
pub(in crate::server) async fn json(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    let answer = match instances::refusal(request.extensions()) {
        Some(refusal) => refusal,
        None => {
            let is_apart = request.extensions().get() == Some(&ListenerScope::Operators);
            reply::json(StatusCode::OK, now(&gateway, !is_apart).to_string())
        }
    };
    guarded(answer, "application/json")
}

/// Milliseconds since 1970.
pub(super) fn unix_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// All that is shown. `takes_requests`: clients' requests are taken where the page is.
fn now(gateway: &Arc<Gateway>, takes_requests: bool) -> Value {
    let fleet = &gateway.relay.fleet;
    let mut members: Vec<Arc<Instance>> =
        Role::ALL.iter().flat_map(|role| fleet.members(*role).to_vec()).collect();
    let left_out = members.len().saturating_sub(MOST_ENGINES);
    members.truncate(MOST_ENGINES);
    served::look(gateway, &members);
    let mut backlogs_ms: HashMap<InstanceId, f64> = HashMap::new();
    for (id, seconds) in fleet.scheduler().backlogs() {
        // Of an engine with ranks, the one that is free first.
        let least = backlogs_ms.entry(id).or_insert(f64::INFINITY);
        *least = least.min(seconds * 1e3);
    }
    let engines = members.iter().map(|it| engine(gateway, it, backlogs_ms.get(&it.id()).copied()));
    let beliefs = fleet.scheduler().beliefs();
    json!({
        "format": FORMAT,
        "now_unix_ms": unix_ms(SystemTime::now()),
        "gateway": about(gateway, takes_requests),
        "requests": requests(gateway),
        "recent": recent(gateway),
        "beliefs": {
            "names": beliefs.named,
            "history": beliefs.history,
            "unfound": gateway.relay.unfound_names(),
        },
        "roles": roles(fleet),
        "engines": engines.collect::<Vec<_>>(),
        "engines_left_out": left_out,
        "pools": pool(gateway).into_iter().collect::<Vec<_>>(),
        "decisions": gateway.relay.decision_log.last(MOST_DECISIONS).iter().map(decisions::decision).collect::<Vec<_>>(),
    })
}

fn about(gateway: &Gateway, takes_requests: bool) -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_ms": gateway.relay.fleet.now_ms(),
        "state": gateway.state().name(),
        "not_ready": gateway.not_ready(),
        "config": gateway.files.get().cloned().unwrap_or_default(),
        "dialect": gateway.relay.speech.now().dialect.name(),
        "model": gateway.edge.now().model,
        "takes_requests": takes_requests,
        "clients_port": gateway.clients_port.get(),
    })
}

fn requests(gateway: &Gateway) -> Value {
    let (ended, failed) = gateway.relay.meters.ended();
    json!({
        "inflight": gateway.gate.inside(),
        "queued": gateway.gate.waiting(),
        "waiting": gateway.relay.fleet.scheduler().waiting(),
        "ended": ended,
        "failed": failed,
    })
}

/// The load of the last minutes. Times are those of streams.
fn recent(gateway: &Gateway) -> Value {
    let recently = gateway.relay.meters.recently(Duration::from_millis(gateway.relay.fleet.now_ms()));
    let ms = |time: Option<Duration>| time.map(|it| it.as_secs_f64() * 1e3);
    let over_s = recently.over.as_secs_f64();
    json!({
        "over_ms": over_s * 1e3,
        "ttft_p50_ms": ms(recently.ttft_p50),
        "ttft_p95_ms": ms(recently.ttft_p95),
        "output_tokens_per_s": (over_s > 0.0).then(|| recently.output_tokens as f64 / over_s),
        "ended": recently.ended.all,
        "failed": recently.ended.failed,
    })
}

fn engine(gateway: &Gateway, instance: &Instance, backlog_ms: Option<f64>) -> Value {
    let (load, hits) = (instance.load(), instance.hits().tokens());
    let now_ms = gateway.relay.fleet.now_ms();
    let (models, models_more) = gateway.served.by(instance.endpoint());
    let (beyond_requests, beyond_tokens) = instance.external_load();
    let last_error = instance.meter().last_failure();
    json!({
        "role": instance.role().name(),
        "instance": instance.endpoint().to_string(),
        "models": models,
        "models_more": models_more,
        "state": instance.state(now_ms).name(),
        "detail": detail(instance, now_ms),
        "cause": instance.health().cause(),
        "rest_ms": instance.health().rest_ms(now_ms),
        "share": instance.health().share(now_ms),
        "failures": instance.health().failures(),
        "refusals": instance.meter().refusals(),
        "running": load.working(),
        "work_tokens": load.work_tokens(),
        "backlog_ms": backlog_ms.filter(|ms| ms.is_finite()),
        "leases": load.leases(),
        "held_tokens": load.held_tokens(),
        "beyond": {"requests": beyond_requests, "tokens": beyond_tokens},
        "prompt_tokens": hits.prompt,
        "predicted_tokens": hits.predicted,
        "cached_tokens": hits.cached,
        "last_error": last_error.map(|it| json!({"reason": it.what, "at_unix_ms": unix_ms(it.at)})),
    })
}

/// States of the roles that have members.
fn roles(fleet: &Fleet) -> Value {
    let counts = Role::ALL.map(|role| (role, fleet.state_counts(role)));
    let known = counts.into_iter().filter(|(_, counts)| *counts != StateCounts::default());
    known.map(|(role, counts)| (role.name().to_owned(), json!(counts.role().name()))).collect()
}

/// State of its breaker in one word, the gravest first.
fn detail(instance: &Instance, now_ms: u64) -> &'static str {
    let health = instance.health();
    match health.state(now_ms) {
        _ if instance.draining() => "draining",
        Breaker::Open if health.serves_other_model() => "other_model",
        Breaker::Open if health.refuses_our_key() => "key_refused",
        Breaker::Open if health.lacks_partner() => "no_partner",
        Breaker::Open => "resting",
        Breaker::HalfOpen => "on_trial",
        Breaker::Closed if health.rest_ms(now_ms) > 0 => "in_doubt",
        Breaker::Closed if health.share(now_ms) < 1.0 => "warming",
        Breaker::Closed => "serving",
    }
}

fn pool(gateway: &Gateway) -> Option<Value> {
    let pool = gateway.relay.finder.as_ref()?.pool.as_ref()?;
    let last = gateway.relay.meters.last_lookup().map(|it| {
        let (verdict, took) = it.what;
        json!({"verdict": verdict, "took_ms": took.as_secs_f64() * 1e3, "at_unix_ms": unix_ms(it.at)})
    });
    Some(json!({"kind": pool.name(), "last": last}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::fleet::{Need, Outcome};
    use crate::route::Policy;

    #[test]
    fn engine_state_is_one_word() {
        let fleet = Fleet::new(Policy::LeastWork);
        fleet.add(Role::Decode, Endpoint::new("d", 1));
        let reservation = fleet.pick(Role::Decode, Need::default()).unwrap();
        let decoder = reservation.instance().clone();
        let now = || detail(&decoder, fleet.now_ms());
        assert_eq!(now(), "serving");
        fleet.report(&decoder, Outcome::Failed);
        assert_eq!(now(), "in_doubt");
        fleet.report(&decoder, Outcome::Unreachable);
        assert_eq!(now(), "resting");
        let rest_ms = decoder.health().rest_ms(fleet.now_ms());
        assert_eq!(detail(&decoder, fleet.now_ms() + rest_ms), "on_trial");
        fleet.remove(Role::Decode, decoder.endpoint());
        assert_eq!(now(), "draining");
    }
}
