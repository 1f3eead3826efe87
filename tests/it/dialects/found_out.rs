//! Engines that say what they speak, and a gateway that was not told.

use std::time::Duration;

use pd_proxy::config::DialectName;
use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind, Role};

use super::{SPOKEN, Spoken, chat, completion, script, sources};
use crate::common::stage::Stage;
use crate::common::time::{eventually, pace};

fn untold(spoken: Spoken) -> crate::common::stage::Script {
    let mut script = script(spoken);
    script.config.dialect.name = DialectName::Auto;
    script
}

#[tokio::test]
async fn engines_dialect_is_detected() {
    for spoken in SPOKEN {
        let stage = Stage::set(untold(spoken)).await;
        for stream in [false, true] {
            for (path, body) in [completion(stream), chat(stream)] {
                let answer = stage.post(path, &body).await;
                assert_eq!((answer.status, answer.complete), (200, true), "{spoken:?}: {}", answer.text());
            }
        }
        let (travelled, computed) = sources(&stage).await;
        assert!(travelled > 0 && computed == 0, "{spoken:?}: {travelled} travelled, {computed} computed");
        stage.assert_nothing_left(&format!("{spoken:?}")).await;
        stage.assert_all_alive(&format!("{spoken:?}"));
        stage.end().await;
    }
}

#[tokio::test]
async fn engines_that_come_later_are_asked_later() {
    let spoken = SPOKEN[3];
    let mut script = untold(spoken);
    (script.prefillers, script.decoders) = (1, 1);
    let stage =
        Stage::set_failing(script, &Fault::always(FaultKind::Status(503, None)).on_path("/server_info"))
            .await;
    let (path, body) = completion(false);
    let answer = stage.post(path, &body).await;
    assert_eq!(answer.status, 400, "spoken to as if it were vLLM: {}", answer.text());
    stage.heal();
    eventually("they are asked again", async || stage.post(path, &body).await.status == 200).await;
    stage.end().await;
}

#[tokio::test]
async fn servers_that_lack_the_new_path_are_asked_at_the_old_one() {
    let mut script = untold(SPOKEN[3]);
    (script.prefillers, script.decoders) = (1, 1);
    let lacking = Fault::always(FaultKind::Status(404, None)).on_path("/server_info");
    let stage = Stage::set_failing(script, &lacking).await;
    let (path, body) = completion(false);
    eventually("it is known for SGLang", async || stage.post(path, &body).await.status == 200).await;
    stage.end().await;
}

#[tokio::test]
async fn engines_that_come_back_with_another_connector_are_asked_again() {
    let mut script = untold(SPOKEN[0]);
    (script.prefillers, script.decoders) = (1, 1);
    script.config.health.probe_ms = 50;
    let engine = script.engine.clone();
    let stage = Stage::set(script).await;
    let (path, body) = completion(false);
    assert_eq!(stage.post(path, &body).await.status, 200);
    let dialect = async || stage.get("/status.json").await.json()["gateway"]["dialect"].clone();
    assert_eq!(dialect().await, "kv_transfer");
    // Engines say when they started, and two starts are told apart by more than half a second.
    pace(Duration::from_millis(700)).await;
    let mut others = Vec::new();
    for (role, old) in [(Role::Prefill, &stage.prefillers[0]), (Role::Decode, &stage.decoders[0])] {
        old.kill().await;
        let other = EngineSpec { role, connector: SPOKEN[3].1, ..engine.clone() };
        others.push(Engine::start(other, old.addr()).await.unwrap());
    }
    eventually("their dialect is found out", async || dialect().await == "sglang").await;
    eventually("they serve", async || stage.post(path, &body).await.status == 200).await;
    stage.end().await;
    for engine in others {
        engine.stop().await;
    }
}
