//! Prefills of minutes, in virtual time.

use std::time::Duration;

use pd_proxy::config::{Config, DialectName};
use pd_proxy::sim::{Connector, EngineSpec};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::{COMPLETIONS, body, prompt_tokens};
use crate::common::memory::Memory;
use crate::common::time::pass;

/// Engines that take three minutes for the prompt, and a gateway that they can call.
pub async fn slow() -> (Memory, JoinSet<()>) {
    let engine = EngineSpec {
        connector: Connector::Layerwise,
        prefill_tokens_per_s: prompt_tokens() / 180.0,
        tpot_ms: 100.0,
        ..EngineSpec::default()
    };
    let mut config = Config::default();
    config.dialect.name = DialectName::Layerwise;
    config.dialect.callback_url = Some("http://10.0.2.1:8000".to_owned());
    let memory = Memory::set(1, &engine, config).await;
    let listening = memory.listen(([10, 0, 2, 1], 8000).into());
    (memory, listening)
}

pub async fn ask(memory: &Memory) -> (u16, String) {
    memory.post(COMPLETIONS, body(true).to_string()).await
}

#[tokio::test(start_paused = true)]
async fn a_decoder_waits_as_long_as_the_prefill_takes() {
    let (memory, _listening) = slow().await;
    let start = Instant::now();
    let (status, text) = ask(&memory).await;
    assert_eq!(status, 200, "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert!((180..200).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert_eq!(memory.decoders[0].heard(), [200]);
}

#[tokio::test(start_paused = true)]
async fn client_that_leaves_at_any_second_strands_nothing() {
    for after_s in [1, 30, 179] {
        // Caches would make the second prefill short.
        let (memory, _listening) = slow().await;
        assert!(timeout(Duration::from_secs(after_s), ask(&memory)).await.is_err());
        pass(Duration::from_secs(1)).await;
        let decoder = memory.decoders[0].ledger();
        assert!(decoder.pinned_handoffs == 0, "after {after_s} s: {decoder:#?}");
        pass(Duration::from_secs(200)).await;
        for engine in memory.prefillers.iter().chain(&memory.decoders) {
            let ledger = engine.ledger();
            let left = ledger.running + ledger.waiting + ledger.pinned_handoffs;
            assert_eq!(left, 0, "after {after_s} s: {ledger:#?}");
        }
        assert_eq!(memory.app.gateway().fleets().first().relay.rendezvous.open_names(), 0);
    }
}
