//! Names of models: which fleet they lead to, who may use them, and how they are listed.

use std::time::{Duration, Instant};

use pd_proxy::auth::Digest;
use pd_proxy::sim::{Fault, FaultKind};
use serde_json::{Value, json};

use super::{CHAT, DIALECTS, Fleets, Settings, Side, chat};
use crate::common::client::post_with;
use crate::common::time::eventually;

fn ids(list: &Value) -> Vec<(&str, &str)> {
    let entries = list["data"].as_array().unwrap().iter();
    entries.map(|it| (it["id"].as_str().unwrap(), it["fleet"].as_str().unwrap_or(""))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_model_is_refused_with_the_nearest_one() {
    let fleets = Fleets::set(&DIALECTS[..2], Settings::default()).await;
    for (path, body) in [
        (CHAT, chat("model-1x")),
        ("/v1/completions", json!({"model": "Model-1", "prompt": "a"})),
        ("/tokenize", json!({"model": "modl-1", "prompt": "a"})),
    ] {
        let refusal = fleets.post(path, &body).await;
        assert_eq!(refusal.status, 404, "{path}: {}", refusal.text());
        assert!(refusal.text().contains("Did you mean `model-1`?"), "{path}: {}", refusal.text());
        assert!(refusal.text().contains("model_not_found"), "{path}: {}", refusal.text());
    }
    let far = fleets.chat("something-else").await;
    assert_eq!((far.status, far.text().contains("Did you mean")), (404, false), "{}", far.text());
    let missing = fleets.post("/v1/completions", &json!({"prompt": "a"})).await;
    assert_eq!(
        (missing.status, missing.text().contains("GET /v1/models")),
        (400, true),
        "{}",
        missing.text()
    );
    fleets.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_of_all_fleets_are_one_list_that_says_whose_they_are() {
    let settings = Settings { fleet: &["aliases = [\"small=model-0\"]"], ..Settings::default() };
    let fleets = Fleets::set(&DIALECTS[..3], settings).await;
    let list = fleets.get("/v1/models").await.json();
    let expected = [("model-0", "f0"), ("small", "f0"), ("model-1", "f1"), ("model-2", "f2")];
    assert_eq!(ids(&list), expected);
    let one = fleets.get("/v1/models/model-2").await.json();
    assert_eq!((&one["id"], &one["fleet"]), (&json!("model-2"), &json!("f2")));
    assert_eq!(fleets.get("/v1/models/small").await.json()["parent"], "model-0");
    assert_eq!(fleets.get("/v1/models/model-9").await.status, 404);
    // The query narrows the list down, and is no fleet's business.
    for (fleet, own) in [("f0", &expected[..2]), ("f2", &expected[3..])] {
        assert_eq!(ids(&fleets.get(&format!("/v1/models?fleet={fleet}")).await.json()), own);
    }
    for (query, status) in [("f2", 200), ("f1", 404), ("f9", 400)] {
        let one = fleets.get(&format!("/v1/models/model-2?fleet={query}")).await;
        assert_eq!(one.status, status, "{query}: {}", one.text());
    }
    for query in ["fleet=f9", "fleet=f0&fleet=f2"] {
        let refused = fleets.get(&format!("/v1/models?{query}")).await;
        assert_eq!(
            (refused.status, refused.json()["error"]["param"].as_str()),
            (400, Some("fleet")),
            "{query}"
        );
    }
    fleets.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_sees_and_reaches_its_own_models_alone() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys.toml");
    let entry = |name: &str, grants: &str| {
        let digest = Digest::of(format!("sk-{name}").as_bytes());
        format!("[[key]]\nname = \"{name}\"\nsha256 = \"{digest}\"\n{grants}\n")
    };
    std::fs::write(&keys, entry("all", "") + &entry("one", "models = [\"model-1\"]")).unwrap();
    let top = format!("[auth]\nkeys_file = {:?}\n", keys.to_str().unwrap());
    let fleets = Fleets::start(&DIALECTS[..2], Settings { top: &top, ..Settings::default() }).await;
    let ask = async |key: &str, model: &str| {
        let bearer = format!("Bearer sk-{key}");
        let body = chat(model).to_string();
        fleets.send(&post_with(CHAT, &[("Authorization", &bearer)], body.as_bytes())).await
    };
    eventually("both are known", async || {
        ask("all", "model-0").await.status == 200 && ask("all", "model-1").await.status == 200
    })
    .await;
    assert_eq!(ask("one", "model-1").await.status, 200);
    let refused = ask("one", "model-0").await;
    assert_eq!((refused.status, refused.text().contains("Did you mean")), (404, false), "{}", refused.text());
    let list = b"GET /v1/models HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer sk-one\r\n\r\n";
    assert_eq!(ids(&fleets.send(list).await.json()), [("model-1", "f1")]);
    // The nearest name is one that the key may use.
    let near = ask("all", "model-2").await;
    assert!(near.text().contains("Did you mean `model-"), "{}", near.text());
    fleets.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_of_a_fleet_that_hangs_or_is_down_stay_in_the_list() {
    let fleets = Fleets::set(&DIALECTS[..2], Settings::default()).await;
    let expected = [("model-0", "f0"), ("model-1", "f1")];
    assert_eq!(ids(&fleets.get("/v1/models").await.json()), expected);
    let Side { prefiller, decoder, .. } = &fleets.sides[0];
    assert!(prefiller.inject(Fault::always(FaultKind::StallBeforeHead)));
    let began = Instant::now();
    assert_eq!(ids(&fleets.get("/v1/models").await.json()), expected);
    assert!(began.elapsed() < Duration::from_secs(2), "the decoder is asked beside: {:?}", began.elapsed());
    for engine in [prefiller, decoder] {
        assert!(engine.inject(Fault::always(FaultKind::Refuse)));
    }
    eventually("the fleet is down", async || {
        fleets.get("/readyz").await.json()["fleets"]["f0"]["ready"] == false
    })
    .await;
    assert_eq!(ids(&fleets.get("/v1/models").await.json()), expected);
    fleets.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adapter_of_two_fleets_is_reached_in_either_by_the_query() {
    let fleets = Fleets::set(&DIALECTS[..2], Settings::default()).await;
    let adapter = json!({"lora_name": "sql", "lora_path": "/sql"});
    for fleet in ["f0", "f1"] {
        let path = format!("/v1/load_lora_adapter?fleet={fleet}");
        let loaded = fleets.post(&path, &adapter).await;
        assert_eq!(loaded.status, 200, "{}", loaded.text());
    }
    let generated = || fleets.sides.iter().map(Side::generated).collect::<Vec<_>>();
    // The first fleet has the name, where a request says none.
    for (query, at) in [("", 0), ("?fleet=f0", 0), ("?fleet=f1", 1)] {
        for path in [CHAT, "/v1/completions"] {
            let before = generated();
            let mut body = chat("sql");
            body["prompt"] = json!("once upon a time");
            let answer = fleets.post(&format!("{path}{query}"), &body).await;
            assert_eq!(answer.status, 200, "{path}{query}: {}", answer.text());
            let grown = before.iter().zip(generated()).map(|(before, after)| after > *before);
            assert_eq!(grown.collect::<Vec<_>>(), [at == 0, at == 1], "{path}{query}");
        }
    }
    for (query, own) in [("", ["f0", "f0", "f1"]), ("?fleet=f1", ["f1", "f1", ""])] {
        let list = fleets.get(&format!("/v1/models{query}")).await.json();
        let listed = ids(&list);
        assert_eq!(listed.iter().filter(|(name, _)| *name == "sql").count(), 1, "{listed:?}");
        let owners = listed.iter().map(|(_, fleet)| *fleet);
        assert!(owners.eq(own.into_iter().filter(|own| !own.is_empty())), "{query}: {listed:?}");
    }
    fleets.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adapter_that_others_load_is_found_at_the_second_request() {
    let fleets = Fleets::set(&DIALECTS[..2], Settings::default()).await;
    assert_eq!(fleets.chat("sql").await.status, 404);
    // The engines list it from now on, and would not serve it: it matters which of them are asked.
    let list = json!({"object": "list", "data": [{"id": "model-1"}, {"id": "sql"}]}).to_string();
    let engines = [&fleets.sides[1].prefiller, &fleets.sides[1].decoder];
    for engine in engines {
        let fault = FaultKind::Status(200, Some(list.clone().into()));
        assert!(engine.inject(Fault::always(fault).on_path("/v1/models")));
    }
    let asked = |side: &Side| {
        let seen = side.prefiller.seen();
        seen.iter().any(|seen| seen.path == CHAT && String::from_utf8_lossy(&seen.body).contains("\"sql\""))
    };
    eventually("it is known", async || {
        fleets.chat("sql").await;
        asked(&fleets.sides[1])
    })
    .await;
    assert!(!asked(&fleets.sides[0]));
    fleets.end().await;
}
