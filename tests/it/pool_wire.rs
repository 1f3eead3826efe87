//! The pool is asked about each prompt before it is routed, and trouble with it is nobody's
//! trouble.

use std::net::SocketAddr;

use pd_proxy::prompt::Today;
use pd_proxy::sim::mooncake::{AnswerFault, Mooncake, MooncakeSpec};
use pd_proxy::sim::{Engine, EngineSpec, Role};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command::{Process, run};
use crate::common::client::{self, get, post};
use crate::common::model;
use crate::common::stage::fast;
use crate::common::time::eventually;
use crate::surface::samples;

const TEMPLATE: &str = "qwen3";
/// The template does not print it.
const TODAY: Today = Today { year: 2026, month: 3, day: 7 };
const PRESET: &str = "key.preset=mooncake-store-0.30";

struct Setup {
    master: Mooncake,
    process: Process,
    gateway: SocketAddr,
    engines: [Engine; 2],
    model: TempDir,
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A gateway that asks a simulated master; answers are not kept.
async fn setup() -> Setup {
    let setup = setup_asking(PoolAddress::Master).await;
    eventually("the master is connected", async || setup.master.connections() >= 2).await;
    setup
}

/// Address that the gateway has for the pool.
#[derive(Clone, Copy, Debug)]
enum PoolAddress {
    Master,
    /// Another service's, by mistake.
    Prefiller,
}

async fn setup_asking(at: PoolAddress) -> Setup {
    let master = Mooncake::start(MooncakeSpec::default(), anywhere()).await.unwrap();
    let model = model::directory(TEMPLATE);
    let tokenize = Some(model::tokenizing(TEMPLATE, TODAY, |_| ()));
    let prefill = EngineSpec { role: Role::Prefill, tokenize, ..fast() };
    let prefill = Engine::start(prefill, anywhere()).await.unwrap();
    let decode = Engine::start(EngineSpec { role: Role::Decode, ..fast() }, anywhere()).await.unwrap();
    let address = match at {
        PoolAddress::Master => master.addr(),
        PoolAddress::Prefiller => prefill.addr(),
    };
    let address = format!("pool.addresses={address}");
    let sets = ["prompt.tokens=local", "hash.seed=0", PRESET, "pool.kind=mooncake", &address];
    let sets = [&sets[..], &["pool.fresh_ms=0", "pool.deadline_ms=2000"]].concat();
    let mut flags = vec!["--model-path", model.path().to_str().unwrap()];
    flags.extend(sets.iter().flat_map(|setting| ["--set", setting]));
    let (process, gateway) = Process::gateway(&prefill, &decode, &flags, &[]);
    Setup { master, process, gateway, engines: [prefill, decode], model }
}

impl Setup {
    fn body(&self, question: &str) -> String {
        let content = format!("{question} {}", "Blocks of a prompt. ".repeat(20));
        json!({"model": "sim", "messages": [{"role": "user", "content": content}], "max_tokens": 2})
            .to_string()
    }

    async fn chat(&self, question: &str) {
        let raw = client::send(self.gateway, &post("/v1/chat/completions", &self.body(question))).await;
        assert_eq!(raw.status, 200, "{}", raw.text());
    }

    /// The keys of a request's blocks, as the command shows them.
    fn keys(&self, question: &str) -> (Vec<String>, usize) {
        let engine = self.engines[0].addr().to_string();
        let model = self.model.path().to_str().unwrap();
        let body = self.body(question);
        let line =
            ["keys", "--messages", &body, "--model-path", model, "--prefill", &engine, "--format", "json"];
        let (code, out, err) = run(&[&line[..], &["--set", "hash.seed=0", "--set", PRESET]].concat(), &[]);
        assert_eq!(code, 0, "{err}");
        let listed: Value = serde_json::from_str(&out).unwrap();
        let blocks = listed["blocks"].as_array().unwrap();
        let keys = blocks.iter().flat_map(|block| block["keys"].as_array().unwrap());
        let keys = keys.map(|key| key.as_str().unwrap().to_owned()).collect();
        (keys, usize::try_from(listed["block_tokens"].as_u64().unwrap()).unwrap())
    }

    async fn verdicts(&self, verdict: &str) -> f64 {
        let metrics = samples(&client::send(self.gateway, &get("/metrics")).await.text());
        metrics[&format!("pd_proxy_pool_lookups_total{{pool=\"mooncake\",verdict=\"{verdict}\"}}")]
    }

    async fn end(self) {
        for engine in self.engines {
            engine.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_presence_is_known_before_routing() {
    let mut setup = setup().await;
    setup.chat("Who?").await;
    setup.process.wait_for("pooled_tokens=0");
    let (keys, block_tokens) = setup.keys("Who?");
    assert!(keys.len() > 5);
    for key in &keys[..3] {
        setup.master.put(key, "127.0.0.9:17000");
    }
    // What lies behind a gap is of no use.
    setup.master.put(&keys[4], "127.0.0.9:17000");
    setup.chat("Who?").await;
    setup.process.wait_for(&format!("pooled_tokens={}", 3 * block_tokens));
    setup.chat("What?").await;
    setup.process.wait_for("pooled_tokens=0");
    assert_eq!(setup.verdicts("answered").await, 3.0);
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trouble_with_the_pool_fails_no_request_and_ends_by_itself() {
    let setup = setup().await;
    for (mishap, verdict) in [
        (AnswerFault::Error(10), "refused"),
        (AnswerFault::Garbage, "refused"),
        (AnswerFault::Close, "unreachable"),
    ] {
        eventually("the master is connected", async || setup.master.connections() >= 2).await;
        let before = setup.verdicts(verdict).await;
        setup.master.inject(mishap);
        setup.chat("Who?").await;
        assert_eq!(setup.verdicts(verdict).await, before + 1.0, "{mishap:?}");
    }
    setup.master.kill();
    eventually("it is left alone", async || {
        setup.chat("Who?").await;
        setup.verdicts("off").await > 0.0
    })
    .await;
    setup.master.restart(MooncakeSpec::default()).unwrap();
    let known = setup.verdicts("answered").await;
    eventually("it is asked again", async || {
        setup.chat("Who?").await;
        setup.verdicts("answered").await > known
    })
    .await;
    setup.end().await;
}

/// Operators give the master's HTTP port, or an engine's, and all goes on without the pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_no_pool_is_warned_of() {
    const ERRORS: &str = "answers with errors, so that its blocks are not known";
    let mut setup = setup_asking(PoolAddress::Prefiller).await;
    eventually("it is warned of", async || {
        setup.chat("Who?").await;
        setup.process.said(ERRORS) > 0
    })
    .await;
    assert!(setup.process.hear(ERRORS).contains("WARN"));
    let refused = setup.verdicts("refused").await;
    assert!(refused >= 3.0, "{refused}");
    setup.chat("Who?").await;
    assert!(setup.verdicts("refused").await > refused, "it may be right by now");
    assert_eq!(setup.process.said(ERRORS), 1, "told once");
    setup.end().await;
}
