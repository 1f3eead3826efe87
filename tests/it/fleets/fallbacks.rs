//! Fleets that take over on routes that one engine answers, over several hops, and over TLS; and
//! what becomes of them when the file changes.

use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind, Role};
use serde_json::{Value, json};

use super::{CHAT, DIALECTS, Fleets, Settings, Side, chat};
use crate::common::client::{Raw, post};
use crate::common::place;
use crate::common::stage::fast;
use crate::common::time::eventually;
use crate::surface::samples;
use crate::tls::authority::{Authority, Front, file};

const EMBEDDINGS: &str = "/v1/embeddings";

fn route(answer: &Raw) -> String {
    answer.header("x-pd-route").unwrap_or_default().to_owned()
}

fn embed(model: &str) -> Value {
    json!({"model": model, "input": "hello there"})
}

fn refuse(side: &Side) {
    for engine in [&side.prefiller, &side.decoder] {
        assert!(engine.inject(Fault::always(FaultKind::Status(500, None))));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_of_one_engine_fall_back_and_the_answer_names_each_hop() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let spec = EngineSpec { role: Role::Decode, model: "big-model".into(), ..fast() };
    let remote = Engine::start(spec, place::own_host()).await.unwrap();
    let front = Front::of(&remote, &authority.sign("127.0.0.1"), None).await;
    let top = format!(
        "[models]\nfallback = [\"model-0=f1 cloud\"]\n\
         [fleets.cloud.fleet]\nremote = \"https://{}/v1\"\nmodel = \"big-model\"\n\
         [fleets.cloud.engine]\napi_key = \"sk-elsewhere\"\ntls_ca = \"{}\"\n",
        front.at,
        file(dir.path(), "ca.pem", &authority.pem())
    );
    let own = ["model = \"model-0\"", "model = \"model-1\""];
    let fleets = Fleets::set(&DIALECTS[..2], Settings { top: &top, fleet: &own }).await;
    let ask = async |path: &str, body: Value| fleets.post(path, &body).await;
    let answer = ask(EMBEDDINGS, embed("model-0")).await;
    assert_eq!((answer.status, route(&answer).as_str()), (200, "f0"), "{}", answer.text());
    refuse(&fleets.sides[0]);
    for (path, body) in
        [(EMBEDDINGS, embed("model-0")), ("/tokenize", json!({"model": "model-0", "prompt": "a"}))]
    {
        let answer = ask(path, body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert!(route(&answer).starts_with("f1;from=f0;reason="), "{path}: {}", route(&answer));
    }
    refuse(&fleets.sides[1]);
    for (path, body) in [(EMBEDDINGS, embed("model-0")), (CHAT, chat("model-0"))] {
        let answer = ask(path, body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        let hops: Vec<String> = route(&answer)
            .split(';')
            .filter(|part| !part.starts_with("reason="))
            .map(str::to_owned)
            .collect();
        assert_eq!(hops, ["cloud", "from=f0", "from=f1"], "{path}");
        assert!(!answer.text().contains("big-model"), "{}", answer.text());
    }
    let tokenize = ask("/tokenize", json!({"model": "model-0", "prompt": "a"})).await;
    assert!(tokenize.status >= 500, "only engines have it: {}", tokenize.text());
    let seen = remote.seen();
    assert_eq!(seen.iter().map(|seen| seen.path.as_str()).collect::<Vec<_>>(), [EMBEDDINGS, CHAT]);
    for seen in &seen {
        let body: Value = serde_json::from_slice(&seen.body).unwrap();
        assert_eq!(body["model"], "big-model");
        let keys = seen.headers.iter().filter(|(name, _)| name == "authorization").map(|(_, key)| key);
        assert_eq!(keys.collect::<Vec<_>>(), ["Bearer sk-elsewhere"]);
    }
    assert!(remote.inject(Fault::always(FaultKind::Status(401, None)).on_path(EMBEDDINGS)));
    let refused = ask(EMBEDDINGS, embed("model-0")).await;
    assert!(refused.status >= 500, "its 401 is about the gateway's key: {}", refused.text());
    fleets.end().await;
    remote.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_of_the_query_has_the_model_or_the_request_is_refused() {
    let fleets = Fleets::set(&DIALECTS[..2], Settings::default()).await;
    for (path, body) in [
        (CHAT, chat("model-0")),
        (EMBEDDINGS, embed("model-0")),
        ("/tokenize", json!({"model": "model-0", "prompt": "a"})),
    ] {
        let ask = async |query: &str| fleets.post(&format!("{path}{query}"), &body).await;
        assert_eq!(ask("?fleet=f0").await.status, 200, "{path}");
        for wrong in ["?fleet=f1", "?fleet=f9", "?fleet=f0&fleet=f0", "?fleet=f0&fleet=f1"] {
            let refused = ask(wrong).await;
            assert_eq!(
                (refused.status, refused.json()["error"]["param"].as_str()),
                (400, Some("fleet")),
                "{path}"
            );
        }
    }
    let nameless = json!({"prompt": "hello", "max_tokens": 2});
    let answer = fleets.post("/v1/completions?fleet=f1", &nameless).await;
    assert_eq!((answer.status, answer.json()["model"].as_str()), (200, Some("model-1")), "{}", answer.text());
    let paths = fleets.sides[0].prefiller.seen().into_iter().map(|seen| seen.path).collect::<Vec<_>>();
    assert!(paths.iter().all(|path| !path.contains("fleet=")), "engines see nothing of it: {paths:?}");
    fleets.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_keeps_a_fleet_that_a_fall_back_names_and_cuts_one_that_goes_in_time() {
    let top = "[models]\nfallback = [\"model-0=f1\"]\n";
    let own = ["model = \"model-0\"", "model = \"model-1\""];
    let fleets = Fleets::set(&DIALECTS[..2], Settings { top, fleet: &own }).await;
    let text = std::fs::read_to_string(&fleets.file).unwrap();
    let beside = fleets.file.with_extension("new");
    let write = |text: &str| {
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(&beside, &fleets.file).unwrap();
    };
    let without = text[..text.find("[fleets.f1.fleet]").unwrap()].to_owned();
    let series = "pd_proxy_config_reloads_total{outcome=\"refused\"}";
    let refused = async || samples(&fleets.get("/metrics").await.text()).get(series).copied().unwrap_or(0.0);
    let before = refused().await;
    write(&without);
    eventually("a fall-back to nowhere is refused", async || refused().await > before).await;
    assert_eq!(fleets.chat("model-1").await.status, 200, "the fleet is still there");
    // A request that no engine answers is under way when its fleet goes.
    let going = &fleets.sides[1];
    for engine in [&going.prefiller, &going.decoder] {
        engine.clear_seen();
        assert!(engine.inject(Fault::always(FaultKind::StallBeforeHead).on_path(CHAT)));
    }
    let under_way = post(CHAT, &chat("model-1").to_string());
    let (answer, ()) = tokio::join!(fleets.send(&under_way), async {
        eventually("an engine has it", async || going.generated() > 0).await;
        write(&without.replace(top, ""));
    });
    assert!(answer.status >= 500, "{}: {}", answer.status, answer.text());
    eventually("it is gone", async || fleets.chat("model-1").await.status == 404).await;
    assert_eq!(fleets.chat("model-0").await.status, 200);
    fleets.end().await;
}
