//! Explanations of routing decisions by `/debug/route`.

use pd_proxy::config::Secret;
use serde_json::json;

use super::{CHAT, ask, chat, script};
use crate::common::client::{self, post_with};
use crate::common::stage::Stage;

#[tokio::test]
async fn a_placement_is_explained_afterwards() {
    let stage = Stage::set(script(2, 20_000.0)).await;
    let first = ask(stage.gateway, &chat(1, 1, 100)).await;
    let second = ask(stage.gateway, &chat(1, 1, 100)).await;
    let id = |raw: &client::Raw| raw.header("x-request-id").unwrap().to_owned();
    let story = |raw: client::Raw| raw.json()["placements"][0].clone();
    let one = story(stage.get(&format!("/debug/route/{}", id(&first))).await);
    let two = story(stage.get(&format!("/debug/route/{}", id(&second))).await);
    assert_eq!(one["winner"]["any_tokens"], 0);
    assert_eq!(two["winner"]["prefiller"], one["winner"]["prefiller"], "it goes where it was");
    assert_eq!(two["winner"]["hbm_tokens"], 96);
    assert_eq!(two["cached_tokens"], 96);
    let winner = two["winner"]["prefiller"].as_str().unwrap();
    let why = two["why"].as_str().unwrap();
    assert!(why.starts_with(&format!("{winner} has 96 of the prompt's")), "{why}");
    assert_eq!(two["next_best"][0]["any_tokens"], 0);
    assert!(two["next_best"][0]["score_s"].as_f64() > two["winner"]["score_s"].as_f64());
    let unknown = stage.get("/debug/route/nobody").await;
    assert_eq!((unknown.status, unknown.json()["error"]["param"].as_str()), (404, Some("id")));
    stage.end().await;
}

#[tokio::test]
async fn a_dry_run_sends_nothing() {
    let stage = Stage::set(script(2, 20_000.0)).await;
    ask(stage.gateway, &chat(1, 1, 100)).await;
    stage.forget();
    let dry = stage.post("/debug/route", &chat(1, 3, 100).to_string()).await;
    assert_eq!(dry.status, 200, "{}", dry.text());
    let answer = dry.json();
    assert_eq!(answer["candidates"].as_array().unwrap().len(), 2);
    assert_eq!(answer["candidates"][0]["hbm_tokens"], 96);
    assert_eq!(answer["request"]["block_tokens"], 16);
    assert!(answer["why"].as_str().unwrap().contains(" has 96 of the prompt's "), "{answer}");
    let generating = stage.seen(&stage.prefillers).into_iter().filter(|seen| seen.path == CHAT).count();
    assert_eq!(generating, 0);
    let broken = stage.post("/debug/route", "{").await;
    assert_eq!((broken.status, broken.json()["error"]["code"].as_str()), (400, Some("invalid_json")));
    stage.end().await;
}

#[tokio::test]
async fn clients_learn_nothing_of_engines() {
    let mut script = script(2, f64::INFINITY);
    script.config.server.admin_key = Some(Secret::new("k"));
    let stage = Stage::set(script).await;
    let body = json!({"model": "sim", "messages": [{"role": "user", "content": "hi"}]}).to_string();
    let with = async |headers: &[(&str, &str)], path| {
        client::send(stage.gateway, &post_with(path, headers, body.as_bytes())).await
    };
    assert_eq!(with(&[], CHAT).await.status, 200);
    assert_eq!(with(&[], "/debug/route").await.status, 401);
    assert_eq!(with(&[("x-api-key", "k")], "/debug/route").await.status, 200);
    stage.end().await;
}
