//! Explanations of routing decisions: `/debug/route`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use http::{Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::codec::json::Object;
use crate::dialect::{Api, Shape};
use crate::error::{Error, Kind};
use crate::fleet::{BestAppend, NamedSlowLink};
use crate::relay::account::rounded_ms;
use crate::relay::ask::ReceivedRequest;
use crate::relay::decision_log::{AppendRecord, DecisionRecord};
use crate::route::{Append, Job, Terms};
use crate::server::every_engine::FleetTarget;
use crate::server::fleets::{NamedTarget, RequestTies};
use crate::server::page::decisions::{self, WinReason};
use crate::server::{Gateway, body, instances, openai, reply, ttft_slo};

/// `GET /debug/route/{id}`: the placements of a request that is not long ago.
pub(super) async fn of_request(
    State(gateway): State<Arc<Gateway>>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response<Body> {
    if let Some(refusal) = instances::refusal(request.extensions()) {
        return refusal;
    }
    // What is no UTF-8 is nobody's id.
    let id = id.map(|Path(id)| id).unwrap_or_default();
    let fleets = gateway.fleets();
    let records: Vec<_> = fleets.iter().flat_map(|fleet| fleet.relay.decision_log.of(&id)).collect();
    let appends: Vec<_> = fleets.iter().flat_map(|fleet| fleet.relay.decision_log.appends_of(&id)).collect();
    if records.is_empty() && appends.is_empty() {
        let message = "no placement of a request with this id is remembered; the last 1024 are";
        return reply::error(&Error::new(Kind::UnknownUrl, message).param("id"));
    }
    let placements: Vec<Value> = records.iter().map(record).collect();
    let appends: Vec<Value> = appends.iter().map(append_record).collect();
    reply::json(StatusCode::OK, json!({"id": id, "placements": placements, "appends": appends}).to_string())
}

/// `POST /debug/route`: where this body would go now, on the path of `?path=`. Nothing is sent to
/// an engine's queue.
pub(super) async fn dry_run(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    if let Some(refusal) = instances::refusal(request.extensions()) {
        return refusal;
    }
    match explain(&gateway, request).await {
        Ok(answer) => reply::json(StatusCode::OK, answer.to_string()),
        Err(error) => reply::error(&error),
    }
}

async fn explain(gateway: &Gateway, request: Request) -> Result<Value, Error> {
    let arrived = openai::arrived(&request);
    let FleetTarget { target, fleet } = FleetTarget::read(gateway, openai::target(&request))?;
    let (head, body) = request.into_parts();
    let body = body::read(gateway, &head, body, gateway.edge.now().body_bytes).await?;
    let body = gateway.scan(body)?;
    let api = api(target.query().unwrap_or_default(), &body)?;
    let mut shape = Shape::read(api, &body);
    let fleet = match gateway.fleets().single() {
        Some(only) => only.clone(),
        None => {
            let named = NamedTarget { model: shape.model.as_deref(), fleet: fleet.as_deref() };
            gateway.find_fleet(gateway.callers.anyone(), named, RequestTies::default).await?.fleet
        }
    };
    let relay = &fleet.relay;
    relay.media.estimate(&mut shape);
    let ttft_slo = ttft_slo::of(&head.headers, None);
    let request = ReceivedRequest {
        api,
        id: String::new(),
        name: None,
        target,
        headers: head.headers,
        body,
        shape,
        alias: None,
        resume: None,
        encodings: None,
        http2: false,
        arrived,
        ttft_slo,
        trace: None,
    };
    let (ask, found) = relay.understand(request).await;
    let verdict = found.and_then(|found| found.pool).map(|lookup| lookup.verdict.name());
    let candidates = relay.fleet.scheduler().explain(&ask.job);
    let beliefs = relay.fleet.scheduler().beliefs();
    let best = relay.explain_append(&ask);
    Ok(json!({
        "append": best.as_ref().map(best_append),
        "why": why_now(&ask.job, candidates.iter().map(|(name, terms)| Candidate { name: name.clone(), terms }).collect()),
        "request": job_facts(&ask.job, ask.job.blocks.len()),
        "pool": verdict,
        "beliefs": {"named": beliefs.named, "history": beliefs.history},
        "waiting": relay.fleet.scheduler().waiting(),
        "candidates": candidates.iter().map(|(name, terms)| candidate(name, terms)).collect::<Vec<_>>(),
        "slow_links": relay.fleet.slow_links().iter().map(|it| slow_link(it, &ask.job)).collect::<Vec<_>>(),
    }))
}

/// The API of the path that the query names, or that the body is most likely for.
fn api(query: &str, body: &Object) -> Result<Api, Error> {
    let Some(path) = query.split('&').find_map(|pair| pair.strip_prefix("path=")) else {
        return Ok(Api::of_body(body));
    };
    let path = percent_decode_str(path).decode_utf8_lossy();
    Api::at(&path).ok_or_else(|| {
        let paths = Api::ALL.map(Api::path).join(", ");
        Error::new(Kind::InvalidField, format!("expected one of {paths}")).param("path")
    })
}

fn record(record: &DecisionRecord) -> Value {
    let choice = &record.choice;
    let others: Vec<Value> = choice.others.iter().map(|(at, terms)| candidate(&at.name(), terms)).collect();
    let winner = Candidate { name: record.prefiller.name(), terms: &choice.terms };
    let next = choice.others.first().map(|(at, terms)| Candidate { name: at.name(), terms });
    json!({
        "why": sentence(&record.job, &winner, next.as_ref()),
        "request": job_facts(&record.job, record.blocks),
        "waited_ms": rounded_ms(choice.waited),
        "waiting": choice.waiting,
        "winner": candidate(&record.prefiller.name(), &choice.terms),
        "next_best": others,
        "cached_tokens": record.cached_tokens,
    })
}

fn append_record(record: &AppendRecord) -> Value {
    let mut shown = append(&record.decoder.name(), &record.append);
    shown["request"] = job_facts(&record.job, record.blocks);
    shown["cached_tokens"] = json!(record.cached_tokens);
    shown
}

/// The decoder that would compute the rest of a prompt soonest, and if that is acted on.
fn best_append(best: &BestAppend) -> Value {
    let mut shown = append(&best.decoder.name(), &best.append);
    shown["is_trusted"] = json!(best.is_trusted);
    if !best.is_trusted {
        shown["why"] =
            json!("decoders held less than they were believed to, so that only some prompts are tried");
    }
    shown
}

/// A decoder that may compute the rest of a prompt: what it is believed to hold, and seconds.
fn append(decoder: &str, it: &Append) -> Value {
    let why = match it.is_worth_it() {
        true => "its first token comes sooner than by a prefiller, by more than it computes",
        false => "it holds most of the prompt, but a prefiller is as good",
    };
    json!({
        "decoder": decoder,
        "why": why,
        "is_worth_it": it.is_worth_it(),
        "held_tokens": it.held_tokens,
        "first_s": rounded_s(it.first_s),
        "compute_s": rounded_s(it.compute_s),
        // Without a prefiller there is no such time.
        "handed_over_s": it.handed_over_s.is_finite().then(|| rounded_s(it.handed_over_s)),
        "gap_s": rounded_s(it.gap_s),
        "late_s": rounded_s(it.late_s),
    })
}

/// A link over which KV goes slowly, with the time by which that of a whole prompt comes later.
fn slow_link(link: &NamedSlowLink, job: &Job) -> Value {
    let late_s = link.extra_token_s * f64::from(job.prompt_tokens);
    json!({"prefiller": link.prefiller, "decoder": link.decoder, "late_s": rounded_s(late_s)})
}

fn job_facts(job: &Job, blocks: usize) -> Value {
    json!({
        "prompt_tokens": job.prompt_tokens,
        "exact_tokens": job.counted_tokens(),
        "output_tokens_expected": job.output_tokens,
        "blocks": blocks,
        "block_tokens": job.block_tokens,
        "pool_tokens": job.pool.most(),
        "pool_tokens_anywhere": job.pool.anywhere_tokens,
    })
}

/// One candidate: tokens per tier, seconds per term.
fn candidate(name: &str, terms: &Terms) -> Value {
    json!({
        "prefiller": name,
        "hbm_tokens": terms.hit.hbm_tokens,
        "told_tokens": terms.told_tokens,
        "near_tokens": terms.hit.near_tokens,
        "any_tokens": terms.hit.any_tokens,
        "backlog_s": rounded_s(terms.wait_s),
        "prefill_s": rounded_s(terms.prefill_s),
        "restore_s": rounded_s(terms.restore_s),
        "shared_s": rounded_s(terms.shared_s),
        "score_s": rounded_s(terms.score_s),
    })
}

/// In seconds, to the microsecond.
fn rounded_s(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

/// A prefiller that could take a request, and what that would cost.
struct Candidate<'a> {
    name: String,
    terms: &'a Terms,
}

/// Reason for which a request would go to the best of these now; the best is the one that costs
/// least.
fn why_now(job: &Job, mut all: Vec<Candidate<'_>>) -> String {
    all.sort_by(|one, other| one.terms.score_s.total_cmp(&other.terms.score_s));
    match all.as_slice() {
        [] => "no prefiller is there to choose".to_owned(),
        [winner, rest @ ..] => sentence(job, winner, rest.first()),
    }
}

/// Reason for which the winner won, in a sentence for people.
fn sentence(job: &Job, winner: &Candidate<'_>, next: Option<&Candidate<'_>>) -> String {
    let name = &winner.name;
    let Some(next) = next else { return format!("{name}: it was the only prefiller to choose") };
    let ms = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
    let work = |terms: &Terms| ms(terms.prefill_s + terms.restore_s);
    match decisions::why(winner.terms, Some(next.terms)) {
        WinReason::Only => format!("{name}: it was the only prefiller to choose"),
        WinReason::Cached => format!(
            "{name} has {} of the prompt's {} tokens and needs {} for the rest; {} has {} and would need {}",
            winner.terms.hit.any_tokens,
            job.prompt_tokens,
            work(winner.terms),
            next.name,
            next.terms.hit.any_tokens,
            work(next.terms)
        ),
        WinReason::Sooner => format!(
            "{name} is free in {}; {} only in {}",
            ms(winner.terms.wait_s),
            next.name,
            ms(next.terms.wait_s)
        ),
        WinReason::Alike => format!("{name} is as good as {}: both would take as long", next.name),
        WinReason::Policy => format!(
            "{name}: by predicted time {} would be sooner; the policy decided, or that other prompts need its room (shared_s)",
            next.name
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{Hit, LaneId};

    fn terms(any_tokens: u32, wait_s: f64, prefill_s: f64) -> Terms {
        Terms {
            lane: LaneId(0),
            hit: Hit { any_tokens, ..Hit::default() },
            told_tokens: None,
            in_flight: false,
            wait_s,
            prefill_s,
            restore_s: 0.0,
            shared_s: 0.0,
            score_s: wait_s + prefill_s,
        }
    }

    #[test]
    fn the_reason_is_a_sentence_about_both() {
        let job = Job { prompt_tokens: 4_100, ..Job::default() };
        let said = |candidates: &[(&str, Terms)]| {
            let named = |(name, terms): &'_ (&str, Terms)| (name.to_string(), *terms);
            let all: Vec<_> = candidates.iter().map(named).collect();
            let each = all.iter().map(|(name, terms)| Candidate { name: name.clone(), terms });
            why_now(&job, each.collect())
        };
        assert_eq!(said(&[]), "no prefiller is there to choose");
        assert_eq!(said(&[("p1:1", terms(0, 0.0, 0.4))]), "p1:1: it was the only prefiller to choose");
        assert_eq!(
            said(&[("p2:1", terms(0, 0.0, 0.41)), ("p1:1", terms(4_096, 0.0, 0.002_4))]),
            "p1:1 has 4096 of the prompt's 4100 tokens and needs 2.4 ms for the rest; p2:1 has 0 and would need 410.0 ms"
        );
        assert_eq!(
            said(&[("p1:1", terms(0, 0.012, 0.4)), ("p2:1", terms(0, 0.5, 0.4))]),
            "p1:1 is free in 12.0 ms; p2:1 only in 500.0 ms"
        );
        assert_eq!(
            said(&[("p1:1", terms(0, 0.0, 0.4)), ("p2:1", terms(0, 0.0, 0.4))]),
            "p1:1 is as good as p2:1: both would take as long"
        );
    }
}
