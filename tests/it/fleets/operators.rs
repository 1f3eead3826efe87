//! Routes of operators: they tell fleets apart, and change one of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pd_proxy::sim::{Engine, EngineSpec, Role};
use serde_json::json;
use tokio::task::JoinSet;

use super::{CHAT, DIALECTS, Fleets, Settings, Side, chat};
use crate::common::client::{self, post};
use crate::common::place;
use crate::common::stage::fast;
use crate::common::time::eventually;
use crate::surface::samples;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_joins_the_fleet_that_is_named() {
    let fleets = Fleets::set(&DIALECTS[..2], Settings::default()).await;
    let spec = EngineSpec { role: Role::Decode, model: "model-1".into(), ..fast() };
    let engine = Engine::start(spec, place::own_host()).await.unwrap();
    let change = |fleet: Option<&str>| {
        let mut change = json!({"type": "decode", "instances": [engine.addr().to_string()]});
        fleet.into_iter().for_each(|fleet| change["fleet"] = json!(fleet));
        change
    };
    for wrong in [None, Some("f9")] {
        let refusal = fleets.post("/instances/add", &change(wrong)).await;
        assert_eq!(refusal.status, 400, "{}", refusal.text());
        assert!(refusal.text().contains("f0, f1"), "{}", refusal.text());
    }
    let added = fleets.post("/instances/add", &change(Some("f1"))).await;
    assert_eq!(added.status, 200, "{}", added.text());
    let taken = fleets.post("/instances/add", &change(Some("f0"))).await;
    assert_eq!((taken.status, taken.text().contains("the fleet f1")), (400, true), "{}", taken.text());
    let listed = fleets.get("/instances").await.json();
    let own = listed["instances"].as_array().unwrap().iter();
    let own = own.filter(|it| it["instance"] == engine.addr().to_string()).map(|it| it["fleet"].clone());
    assert_eq!(own.collect::<Vec<_>>(), ["f1"]);
    // It would go on to get requests of the other fleet.
    let wrong = fleets.post("/instances/remove", &change(Some("f0"))).await;
    assert_eq!((wrong.status, wrong.text().contains("the fleet f1")), (400, true), "{}", wrong.text());
    let address = engine.addr().to_string();
    let mut mixed = change(Some("f0"));
    mixed["instances"] = json!([fleets.sides[0].decoder.addr().to_string(), address]);
    assert_eq!(fleets.post("/instances/remove", &mixed).await.status, 400);
    let listed = fleets.get("/instances").await.text();
    assert!(listed.contains(&fleets.sides[0].decoder.addr().to_string()), "all or nothing: {listed}");
    // A script that takes an engine out may run again: one that nobody has is no error.
    for left in [format!("['{address}']"), "[]".to_owned()] {
        let removed = fleets.post("/instances/remove", &change(Some("f1"))).await;
        assert_eq!(removed.status, 200, "{}", removed.text());
        assert_eq!(removed.json()["message"], format!("remove decode instances: {left}."));
    }
    engine.stop().await;
    fleets.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_reach_one_fleet_or_all() {
    let fleets = Fleets::set(&DIALECTS[..2], Settings::default()).await;
    let reset = |side: usize| {
        let side = &fleets.sides[side];
        let seen = [side.prefiller.seen(), side.decoder.seen()].concat();
        seen.iter().filter(|seen| seen.path == "/reset_prefix_cache").count()
    };
    assert_eq!(fleets.post("/reset_prefix_cache?fleet=f1", &json!({})).await.status, 200);
    assert_eq!((reset(0), reset(1)), (0, 2));
    assert_eq!(fleets.post("/reset_prefix_cache", &json!({})).await.status, 200);
    assert_eq!((reset(0), reset(1)), (2, 4));
    let version = fleets.get("/version").await;
    assert_eq!((version.status, version.text().contains("one of f0, f1")), (400, true), "{}", version.text());
    for name in ["f1", "%66%31"] {
        assert_eq!(fleets.get(&format!("/version?fleet={name}")).await.status, 200, "{name}");
    }
    let nobody = fleets.get("/version?fleet=f9").await;
    let said = "there is no fleet `f9`; those with engines are f0, f1";
    assert_eq!((nobody.status, nobody.text().contains(said)), (400, true), "{}", nobody.text());
    for twice in ["fleet=f0&fleet=f1", "fleet=f1&fleet=f1"] {
        let reset = fleets.post(&format!("/reset_prefix_cache?{twice}"), &json!({})).await;
        for refusal in [fleets.get(&format!("/version?{twice}")).await, reset] {
            let error = &refusal.json()["error"];
            assert_eq!((refusal.status, &error["param"]), (400, &json!("fleet")), "{twice}: {error}");
        }
    }
    let adapter = json!({"lora_name": "a", "lora_path": "/a"});
    let refusal = fleets.post("/v1/load_lora_adapter", &adapter).await;
    assert_eq!((refusal.status, refusal.text().contains("f0, f1")), (400, true), "{}", refusal.text());
    fleets.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_and_status_tell_fleets_apart() {
    let fleets = Fleets::set(&DIALECTS[..2], Settings::default()).await;
    for side in &fleets.sides {
        assert_eq!(fleets.chat(&side.model).await.status, 200);
    }
    assert_eq!(fleets.chat("unheard-of").await.status, 404);
    eventually("all are counted", async || {
        let metrics = samples(&fleets.get("/metrics").await.text());
        let count = |labels: &str| metrics.get(&format!("pd_proxy_requests_total{{{labels}}}")).copied();
        let ok = |fleet| {
            count(&format!("route=\"chat_completions\",code=\"200\",reason=\"ok\",fleet=\"{fleet}\""))
                .is_some_and(|n| n >= 1.0)
        };
        ok("f0")
            && ok("f1")
            && count("route=\"chat_completions\",code=\"404\",reason=\"model_not_found\"").is_some()
    })
    .await;
    let status = fleets.get("/status.json").await.json();
    let of_engines = status["engines"].as_array().unwrap().iter().map(|it| it["fleet"].as_str().unwrap());
    assert_eq!(of_engines.collect::<Vec<_>>(), ["f0", "f0", "f1", "f1"]);
    let names = status["fleets"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["f0", "f1"]);
    let ready = fleets.get("/readyz").await.json();
    assert_eq!((&ready["fleets"]["f0"]["ready"], &ready["ready"]), (&json!(true), &json!(true)), "{ready}");
    fleets.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_changes_one_fleet_and_leaves_the_others() {
    let fleets = Fleets::set(&DIALECTS[..2], Settings::default()).await;
    let text = std::fs::read_to_string(&fleets.file).unwrap();
    assert_eq!(fleets.chat("quick").await.status, 404);
    let beside = fleets.file.with_extension("new");
    let write = |text: &str| {
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(&beside, &fleets.file).unwrap();
    };
    let series = "pd_proxy_config_reloads_total{outcome=\"refused\"}";
    let refused = async || samples(&fleets.get("/metrics").await.text()).get(series).copied().unwrap_or(0.0);
    let before = refused().await;
    // Its engines would be nobody's, and the next file with fleets would seem to lose them.
    write("[fleet]\nprefill = [\"127.0.0.1:1\"]\ndecode = [\"127.0.0.1:2\"]\n");
    eventually("a file without fleets is refused", async || refused().await > before).await;
    let alias = "[fleets.f1.fleet]\naliases = [\"quick=model-1\"]\n";
    write(&text.replace("[fleets.f1.fleet]\n", alias));
    eventually("the alias counts", async || fleets.chat("quick").await.status == 200).await;
    assert_eq!(fleets.chat("model-0").await.status, 200);
    fleets.end().await;
}

/// Gauges that each fleet has, sorted.
const FLEET_GAUGES: [&str; 6] = [
    "pd_proxy_engines",
    "pd_proxy_engines_needed",
    "pd_proxy_prefill_waiting_requests",
    "pd_proxy_role_state",
    "pd_proxy_saturation",
    "pd_proxy_work_seconds",
];

/// Those of them that a text of metrics has for a fleet.
fn gauges_of(text: &str, fleet: &str) -> Vec<&'static str> {
    let label = format!("fleet=\"{fleet}\"");
    let samples = samples(text);
    let has = |gauge: &&str| {
        samples.keys().any(|key| {
            key.strip_prefix(*gauge).is_some_and(|labels| labels.starts_with('{') && labels.contains(&label))
        })
    };
    FLEET_GAUGES.into_iter().filter(has).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleets_come_and_go_by_reload_without_a_request_lost() {
    let fleets = Fleets::set(&DIALECTS[..2], Settings::default()).await;
    let text = std::fs::read_to_string(&fleets.file).unwrap();
    let beside = fleets.file.with_extension("new");
    let write = |text: &str| {
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(&beside, &fleets.file).unwrap();
    };
    // Its name is that of no other test's fleet: metrics are those of the process.
    let side = Side { name: "comes-and-goes".to_owned(), ..Side::start(2, DIALECTS[0]).await };
    let with_new = text.clone() + &side.toml(DIALECTS[0].0, "");
    let (on, mut clients) = (Arc::new(AtomicBool::new(true)), JoinSet::new());
    for model in ["model-0", "model-1"] {
        let (on, at) = (on.clone(), fleets.at);
        clients.spawn(async move {
            let mut answers = Vec::new();
            while on.load(Ordering::Relaxed) {
                let answer = client::send(at, &post(CHAT, &chat(model).to_string())).await;
                answers.push((answer.status, answer.complete));
            }
            answers
        });
    }
    for _ in 0..2 {
        assert_eq!(fleets.chat(&side.model).await.status, 404);
        write(&with_new);
        eventually("it is there", async || fleets.chat(&side.model).await.status == 200).await;
        let listed = fleets.get("/instances").await.text();
        assert!(listed.contains(&side.decoder.addr().to_string()), "{listed}");
        let gauges = async || gauges_of(&fleets.get("/metrics").await.text(), &side.name);
        eventually("its gauges are shown", async || gauges().await == FLEET_GAUGES).await;
        side.decoder.clear_seen();
        // One under way is finished, though its fleet goes.
        let mut body = chat(&side.model);
        (body["stream"], body["max_tokens"]) = (true.into(), 200.into());
        let under_way = post(CHAT, &body.to_string());
        let (answer, ()) = tokio::join!(fleets.send(&under_way), async {
            let chats = || side.decoder.seen().iter().filter(|seen| seen.path == CHAT).count();
            eventually("it is decoded", async || chats() > 0).await;
            write(&text);
        });
        assert_eq!((answer.status, answer.complete), (200, true), "{}", answer.text());
        assert!(answer.events().len() > 200, "{}", answer.events().len());
        eventually("it is gone", async || fleets.chat(&side.model).await.status == 404).await;
        let ledger = side.prefiller.ledger();
        assert_eq!(ledger.pinned_handoffs, 0, "{ledger:?}");
        // What it needed last would be taken for what it needs.
        eventually("its gauges are gone", async || gauges().await.is_empty()).await;
    }
    on.store(false, Ordering::Relaxed);
    for answers in clients.join_all().await {
        assert!(answers.len() > 5, "{}", answers.len());
        assert!(answers.iter().all(|answer| *answer == (200, true)), "{answers:?}");
    }
    side.prefiller.stop().await;
    side.decoder.stop().await;
    fleets.end().await;
}
