//! A LoRA adapter that only some engines of a fleet have loaded.

use pd_proxy::app::App;
use pd_proxy::config::Config;
use pd_proxy::sim::{Engine, EngineSpec, Role};
use serde_json::json;

use super::CHAT;
use crate::common::client::{self, get, post};
use crate::common::place;
use crate::common::stage::{Script, fast};
use crate::common::time::eventually;

async fn engine(role: Role, adapters: &[&str]) -> Engine {
    let adapters = adapters.iter().map(|name| (*name).to_owned()).collect();
    Engine::start(EngineSpec { role, adapters, ..fast() }, place::own_host()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_an_adapter_go_where_it_is_listed() {
    let prefillers = [engine(Role::Prefill, &[]).await, engine(Role::Prefill, &["sql"]).await];
    let decoders = [engine(Role::Decode, &["sql"]).await, engine(Role::Decode, &[]).await];
    let mut config: Config = Script::default().config;
    config.health.probe_ms = 100;
    config.fleet.prefill = prefillers.iter().map(|it| it.addr().to_string()).collect();
    config.fleet.decode = decoders.iter().map(|it| it.addr().to_string()).collect();
    let app = App::build(&config).await.unwrap();
    let (at, stop) = (app.addresses()[0], app.stop());
    #[expect(clippy::disallowed_methods, reason = "it is waited for below")]
    let serving = tokio::spawn(app.serve());
    eventually("all have listed their models", async || {
        let listed = client::send(at, &get("/instances")).await.json();
        listed["instances"].as_array().unwrap().iter().all(|it| it["models"] != json!([]))
    })
    .await;
    let ask = async |path: &str, model: &str, at_number: usize| {
        let body = json!({"model": model, "prompt": format!("number {at_number}"), "max_tokens": 2});
        client::send(at, &post(path, &body.to_string())).await.status
    };
    for number in 0..200 {
        assert_eq!(ask("/v1/completions", "sql", number).await, 200, "{number}");
    }
    for number in 0..20 {
        assert_eq!(ask("/tokenize", "sql", number).await, 200, "{number}");
        assert_eq!(ask("/v1/completions", "sim", number).await, 200, "{number}");
    }
    let asked = |engine: &Engine| {
        engine.seen().iter().any(|seen| String::from_utf8_lossy(&seen.body).contains("sql"))
    };
    assert!(!asked(&prefillers[0]) && !asked(&decoders[1]), "no engine without it was asked");
    let chat = json!({"model": "sql", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2});
    assert_eq!(client::send(at, &post(CHAT, &chat.to_string())).await.status, 200);
    stop.cancel();
    serving.await.unwrap();
    for engine in prefillers.into_iter().chain(decoders) {
        engine.stop().await;
    }
}
