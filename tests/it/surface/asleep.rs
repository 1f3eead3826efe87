//! Engines that sleep or pause: out of the choice before, back after.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::common::client::{self, post};
use crate::common::raw_engine::{Front, RawEngine, answer};
use crate::common::stage::Stage;
use crate::common::time::eventually;

use super::moves::busy_decoder;
use super::{CHAT, change, chat, name};

const MODELS: &str = r#"{"object":"list","data":[{"id":"sim","object":"model"}]}"#;

/// Answers as vLLM 0.32 with `VLLM_SERVER_DEV_MODE` does. `refuses`: it can't sleep.
pub async fn vllm(refuses: bool) -> RawEngine {
    let [sleeps, pauses] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    RawEngine::start(move |asked| match (asked.path(), asked.target.contains("tags=weights")) {
        ("/sleep", _) if refuses => answer(500, r#"{"error":"no"}"#),
        ("/sleep", _) => {
            sleeps.store(true, SeqCst);
            answer(200, r#"{"status":"sleeping","level":1}"#)
        }
        ("/wake_up", true) => answer(200, r#"{"status":"sleeping","tags":["weights"]}"#),
        ("/wake_up", false) => {
            sleeps.store(false, SeqCst);
            answer(200, r#"{"status":"awake","tags":null}"#)
        }
        ("/is_sleeping", _) => answer(200, &json!({"is_sleeping": sleeps.load(SeqCst)}).to_string()),
        ("/pause", _) => {
            pauses.store(true, SeqCst);
            answer(200, r#"{"status":"paused"}"#)
        }
        ("/resume", _) => {
            pauses.store(false, SeqCst);
            answer(200, r#"{"status":"resumed"}"#)
        }
        ("/is_paused", _) => answer(200, &json!({"is_paused": pauses.load(SeqCst)}).to_string()),
        ("/v1/models", _) => answer(200, MODELS),
        _ => answer(404, "{}"),
    })
    .await
}

/// Counts of prefillers, decoders and engines that sleep.
pub async fn counts(front: &Front) -> [usize; 3] {
    let told = front.get("/instances").await.json();
    let of = |list: &str, role: &str| {
        let all: Vec<Value> = serde_json::from_value(told[list].clone()).unwrap();
        all.iter().filter(|it| role.is_empty() || it["type"] == role).count()
    };
    [of("instances", "prefill"), of("instances", "decode"), of("asleep", "")]
}

#[tokio::test]
async fn engines_that_sleep_are_away_until_they_say_that_they_are_awake() {
    let (one, two, decoder) = (vllm(false).await, vllm(true).await, vllm(false).await);
    let front = Front::of(&[&one, &two], &[&decoder], |config| config.server.open_admin = true).await;
    let order = async |path: &str| front.post(path, "").await;
    assert_eq!(order("/sleep?level=1&role=prefill&drain_ms=60000").await.status, 502, "one of two refuses");
    assert_eq!(counts(&front).await, [1, 1, 1], "it serves on");
    let asked = one.seen().into_iter().find(|asked| asked.path() == "/sleep").unwrap();
    assert_eq!(asked.target, "/sleep?level=1");
    // Asked again, it sleeps as before.
    assert_eq!(order("/sleep?level=1&role=prefill&drain_ms=0").await.status, 502);
    assert_eq!(counts(&front).await, [1, 1, 1]);
    let told = front.get("/is_sleeping?role=prefill").await.json();
    assert_eq!(told["asked"], 2, "those that sleep are asked as well: {told}");
    order("/wake_up?tags=weights&role=prefill").await;
    assert_eq!(counts(&front).await, [1, 1, 1], "its cache is not there yet");
    order("/wake_up?role=prefill").await;
    assert_eq!(counts(&front).await, [2, 1, 0]);
    // Without a time to drain nothing leaves.
    order("/sleep?role=prefill").await;
    assert_eq!(counts(&front).await, [2, 1, 0]);
    front.end().await;
}

#[tokio::test]
async fn engine_that_pauses_comes_back_when_it_has_resumed() {
    let (prefiller, decoder) = (vllm(false).await, vllm(false).await);
    let front = Front::of(&[&prefiller], &[&decoder], |config| config.server.open_admin = true).await;
    assert_eq!(front.post("/pause?drain_ms=60000&role=decode", "").await.status, 200);
    assert_eq!(front.post("/sleep?drain_ms=60000&role=decode", "").await.status, 200);
    assert_eq!(counts(&front).await, [1, 0, 1]);
    assert_eq!(front.post("/resume?role=decode", "").await.status, 200);
    assert_eq!(counts(&front).await, [1, 0, 1], "it still sleeps");
    assert_eq!(front.post("/wake_up?role=decode", "").await.status, 200);
    assert_eq!(counts(&front).await, [1, 1, 0]);
    let raw = front.post("/wake_up?drain_ms=1", "").await;
    assert!(raw.status == 400 && raw.text().contains("drains nothing"), "{}", raw.text());
    front.end().await;
}

#[tokio::test]
async fn stream_ends_before_its_engine_may_rest() {
    let (stage, mut socket, at) = busy_decoder().await;
    let busy = name(&stage.decoders[at]);
    let told = post("/sleep?role=decode&drain_ms=600000", "");
    let mut order = pin!(client::send(stage.gateway, &told));
    let drains = async || {
        let told = stage.get("/instances").await.json()["instances"].clone();
        told.as_array().unwrap().iter().any(|it| it["instance"] == busy && it["draining"] == true)
    };
    // Simulated engines refuse at once what they don't know.
    tokio::select! {
        raw = &mut order => panic!("it was told while it had a request: {}", raw.text()),
        () = eventually("it drains", drains) => {}
    }
    let (raw, stream) = tokio::join!(order, client::read(&mut socket));
    assert!(stream.complete && stream.done(), "{}", stream.text());
    assert_eq!(raw.status, 404, "{}", raw.text());
    assert_eq!(stage.post(CHAT, &chat("x").to_string()).await.status, 200, "it serves on");
    let told = stage.get("/instances").await.json();
    assert_eq!(told["asleep"], json!([]));
    stage.end().await;
}

#[tokio::test]
async fn removal_of_an_engine_outlives_an_order_that_gives_up() {
    let (stage, mut socket, at) = busy_decoder().await;
    let leaving = name(&stage.decoders[at]);
    let gone = json!({"type": "decode", "instances": [leaving]}).to_string();
    assert_eq!(stage.post("/instances/remove", &gone).await.status, 200);
    let raw = stage.post("/sleep?role=decode&drain_ms=0", "").await;
    assert!(raw.text().contains("it still had requests after 0 ms"), "{}", raw.text());
    let member = async || {
        let told = stage.get("/instances").await.json()["instances"].clone();
        told.as_array().unwrap().iter().find(|it| it["instance"] == leaving).cloned()
    };
    assert_eq!(member().await.map(|it| it["draining"].clone()), Some(json!(true)));
    let stream = client::read(&mut socket).await;
    assert!(stream.complete && stream.done(), "{}", stream.text());
    eventually("it is gone", async || member().await.is_none()).await;
    stage.end().await;
}

/// Sends orders with a time to drain to a decoder that has a stream; none may be answered before
/// that has ended, but for `short`, which gives up.
async fn ends_before(stage: &Stage, socket: &mut TcpStream, order: &str, short: Option<&str>) {
    let told = post(order, "");
    let mut order = pin!(async {
        if short.is_some() {
            let drains = async || stage.get("/instances").await.text().contains("\"draining\":true");
            eventually("the other order drains it", drains).await;
        }
        client::send(stage.gateway, &told).await
    });
    let mut gives_up = pin!(async {
        let Some(short) = short else { return };
        let raw = client::send(stage.gateway, &post(short, "")).await;
        assert!(raw.status == 502 && raw.text().contains("it still had requests after"), "{}", raw.text());
    });
    let mut has_given_up = false;
    let mut read = pin!(client::read(socket));
    let stream = loop {
        tokio::select! {
            raw = &mut order => panic!("it was told while it had a request: {}", raw.text()),
            () = &mut gives_up, if !has_given_up => has_given_up = true,
            stream = &mut read => break stream,
        }
    };
    assert!(stream.complete && stream.done(), "{}", stream.text());
    assert_eq!(order.await.status, 404, "simulated engines refuse what they don't know");
}

#[tokio::test]
async fn second_order_to_drain_an_engine_waits_for_the_end_of_the_first() {
    for path in ["/sleep", "/pause"] {
        let (stage, mut socket, _) = busy_decoder().await;
        let order = format!("{path}?role=decode&drain_ms=600000");
        ends_before(&stage, &mut socket, &order, Some("/sleep?role=decode&drain_ms=300")).await;
        assert_eq!(stage.post(CHAT, &chat("x").to_string()).await.status, 200, "it serves on");
        stage.end().await;
    }
}

#[tokio::test]
async fn engine_of_both_roles_ends_the_requests_of_both_before_it_rests() {
    let (stage, mut socket, at) = busy_decoder().await;
    let both = change("prefill", json!(name(&stage.decoders[at])));
    assert_eq!(stage.post("/instances/add", &both).await.status, 200);
    ends_before(&stage, &mut socket, "/sleep?role=prefill&drain_ms=600000", None).await;
    let told = stage.get("/instances").await.json();
    let drains = |it: &Value| it["draining"] == true;
    assert!(!told["instances"].as_array().unwrap().iter().any(drains), "it is in both again: {told}");
    stage.end().await;
}

#[tokio::test]
async fn engine_that_drains_is_not_asleep_yet() {
    let (stage, mut socket, _) = busy_decoder().await;
    let told = post("/sleep?role=decode&drain_ms=600000", "");
    let mut order = pin!(client::send(stage.gateway, &told));
    let seen = async || {
        let told = stage.get("/instances").await.json();
        assert_eq!(told["asleep"], json!([]));
        told["instances"].to_string().contains("\"draining\":true")
    };
    tokio::select! {
        raw = &mut order => panic!("{}", raw.text()),
        () = eventually("it drains", seen) => {}
    }
    let (_, stream) = tokio::join!(order, client::read(&mut socket));
    assert!(stream.done());
    stage.end().await;
}
