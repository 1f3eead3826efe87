//! Engines that are busy for ever: vLLM 0.33's rank that elastic expert parallelism retired.

use pd_proxy::sim::{Fault, FaultKind};

use crate::common::stage::{Script, Stage};
use crate::common::time::eventually;
use crate::health::member;

const SCALING: &str = "/is_scaling_elastic_ep";

fn completion(n: usize) -> String {
    format!(r#"{{"model":"sim","prompt":"request {n}","max_tokens":3}}"#)
}

#[tokio::test]
async fn probes_of_an_engine_that_is_busy_ask_whether_it_is_scaled() {
    for role in ["prefill", "decode"] {
        let mut script = Script::default();
        script.config.health.probe_ms = 100;
        let stage = Stage::set(script).await;
        let engines = if role == "prefill" { &stage.prefillers } else { &stage.decoders };
        assert!(engines[0].inject(Fault::always(FaultKind::Retired)));
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
