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
use crate::fleet::{Instance, InstanceId, Role};
use crate::relay::Relay;
use crate::relay::decision_log::DecisionRecord;
use crate::route::shared::PeerFacts;
use crate::route::shared::message::ReplicaId;
use crate::server::fleets::{Fleets, ServedFleet};
use crate::server::operator_access::ListenerScope;
use crate::server::page::{decisions, guarded, loads, served};
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
    let fleets = gateway.fleets();
    let several = fleets.single().is_none();
    let mut members: Vec<FleetMember> = fleets.iter().flat_map(FleetMember::all).collect();
    let left_out = members.len().saturating_sub(MOST_ENGINES);
    members.truncate(MOST_ENGINES);
    served::look(gateway, &members);
    let backlogs = backlogs(&fleets);
    let engines = members.iter().map(|it| {
        let mut shown =
            engine(gateway, it, backlogs.get(&(it.fleet.name.clone(), it.instance.id())).copied());
        if several {
            shown["fleet"] = Value::from(&*it.fleet.name);
        }
        shown
    });
    let first = &fleets.first().relay;
    let mut decisions: Vec<DecisionRecord> =
        fleets.iter().flat_map(|fleet| fleet.relay.decision_log.last(MOST_DECISIONS)).collect();
    if several {
        decisions.sort_by_key(|record| std::cmp::Reverse(record.at));
        decisions.truncate(MOST_DECISIONS);
    }
    let mut shown = json!({
        "format": FORMAT,
        "now_unix_ms": unix_ms(SystemTime::now()),
        "gateway": about(gateway, takes_requests),
        "requests": requests(gateway),
        "recent": recent(gateway),
        "beliefs": beliefs(first),
        "share": share(first),
        "roles": roles(gateway),
        "loads": loads::loads(&fleets),
        "engines": engines.collect::<Vec<_>>(),
        "engines_left_out": left_out,
        "moves": fleets.iter().flat_map(|fleet| fleet.moves.to_json()).collect::<Vec<_>>(),
        "asleep": fleets.iter().flat_map(|fleet| fleet.asleep.to_json()).collect::<Vec<_>>(),
        "pools": fleets.iter().filter_map(|fleet| pool(&fleet.relay)).collect::<Vec<_>>(),
        "decisions": decisions.iter().map(decisions::decision).collect::<Vec<_>>(),
    });
    if several {
        shown["fleets"] = fleets.iter().map(|fleet| fleet_facts(fleet)).collect();
    }
    shown
}

/// Facts of one fleet of several.
fn fleet_facts(fleet: &ServedFleet) -> Value {
    let (ended, failed) = fleet.relay.meters.ended_in_fleet();
    json!({
        "name": *fleet.name,
        "state": fleet.state().name(),
        "not_ready": fleet.not_ready(),
        "dialect": fleet.relay.speech.now().dialect.name(),
        "model": fleet.access.now().model,
        "waiting": waiting(fleet),
        "share": share(&fleet.relay),
        "ended": ended,
        "failed": failed,
        "beliefs": beliefs(&fleet.relay),
    })
}

/// Standing of the gateway among those that share a fleet, counts of requests by who chose their
/// prefiller, and the other gateways; null where the fleet is not shared.
fn share(relay: &Relay) -> Value {
    let scheduler = relay.fleet.scheduler();
    let Some((standing, traffic)) = scheduler.standing().zip(scheduler.traffic()) else { return Value::Null };
    let Some((me, others)) = scheduler.gateways() else { return Value::Null };
    json!({
        "id": gateway_id(me),
        "standing": standing.name(),
        "asked": traffic.asked,
        "placed": traffic.placed,
        "lapsed": traffic.lapsed,
        "own": traffic.own,
        "for_others": traffic.for_others,
        "others": others.into_iter().map(other_gateway).collect::<Vec<_>>(),
    })
}

/// Facts of another gateway, as it was last heard.
fn other_gateway(it: PeerFacts) -> Value {
    json!({
        "id": gateway_id(it.id),
        "silent_ms": (it.silent_s * 1e4).round() / 10.0,
        "leads": it.leads,
        "waiting": it.waiting,
        "prefills": it.prefills,
        "answers": it.answers,
        "answer_tokens": it.answer_tokens,
    })
}

fn gateway_id(ReplicaId(number): ReplicaId) -> String {
    format!("{number:016x}")
}

fn beliefs(relay: &Relay) -> Value {
    let beliefs = relay.fleet.scheduler().beliefs();
    json!({ "names": beliefs.named, "history": beliefs.history, "unfound": relay.unfound_names() })
}

/// Milliseconds until each prefiller is free, by the name of its fleet and its identity there.
fn backlogs(fleets: &Fleets) -> HashMap<(Arc<str>, InstanceId), f64> {
    let mut backlogs_ms = HashMap::new();
    for fleet in fleets.iter() {
        for (id, seconds) in fleet.relay.fleet.scheduler().backlogs() {
            // Of an engine with ranks, the one that is free first.
            let least: &mut f64 = backlogs_ms.entry((fleet.name.clone(), id)).or_insert(f64::INFINITY);
            *least = least.min(seconds * 1e3);
        }
    }
    backlogs_ms
}

/// An engine, and the fleet that it is a member of.
#[derive(Clone, Debug)]
pub(super) struct FleetMember {
    pub(super) fleet: Arc<ServedFleet>,
    pub(super) instance: Arc<Instance>,
}

impl FleetMember {
    /// All members of a fleet, role by role.
    fn all(fleet: &Arc<ServedFleet>) -> Vec<FleetMember> {
        let members = Role::ALL.iter().flat_map(|role| fleet.relay.fleet.members(*role).to_vec());
        members.map(|instance| FleetMember { fleet: fleet.clone(), instance }).collect()
    }
}

fn about(gateway: &Gateway, takes_requests: bool) -> Value {
    let fleets = gateway.fleets();
    let first = fleets.first();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_ms": first.relay.fleet.now_ms(),
        "state": gateway.state().name(),
        "not_ready": gateway.not_ready(),
        "config": gateway.files.get().cloned().unwrap_or_default(),
        "dialect": first.relay.speech.now().dialect.name(),
        "model": first.access.now().model,
        "takes_requests": takes_requests,
        "clients_port": gateway.clients_port.get(),
    })
}

/// Requests that wait for a prefiller, or for the first engine of an empty role.
fn waiting(fleet: &ServedFleet) -> usize {
    Role::ALL.iter().map(|role| fleet.relay.fleet.waiting(*role)).sum()
}

fn requests(gateway: &Gateway) -> Value {
    let fleets = gateway.fleets();
    let waiting: usize = fleets.iter().map(|fleet| waiting(fleet)).sum();
    let (ended, failed) = gateway.meters.ended();
    json!({
        "inflight": gateway.gate.inside(),
        "queued": gateway.gate.waiting(),
        "waiting": waiting,
        "ended": ended,
        "failed": failed,
    })
}

/// The load of the last minutes. Times are those of streams.
fn recent(gateway: &Gateway) -> Value {
    let uptime_ms = gateway.fleets().first().relay.fleet.now_ms();
    let recently = gateway.meters.recently(Duration::from_millis(uptime_ms));
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

fn engine(gateway: &Gateway, member: &FleetMember, backlog_ms: Option<f64>) -> Value {
    let instance = &*member.instance;
    let (load, hits) = (instance.load(), instance.hits().tokens());
    let now_ms = member.fleet.relay.fleet.now_ms();
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

/// States of the roles, that of encoders only where there are some.
fn roles(gateway: &Gateway) -> Value {
    let fleets = gateway.fleets();
    let has_encoders = fleets.iter().any(|fleet| {
        fleet.relay.fleet.state_counts(Role::Encode) != StateCounts::default()
            || fleet.asleep.count(Role::Encode) > 0
    });
    let shown = Role::ALL.into_iter().filter(|role| *role != Role::Encode || has_encoders);
    shown.map(|role| (role.name().to_owned(), json!(gateway.role_state(role).name()))).collect()
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

fn pool(relay: &Relay) -> Option<Value> {
    let pool = relay.finder.as_ref()?.pool.as_ref()?;
    let last = relay.meters.last_lookup().map(|it| {
        let (verdict, took) = it.what;
        json!({"verdict": verdict, "took_ms": took.as_secs_f64() * 1e3, "at_unix_ms": unix_ms(it.at)})
    });
    Some(json!({"kind": pool.name(), "last": last}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::fleet::{Fleet, Need, Outcome};
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
