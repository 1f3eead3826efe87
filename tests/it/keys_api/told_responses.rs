//! Responses that another gateway of the same fleet has seen made.

use http::Method;
use pd_proxy::config::{Config, Secret};
use pd_proxy::sim::{Engine, Fault, FaultKind};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::responses::{RESPONSES, about, send_to};
use super::{code, keys};
use crate::common::raw_engine::Front;
use crate::common::stage::{Script, Stage};
use crate::common::store::Store;
use crate::common::time::eventually;

/// Two decoders that both make and have the response `resp_1`.
async fn engines() -> Stage {
    let stage = Stage::set(Script { prefillers: 1, decoders: 2, ..Script::default() }).await;
    let answer = json!({"id": "resp_1", "object": "response"}).to_string();
    let answer = FaultKind::Status(200, Some(answer.into()));
    stage.decoders_fail(&Fault::always(answer).on_path(RESPONSES));
    stage
}

fn asks_for(dir: &TempDir) -> impl FnOnce(&mut Config) {
    let file = dir.path().join("keys.toml").to_str().unwrap().to_owned();
    move |config| config.auth.keys_file = Some(file)
}

/// The numbers of decoders that were asked for anything about responses.
fn asked(stage: &Stage) -> Vec<usize> {
    let is_asked =
        |(_, decoder): &(usize, &Engine)| decoder.seen().iter().any(|seen| seen.path.starts_with(RESPONSES));
    stage.decoders.iter().enumerate().filter(is_asked).map(|(at, _)| at).collect()
}

/// Makes a response, and waits until the store knows it.
async fn make(at: &Front, store: &Store) {
    let new = json!({"model": "sim", "input": "a"}).to_string();
    let made = send_to(at.at, "a", &Method::POST, RESPONSES, &new).await;
    assert_eq!(made.json()["id"], "resp_1", "{}", made.text());
    let is_told = async || store.values(":response:1:").iter().any(|value| !value.is_empty());
    eventually("the response is told", is_told).await;
}

#[tokio::test]
async fn another_gateway_asks_the_engine_of_a_response_and_for_its_owner_alone() {
    let (dir, store, stage) = (keys(&[("a", ""), ("b", "")]), Store::open().await, engines().await);
    let one = store.front(&stage, asks_for(&dir)).await;
    // The links come up by themselves; what is made before is not told.
    eventually("the store is reached", async || !store.values(":response:1:").is_empty()).await;
    make(&one, &store).await;
    let maker = asked(&stage);
    assert_eq!(maker.len(), 1);
    stage.forget();
    let other = store.front(&stage, asks_for(&dir)).await;
    let found = async || {
        let raw = send_to(other.at, "a", &Method::GET, &format!("{RESPONSES}/resp_1"), "").await;
        code(&raw).1 != Some("response_not_found")
    };
    eventually("the other gateway has reached the store", found).await;
    for (method, path, body) in about("resp_1") {
        let raw = send_to(other.at, "a", &method, &path, &body).await;
        assert_ne!(code(&raw).1, Some("response_not_found"), "{method} {path}: {}", raw.text());
    }
    assert_eq!(asked(&stage), maker);
    stage.forget();
    for (method, path, body) in about("resp_1") {
        let raw = send_to(other.at, "b", &method, &path, &body).await;
        assert_eq!(code(&raw), (404, Some("response_not_found")), "{method} {path}: {}", raw.text());
    }
    assert!(asked(&stage).is_empty(), "no engine is asked");
    let all = store.values("").concat();
    let text = String::from_utf8_lossy(&all);
    assert!(!text.contains("resp_1") && !text.contains("sk-of-a"), "{text}");
    other.end().await;
    one.end().await;
    stage.end().await;
}

#[tokio::test]
async fn an_engine_of_another_fleet_is_not_asked_and_a_silent_store_fails_nothing() {
    let (dir, store, stage) = (keys(&[("a", "")]), Store::open().await, engines().await);
    let one = store.front(&stage, asks_for(&dir)).await;
    eventually("the store is reached", async || !store.values(":response:1:").is_empty()).await;
    make(&one, &store).await;
    stage.forget();
    let elsewhere = engines().await;
    let other = store.front(&elsewhere, asks_for(&dir)).await;
    let path = format!("{RESPONSES}/resp_1");
    let raw = send_to(other.at, "a", &Method::GET, &path, "").await;
    assert_eq!(code(&raw), (404, Some("response_not_found")));
    assert!(asked(&stage).is_empty() && asked(&elsewhere).is_empty());
    other.end().await;
    // Without keys decoders are asked, whether or not the store answers.
    let open = store.front(&elsewhere, |_| {}).await;
    store.fall_silent();
    let raw = send_to(open.at, "a", &Method::GET, &path, "").await;
    assert_ne!(code(&raw).1, Some("response_not_found"), "{}", raw.text());
    assert!(!asked(&elsewhere).is_empty());
    open.end().await;
    elsewhere.end().await;
    one.end().await;
    stage.end().await;
}

#[tokio::test]
async fn the_node_of_a_cluster_that_keeps_responses_is_found() {
    let (dir, keeper, stage) = (keys(&[("a", "")]), Store::open().await, engines().await);
    let node = Store::open().await;
    node.move_to(keeper.at);
    // The first one takes connections and says nothing, at the second one nobody listens.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis+cluster://{},127.0.0.1:1,{}", silent.local_addr().unwrap(), node.at);
    let one = node
        .front(&stage, |config| {
            asks_for(&dir)(config);
            config.share.url = Some(Secret::new(url));
        })
        .await;
    eventually("the keeper is reached", async || !keeper.values(":response:1:").is_empty()).await;
    make(&one, &keeper).await;
    assert!(keeper.names_begin_with("{pd-proxy}:"), "all are in one slot");
    assert!(node.values("").is_empty());
    one.end().await;
    stage.end().await;
}
