//! Engines that die, hang, restart, leave.

use std::time::Duration;

use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind, Role};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{CHAT, Load, chat, engine, is_member, member};
use crate::common::client::{self, get, post};
use crate::common::raw_engine::{Front, RawEngine, answer};
use crate::common::stage::{Script, Stage, fast};
use crate::common::time::{eventually, pace};
use crate::surface::samples;

fn probing() -> Script {
    let mut script = Script::default();
    script.config.health.probe_ms = 50;
    script.config.health.probe_timeout_ms = 500;
    script.config.health.probe_failures = 2;
    script.config.health.rest_max_ms = 1_000;
    script.config.health.slow_start_ms = 300;
    script
}

/// A series of this gateway's process.
async fn series(stage: &Stage, name: &str) -> f64 {
    samples(&stage.get("/metrics").await.text()).get(name).copied().unwrap_or_default()
}

#[tokio::test]
async fn engines_that_are_killed_and_restarted_under_load_cost_no_request() {
    let stage = Stage::set(probing()).await;
    let load = Load::on(stage.gateway);
    let mut again = Vec::new();
    for (name, role, old) in
        [("prefill", Role::Prefill, &stage.prefillers[0]), ("decode", Role::Decode, &stage.decoders[0])]
    {
        let at = old.addr();
        let labels = format!(r#"{{role="{name}",engine="{at}"}}"#);
        // It says when it started, and two starts are told apart by more than half a second.
        pace(Duration::from_millis(700)).await;
        old.kill().await;
        eventually("it rests", async || member(stage.gateway, name, at).await["breaker"] != "closed").await;
        pace(Duration::from_millis(300)).await;
        let restarted = engine(role, at).await;
        eventually("it is back", async || member(stage.gateway, name, at).await["breaker"] == "closed").await;
        eventually("it serves", async || restarted.seen().iter().any(|seen| seen.path == CHAT)).await;
        let restarts = format!("pd_proxy_engine_restarts_total{labels}");
        eventually("the restart is noticed", async || series(&stage, &restarts).await >= 1.0).await;
        assert!(series(&stage, &format!("pd_proxy_breaker_trips_total{labels}")).await >= 1.0);
        eventually("it has its share", async || member(stage.gateway, name, at).await["share"] == 1.0).await;
        again.push(restarted);
    }
    assert!(load.end().await > 20);
    stage.end().await;
    for engine in again {
        engine.stop().await;
    }
}

#[tokio::test]
async fn a_dead_engine_is_found_by_probes_and_not_by_requests() {
    let stage = Stage::set(probing()).await;
    let (dead, at) = (&stage.prefillers[0], stage.prefillers[0].addr());
    dead.kill().await;
    eventually("it rests", async || member(stage.gateway, "prefill", at).await["breaker"] == "open").await;
    for n in 0..10 {
        assert_eq!(stage.post(CHAT, &chat(&n.to_string())).await.status, 200);
    }
    let text = stage.get("/metrics").await.text();
    let failures = format!(r#"pd_proxy_leg_failures_total{{role="prefill",engine="{at}""#);
    assert!(!text.contains(&failures), "no request was sent there");
    let refused = format!(r#"pd_proxy_probes_total{{role="prefill",engine="{at}",outcome="refused"}}"#);
    assert!(samples(&text)[&refused] >= 1.0);
    stage.end().await;
}

#[tokio::test]
async fn an_engine_that_says_that_it_is_dead_rests_and_comes_back() {
    let stage = Stage::set(probing()).await;
    let (sick, at) = (&stage.decoders[0], stage.decoders[0].addr());
    assert!(sick.inject(Fault::always(FaultKind::Status(503, None)).on_path("/health")));
    eventually("it rests", async || member(stage.gateway, "decode", at).await["breaker"] == "open").await;
    sick.clear_faults();
    eventually("it is back", async || member(stage.gateway, "decode", at).await["breaker"] == "closed").await;
    stage.end().await;
}

#[tokio::test]
async fn all_engines_are_tried_when_all_rest() {
    let mut script = probing();
    script.config.health.probe_ms = 0;
    let stage = Stage::set(script).await;
    stage.prefillers_fail(&Fault::always(FaultKind::Status(500, None)));
    for _ in 0..4 {
        assert_eq!(stage.post(CHAT, &chat("x")).await.status, 502);
    }
    stage.heal();
    assert_eq!(stage.post(CHAT, &chat("x")).await.status, 200, "at once, rest or not");
    stage.end().await;
}

#[tokio::test]
async fn a_dead_decoder_says_nothing_of_the_prefiller_on_its_host() {
    let mut script = Script { prefillers: 1, decoders: 2, ..Script::default() };
    script.config.health.probe_ms = 0;
    let stage = Stage::set(script).await;
    let (dead, prefiller) = (stage.decoders[0].addr(), stage.prefillers[0].addr());
    stage.decoders[0].kill().await;
    eventually("it rests", async || {
        assert_eq!(stage.post(CHAT, &chat("x")).await.status, 200);
        member(stage.gateway, "decode", dead).await["breaker"] != "closed"
    })
    .await;
    let it = member(stage.gateway, "prefill", prefiller).await;
    assert_eq!((&it["breaker"], &it["failures"], &it["rest_ms"]), (&json!("closed"), &json!(0), &json!(0)));
    stage.end().await;
}

#[tokio::test]
async fn a_deleted_engine_finishes_its_own_work_and_the_caller_may_wait() {
    let stage = Stage::new().await;
    stage.prefillers_fail(&Fault::always(FaultKind::StallBeforeHead).on_path("/v1"));
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    socket.write_all(&post(CHAT, &chat("x"))).await.unwrap();
    let mut busy = None;
    eventually("one is busy", async || {
        for engine in &stage.prefillers {
            if member(stage.gateway, "prefill", engine.addr()).await["requests"] == 1 {
                busy = Some(engine.addr());
            }
        }
        busy.is_some()
    })
    .await;
    let busy = busy.unwrap();
    let body = json!({"type": "prefill", "instances": busy.to_string()}).to_string();
    let delete =
        |path: &str| String::from_utf8(post(path, &body)).unwrap().replacen("POST", "DELETE", 1).into_bytes();
    let raw = stage.send(&delete("/instances?wait_ms=100")).await;
    let late = raw.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(raw.status, 502, "{late}");
    assert!(late.contains(&format!("`{busy}`: it still had requests after 100 ms (wait_ms)")), "{late}");
    let message = format!("Instances ['{busy}'] are isolated and waiting to be removed.");
    let raw = stage.send(&delete("/instances")).await;
    assert_eq!((raw.status, raw.json()["message"].as_str()), (200, Some(message.as_str())));
    assert_eq!(stage.get("/status").await.json()["prefill_draining_nodes"], json!([busy.to_string()]));
    assert_eq!(member(stage.gateway, "prefill", busy).await["draining"], true);
    drop(socket);
    let raw = stage.send(&delete("/instances?wait_ms=10000")).await;
    let message = format!("remove prefill instances: ['{busy}'].");
    assert_eq!(raw.json()["message"].as_str(), Some(message.as_str()));
    assert!(!is_member(stage.gateway, "prefill", busy).await);
    assert_eq!(stage.send(&delete("/instances?wait_ms=never")).await.status, 400);
    assert_eq!(client::send(stage.gateway, &get("/readyz")).await.status, 200, "the other one serves");
    stage.end().await;
}

#[tokio::test]
async fn an_engine_that_returns_with_another_model_is_out_until_it_serves_the_fleets() {
    for (name, role) in [("prefill", Role::Prefill), ("decode", Role::Decode)] {
        let stage = Stage::set(probing()).await;
        let (old, others) = match role {
            Role::Decode => (&stage.decoders[0], &stage.prefillers),
            _ => (&stage.prefillers[0], &stage.decoders),
        };
        let at = old.addr();
        let state = async || member(stage.gateway, name, at).await;
        eventually("its model is known", async || state().await["models"] == json!(["sim"])).await;
        old.kill().await;
        eventually("it rests", async || state().await["state"] == "down").await;
        let spec = EngineSpec { role, model: "another".into(), ..fast() };
        let foreign = Engine::start(spec, at).await.unwrap();
        eventually("its models are known", async || state().await["serves_other_model"] == true).await;
        assert_eq!(state().await["models"], json!(["another"]));
        // Such a request would be answered by whatever model the engine has.
        let unnamed = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}).to_string();
        for n in 0..8 {
            assert_eq!(stage.post(CHAT, &chat(&n.to_string())).await.status, 200);
            assert_eq!(stage.post(CHAT, &unnamed).await.status, 200);
        }
        assert!(foreign.seen().iter().all(|seen| seen.path != CHAT), "it is sent no request");
        assert!(others.iter().any(|engine| engine.seen().iter().any(|seen| seen.path == CHAT)));
        let status = stage.get("/status.json").await.text();
        assert!(status.contains("\"other_model\""), "{status}");
        foreign.kill().await;
        let back = engine(role, at).await;
        eventually("it is in again", async || {
            let member = state().await;
            member["serves_other_model"] == false && member["breaker"] == "closed"
        })
        .await;
        stage.end().await;
        back.stop().await;
    }
}

/// vLLM and SGLang have `/health`: what does not know it is another service, as long as it has
/// served nothing.
#[tokio::test]
async fn service_that_does_not_know_the_probe_is_down_until_it_serves() {
    let served = r#"{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"a"},
        "finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;
    let decoder = RawEngine::start(move |asked| match asked.path() {
        CHAT => answer(200, served),
        _ => answer(404, "{}"),
    })
    .await;
    let prefiller = engine(Role::Prefill, ([127, 0, 0, 1], 0).into()).await;
    let (at, probing) = (decoder.addr(), probing().config.health);
    let front = Front::at(&[prefiller.addr()], &[at], |config| config.health = probing).await;
    eventually("it is down", async || member(front.at, "decode", at).await["state"] == "down").await;
    let cause = member(front.at, "decode", at).await["cause"].to_string();
    assert!(cause.contains("GET /health answers 404"), "{cause}");
    // Alone in its role, it is tried with a request, and is up from then on. Probes get 404 still.
    eventually("it serves", async || front.post(CHAT, &chat("a")).await.status == 200).await;
    eventually("it is up", async || member(front.at, "decode", at).await["state"] == "up").await;
    let probes = || decoder.seen().iter().filter(|asked| asked.path() == "/health").count();
    let before = probes();
    eventually("it is probed again", async || probes() > before + 3).await;
    assert_eq!(member(front.at, "decode", at).await["state"], "up");
    front.end().await;
    prefiller.stop().await;
}

/// A chat that names no model: it is answered by whatever model the engine has.
fn unnamed(n: usize) -> String {
    json!({"messages": [{"role": "user", "content": format!("a {n}")}], "max_tokens": 2}).to_string()
}

/// The pause between two probes is longer than the test: nothing but the connections tells.
fn rarely_probing() -> Script {
    let mut script = probing();
    script.config.health.probe_ms = 60_000;
    script
}

async fn models_are_known(stage: &Stage) {
    eventually("all models are known", async || {
        let listed = stage.get("/instances").await.json();
        listed["instances"].as_array().unwrap().iter().all(|it| it["models"] == json!(["sim"]))
    })
    .await;
}

async fn foreign(role: Role, at: std::net::SocketAddr) -> Engine {
    Engine::start(EngineSpec { role, model: "another".into(), ..fast() }, at).await.unwrap()
}

fn chats(engine: &Engine) -> usize {
    engine.seen().iter().filter(|seen| seen.path == CHAT).count()
}

#[tokio::test]
async fn an_engine_that_returns_with_another_model_between_two_probes_answers_nobody() {
    for (name, role) in [("prefill", Role::Prefill), ("decode", Role::Decode)] {
        let stage = Stage::set(rarely_probing()).await;
        models_are_known(&stage).await;
        for n in 0..8 {
            assert_eq!(stage.post(CHAT, &unnamed(n)).await.status, 200);
        }
        let old = if role == Role::Decode { &stage.decoders[0] } else { &stage.prefillers[0] };
        assert!(chats(old) > 0, "a connection to it waits");
        let at = old.addr();
        old.kill().await;
        let foreign = foreign(role, at).await;
        for n in 10..26 {
            assert_eq!(stage.post(CHAT, &unnamed(n)).await.status, 200, "{name}");
        }
        assert_eq!(chats(&foreign), 0, "{name}: it is sent no request");
        eventually("its models are known", async || {
            member(stage.gateway, name, at).await["serves_other_model"] == true
        })
        .await;
        stage.end().await;
        foreign.stop().await;
    }
}

#[tokio::test]
async fn nor_does_one_whose_stream_broke() {
    let mut script = rarely_probing();
    script.engine.tpot_ms = 20.0;
    let stage = Stage::set(script).await;
    models_are_known(&stage).await;
    let long = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 500, "stream": true});
    let mut socket = TcpStream::connect(stage.gateway).await.unwrap();
    socket.write_all(&post(CHAT, &long.to_string())).await.unwrap();
    let running = || stage.decoders.iter().find(|it| it.ledger().running > 0);
    eventually("it generates", async || running().is_some()).await;
    let old = running().unwrap();
    let at = old.addr();
    old.kill().await;
    let foreign = foreign(Role::Decode, at).await;
    let broken = client::read_on(&mut socket, Vec::new()).await;
    assert!(!broken.done(), "{}", broken.text());
    for n in 0..12 {
        assert_eq!(stage.post(CHAT, &unnamed(n)).await.status, 200);
    }
    assert_eq!(chats(&foreign), 0, "it is sent no request");
    stage.end().await;
    foreign.stop().await;
}

#[tokio::test]
async fn nor_does_the_only_one_of_its_role() {
    for (name, role) in [("prefill", Role::Prefill), ("decode", Role::Decode)] {
        let mut script = rarely_probing();
        script.config.health.probe_ms = 1_000;
        let stage = Stage::set(Script { prefillers: 1, decoders: 1, ..script }).await;
        models_are_known(&stage).await;
        assert_eq!(stage.post(CHAT, &unnamed(0)).await.status, 200);
        let old = if role == Role::Decode { &stage.decoders[0] } else { &stage.prefillers[0] };
        let at = old.addr();
        old.kill().await;
        let foreign = foreign(role, at).await;
        for n in 1..6 {
            let answer = stage.post(CHAT, &unnamed(n)).await;
            assert!(answer.status >= 500, "{name}: {} {}", answer.status, answer.text());
        }
        assert_eq!(chats(&foreign), 0, "{name}: it is sent no request");
        foreign.kill().await;
        let back = engine(role, at).await;
        eventually("it serves again", async || stage.post(CHAT, &unnamed(9)).await.status == 200).await;
        stage.end().await;
        back.stop().await;
    }
}
