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

/// Saturation of the decoders after 50 s of two requests per second, of 200 tokens each. A step
/// takes 40 ms and 1 ms for each stream, of which there come to be 27: 67 ms, where 50 are borne.
async fn saturation(stream: bool) -> f64 {
    let engine =
        EngineSpec { prefill_tokens_per_s: 1e6, tpot_ms: 40.0, slope_ms: 1.0, ..EngineSpec::default() };
    let mut config = Config::default();
    // Questions would go over sockets.
    config.prompt.tokens = Tokens::Off;
    config.autoscale.tpot_ms = 50;
    let memory = Arc::new(Memory::uneven(1, 1, &engine, config).await);
    let (begin, mut clients) = (Instant::now(), JoinSet::new());
    for n in 0..100 {
        pass_until(begin + Duration::from_millis(500) * n).await;
        let body = json!({"model": "sim", "prompt": format!("{n}"), "max_tokens": 200, "stream": stream});
        let memory = memory.clone();
        clients.spawn(async move { memory.post("/v1/completions", body.to_string()).await });
    }
    let (status, text) = memory.get("/status.json").await;
    assert_eq!(status, 200, "{text}");
    while let Some(served) = clients.join_next().await {
        assert_eq!(served.unwrap().0, 200);
    }
    let told: Value = serde_json::from_str(&text).unwrap();
    let loads = told["loads"].as_array().expect("a list");
    let of_decoders = loads.iter().find(|load| load["role"] == "decode").expect("that of decoders");
    of_decoders["saturation"].as_f64().expect("a number")
}

#[tokio::test(start_paused = true)]
async fn load_of_decoders_is_learned_from_answers_of_either_kind() {
    let (streamed, whole) = (saturation(true).await, saturation(false).await);
    assert!(streamed > 1.0, "{streamed}");
    assert!((whole / streamed - 1.0).abs() < 0.25, "{whole}, and {streamed} where answers are streamed");
}
