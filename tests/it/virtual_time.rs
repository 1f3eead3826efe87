//! Whole gateways in virtual time: minutes of an engine pass in no time, and no test depends on the
//! machine's speed.

use std::time::Duration;

use pd_proxy::config::Config;
use pd_proxy::fleet;
use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind, Role};
use tokio::time::Instant;

use crate::common::memory::Memory;

/// A second for a prompt of a hundred tokens, and a second per token.
fn snail() -> EngineSpec {
    EngineSpec { prefill_tokens_per_s: 100.0, tpot_ms: 1_000.0, slope_ms: 0.0, ..EngineSpec::default() }
}

fn words() -> String {
    "word ".repeat(80)
}

async fn ask(memory: &Memory, tokens: u32) -> (u16, String) {
    send(memory, format!(r#"{{"model":"sim","prompt":"{}","max_tokens":{tokens},"stream":true}}"#, words()))
        .await
}

async fn send(memory: &Memory, body: String) -> (u16, String) {
    memory.post("/v1/completions", body).await
}

#[tokio::test(start_paused = true)]
async fn a_request_of_minutes_is_served_in_no_time() {
    let memory = Memory::set(1, &snail(), Config::default()).await;
    let (start, wall) = (Instant::now(), std::time::Instant::now());
    let (status, text) = ask(&memory, 120).await;
    assert_eq!(status, 200, "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert!(start.elapsed() > Duration::from_secs(100), "only {:?} passed", start.elapsed());
    assert!(wall.elapsed() < start.elapsed(), "virtual time is not the wall's");
    assert_eq!(memory.prefillers[0].ledger().pinned_handoffs, 0, "the decoder fetched what was kept");
}

/// The time to compute a prompt is that of its length, on whichever side it is computed.
#[tokio::test(start_paused = true)]
async fn a_long_prompt_has_longer() {
    let one = format!(r#"{{"prompt":"{}","max_tokens":2,"stream":true}}"#, words());
    let alone = format!(r#"{{"prompt":"{0}","max_tokens":2,"stream":true,"use_beam_search":true}}"#, words());
    for (body, late) in [(one, "prefill_timeout"), (alone, "decode_timeout")] {
        for (ms_per_1k_tokens, served) in [(0, false), (100_000, true)] {
            let mut config = Config::default();
            // A prompt of no length has a tenth of the time that this one takes.
            (config.timeout.prefill_ms, config.timeout.first_byte_ms) = (80, 80);
            if late == "prefill_timeout" {
                config.timeout.first_byte_ms = 10_000;
            }
            config.timeout.prefill_ms_per_1k_tokens = ms_per_1k_tokens;
            let memory = Memory::set(1, &snail(), config).await;
            let (status, text) = send(&memory, body.clone()).await;
            assert_eq!(status == 200, served, "{ms_per_1k_tokens}: {text}");
            assert!(served || text.contains(late), "{text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_decoder_that_falls_silent_is_noticed_after_the_configured_gap() {
    let mut config = Config::default();
    config.timeout.gap_ms = 60_000;
    let memory = Memory::set(1, &snail(), config).await;
    let stall = Fault::always(FaultKind::StallAfterBytes(1_000));
    assert!(memory.decoders[0].inject(stall));
    let start = Instant::now();
    let (status, text) = ask(&memory, 20).await;
    assert_eq!(status, 200, "{text}");
    assert!(text.contains("\"error\""), "{text}");
    assert!((60..90).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_can_not_be_reached_is_passed_over_and_one_that_comes_is_used() {
    let memory = Memory::set(1, &snail(), Config::default()).await;
    memory.decoders[0].kill().await;
    let (status, text) = ask(&memory, 2).await;
    assert!(status >= 500, "{status}: {text}");
    let at = "10.0.1.9:8000";
    let spec = EngineSpec { role: Role::Decode, ..snail() };
    let _late = Engine::start_in(spec, &memory.net, at.parse().unwrap()).unwrap();
    memory.app.gateway().fleets().first().relay.fleet.add(fleet::Role::Decode, at.parse().unwrap());
    let (status, text) = ask(&memory, 2).await;
    assert_eq!(status, 200, "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
}
