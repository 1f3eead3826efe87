//! Load of decoders as autoscalers are told it, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use pd_proxy::config::{Config, Tokens};
use pd_proxy::sim::EngineSpec;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::common::memory::Memory;
use crate::common::time::pass_until;

/// One prefiller and one decoder with these steps, where tokens are promised within 50 ms.
async fn fleet(tpot_ms: f64, slope_ms: f64) -> Arc<Memory> {
    let engine = EngineSpec { prefill_tokens_per_s: 1e6, tpot_ms, slope_ms, ..EngineSpec::default() };
    let mut config = Config::default();
    // Questions would go over sockets.
    config.prompt.tokens = Tokens::Off;
    config.autoscale.tpot_ms = 50;
    Arc::new(Memory::uneven(1, 1, &engine, config).await)
}

/// Asks for 200 tokens.
fn ask(memory: &Arc<Memory>, clients: &mut JoinSet<u16>, n: u32, stream: bool) {
    let body = json!({"model": "sim", "prompt": format!("{n}"), "max_tokens": 200, "stream": stream});
    let memory = memory.clone();
    clients.spawn(async move { memory.post("/v1/completions", body.to_string()).await.0 });
}

/// Saturation of the decoders as the status page has it.
async fn told(memory: &Memory) -> f64 {
    let (status, text) = memory.get("/status.json").await;
    assert_eq!(status, 200, "{text}");
    let told: Value = serde_json::from_str(&text).unwrap();
    let loads = told["loads"].as_array().expect("a list");
    let of_decoders = loads.iter().find(|load| load["role"] == "decode").expect("that of decoders");
    of_decoders["saturation"].as_f64().expect("a number")
}

async fn all_served(mut clients: JoinSet<u16>) {
    while let Some(status) = clients.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
}

/// Saturation of the decoders after 50 s of two requests per second, of 200 tokens each. A step
/// takes 40 ms and 1 ms for each stream, of which there come to be 27: 67 ms, where 50 are borne.
async fn saturation(stream: bool) -> f64 {
    let memory = fleet(40.0, 1.0).await;
    let (begin, mut clients) = (Instant::now(), JoinSet::new());
    for n in 0..100 {
        pass_until(begin + Duration::from_millis(500) * n).await;
        ask(&memory, &mut clients, n, stream);
    }
    let saturation = told(&memory).await;
    all_served(clients).await;
    saturation
}

#[tokio::test(start_paused = true)]
async fn load_of_decoders_is_learned_from_answers_of_either_kind() {
    let (streamed, whole) = (saturation(true).await, saturation(false).await);
    assert!(streamed > 1.0, "{streamed}");
    assert!((whole / streamed - 1.0).abs() < 0.25, "{whole}, and {streamed} where answers are streamed");
}

#[tokio::test(start_paused = true)]
async fn steps_that_are_too_long_show_though_the_number_of_streams_never_changes() {
    // It can't be told from them what each of 20 streams adds to 60 ms.
    let memory = fleet(60.0, 0.0).await;
    for wave in 0..4 {
        let (begin, mut clients) = (Instant::now(), JoinSet::new());
        (0..20).for_each(|n| ask(&memory, &mut clients, 20 * wave + n, true));
        pass_until(begin + Duration::from_secs(6)).await;
        let saturation = told(&memory).await;
        assert!(wave == 0 || (1.0..2.0).contains(&saturation), "{wave}: {saturation}");
        all_served(clients).await;
    }
}
