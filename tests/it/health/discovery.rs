//! Engines that are looked for.

use std::net::SocketAddr;

use pd_proxy::app::App;
use pd_proxy::config::Config;
use pd_proxy::control::discovery::Discoverer;
use pd_proxy::fleet;
use pd_proxy::sim::{Engine, EngineSpec, Role};
use serde_json::json;

use super::{CHAT, Gateway, Load, anywhere, chat, engine, is_member};
use crate::common::client::{self, post};
use crate::common::memory::Memory;
use crate::common::stage::fast;
use crate::common::time::eventually;

fn config() -> Config {
    let mut config = Config::default();
    config.server.host = "127.0.0.1".into();
    config.server.port = 0;
    config.discovery.interval_ms = 100;
    config.retry.attempts = 4;
    (config.fleet.prefill, config.fleet.decode) = (vec![], vec![]);
    config
}

#[tokio::test]
async fn a_file_adds_and_removes_and_half_a_file_does_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("engines");
    let [p0, p1] = [engine(Role::Prefill, anywhere()).await, engine(Role::Prefill, anywhere()).await];
    let [d0, d1] = [engine(Role::Decode, anywhere()).await, engine(Role::Decode, anywhere()).await];
    let mut config = config();
    config.discovery.file = Some(file.to_str().unwrap().to_owned());
    config.fleet.decode = vec![d0.addr().to_string()];
    std::fs::write(&file, json!({"prefill": [p0.addr().to_string()]}).to_string()).unwrap();
    let app = App::build(&config).await.unwrap();
    // Looks as the gateway does, and the test knows when it has.
    let mut looker = Discoverer::new(&config, app.fleet_handles()).unwrap();
    let gateway = Gateway::run(app);
    assert_eq!(
        client::send(gateway.at, &post(CHAT, &chat("x"))).await.status,
        200,
        "from the first request on"
    );

    let load = Load::on(gateway.at);
    let lines = format!("# two\nprefill {}\ndecode {}\ndecode {}\n", p1.addr(), d0.addr(), d1.addr());
    std::fs::write(&file, lines).unwrap();
    eventually("the second decoder came", async || is_member(gateway.at, "decode", d1.addr()).await).await;
    eventually("a prefiller went", async || !is_member(gateway.at, "prefill", p0.addr()).await).await;

    for broken in ["", "prefill 10.0.0.1\n", "{\"prefill\": [", "decode"] {
        std::fs::write(&file, broken).unwrap();
        looker.look().await;
        looker.look().await;
        assert!(is_member(gateway.at, "prefill", p1.addr()).await, "{broken:?}");
        assert!(!is_member(gateway.at, "prefill", p0.addr()).await, "{broken:?}");
    }
    std::fs::remove_file(&file).unwrap();
    let rest = format!("prefill {}\ndecode {}\n", p1.addr(), d1.addr());
    std::fs::write(&file, rest).unwrap();
    looker.look().await;
    looker.look().await;
    assert!(is_member(gateway.at, "decode", d0.addr()).await, "the configuration wants it");
    assert!(load.end().await > 10);
    gateway.end().await;
}

#[tokio::test]
async fn engine_missing_from_the_file_leaves_at_the_second_look() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("engines");
    let mut config = config();
    config.discovery.file = Some(file.to_str().unwrap().to_owned());
    // The test looks, not the gateway.
    config.discovery.interval_ms = 3_600_000;
    std::fs::write(&file, "prefill 127.0.0.1:1\nprefill 127.0.0.1:2\ndecode 127.0.0.1:3\n").unwrap();
    let app = App::build(&config).await.unwrap();
    let (gateway, handles) = (app.gateway(), app.fleet_handles());
    drop(app);
    let mut looker = Discoverer::new(&config, handles).unwrap();
    for (text, prefillers) in [
        (None, 2),
        (Some("prefill 127.0.0.1:1\n"), 2),
        (Some("prefill 127.0.0.1:1\nprefill 127.0.0.1:2\ndecode 127.0.0.1:3\n"), 2),
        (Some("prefill 127.0.0.1:1\n"), 2),
        (None, 1),
    ] {
        text.into_iter().for_each(|text| std::fs::write(&file, text).unwrap());
        looker.look().await;
        let members = gateway.fleets().first().relay.fleet.clone();
        let serving = [fleet::Role::Prefill, fleet::Role::Decode].map(|role| members.serving(role));
        assert_eq!(serving, [prefillers, 1], "{text:?}");
    }
}

/// Simulated engines refuse `/sleep`, so that the order puts them back.
#[tokio::test]
async fn engine_that_was_put_back_leaves_with_its_list() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("engines");
    let prefiller = engine(Role::Prefill, anywhere()).await;
    let [d0, d1] = [engine(Role::Decode, anywhere()).await, engine(Role::Decode, anywhere()).await];
    let mut config = config();
    config.discovery.file = Some(file.to_str().unwrap().to_owned());
    // The test looks, not the gateway.
    config.discovery.interval_ms = 3_600_000;
    config.fleet.prefill = vec![prefiller.addr().to_string()];
    std::fs::write(&file, format!("decode {}\ndecode {}\n", d0.addr(), d1.addr())).unwrap();
    let app = App::build(&config).await.unwrap();
    let mut looker = Discoverer::new(&config, app.fleet_handles()).unwrap();
    let gateway = Gateway::run(app);
    let refused = client::send(gateway.at, &post("/sleep?role=decode&drain_ms=60000", "")).await;
    assert_eq!(refused.status, 404, "{}", refused.text());
    assert!(is_member(gateway.at, "decode", d1.addr()).await, "it serves on");
    std::fs::write(&file, format!("decode {}\n", d0.addr())).unwrap();
    looker.look().await;
    looker.look().await;
    assert!(!is_member(gateway.at, "decode", d1.addr()).await, "no list has it any more");
    assert!(is_member(gateway.at, "decode", d0.addr()).await);
    gateway.end().await;
}

/// As a rollout is seen that ends between two looks: who waits is served by those who came. In
/// virtual time, so that the line is four requests long when the prefillers change, however fast
/// the machine is.
#[tokio::test(start_paused = true)]
async fn all_prefillers_may_be_others_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("engines");
    let [old, new] = [1, 2].map(|last| SocketAddr::from(([10, 0, 0, last], 8000)));
    std::fs::write(&file, format!("prefill {old}\n")).unwrap();
    let mut config = config();
    config.discovery.file = Some(file.to_str().unwrap().to_owned());
    config.health.probe_ms = 0;
    // One prefill at a time. A prefiller is sent the next one when it is predicted to be free so
    // soon, and this one takes thirty times as long as is predicted: the line is to become shorter
    // when a prefill ends, and not before.
    (config.route.batch_tokens, config.route.open_ms) = (0, 1);
    let memory = Memory::uneven(0, 1, &fast(), config).await;
    let start = |at, prefill_tokens_per_s| {
        let spec = EngineSpec { role: Role::Prefill, prefill_tokens_per_s, ..fast() };
        Engine::start_in(spec, &memory.net, at).unwrap()
    };
    let engines = [start(old, 200.0), start(new, f64::INFINITY)];
    let body = chat(&"a word ".repeat(200));
    let all = futures_util::future::join_all((0..5).map(async |_| memory.post(CHAT, body.clone()).await.0));
    let gateway = memory.app.gateway();
    let change = async {
        eventually("four wait", async || gateway.fleets().first().relay.fleet.scheduler().waiting() == 4)
            .await;
        std::fs::write(&file, format!("prefill {new}\n")).unwrap();
    };
    assert_eq!(tokio::join!(all, change).0, [200; 5]);
    assert_eq!(engines.map(|engine| engine.seen().len()), [1, 4], "prefills");
}

#[tokio::test]
async fn the_addresses_of_a_name_are_engines() {
    let [prefiller, decoder] =
        [engine(Role::Prefill, anywhere()).await, engine(Role::Decode, anywhere()).await];
    let mut config = config();
    config.discovery.prefill_dns = vec![format!("localhost:{}", prefiller.addr().port())];
    config.discovery.decode_dns =
        vec![format!("localhost:{}", decoder.addr().port()), "no-such-name.invalid:80".to_owned()];
    let gateway = Gateway::run(App::build(&config).await.unwrap());
    assert!(is_member(gateway.at, "prefill", prefiller.addr()).await);
    assert!(is_member(gateway.at, "decode", decoder.addr()).await, "one name that is none costs no other");
    assert_eq!(client::send(gateway.at, &post(CHAT, &chat("x"))).await.status, 200);
    gateway.end().await;
}
