//! Engines that accept requests and answer nothing, once they are known to be down.

use pd_proxy::sim::{Fault, FaultKind};
use serde_json::{Value, json};

use super::{DIALECTS, Fleets, Settings, Side};
use crate::common::time::eventually;

const ROUTES: [(&str, &str); 2] = [("/tokenize", "prompt"), ("/v1/embeddings", "input")];
const PROBES: &str = "[health]\nprobe_ms = 100\nprobe_timeout_ms = 100\n";

fn asked(side: &Side) -> usize {
    let seen = [side.prefiller.seen(), side.decoder.seen()].concat();
    seen.iter().filter(|seen| ROUTES.iter().any(|(path, _)| seen.path == *path)).count()
}

/// State of each engine of a fleet, prefiller first.
async fn states(fleets: &Fleets, fleet: &str) -> Vec<Value> {
    let listed = fleets.get("/instances").await.json();
    let own = listed["instances"].as_array().unwrap().iter().filter(|it| it["fleet"] == fleet);
    own.map(|it| it["state"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hung_engines_that_are_down_are_not_asked_again_and_again() {
    let top = format!("{PROBES}[models]\nfallback = [\"model-0=f1\"]\n");
    let own = ["model = \"model-0\"", "model = \"model-1\""];
    let fleets = Fleets::set(&DIALECTS[..2], Settings { top: &top, fleet: &own }).await;
    let hung = &fleets.sides[0];
    let hang = Fault::always(FaultKind::StallBeforeHead);
    let ask = async |number: usize| {
        let (path, member) = ROUTES[number % 2];
        let mut body = json!({"model": "model-0"});
        body[member] = json!(format!("number {number}"));
        fleets.post(path, &body).await
    };
    assert!(hung.prefiller.inject(hang.clone()));
    eventually("the prefiller is down", async || states(&fleets, "f0").await[0] == "down").await;
    hung.prefiller.clear_seen();
    for number in 0..20 {
        let answer = ask(number).await;
        assert_eq!((answer.status, answer.header("x-pd-route")), (200, Some("f0")), "{}", answer.text());
    }
    let seen = hung.prefiller.seen();
    let of_clients = seen.iter().filter(|seen| ROUTES.iter().any(|(path, _)| seen.path == *path)).count();
    assert_eq!(of_clients, 0, "the other role answers");
    assert!(hung.decoder.inject(hang));
    eventually("both are down", async || states(&fleets, "f0").await.iter().all(|state| state == "down"))
        .await;
    for engine in [&hung.prefiller, &hung.decoder] {
        engine.clear_seen();
    }
    for number in 0..20 {
        let answer = ask(number).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(
            answer.header("x-pd-route").unwrap().starts_with("f1;from=f0;"),
            "{:?}",
            answer.header("x-pd-route")
        );
    }
    assert_eq!(asked(hung), 0, "who is out of reach is looked at by its health alone");
    for engine in [&hung.prefiller, &hung.decoder] {
        engine.clear_faults();
    }
    eventually("it answers again", async || ask(0).await.header("x-pd-route") == Some("f0")).await;
    fleets.end().await;
}
