//! Blame for KV that can't be read.

use pd_proxy::fleet::Role;
use pd_proxy::fleet::health::State;
use pd_proxy::sim::{Fault, FaultKind};

use super::{breakers, config, failed, load, working};
use crate::common::memory::Memory;

async fn fleet() -> Memory {
    Memory::set(4, &working(), config()).await
}

#[tokio::test(start_paused = true)]
async fn prefillers_whose_kv_nobody_can_read_cost_few_requests_and_rest() {
    let memory = fleet().await;
    for prefiller in &memory.prefillers[..3] {
        assert!(prefiller.inject(Fault::unreadable_kv()));
    }
    load(&memory, 8, 150).await;
    let then = load(&memory, 8, 100).await;
    assert!(failed(&then) <= 2, "{} of 100 failed", failed(&then));
    let states = breakers(&memory, Role::Prefill);
    assert!(states[..3].iter().all(|it| *it != State::Closed), "{states:?}");
    assert_eq!(states[3], State::Closed);
    let decoders = breakers(&memory, Role::Decode);
    assert!(decoders.iter().all(|it| *it == State::Closed), "{decoders:?}");
}

#[tokio::test(start_paused = true)]
async fn decoders_that_fail_with_everybodys_kv_are_not_held_against_prefillers() {
    let memory = fleet().await;
    for decoder in &memory.decoders[..2] {
        assert!(decoder.inject(Fault::always(FaultKind::Status(500, None)).on_path("/v1/")));
    }
    load(&memory, 8, 100).await;
    let then = load(&memory, 8, 60).await;
    assert_eq!(failed(&then), 0);
    assert!(breakers(&memory, Role::Prefill).iter().all(|it| *it == State::Closed));
}
