//! Links between prefillers and decoders that are slower than others, in virtual time.

use std::ops::Range;
use std::time::Duration;

use pd_proxy::config::Config;
use pd_proxy::sim::{Engine, EngineSpec};
use serde_json::{Value, json};

use crate::common::memory::Memory;

const COMPLETIONS: &str = "/v1/completions";
/// Tokens of a prompt.
const PROMPT: u64 = 2_000;
/// Tokens per second over a link between racks.
const FAR: f64 = 5_000.0;
/// Tokens per second over a link within one.
const NEAR: f64 = 10.0 * FAR;

/// Two racks of a prefiller and a decoder each, and a decoder that is near to both.
async fn racks(far: f64) -> Memory {
    let engine = EngineSpec { prefill_tokens_per_s: 10_000.0, tpot_ms: 20.0, ..EngineSpec::default() };
    let memory = Memory::uneven(2, 3, &engine, Config::default()).await;
    link(&memory, far);
    memory
}

/// Sets the speed of links between racks.
fn link(memory: &Memory, far: f64) {
    for (at, decoder) in memory.decoders.iter().enumerate() {
        for (from, prefiller) in memory.prefillers.iter().enumerate() {
            decoder.link(prefiller.addr(), if is_far(from, at) { far } else { NEAR });
        }
    }
}

/// Pairs that the gateway believes to be slow, as it tells operators.
async fn slow_links(memory: &Memory) -> Vec<(usize, usize)> {
    let body = json!({"model": "sim", "prompt": vec![65; 8_000], "max_tokens": 1});
    let (status, text) = memory.post("/debug/route", body.to_string()).await;
    assert_eq!(status, 200, "{text}");
    let told: Value = serde_json::from_str(&text).unwrap();
    let place = |engines: &[Engine], name: &Value| {
        engines.iter().position(|it| name.as_str() == Some(&it.addr().to_string())).expect("an engine")
    };
    let pair = |link: &Value| {
        assert!(link["late_s"].as_f64().is_some_and(|late_s| (0.8..1.6).contains(&late_s)), "{link}");
        (place(&memory.prefillers, &link["prefiller"]), place(&memory.decoders, &link["decoder"]))
    };
    let mut pairs: Vec<_> = told["slow_links"].as_array().expect("a list").iter().map(pair).collect();
    pairs.sort_unstable();
    pairs
}

fn is_far(prefiller: usize, decoder: usize) -> bool {
    decoder < 2 && decoder != prefiller
}

/// Numbers of requests that engines were sent.
fn served(engines: &[Engine]) -> Vec<usize> {
    let count = |engine: &Engine| engine.seen().iter().filter(|seen| seen.path == COMPLETIONS).count();
    engines.iter().map(count).collect()
}

/// Sends prompts of which none begins as another one does, one after the other. Returns the number
/// of those whose KV went between racks.
async fn between_racks(memory: &Memory, prompts: Range<u64>) -> usize {
    let mut count = 0;
    for prompt in prompts {
        let before = [&memory.prefillers, &memory.decoders].map(|role| served(role));
        let letter = |at| match at {
            0 => prompt % 26,
            1 => prompt / 26,
            _ => at % 26,
        };
        let tokens: Vec<u64> = (0..PROMPT).map(|at| 65 + letter(at)).collect();
        let body = json!({"model": "sim", "prompt": tokens, "max_tokens": 8, "stream": true});
        let (status, text) = memory.post(COMPLETIONS, body.to_string()).await;
        assert_eq!(status, 200, "{text}");
        let after = [&memory.prefillers, &memory.decoders].map(|role| served(role));
        let [prefiller, decoder] = [0, 1].map(|role| {
            after[role].iter().zip(&before[role]).position(|(now, was)| now > was).expect("both legs")
        });
        count += usize::from(is_far(prefiller, decoder));
    }
    count
}

#[tokio::test(start_paused = true)]
async fn slow_links_are_learned_and_left_alone_until_they_are_mended() {
    let memory = racks(FAR).await;
    assert_eq!(slow_links(&memory).await, [], "nothing is known yet");
    let learning = between_racks(&memory, 0..60).await;
    assert!(learning >= 6, "both are tried, three times: {learning}");
    assert_eq!(slow_links(&memory).await, [(0, 1), (1, 0)]);
    assert_eq!(between_racks(&memory, 60..100).await, 0, "the other decoders are as idle, and near");
    link(&memory, NEAR);
    tokio::time::advance(Duration::from_secs(301)).await;
    assert_eq!(slow_links(&memory).await, [], "they may be mended by now");
    let mended = between_racks(&memory, 100..140).await;
    assert!(mended >= 5, "{mended} of 40");
}

#[tokio::test(start_paused = true)]
async fn equal_links_are_used_alike() {
    let memory = racks(NEAR).await;
    let _ = between_racks(&memory, 0..60).await;
    let before = served(&memory.decoders);
    let _ = between_racks(&memory, 60..120).await;
    let each = served(&memory.decoders).iter().zip(before).map(|(now, was)| now - was).collect::<Vec<_>>();
    assert!(each.iter().all(|count| *count >= 15), "{each:?}");
}
