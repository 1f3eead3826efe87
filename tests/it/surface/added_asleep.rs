//! Engines that sleep or pause, and operators who add and remove them; and where they are named.

use std::pin::pin;

use pd_proxy::sim::{Fault, FaultKind};
use serde_json::json;

use crate::common::client::{self, post};
use crate::common::raw_engine::{Front, RawEngine};
use crate::common::stage::Stage;
use crate::common::time::eventually;

use super::asleep::{counts, vllm};
use super::{change, name};

const SLEEP: &str = "/sleep?role=decode&drain_ms=60000";

/// Changes the members of `role` by one engine.
async fn changes(front: &Front, path: &str, role: &str, engine: &RawEngine) -> serde_json::Value {
    let raw = front.post(path, &change(role, json!(engine.addr().to_string()))).await;
    assert_eq!(raw.status, 200, "{}", raw.text());
    raw.json()
}

#[tokio::test]
async fn added_engine_that_sleeps_serves_when_an_order_has_woken_it() {
    let (prefiller, one, two) = (vllm(false).await, vllm(false).await, vllm(false).await);
    let front = Front::of(&[&prefiller], &[&one, &two], |config| config.server.open_admin = true).await;
    assert_eq!(front.post(SLEEP, "").await.status, 200);
    assert_eq!(counts(&front).await, [1, 0, 2]);
    let told = changes(&front, "/instances/add", "decode", &one).await;
    let message = told["message"].as_str().unwrap();
    assert!(message.contains("asleep") && message.contains("/wake_up"), "{message}");
    assert_eq!(told["current_decode_instances"], json!([]), "it says itself that it sleeps");
    assert_eq!(counts(&front).await, [1, 0, 2]);
    changes(&front, "/instances/remove", "decode", &one).await;
    assert_eq!(counts(&front).await, [1, 0, 1]);
    changes(&front, "/instances/add", "decode", &one).await;
    changes(&front, "/instances/add", "prefill", &two).await;
    assert_eq!(counts(&front).await, [1, 0, 2]);
    assert_eq!(front.post("/wake_up", "").await.status, 200);
    assert_eq!(counts(&front).await, [2, 2, 0], "the order reached both, and one has both roles now");
    front.end().await;
}

#[tokio::test]
async fn added_engine_is_judged_by_its_own_word() {
    let (prefiller, one, two) = (vllm(false).await, vllm(false).await, vllm(false).await);
    let front = Front::of(&[&prefiller], &[&one], |config| config.server.open_admin = true).await;
    client::send(two.addr(), &post("/pause", "")).await;
    changes(&front, "/instances/add", "decode", &two).await;
    assert_eq!(counts(&front).await, [1, 1, 1], "it was paused before anybody here knew it");
    assert_eq!(front.post("/resume?role=decode", "").await.status, 200);
    assert_eq!(counts(&front).await, [1, 2, 0]);
    assert_eq!(front.post(SLEEP, "").await.status, 200);
    client::send(one.addr(), &post("/wake_up", "")).await;
    let told = changes(&front, "/instances/add", "decode", &one).await;
    assert_eq!(told["current_decode_instances"], json!([one.addr().to_string()]));
    assert_eq!(counts(&front).await, [1, 1, 1], "somebody else has woken it");
    front.end().await;
}

#[tokio::test]
async fn added_engine_is_refused_while_it_is_told_to_rest() {
    let stage = Stage::new().await;
    let engine = &stage.decoders[0];
    engine.inject(Fault::always(FaultKind::StallBeforeHead).on_path("/sleep"));
    let told = post(SLEEP, "");
    let mut order = pin!(client::send(stage.gateway, &told));
    let is_told = async || engine.seen().iter().any(|seen| seen.path.starts_with("/sleep"));
    tokio::select! {
        raw = &mut order => panic!("{}", raw.text()),
        () = eventually("it is told", is_told) => {}
    }
    let raw = stage.post("/instances/add", &change("decode", json!(name(engine)))).await;
    assert!(raw.status == 400 && raw.text().contains("wait for its end"), "{}", raw.text());
    engine.kill().await;
    assert_eq!(order.await.status, 502);
    stage.end().await;
}

#[tokio::test]
async fn engines_that_sleep_are_named_where_their_role_is_down() {
    let (prefiller, one, two) = (vllm(false).await, vllm(false).await, vllm(false).await);
    let front = Front::of(&[&prefiller], &[&one, &two], |config| config.server.open_admin = true).await;
    let roles = async || front.get("/status.json").await.json()["roles"].clone();
    assert_eq!(roles().await, json!({"prefill": "unknown", "decode": "unknown"}));
    assert_eq!(front.post(SLEEP, "").await.status, 200);
    assert_eq!(roles().await, json!({"prefill": "unknown", "decode": "down"}));
    let reason = "there is no decoder: 2 are asleep by order";
    assert_eq!(front.get("/readyz").await.json()["reason"], reason);
    let told = front.get("/status.json").await.json();
    assert_eq!(told["gateway"]["not_ready"], reason);
    assert_eq!(told["asleep"], front.get("/instances").await.json()["asleep"]);
    assert_eq!(told["asleep"].as_array().unwrap().len(), 2);
    changes(&front, "/instances/remove", "decode", &one).await;
    let told = front.get("/readyz").await.json();
    assert_eq!(told["reason"], "there is no decoder: 1 is asleep by order");
    changes(&front, "/instances/remove", "decode", &two).await;
    assert_eq!(front.get("/readyz").await.json()["reason"], "there is no decoder");
    assert_eq!(roles().await, json!({"prefill": "unknown", "decode": "down"}));
    front.end().await;
}

#[tokio::test]
async fn removal_from_one_role_leaves_an_engine_asleep_in_the_other() {
    let (prefiller, both) = (vllm(false).await, vllm(false).await);
    let front = Front::of(&[&prefiller, &both], &[&both], |config| config.server.open_admin = true).await;
    assert_eq!(front.post(SLEEP, "").await.status, 200);
    assert_eq!(counts(&front).await, [1, 0, 1]);
    changes(&front, "/instances/remove", "prefill", &both).await;
    assert_eq!(counts(&front).await, [1, 0, 1]);
    assert_eq!(front.post("/wake_up", "").await.status, 200);
    assert_eq!(counts(&front).await, [1, 1, 0], "no operator has removed it from decode");
    front.end().await;
}
