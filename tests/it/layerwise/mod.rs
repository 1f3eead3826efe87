//! Decoder first: vllm-ascend's layerwise connector, against engines that speak it.

mod calls;
mod failures;
mod flow;
mod leaving;
mod minutes;

use std::net::SocketAddr;

use pd_proxy::config::DialectName;
use pd_proxy::sim::{Connector, EngineSpec, ObservedRequest};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::common::client::post_with;
use crate::common::place;
use crate::common::stage::{Script, Stage, fast};
use crate::common::time::eventually;

const COMPLETIONS: &str = "/v1/completions";
const CALLBACK: &str = "/v1/metaserver";

/// Fast engines of the layerwise connector, and a gateway that they can call: its port is known
/// before it listens.
fn script() -> Script {
    let engine = EngineSpec { connector: Connector::Layerwise, ..fast() };
    let mut script = Script { engine, ..Script::default() };
    let place = place::own();
    (script.config.server.host, script.config.server.port) = (place.ip().to_string(), place.port());
    script.config.dialect.name = DialectName::Layerwise;
    script.config.dialect.callback_url = Some(format!("http://{place}"));
    script
}

/// The same with prefills that take about this long.
fn slow_prefills(ms: f64) -> Script {
    let mut script = script();
    script.engine.prefill_tokens_per_s = prompt_tokens() / ms * 1e3;
    script
}

fn prompt() -> String {
    "a prompt of a few blocks ".repeat(8)
}

fn prompt_tokens() -> f64 {
    pd_proxy::sim::tokens::encode(&prompt()).len() as f64
}

fn body(stream: bool) -> Value {
    json!({"model": "sim", "prompt": prompt(), "max_tokens": 12, "stream": stream})
}

/// The requests that one side received on generating routes.
fn sent(seen: &ObservedRequest) -> (String, Value) {
    let id = seen.headers.iter().find(|(name, _)| name == "x-request-id").unwrap().1.clone();
    (id, serde_json::from_slice(&seen.body).unwrap())
}

/// A client that says this and reads nothing.
async fn begin(to: SocketAddr, body: &Value) -> TcpStream {
    let mut socket = TcpStream::connect(to).await.unwrap();
    socket.write_all(&post_with(COMPLETIONS, &[], body.to_string().as_bytes())).await.unwrap();
    socket
}

/// The name of the only prompt of the only request that decoders have been sent.
async fn name_of_the_request(stage: &Stage) -> String {
    eventually("a decode leg", async || !stage.seen(&stage.decoders).is_empty()).await;
    let (id, _) = sent(&stage.seen(&stage.decoders)[0]);
    format!("cmpl-{id}-0")
}

/// Blocks that decoders wait for, though nobody waits for the decoders.
fn stranded(stage: &Stage) -> usize {
    stage.decoders.iter().map(|engine| engine.ledger().pinned_handoffs).sum()
}
