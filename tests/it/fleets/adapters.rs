//! A LoRA adapter that only some engines of a fleet have loaded.

use pd_proxy::app::App;
use pd_proxy::config::Config;
use pd_proxy::sim::{Engine, EngineSpec, Role};
use serde_json::json;

use super::{CHAT, DIALECTS, Fleets, Settings};
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adapter_is_served_from_the_moment_an_engine_has_it() {
    let fleets = Fleets::set(&DIALECTS[..2], Settings::default()).await;
    let side = &fleets.sides[0];
    let spec = EngineSpec { role: Role::Prefill, model: side.model.clone(), ..fast() };
    let second = Engine::start(spec, place::own_host()).await.unwrap();
    let change = json!({"type": "prefill", "instances": [second.addr().to_string()], "fleet": "f0"});
    assert_eq!(fleets.post("/instances/add", &change).await.status, 200);
    let ask = async |number: usize| {
        let prompt = format!("number {number}");
        let body = match number % 3 {
            0 => json!({"model": "sql", "prompt": prompt, "max_tokens": 2}),
            1 => json!({"model": "sql", "prompt": prompt, "max_tokens": 2, "stream": true}),
            _ => json!({"model": "sql", "prompt": prompt}),
        };
        let path = if number % 3 == 2 { "/tokenize" } else { "/v1/completions" };
        fleets.post(path, &body).await.status
    };
    let order = json!({"lora_name": "sql", "lora_path": "/adapters/sql"}).to_string();
    for _ in 0..2 {
        // Nobody tells the gateway.
        for at in [second.addr(), side.decoder.addr()] {
            assert_eq!(client::send(at, &post("/v1/load_lora_adapter", &order)).await.status, 200);
        }
        let answers = futures_util::future::join_all((0..40).map(ask)).await;
        assert!(answers.iter().all(|status| *status == 200), "{answers:?}");
        for at in [second.addr(), side.decoder.addr()] {
            assert_eq!(client::send(at, &post("/v1/unload_lora_adapter", &order)).await.status, 200);
        }
        // The order goes to all, and the one that has it already says so.
        let through =
            fleets.post("/v1/load_lora_adapter?fleet=f0", &serde_json::from_str(&order).unwrap()).await;
        assert_eq!(through.status, 200, "{}", through.text());
        let answers = futures_util::future::join_all((0..40).map(ask)).await;
        assert!(answers.iter().all(|status| *status == 200), "{answers:?}");
        let through =
            fleets.post("/v1/unload_lora_adapter?fleet=f0", &serde_json::from_str(&order).unwrap()).await;
        assert_eq!(through.status, 200, "{}", through.text());
        assert_eq!(ask(0).await, 404, "it is nowhere");
    }
    second.stop().await;
    fleets.end().await;
}
