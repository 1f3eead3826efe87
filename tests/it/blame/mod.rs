//! Faults whose author is not the one that reports them: refusals that look like service, KV that nobody can read, engines that
//! take requests and do nothing with them. Everything in virtual time.

mod handoffs;
mod progress;
mod refusals;
mod retired;

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use pd_proxy::config::Config;
use pd_proxy::fleet::Role;
use pd_proxy::fleet::health::State;
use pd_proxy::sim::{Engine, EngineSpec};
use tower::ServiceExt;

use crate::common::memory::Memory;

const COMPLETIONS: &str = "/v1/completions";

/// Engines that take some milliseconds, so that one that does nothing looks idle.
fn working() -> EngineSpec {
    EngineSpec { prefill_tokens_per_s: 5_000.0, tpot_ms: 2.0, lease_ms: 5_000, ..EngineSpec::default() }
}

/// The gateway as it is by default, but for what needs sockets.
fn config() -> Config {
    let mut config = Config::default();
    config.health.probe_ms = 0;
    config.engine.lease_ms = 5_000;
    config
}

/// The status of one exchange, and its body.
async fn post(memory: &Memory, path: &str, body: String) -> (u16, String) {
    let request = Request::post(path).header("host", "gateway").header("content-type", "application/json");
    let request = request.body(Body::from(body));
    let response = memory.router.clone().oneshot(request.unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let (mut body, mut text) = (response.into_body(), Vec::new());
    while let Some(Ok(frame)) = body.frame().await {
        text.extend_from_slice(&frame.into_data().unwrap_or_default());
    }
    (status, String::from_utf8_lossy(&text).into_owned())
}

/// A completion whose prompt nobody has cached.
async fn ask(memory: &Memory, n: usize) -> u16 {
    let prompt = format!("request {n} {}", "has some words ".repeat(8));
    let body = format!(r#"{{"model":"sim","prompt":"{prompt}","max_tokens":3}}"#);
    post(memory, COMPLETIONS, body).await.0
}

/// `count` requests from so many clients, each of which has one at a time; the statuses in the order in which they ended.
async fn load(memory: &Memory, clients: usize, count: usize) -> Vec<u16> {
    use futures_util::{StreamExt, stream};
    stream::iter(0..count).map(|n| ask(memory, n)).buffer_unordered(clients).collect().await
}

fn failed(statuses: &[u16]) -> usize {
    statuses.iter().filter(|status| **status != 200).count()
}

/// The breakers of one role, in the order of its engines.
fn breakers(memory: &Memory, role: Role) -> Vec<State> {
    let fleet = &memory.app.gateway().relay.fleet;
    fleet.members(role).iter().map(|it| it.health().state(fleet.now_ms())).collect()
}

/// Generating requests that an engine was sent.
fn taken(engine: &Engine) -> usize {
    engine.seen().iter().filter(|seen| seen.path == COMPLETIONS).count()
}
