//! Trouble of one fleet that operators bring about or meet: its list of engines is emptied, its
//! file is wrong, the API that takes over breaks off.

use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind, Role};
use serde_json::{Value, json};

use super::{CHAT, DIALECTS, Fleets, Settings, Side, chat};
use crate::common::place;
use crate::common::stage::fast;
use crate::common::time::eventually;
use crate::surface::samples;

async fn count(fleets: &Fleets, series: &str) -> f64 {
    samples(&fleets.get("/metrics").await.text()).get(series).copied().unwrap_or_default()
}

/// Puts a text in the place of a file at once.
fn replace(file: &std::path::Path, text: &str) {
    let beside = file.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(&beside, file).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_whose_list_of_engines_is_emptied_keeps_them() {
    let found = Side::start(2, DIALECTS[0]).await;
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("engines");
    let (prefill, decode) = (found.prefiller.addr(), found.decoder.addr());
    let lines = format!("prefill {prefill}\ndecode {decode}\n");
    replace(&list, &lines);
    let top = format!(
        "[fleets.found.discovery]\nfile = {:?}\ninterval_ms = 100\n[fleets.found.fleet]\nmodel = \"model-2\"\n",
        list.to_str().unwrap()
    );
    let fleets = Fleets::set(&DIALECTS[..2], Settings { top: &top, fleet: &[] }).await;
    eventually("the listed ones serve", async || fleets.chat("model-2").await.status == 200).await;
    let looks = |outcome: &str| {
        format!("pd_proxy_discovery_total{{source=\"file\",outcome=\"{outcome}\",fleet=\"found\"}}")
    };
    let no_decoder = format!("{{\"prefill\":[\"{prefill}\"],\"decode\":[]}}");
    for text in ["", "\n", "# nobody\n", "{}", &no_decoder, &lines[..lines.len() - 4]] {
        let before = count(&fleets, &looks("failed")).await;
        replace(&list, text);
        eventually("it is looked at", async || count(&fleets, &looks("failed")).await > before).await;
        for model in ["model-0", "model-1", "model-2"] {
            assert_eq!(fleets.chat(model).await.status, 200, "{text:?}: {model}");
        }
    }
    // Without its decoder it serves nothing, and the others are well.
    let removal = json!({"type": "decode", "instances": decode.to_string(), "fleet": "found"});
    let removed = fleets.post("/instances/remove", &removal).await;
    assert_eq!(removed.status, 200, "{}", removed.text());
    eventually("it has no decoder", async || fleets.chat("model-2").await.status == 503).await;
    let ready = fleets.get("/readyz").await;
    assert_eq!((ready.status, &ready.json()["fleets"]["found"]["ready"]), (200, &json!(false)));
    assert_eq!(fleets.chat("model-0").await.status, 200);
    assert_eq!(fleets.post("/instances/add", &removal).await.status, 200);
    eventually("it is back", async || fleets.chat("model-2").await.status == 200).await;
    fleets.end().await;
    found.prefiller.stop().await;
    found.decoder.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_with_one_bad_fleet_changes_none() {
    let fleets = Fleets::set(&DIALECTS[..2], Settings::default()).await;
    let text = std::fs::read_to_string(&fleets.file).unwrap();
    let aliased = text.replace("[fleets.f0.fleet]\n", "[fleets.f0.fleet]\naliases = [\"quick=model-0\"]\n");
    let series = "pd_proxy_config_reloads_total{outcome=\"refused\"}";
    for (wrong, bad) in [
        ("[fleets.f1.fleet]\nprefill = [", "[fleets.f1.fleet]\nprefil = ["),
        ("[fleets.f1.dialect]\n", "[fleets.f1.retry]\nattempts = \"many\"\n[fleets.f1.dialect]\n"),
        ("[fleets.f1.fleet]\n", "[fleets.f1.fleet]\naliases = [\"quick=model-1\"]\n"),
        ("[fleets.f1.fleet]\n", "[fleets.f2.fleet]\nmodel = \"none\"\n[fleets.f1.fleet]\n"),
    ] {
        let before = count(&fleets, series).await;
        let changed = aliased.replacen(wrong, bad, 1);
        assert_ne!(changed, aliased);
        replace(&fleets.file, &changed);
        eventually("it is refused", async || count(&fleets, series).await > before).await;
        assert_eq!(fleets.chat("quick").await.status, 404, "{bad}: nor is the good fleet changed");
        for model in ["model-0", "model-1"] {
            assert_eq!(fleets.chat(model).await.status, 200, "{bad}");
        }
    }
    replace(&fleets.file, &aliased);
    eventually("a good file counts", async || fleets.chat("quick").await.status == 200).await;
    fleets.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_of_an_api_elsewhere_that_breaks_off_is_nobody_elses() {
    let spec = EngineSpec { role: Role::Decode, model: "big-model".into(), ..fast() };
    let cloud = Engine::start(spec, place::own_host()).await.unwrap();
    let top = format!(
        "[models]\nfallback = [\"model-0=cloud f1\"]\n\
         [fleets.cloud.fleet]\nremote = \"http://{}/v1\"\nmodel = \"big-model\"\n",
        cloud.addr()
    );
    let own = ["model = \"model-0\"", "model = \"model-1\""];
    let fleets = Fleets::set(&DIALECTS[..2], Settings { top: &top, fleet: &own }).await;
    let Side { prefiller, decoder, .. } = &fleets.sides[0];
    for engine in [prefiller, decoder] {
        assert!(engine.inject(Fault::always(FaultKind::Status(500, None)).on_path(CHAT)));
    }
    // Fleets with a pool ask their engines of their own accord, too.
    let asked = || {
        let seen = [fleets.sides[1].prefiller.seen(), fleets.sides[1].decoder.seen()].concat();
        seen.iter().filter(|seen| String::from_utf8_lossy(&seen.body).contains("hello there")).count()
    };
    let before = asked();
    let mut body = chat("model-0");
    (body["stream"], body["max_tokens"]) = (true.into(), 40.into());
    for kind in [FaultKind::CloseWithoutDone, FaultKind::ErrorEvent, FaultKind::EndAfterEvents(2)] {
        cloud.clear_faults();
        assert!(cloud.inject(Fault::once(kind.clone()).on_path(CHAT)));
        let cut = fleets.post(CHAT, &body).await;
        let route = cut.header("x-pd-route").unwrap_or_default();
        let what = format!("{kind:?}: {}", cut.text());
        assert_eq!((cut.status, route.split(';').next()), (200, Some("cloud")), "{what}");
        // The client learns that it is no whole answer, in an event that SDKs raise.
        let errors = cut.events().iter().filter(|event| event["error"] != Value::Null).count();
        assert_eq!((errors, cut.text().contains("\"finish_reason\":\"stop\"")), (1, false), "{what}");
        assert!(!cut.text().contains("big-model"), "{what}");
    }
    assert_eq!(asked(), before, "nobody else is asked once an answer has begun");
    let good = fleets.post(CHAT, &body).await;
    assert_eq!((good.status, good.done()), (200, true), "{}", good.text());
    fleets.end().await;
    cloud.stop().await;
}
