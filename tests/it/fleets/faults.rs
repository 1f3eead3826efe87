//! Faults in one fleet, while others are measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pd_proxy::sim::{Fault, FaultKind};
use tokio::task::JoinSet;

use super::{CHAT, DIALECTS, Fleets, Settings, chat};
use crate::common::client::{self, post};
use crate::common::time::eventually;

/// Clients of a model, one request after the other, in turn as a stream and whole.
struct Clients {
    on: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    tasks: JoinSet<Vec<(u16, bool)>>,
}

impl Clients {
    fn start(fleets: &Fleets, models: &[String]) -> Clients {
        let (on, answered, mut tasks) = (Arc::new(AtomicBool::new(true)), Arc::default(), JoinSet::new());
        for model in models {
            let (on, answered, at) = (on.clone(), Arc::<AtomicUsize>::clone(&answered), fleets.at);
            let model = model.clone();
            tasks.spawn(async move {
                let mut answers = Vec::new();
                while on.load(Ordering::Relaxed) {
                    let mut body = chat(&model);
                    body["stream"] = (answers.len() % 2 == 1).into();
                    let answer = client::send(at, &post(CHAT, &body.to_string())).await;
                    answers.push((answer.status, answer.complete));
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                answers
            });
        }
        Clients { on, answered, tasks }
    }

    /// Waits until they have had so many more answers.
    async fn go_on(&self, more: usize) {
        let wanted = self.answered.load(Ordering::Relaxed) + more;
        eventually("others are answered", async || self.answered.load(Ordering::Relaxed) >= wanted).await;
    }

    /// Ends them; all of their answers must be good.
    async fn end(self, what: &str) {
        self.on.store(false, Ordering::Relaxed);
        for answers in self.tasks.join_all().await {
            assert!(answers.len() > 5, "{what}: {}", answers.len());
            assert!(answers.iter().all(|answer| *answer == (200, true)), "{what}: {answers:?}");
        }
    }
}

/// Breaks the engines of one of five fleets in every way, while the others are asked.
async fn break_one(at: usize) {
    let fleets = Fleets::set(&DIALECTS, Settings::default()).await;
    let (what, broken) = (DIALECTS[at].0, &fleets.sides[at]);
    let others = fleets.sides.iter().filter(|side| side.name != broken.name);
    let clients = Clients::start(&fleets, &others.map(|side| side.model.clone()).collect::<Vec<_>>());
    let engines = [&broken.prefiller, &broken.decoder];
    for kind in [FaultKind::Status(500, None), FaultKind::ResetBeforeHead, FaultKind::CloseWithoutDone] {
        assert!(engines.iter().all(|engine| engine.inject(Fault::always(kind.clone()).on_path(CHAT))));
        for stream in [false, true] {
            let mut body = chat(&broken.model);
            body["stream"] = stream.into();
            let answer = fleets.post(CHAT, &body).await;
            let fails = answer.status >= 500 || answer.text().contains("error");
            let ends = matches!(kind, FaultKind::CloseWithoutDone);
            assert!(fails || ends, "{what} {kind:?}: {}", answer.text());
        }
        clients.go_on(8).await;
        engines.iter().for_each(|engine| engine.clear_faults());
    }
    // Both engines of one fleet leave for good.
    for engine in engines {
        assert!(engine.inject(Fault::always(FaultKind::Refuse)));
    }
    eventually("the fleet is down", async || {
        let ready = fleets.get("/readyz").await;
        ready.status == 200 && ready.json()["fleets"][&broken.name]["ready"] == false
    })
    .await;
    let refused = fleets.chat(&broken.model).await;
    assert!(refused.status >= 500, "{what}: known, and down: {}", refused.text());
    assert_eq!(fleets.chat("model-9").await.status, 404, "{what}");
    clients.go_on(8).await;
    clients.end(what).await;
    fleets.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_a_fleet_whose_prefiller_hands_over_cost_the_others_no_request() {
    break_one(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_a_fleet_with_a_pool_cost_the_others_no_request() {
    break_one(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_a_fleet_whose_legs_run_at_once_cost_the_others_no_request() {
    break_one(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_a_fleet_whose_decoder_is_asked_first_cost_the_others_no_request() {
    break_one(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_a_fleet_of_mooncake_cost_the_others_no_request() {
    break_one(4).await;
}
