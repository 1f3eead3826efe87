//! Faults whose author is not the one that reports them: refusals that look like service, KV that
//! nobody can read, engines that take requests and do nothing with them. Everything in virtual
//! time.

mod full;
mod handoffs;
mod late_refusals;
mod nobody;
mod poisoned;
mod progress;
mod refusals;
mod retired;
mod stopped_pairs;
mod stuck_prefillers;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use futures_util::future::join_all;
use http::Request;
use http_body_util::BodyExt;
use pd_proxy::config::{Config, DialectName};
use pd_proxy::fleet::Role;
use pd_proxy::fleet::health::State;
use pd_proxy::sim::{Connector, Engine, EngineSpec, Pool};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::ServiceExt;

use crate::common::memory::Memory;
use crate::common::time::pass;
use crate::dialects::{SPOKEN, Spoken};

const COMPLETIONS: &str = "/v1/completions";

/// Every dialect in which a decoder uses what a prefiller computed.
const DIALECTS: [Spoken; 7] = [
    SPOKEN[0],
    SPOKEN[1],
    SPOKEN[2],
    SPOKEN[3],
    (DialectName::Moriio, Connector::Moriio),
    (DialectName::Pool, Connector::Pool),
    (DialectName::Layerwise, Connector::Layerwise),
];

/// Address of the gateway for decoders that call it.
const GATEWAY: &str = "10.0.2.1:8000";

/// Blocks of a store from which nothing is dropped in a test.
const STORE_BLOCKS: usize = 1 << 16;

/// `count` engines of either role that speak this dialect, and the gateway's listener for them.
async fn in_dialect(spoken: Spoken, count: u8) -> (Memory, JoinSet<()>) {
    speaking(spoken, count, working()).await
}

/// The same with engines of this kind.
async fn speaking((name, connector): Spoken, count: u8, spec: EngineSpec) -> (Memory, JoinSet<()>) {
    let mut config = config();
    config.dialect.name = name;
    config.dialect.callback_url = (connector == Connector::Layerwise).then(|| format!("http://{GATEWAY}"));
    let pool = (connector == Connector::Pool).then(|| Arc::new(Pool::new(STORE_BLOCKS)));
    let memory = Memory::set(count, &EngineSpec { connector, pool, ..spec }, config).await;
    let listening = memory.listen(GATEWAY.parse().unwrap());
    (memory, listening)
}

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

/// The status of a completion whose prompt nobody has cached.
async fn ask(memory: &Memory, n: usize) -> u16 {
    exchange(memory, n, false).await.0
}

/// The same with its body, whole or as a stream.
async fn exchange(memory: &Memory, n: usize, stream: bool) -> (u16, String) {
    let prompt = format!("request {n} {}", "has some words ".repeat(8));
    let body = format!(r#"{{"model":"sim","prompt":"{prompt}","max_tokens":3,"stream":{stream}}}"#);
    post(memory, COMPLETIONS, body).await
}

/// `count` requests from so many clients, each of which has one at a time; the statuses in the
/// order in which they ended.
async fn load(memory: &Memory, clients: usize, count: usize) -> Vec<u16> {
    use futures_util::{StreamExt, stream};
    stream::iter(0..count).map(|n| ask(memory, n)).buffer_unordered(clients).collect().await
}

/// Four clients for `time`, each of which pauses between its requests; the statuses. No prompt is
/// asked for twice: a prefiller that has it cached would be preferred.
async fn steady(memory: &Memory, time: Duration) -> Vec<u16> {
    static PROMPTS: AtomicUsize = AtomicUsize::new(1_000_000);
    let end = Instant::now() + time;
    let clients = (0..4).map(|_| async move {
        let mut statuses = Vec::new();
        while Instant::now() < end {
            statuses.push(ask(memory, PROMPTS.fetch_add(1, Ordering::Relaxed)).await);
            pass(Duration::from_millis(100)).await;
        }
        statuses
    });
    join_all(clients).await.concat()
}

fn failed(statuses: &[u16]) -> usize {
    statuses.iter().filter(|status| **status != 200).count()
}

/// The breakers of one role, in the order of its engines.
fn breakers(memory: &Memory, role: Role) -> Vec<State> {
    let fleet = memory.app.gateway().fleets().first().relay.fleet.clone();
    fleet.members(role).iter().map(|it| it.health().state(fleet.now_ms())).collect()
}

/// Generating requests that an engine was sent.
fn taken(engine: &Engine) -> usize {
    engine.seen().iter().filter(|seen| seen.path == COMPLETIONS).count()
}
