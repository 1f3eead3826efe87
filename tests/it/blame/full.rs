//! Engines that take a few requests at a time and refuse the others (vLLM's
//! `--max-num-queued-reqs`, a proxy's limit).

use pd_proxy::fleet::Role;
use pd_proxy::fleet::health::State;
use pd_proxy::sim::{EngineSpec, Fault, FaultKind};

use super::{DIALECTS, breakers, config, failed, load, speaking, taken};
use crate::common::memory::Memory;

/// Requests that each engine takes.
const ROOM: usize = 4;
const CLIENTS: usize = 24;
const REQUESTS: usize = 240;
/// Most prefills for the first requests to decoders that are full without a word before.
const MOST_AT_FIRST: usize = REQUESTS + CLIENTS + REQUESTS / 20;

#[tokio::test(start_paused = true)]
async fn more_clients_than_engines_take_wait_and_are_all_served() {
    for prefills in [true, false] {
        for status in [429, 503] {
            let when = format!("{status}, prefills {prefills}");
            let prefill_tokens_per_s = if prefills { 1_000.0 } else { 100_000.0 };
            let spec = EngineSpec { prefill_tokens_per_s, tpot_ms: 50.0, ..super::working() };
            let memory = Memory::set(2, &spec, config()).await;
            let full = if prefills { &memory.prefillers } else { &memory.decoders };
            for engine in full {
                let fault = Fault::always(FaultKind::Full { requests: ROOM, status });
                assert!(engine.inject(fault.on_path("/v1/")));
            }
            let statuses = load(&memory, CLIENTS, REQUESTS).await;
            assert_eq!(failed(&statuses), 0, "{when}: {statuses:?}");
            let prefilled: usize = memory.prefillers.iter().map(taken).sum();
            // Before anything is known all clients are prefilled. After a proxy's 429 the hand-off
            // is used again; after an engine's 503 it may be gone.
            let most = match (prefills, status) {
                (true, _) => 2 * REQUESTS,
                (false, 429) => REQUESTS,
                (false, _) => MOST_AT_FIRST,
            };
            assert!(prefilled <= most, "{when}: {prefilled} prefills for {REQUESTS} answers");
            let role = if prefills { Role::Prefill } else { Role::Decode };
            assert_eq!(breakers(&memory, role), [State::Closed; 2], "{when}: full is not broken");
        }
    }
}

/// In each dialect: before anything is known all clients are prefilled, and then hardly any prompt
/// for nobody.
#[tokio::test(start_paused = true)]
async fn full_decoders_cost_few_prefills_in_every_dialect() {
    for spoken in DIALECTS {
        for status in [429, 503] {
            let spec = EngineSpec { prefill_tokens_per_s: 100_000.0, tpot_ms: 50.0, ..super::working() };
            let (memory, _listening) = speaking(spoken, 2, spec).await;
            for engine in &memory.decoders {
                let fault = Fault::always(FaultKind::Full { requests: ROOM, status });
                assert!(engine.inject(fault.on_path("/v1/")));
            }
            let mut before = 0;
            for round in 0..2 {
                let statuses = load(&memory, CLIENTS, REQUESTS).await;
                let when = format!("{spoken:?}, {status}, round {round}");
                assert_eq!(failed(&statuses), 0, "{when}: {statuses:?}");
                let all: usize = memory.prefillers.iter().map(taken).sum();
                let prefills = all - before;
                before = all;
                let most = if round == 0 { MOST_AT_FIRST } else { REQUESTS + REQUESTS / 10 - 1 };
                assert!(prefills <= most, "{when}: {prefills} prefills for {REQUESTS} answers");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hand_off_is_used_again_after_a_proxys_refusal_and_not_after_an_engines() {
    // A proxy's limit, and an engine's own 429: the second may have freed the hand-off's blocks.
    let refusals = [(FaultKind::Full { requests: 0, status: 429 }, 1), (FaultKind::Status(429, None), 2)];
    for (refusal, most) in refusals {
        let memory = Memory::set(1, &super::working(), config()).await;
        let fault = Fault::once(refusal.clone());
        assert!(memory.decoders[0].inject(fault.on_path("/v1/")));
        let statuses = load(&memory, 1, 1).await;
        assert_eq!(failed(&statuses), 0, "{refusal:?}: {statuses:?}");
        assert_eq!(taken(&memory.prefillers[0]), most, "{refusal:?}");
    }
}
