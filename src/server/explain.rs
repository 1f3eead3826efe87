//! Explanations of routing decisions: `/debug/route`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::dialect::{Api, Shape};
use crate::error::{Error, Kind};
use crate::relay::ask::ReceivedRequest;
use crate::relay::decision_log::DecisionRecord;
use crate::route::{Job, Terms};
use crate::server::{Gateway, body, instances, openai, reply};

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
    let records = gateway.relay.decision_log.of(&id);
    if records.is_empty() {
        let message = "no placement of a request with this id is remembered; the last 1024 are";
        return reply::error(&Error::new(Kind::UnknownUrl, message).param("id"));
    }
    let placements: Vec<Value> = records.iter().map(record).collect();
    reply::json(StatusCode::OK, json!({"id": id, "placements": placements}).to_string())
}

/// `POST /debug/route`: where this body would go now. Nothing is sent to an engine's queue.
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
    let (arrived, target) = (openai::arrived(&request), openai::target(&request));
    let (head, body) = request.into_parts();
    let body = body::read(gateway, &head, body, gateway.edge.now().body_bytes).await?;
    let body = gateway.scan(body)?;
    let api = if body.contains("messages") { Api::Chat } else { Api::Completions };
    let shape = Shape::read(api, &body);
    let request = ReceivedRequest {
        api,
        id: String::new(),
        name: None,
        target,
        headers: head.headers,
        body,
        shape,
        resume: None,
        encodings: None,
        http2: false,
        arrived,
        trace: None,
    };
    let (ask, found) = gateway.relay.understand(request).await;
    let verdict = found.and_then(|found| found.pool).map(|lookup| lookup.verdict.name());
    let candidates = gateway.relay.fleet.scheduler().explain(&ask.job);
    let beliefs = gateway.relay.fleet.scheduler().beliefs();
    Ok(json!({
        "request": job_facts(&ask.job, ask.job.blocks.len()),
        "pool": verdict,
        "beliefs": {"named": beliefs.named, "history": beliefs.history},
        "waiting": gateway.relay.fleet.scheduler().waiting(),
        "candidates": candidates.iter().map(|(name, terms)| candidate(name, terms)).collect::<Vec<_>>(),
    }))
}

fn record(record: &DecisionRecord) -> Value {
    let choice = &record.choice;
    let others: Vec<Value> = choice.others.iter().map(|(at, terms)| candidate(&at.name(), terms)).collect();
    json!({
        "request": job_facts(&record.job, record.blocks),
        "waited_ms": choice.waited.as_secs_f64() * 1e3,
        "waiting": choice.waiting,
        "winner": candidate(&record.prefiller.name(), &choice.terms),
        "next_best": others,
        "cached_tokens": record.cached_tokens,
    })
}

fn job_facts(job: &Job, blocks: usize) -> Value {
    json!({
        "prompt_tokens": job.prompt_tokens,
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
        "backlog_s": terms.wait_s,
        "prefill_s": terms.prefill_s,
        "restore_s": terms.restore_s,
        "shared_s": terms.shared_s,
        "score_s": terms.score_s,
    })
}
