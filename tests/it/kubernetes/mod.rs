//! Engines that the API server of a cluster tells of.

mod api;
mod check;
mod faults;
mod pods;
mod slices;

use std::net::SocketAddr;

use pd_proxy::sim::{Engine, EngineSpec, Role};
use serde_json::{Value, json};

use crate::command::Process;
use crate::common::client::{self, get};
use crate::common::stage::fast;
use crate::common::time::eventually;
use api::Api;

const CHAT: &str = "/v1/chat/completions";

/// The settings of every gateway here, beside the place of its pods.
const BASE: [&str; 10] = [
    "--host",
    "127.0.0.1",
    "--port",
    "0",
    "--set",
    "dialect.name=kv_transfer",
    "--set",
    "discovery.kubernetes.prefill_ports=http",
    "--set",
    "discovery.kubernetes.decode_ports=http",
];

const BY_LABELS: [&str; 4] = [
    "--set",
    "discovery.kubernetes.prefill_selector=role=prefill",
    "--set",
    "discovery.kubernetes.decode_selector=role=decode",
];

/// A gateway that is a process of its own, and where it listens.
struct Gateway {
    process: Process,
    at: SocketAddr,
}

impl Gateway {
    fn start(api: &Api, more: &[&str]) -> Gateway {
        let mut process = Process::start(&[&BASE, more].concat(), &[("KUBECONFIG", &api.kubeconfig())]);
        let line = process.wait_for("listening on http://");
        let at =
            line.rsplit("http://").next().unwrap().trim().parse().unwrap_or_else(|e| panic!("{e}: {line}"));
        Gateway { process, at }
    }

    /// The engines of a role that may be chosen.
    async fn members(&self, role: &str) -> Vec<String> {
        let listed = client::send(self.at, &get("/instances")).await.json();
        let all = listed["instances"].as_array().unwrap();
        let serving = all.iter().filter(|it| it["type"] == role && it["draining"] == false);
        let mut names: Vec<String> = serving.map(|it| it["instance"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    /// Waits until exactly these serve.
    async fn comes_to(&self, role: &str, engines: &[&Engine]) {
        let mut expected: Vec<String> = engines.iter().map(|engine| engine.addr().to_string()).collect();
        expected.sort();
        eventually(&format!("{role}: {expected:?}"), async || self.members(role).await == expected).await;
    }

    async fn ready(&self) -> u16 {
        client::send(self.at, &get("/readyz")).await.status
    }

    /// The metric of discovery with this outcome.
    async fn counted(&self, outcome: &str) -> u64 {
        let text = client::send(self.at, &get("/metrics")).await.text();
        let labels = [format!("outcome=\"{outcome}\""), "source=\"kubernetes\"".to_owned()];
        let of = |line: &&str| {
            line.starts_with("pd_proxy_discovery_total") && labels.iter().all(|it| line.contains(it))
        };
        text.lines().find(of).unwrap().rsplit(' ').next().unwrap().parse().unwrap()
    }
}

async fn engine(role: Role) -> Engine {
    Engine::start(EngineSpec { role, ..fast() }, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap()
}

async fn engines<const N: usize>(role: Role) -> [Engine; N] {
    let mut all = Vec::new();
    for _ in 0..N {
        all.push(engine(role).await);
    }
    all.try_into().ok().unwrap()
}

fn chat(text: &str) -> Value {
    json!({"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 4})
}
