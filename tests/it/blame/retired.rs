//! Engines that are busy for ever: vLLM 0.33's rank that elastic expert parallelism retired.

use std::time::Duration;

use pd_proxy::fleet::Role;
use pd_proxy::fleet::health::State;
use pd_proxy::sim::{Fault, What};
use tokio::time::Instant;

use super::{ask, breakers, config, taken, working};
use crate::common::memory::Memory;
use crate::common::stage::{Script, Stage};
use crate::common::time::{eventually, pass};
use crate::health::member;

const SCALING: &str = "/is_scaling_elastic_ep";

fn completion(n: usize) -> String {
    format!(r#"{{"model":"sim","prompt":"request {n}","max_tokens":3}}"#)
}

/// Four clients for `time`; each of their requests is served.
async fn serve_for(memory: &Memory, time: Duration) {
    let end = Instant::now() + time;
    let clients = (0..4).map(|client| async move {
        for n in 0.. {
            if Instant::now() >= end {
                break;
            }
            assert_eq!(ask(memory, client * 10_000 + n).await, 200);
            pass(Duration::from_millis(20)).await;
        }
    });
    futures_util::future::join_all(clients).await;
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_busy_for_ever_rests_and_costs_no_request() {
    for role in [Role::Prefill, Role::Decode] {
        let memory = Memory::set(3, &working(), config()).await;
        let engines = if role == Role::Prefill { &memory.prefillers } else { &memory.decoders };
        assert!(engines[0].inject(Fault::always(What::Retired)));
        serve_for(&memory, Duration::from_secs(12)).await;
        let states = breakers(&memory, role);
        assert_ne!(states[0], State::Closed, "{role:?}");
        assert_eq!(states[1..], [State::Closed; 2], "{role:?}");
        let before = taken(&engines[0]);
        serve_for(&memory, Duration::from_secs(10)).await;
        let trials = taken(&engines[0]) - before;
        assert!(trials <= 10, "{role:?}: {trials} requests in 10 s");
    }
}

#[tokio::test]
async fn probes_of_an_engine_that_is_busy_ask_whether_it_is_scaled() {
    for role in ["prefill", "decode"] {
        let mut script = Script::default();
        script.config.health.probe_ms = 100;
        let stage = Stage::set(script).await;
        let engines = if role == "prefill" { &stage.prefillers } else { &stage.decoders };
        assert!(engines[0].inject(Fault::always(What::Retired)));
        let mut n = 0;
        eventually(format!("the {role} engine rests by its own word"), async || {
            n += 1;
            assert_eq!(stage.post(super::COMPLETIONS, &completion(n)).await.status, 200);
            member(stage.gateway, role, engines[0].addr()).await["breaker"] == "open"
        })
        .await;
        assert!(engines[0].seen().iter().any(|seen| seen.path == SCALING), "{role}");
        assert!(!engines[1].seen().iter().any(|seen| seen.path == SCALING), "{role}: it was not busy");
        engines[0].clear_faults();
        eventually("it is back", async || {
            n += 1;
            assert_eq!(stage.post(super::COMPLETIONS, &completion(n)).await.status, 200);
            member(stage.gateway, role, engines[0].addr()).await["breaker"] == "closed"
        })
        .await;
        stage.end().await;
    }
}
