//! Engines that ask for a key, and a gateway that has a wrong one, or none.

use std::net::SocketAddr;

use pd_proxy::config::Secret;
use pd_proxy::sim::{Engine, EngineSpec, Role};
use serde_json::{Value, json};

use super::{CHAT, chat, member};
use crate::common::client::post_with;
use crate::common::stage::{Script, Stage, fast};
use crate::common::time::eventually;

const KEY: &str = "sk-engines";

fn guarded(probe_ms: u64) -> Script {
    let mut script = Script { prefillers: 1, decoders: 1, ..Script::default() };
    script.engine.api_key = Some(KEY.to_owned());
    script.config.health.probe_ms = probe_ms;
    script
}

async fn both(stage: &Stage) -> [Value; 2] {
    let at = [("prefill", &stage.prefillers[0]), ("decode", &stage.decoders[0])];
    let [prefill, decode] = at.map(|(role, engine)| (role, engine.addr()));
    [member(stage.gateway, prefill.0, prefill.1).await, member(stage.gateway, decode.0, decode.1).await]
}

async fn states(stage: &Stage) -> [String; 2] {
    both(stage).await.map(|it| it["state"].as_str().unwrap_or_default().to_owned())
}

/// Starts another engine, with another key or with none, in the place of one that has ended.
async fn another(role: Role, at: SocketAddr, key: Option<&str>) -> Engine {
    Engine::start(EngineSpec { role, api_key: key.map(str::to_owned), ..fast() }, at).await.unwrap()
}

#[tokio::test]
async fn engines_that_refuse_our_key_are_down_until_they_take_it() {
    let mut script = guarded(50);
    script.config.engine.api_key = Some(Secret::new("sk-wrong"));
    let stage = Stage::set(script).await;
    eventually("they are down", async || states(&stage).await == ["down", "down"]).await;
    for it in both(&stage).await {
        assert_eq!((&it["refuses_key"], &it["breaker"]), (&json!(true), &json!("open")));
        assert_eq!(it["cause"], "it refuses engine.api_key (401): set that to its --api-key");
    }
    let ready = stage.get("/readyz").await;
    assert_eq!((ready.status, &ready.json()["prefill"]), (503, &json!("down")));
    let reason = ready.json()["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.starts_with("every prefiller refuses the gateway's key"), "{reason}");
    let status = stage.get("/status.json").await.text();
    assert!(status.contains("\"key_refused\""), "{status}");
    let mut others = Vec::new();
    for (role, old) in [(Role::Prefill, &stage.prefillers[0]), (Role::Decode, &stage.decoders[0])] {
        old.kill().await;
        others.push(another(role, old.addr(), Some("sk-wrong")).await);
    }
    eventually("they are up", async || states(&stage).await == ["up", "up"]).await;
    assert_eq!(stage.get("/readyz").await.status, 200);
    assert_eq!(stage.post(CHAT, &chat("x")).await.status, 200);
    stage.end().await;
    for engine in others {
        engine.stop().await;
    }
}

#[tokio::test]
async fn an_engine_that_comes_back_with_another_key_is_down() {
    let mut script = Script { prefillers: 1, decoders: 2, ..guarded(50) };
    script.config.engine.api_key = Some(Secret::new(KEY));
    let stage = Stage::set(script).await;
    eventually("they are up", async || states(&stage).await == ["up", "up"]).await;
    assert_eq!(stage.post(CHAT, &chat("x")).await.status, 200);
    let at = stage.decoders[1].addr();
    stage.decoders[1].kill().await;
    eventually("it is missed", async || member(stage.gateway, "decode", at).await["state"] == "down").await;
    let other = another(Role::Decode, at, Some("sk-other")).await;
    eventually("it is down for its key", async || {
        member(stage.gateway, "decode", at).await["refuses_key"] == true
    })
    .await;
    for n in 0..8 {
        assert_eq!(stage.post(CHAT, &chat(&n.to_string())).await.status, 200);
    }
    assert!(!other.seen().iter().any(|seen| seen.path == CHAT), "it is sent no request");
    stage.end().await;
    other.stop().await;
}

#[tokio::test]
async fn engines_that_want_clients_keys_are_degraded_until_a_client_has_one() {
    let stage = Stage::set(guarded(50)).await;
    eventually("they are degraded", async || states(&stage).await == ["degraded", "degraded"]).await;
    for it in both(&stage).await {
        let cause = it["cause"].as_str().unwrap_or_default();
        assert!(cause.starts_with("it wants a key (401)") && it["breaker"] == "closed", "{it}");
    }
    let ready = stage.get("/readyz").await;
    assert_eq!((ready.status, &ready.json()["decode"]), (200, &json!("degraded")));
    assert_eq!(stage.post(CHAT, &chat("x")).await.status, 401);
    assert_eq!(states(&stage).await, ["degraded", "degraded"]);
    let bearer = format!("Bearer {KEY}");
    let keyed = post_with(CHAT, &[("authorization", &bearer)], chat("x").as_bytes());
    assert_eq!(stage.send(&keyed).await.status, 200);
    assert_eq!(states(&stage).await, ["up", "up"]);
    let listed = |stage: &Stage| {
        let all = stage.engines().flat_map(Engine::seen);
        all.filter(|seen| seen.path == "/v1/models").count()
    };
    let before = listed(&stage);
    assert_eq!(stage.post(CHAT, &chat("y")).await.status, 401, "a client without one");
    eventually("they are asked no more", async || states(&stage).await == ["up", "up"]).await;
    assert!(listed(&stage) <= before + 2, "an engine that serves is not asked at each probe");
    stage.end().await;
}

#[tokio::test]
async fn without_probes_requests_tell() {
    let mut script = guarded(0);
    script.config.engine.api_key = Some(Secret::new("sk-wrong"));
    let stage = Stage::set(script).await;
    assert_eq!(stage.get("/readyz").await.status, 200);
    assert_eq!(stage.post(CHAT, &chat("x")).await.status, 401);
    let ready = stage.get("/readyz").await;
    assert_eq!((ready.status, &ready.json()["prefill"]), (503, &json!("down")));
    stage.end().await;
}
