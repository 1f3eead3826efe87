//! Faults in one fleet, while others are measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pd_proxy::sim::{Fault, FaultKind};
use tokio::task::JoinSet;

use super::{CHAT, DIALECTS, Fleets, Settings, chat};
use crate::common::client::{self, post};
use crate::common::time::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_one_fleet_cost_the_others_no_request() {
    let fleets = Fleets::set(&DIALECTS[..3], Settings::default()).await;
    let (on, mut clients) = (Arc::new(AtomicBool::new(true)), JoinSet::new());
    for model in ["model-1", "model-2"] {
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
    let broken = &fleets.sides[0];
    for kind in [FaultKind::Status(500, None), FaultKind::ResetBeforeHead, FaultKind::CloseWithoutDone] {
        let engines = [&broken.prefiller, &broken.decoder];
        assert!(engines.iter().all(|engine| engine.inject(Fault::always(kind.clone()).on_path(CHAT))));
        for stream in [false, true] {
            let mut body = chat("model-0");
            body["stream"] = stream.into();
            let answer = fleets.post(CHAT, &body).await;
            let fails = answer.status >= 500 || answer.text().contains("error");
            assert!(fails || matches!(kind, FaultKind::CloseWithoutDone), "{kind:?}: {}", answer.text());
        }
        engines.iter().for_each(|engine| engine.clear_faults());
    }
    // Both engines of one fleet leave for good.
    for engine in [&broken.prefiller, &broken.decoder] {
        assert!(engine.inject(Fault::always(FaultKind::Refuse)));
    }
    eventually("the fleet is down", async || {
        let ready = fleets.get("/readyz").await;
        ready.status == 200 && ready.json()["fleets"]["f0"]["ready"] == false
    })
    .await;
    let refused = fleets.chat("model-0").await;
    assert!(refused.status >= 500, "known, and down: {}", refused.text());
    assert_eq!(fleets.chat("model-9").await.status, 404);
    on.store(false, Ordering::Relaxed);
    for answers in clients.join_all().await {
        assert!(answers.len() > 5, "{}", answers.len());
        assert!(answers.iter().all(|answer| *answer == (200, true)), "{answers:?}");
    }
    fleets.end().await;
}
