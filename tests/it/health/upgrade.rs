//! Rolling upgrades: engines of two releases side by side, which refuse each other's KV as vLLM's
//! do with NIXL.

use std::net::SocketAddr;

use pd_proxy::sim::{Engine, EngineSpec, Role};

use super::{CHAT, Load, chat, member};
use crate::common::stage::{Script, Stage, fast};
use crate::common::time::eventually;
use crate::surface::samples;

const OLD: &str = "0.32.0";
const NEW: &str = "0.33.0";

/// Engines of one release that compare it, and a gateway that probes them.
fn script(prefillers: usize, decoders: usize) -> Script {
    let mut script = Script { prefillers, decoders, ..Script::default() };
    script.engine.version = OLD.into();
    script.config.health.probe_ms = 50;
    // An engine that ends refuses connections: nothing is found out by a probe's time, which a busy
    // machine exceeds.
    script.config.health.probe_timeout_ms = 10_000;
    script.config.health.rest_max_ms = 1_000;
    script.config.health.slow_start_ms = 100;
    script
}

fn name(role: Role) -> &'static str {
    if role == Role::Prefill { "prefill" } else { "decode" }
}

/// Ends an engine as an orchestrator does, which lets it finish, and starts the new release there.
async fn upgrade(stage: &Stage, engine: Engine, role: Role) -> Engine {
    let at = engine.addr();
    engine.stop().await;
    // A real engine takes tens of seconds to start, in which requests or probes find it away.
    eventually("it is missed", async || {
        let member = member(stage.gateway, name(role), at).await;
        member["state"] == "down" && member["cause"].to_string().contains("refused")
    })
    .await;
    let spec = EngineSpec { role, version: NEW.into(), ..fast() };
    let next = Engine::start(spec, at).await.unwrap();
    eventually("the gateway knows its release", async || release(stage, role, at).await == NEW).await;
    next
}

async fn release(stage: &Stage, role: Role, at: SocketAddr) -> serde_json::Value {
    member(stage.gateway, name(role), at).await["release"].clone()
}

/// Upgrades a fleet in this order under load: `p` is the next prefiller, `d` the next decoder.
async fn upgraded_in_order(order: &str) {
    let mut stage = Stage::set(script(4, 4)).await;
    let (mut prefillers, mut decoders) =
        (std::mem::take(&mut stage.prefillers), std::mem::take(&mut stage.decoders));
    for (role, all) in [(Role::Prefill, &prefillers), (Role::Decode, &decoders)] {
        for engine in all {
            eventually("its release is known", async || release(&stage, role, engine.addr()).await == OLD)
                .await;
        }
    }
    let load = Load::on(stage.gateway);
    for kind in order.chars() {
        let (role, all) = match kind {
            'p' => (Role::Prefill, &mut prefillers),
            _ => (Role::Decode, &mut decoders),
        };
        let old = all.remove(0);
        all.push(upgrade(&stage, old, role).await);
    }
    eventually("a pair of the new release serves", async || {
        let before = prefillers.iter().map(|it| it.seen().len()).sum::<usize>();
        assert_eq!(super::client::send(stage.gateway, &super::post(CHAT, &chat("last"))).await.status, 200);
        prefillers.iter().map(|it| it.seen().len()).sum::<usize>() > before
    })
    .await;
    let served = load.end().await;
    assert!(served > 8, "{order}: {served}");
    for engine in prefillers.into_iter().chain(decoders) {
        engine.stop().await;
    }
    stage.end().await;
}

#[tokio::test]
async fn an_upgrade_of_all_prefillers_first_fails_no_request() {
    upgraded_in_order("ppppdddd").await;
}

#[tokio::test]
async fn an_upgrade_of_all_decoders_first_fails_no_request() {
    upgraded_in_order("ddddpppp").await;
}

#[tokio::test]
async fn an_upgrade_in_turn_fails_no_request() {
    upgraded_in_order("pdpdpdpd").await;
    upgraded_in_order("ddppppdd").await;
}

#[tokio::test]
async fn a_pair_of_two_releases_is_never_formed_while_an_equal_one_exists() {
    let mut stage = Stage::set(script(2, 2)).await;
    assert_eq!(stage.post(CHAT, &chat("first")).await.status, 200, "a hand-off says that it matters");
    let (p, d) = (stage.prefillers.remove(0), stage.decoders.remove(0));
    let p = upgrade(&stage, p, Role::Prefill).await;
    let at = p.addr();
    let lacks = async || member(stage.gateway, "prefill", at).await["lacks_partner"].clone();
    eventually("it has no decoder", async || lacks().await == true).await;
    assert!(stage.get("/status.json").await.text().contains("\"no_partner\""));
    let d = upgrade(&stage, d, Role::Decode).await;
    eventually("it has one", async || lacks().await == false).await;
    for n in 0..40 {
        assert_eq!(stage.post(CHAT, &chat(&format!("{n}: some prompt"))).await.status, 200);
    }
    let prompts = |engine: &Engine| engine.seen().iter().filter(|seen| seen.path == CHAT).count();
    assert!(prompts(&p) > 0 && prompts(&d) > 0, "both releases serve");
    let failed = |engine: &Engine| engine.ledger().released_by_reject;
    assert_eq!([&p, &stage.prefillers[0]].map(failed), [0, 0], "no KV is asked for by another release");
    p.stop().await;
    d.stop().await;
    stage.end().await;
}

#[tokio::test]
async fn decoders_compute_prompts_where_no_pair_is_left() {
    let mut stage = Stage::set(script(1, 1)).await;
    assert_eq!(stage.post(CHAT, &chat("first")).await.status, 200);
    let d = stage.decoders.remove(0);
    let d = upgrade(&stage, d, Role::Decode).await;
    for n in 0..8 {
        let answer = stage.post(CHAT, &chat(&n.to_string())).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(stage.prefillers[0].ledger().released_by_reject, 0);
    let computed = stage.prefillers[0].seen().iter().filter(|seen| seen.path == CHAT).count();
    assert_eq!(computed, 1, "it is not asked for KV that nobody can read");
    let metrics = samples(&stage.get("/metrics").await.text());
    assert!(metrics["pd_proxy_prefill_bypassed_total{reason=\"other_release\"}"] >= 8.0);
    assert_eq!(stage.get("/readyz").await.status, 200);
    assert_eq!(member(stage.gateway, "prefill", stage.prefillers[0].addr()).await["lacks_partner"], true);
    d.stop().await;
    stage.end().await;
}
