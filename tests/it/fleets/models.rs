//! `[models]`: shares of a model's requests, and fleets that take over where its own fails.

use std::collections::BTreeMap;

use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind, Role};
use serde_json::{Value, json};

use super::{CHAT, DIALECTS, Fleets, Settings, chat};
use crate::common::client::{self, Raw};
use crate::common::place;
use crate::common::stage::fast;
use crate::common::time::eventually;
use crate::surface::samples;

/// Name of the answering fleet, as `x-pd-route` says it.
fn route(answer: &Raw) -> String {
    answer.header("x-pd-route").unwrap_or_default().to_owned()
}

/// A chat of one session.
fn of_session(model: &str, session: &str) -> Value {
    let mut body = chat(model);
    body["prompt_cache_key"] = json!(session);
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_shared_out_by_weight_and_sessions_stay() {
    let top = "[models]\ntargets = [\"gpt-4o=f0:75 f1:25\"]\n";
    let own = ["model = \"model-0\"", "model = \"model-1\""];
    let fleets = Fleets::set(&DIALECTS[..2], Settings { top, fleet: &own }).await;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..200 {
        let answer = fleets.chat("gpt-4o").await;
        assert_eq!(
            (answer.status, answer.json()["model"].as_str()),
            (200, Some("gpt-4o")),
            "{}",
            answer.text()
        );
        *counts.entry(route(&answer)).or_default() += 1;
    }
    // Of 200 with a share of a quarter, fewer than 20 or more than 90 are one in a billion.
    assert!(counts.len() == 2 && (20..90).contains(&counts["f1"]), "{counts:?}");
    let mut homes = BTreeMap::new();
    for session in 0..40 {
        let session = format!("session {session}");
        for _ in 0..3 {
            let answer = fleets.post(CHAT, &of_session("gpt-4o", &session)).await;
            let home = homes.entry(session.clone()).or_insert_with(|| route(&answer));
            assert_eq!(*home, route(&answer), "{session}");
        }
    }
    assert!(homes.values().any(|home| home == "f0") && homes.values().any(|home| home == "f1"), "{homes:?}");
    assert_eq!(route(&fleets.chat("model-0").await), "", "no rule, no header");
    let metrics = samples(&fleets.get("/metrics").await.text());
    let by = |by: &str, fleet: &str| {
        metrics[&format!("pd_proxy_split_requests_total{{by=\"{by}\",fleet=\"{fleet}\"}}")]
    };
    assert_eq!(by("session", "f0") + by("session", "f1"), 120.0);
    let listed = fleets.get("/v1/models").await.json();
    let ids: Vec<&str> =
        listed["data"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert!(ids.contains(&"gpt-4o"), "{ids:?}");
    fleets.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_fleet_takes_over_before_the_first_byte() {
    let top = "[models]\nfallback = [\"model-0=f1\"]\n";
    let own = ["model = \"model-0\"\naliases = [\"quick=model-0\"]", "model = \"model-1\""];
    let fleets = Fleets::set(&DIALECTS[..2], Settings { top, fleet: &own }).await;
    assert_eq!(route(&fleets.chat("model-0").await), "f0");
    let broken = &fleets.sides[0];
    let engines = [&broken.prefiller, &broken.decoder];
    // An engine that fails again and again is none for a while.
    for (kind, reasons) in [
        (FaultKind::Status(503, None), ["overloaded", "overloaded"]),
        (FaultKind::Status(500, None), ["failed", "no_engine"]),
        (FaultKind::ResetBeforeHead, ["failed", "no_engine"]),
    ] {
        assert!(engines.iter().all(|engine| engine.inject(Fault::always(kind.clone()).on_path(CHAT))));
        for (model, stream) in [("model-0", false), ("model-0", true), ("quick", false), ("quick", true)] {
            let mut body = chat(model);
            body["stream"] = json!(stream);
            let answer = fleets.post(CHAT, &body).await;
            assert_eq!((answer.status, answer.complete), (200, true), "{kind:?}: {}", answer.text());
            let routes = reasons.map(|reason| format!("f1;from=f0;reason={reason}"));
            assert!(routes.contains(&route(&answer)), "{kind:?}: {}", route(&answer));
            let named = format!("\"model\":\"{model}\"");
            assert!(answer.text().replace(": ", ":").contains(&named), "{}", answer.text());
        }
        engines.iter().for_each(|engine| engine.clear_faults());
        eventually("it serves again", async || route(&fleets.chat("model-0").await) == "f0").await;
    }
    // A refusal of the request itself is the answer.
    let refusal = Fault::always(FaultKind::Status(400, None)).on_path(CHAT);
    assert!(engines.iter().all(|engine| engine.inject(refusal.clone())));
    assert_eq!(fleets.chat("model-0").await.status, 400);
    engines.iter().for_each(|engine| engine.clear_faults());
    eventually("it serves again", async || route(&fleets.chat("model-0").await) == "f0").await;
    // Nothing is asked anew once an answer has begun.
    assert!(broken.decoder.inject(Fault::always(FaultKind::CloseWithoutDone).on_path(CHAT)));
    let mut body = chat("model-0");
    body["stream"] = json!(true);
    let cut = fleets.post(CHAT, &body).await;
    assert_eq!((cut.status, route(&cut).as_str()), (200, "f0"), "{}", cut.text());
    let metrics = samples(&fleets.get("/metrics").await.text());
    let count = |reason: &str| {
        let series = format!("pd_proxy_fallbacks_total{{to=\"f1\",reason=\"{reason}\",fleet=\"f0\"}}");
        metrics.get(&series).copied().unwrap_or_default()
    };
    let counts = [count("overloaded"), count("failed") + count("no_engine")];
    assert!(counts[0] >= 4.0 && counts[1] >= 8.0, "{counts:?}");
    fleets.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_elsewhere_takes_over_with_a_key_and_a_model_of_its_own() {
    let spec = EngineSpec { role: Role::Decode, model: "big-model".into(), ..fast() };
    let remote = Engine::start(spec, place::own_host()).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, "sk-elsewhere\n").unwrap();
    let top = format!(
        "[models]\nfallback = [\"model-0=cloud\"]\n[engine]\napi_key = \"sk-engines\"\n\
         [fleets.cloud.fleet]\nremote = \"http://{}/v1\"\nmodel = \"big-model\"\n\
         [fleets.cloud.engine]\napi_key_file = \"{}\"\n",
        remote.addr(),
        key.display()
    );
    let fleets = Fleets::set(&DIALECTS[..1], Settings { top: &top, fleet: &[] }).await;
    let broken = &fleets.sides[0];
    for engine in [&broken.prefiller, &broken.decoder] {
        assert!(engine.inject(Fault::always(FaultKind::Refuse)));
    }
    for stream in [false, true] {
        let mut body = chat("model-0");
        body["stream"] = json!(stream);
        let request =
            client::post_with(CHAT, &[("authorization", "Bearer sk-client")], body.to_string().as_bytes());
        let answer = fleets.send(&request).await;
        assert_eq!((answer.status, answer.complete), (200, true), "{}", answer.text());
        assert!(route(&answer).starts_with("cloud;from=f0;reason="), "{}", route(&answer));
        assert!(answer.text().replace(": ", ":").contains("\"model\":\"model-0\""), "{}", answer.text());
        assert!(!answer.text().contains("big-model"), "{}", answer.text());
    }
    let seen = remote.seen();
    assert!(seen.iter().all(|seen| seen.path == CHAT), "nothing else is asked there");
    for seen in &seen {
        let body: Value = serde_json::from_slice(&seen.body).unwrap();
        assert_eq!(body["model"], "big-model");
        assert!(body.get("kv_transfer_params").is_none(), "{body}");
        let keys = seen.headers.iter().filter(|(name, _)| name == "authorization").map(|(_, key)| key);
        assert_eq!(keys.collect::<Vec<_>>(), ["Bearer sk-elsewhere"]);
    }
    // It is no fleet of the gateway's own.
    assert_ne!(fleets.chat("big-model").await.status, 200);
    assert_eq!(fleets.post("/reset_prefix_cache", &json!({})).await.status / 100, 5, "engines are down");
    assert!(!fleets.get("/v1/models").await.text().contains("big-model"));
    assert!(remote.seen().iter().all(|seen| seen.path == CHAT), "no order reaches it");
    // What it refuses for reasons of the gateway's key is no answer.
    assert!(remote.inject(Fault::always(FaultKind::Status(401, None)).on_path(CHAT)));
    let refused = fleets.chat("model-0").await;
    assert!(refused.status >= 500, "{}: {}", refused.status, refused.text());
    eventually("the gateway is not ready", async || fleets.get("/readyz").await.status == 503).await;
    fleets.end().await;
    remote.stop().await;
}
