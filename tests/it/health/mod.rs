//! Engines that fail, come back, come and go; the configuration while it changes; the gateway's own
//! end.

mod discovery;
mod engine_keys;
mod engines;
mod loops;
mod process;
mod reload;
mod rounds;
mod upgrade;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pd_proxy::app::App;
use pd_proxy::sim::{Engine, EngineSpec, Role};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::common::client::{self, get, post};
use crate::common::stage::fast;

const CHAT: &str = "/v1/chat/completions";

fn chat(text: &str) -> String {
    json!({"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 4}).to_string()
}

async fn engine(role: Role, at: SocketAddr) -> Engine {
    Engine::start(EngineSpec { role, ..fast() }, at).await.unwrap()
}

fn anywhere() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// A gateway in this process.
struct Gateway {
    at: SocketAddr,
    stop: CancellationToken,
    serving: JoinHandle<usize>,
}

impl Gateway {
    fn run(app: App) -> Gateway {
        let (at, stop) = (app.addresses()[0], app.stop());
        #[expect(clippy::disallowed_methods, reason = "it is waited for in `end`")]
        let serving = tokio::spawn(app.serve());
        Gateway { at, stop, serving }
    }

    async fn end(self) {
        self.stop.cancel();
        self.serving.await.unwrap();
    }
}

/// The entry of one engine in `GET /instances`; null when it is no member.
pub(crate) async fn member(gateway: SocketAddr, role: &str, engine: SocketAddr) -> Value {
    let listed = client::send(gateway, &get("/instances")).await.json();
    let all = listed["instances"].as_array().unwrap();
    let it = all.iter().find(|it| it["type"] == role && it["instance"] == engine.to_string());
    it.cloned().unwrap_or_default()
}

async fn is_member(gateway: SocketAddr, role: &str, engine: SocketAddr) -> bool {
    member(gateway, role, engine).await["draining"] == false
}

/// Requests, one after the other in each of a few tasks, until [`Load::end`].
struct Load {
    on: Arc<AtomicBool>,
    clients: JoinSet<Vec<client::Raw>>,
}

impl Load {
    fn on(gateway: SocketAddr) -> Load {
        let on = Arc::new(AtomicBool::new(true));
        let mut clients = JoinSet::new();
        for client in 0..4 {
            let on = on.clone();
            clients.spawn(async move {
                let mut answers = Vec::new();
                while on.load(Ordering::Relaxed) {
                    let body = chat(&format!("{client}: request {}", answers.len()));
                    answers.push(client::send(gateway, &post(CHAT, &body)).await);
                }
                answers
            });
        }
        Load { on, clients }
    }

    /// All of them were answered.
    async fn end(self) -> usize {
        self.on.store(false, Ordering::Relaxed);
        let answers: Vec<client::Raw> = self.clients.join_all().await.into_iter().flatten().collect();
        let bad: Vec<String> =
            answers.iter().filter(|answer| answer.status != 200).map(client::Raw::text).collect();
        assert!(bad.is_empty(), "of {}: {bad:?}", answers.len());
        answers.len()
    }
}
