//! Clients' ids, which need not be unique.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::client::post_with;
use crate::common::stage::{Script, Stage, slow};
use crate::common::time::eventually;

use super::{CHAT, chat, header};

const COMPLETIONS: &str = "/v1/completions";

/// The ids under which engines were asked, each once, in order.
fn ids(stage: &Stage) -> Vec<String> {
    let mut ids: Vec<String> = stage
        .engines()
        .flat_map(|engine| engine.seen())
        .filter_map(|seen| header(&seen, "x-request-id"))
        .collect();
    ids.sort();
    ids.dedup();
    ids
}

/// Up to 0.13 vLLM refuses a second request of the same id, or takes its blocks for those of the
/// first, which a prefiller may keep.
#[tokio::test]
async fn engines_know_no_two_requests_by_the_same_id() {
    let stage = Stage::set(Script { engine: slow(), ..Script::default() }).await;
    let asked = |path, body: &serde_json::Value| {
        post_with(path, &[("x-request-id", "same")], body.to_string().as_bytes())
    };

    let mut long = chat("one of several calls");
    (long["stream"], long["max_tokens"]) = (true.into(), 10_000.into());
    let mut first = TcpStream::connect(stage.gateway).await.unwrap();
    first.write_all(&asked(CHAT, &long)).await.unwrap();
    // Its answer has begun, and has a minute to go.
    assert_ne!(first.read(&mut [0; 64]).await.unwrap(), 0);
    assert_eq!(ids(&stage), ["same"], "what nobody else is called stays as it is");

    stage.forget();
    let second = stage.send(&asked(CHAT, &chat("another"))).await;
    assert_eq!((second.status, second.header("x-request-id")), (200, Some("same")), "{}", second.text());
    let [id] = &ids(&stage)[..] else { panic!("one id for both legs: {:?}", ids(&stage)) };
    assert!(id.starts_with("same-") && id.len() == "same-12345678".len(), "{id}");
    assert_eq!(second.json()["id"], json!(format!("chatcmpl-{id}")));

    stage.forget();
    let prompts = json!({"model": "sim", "prompt": ["one", "two"], "max_tokens": 3});
    let several = stage.send(&asked(COMPLETIONS, &prompts)).await;
    let whole = several.json()["id"].as_str().unwrap().strip_prefix("cmpl-").unwrap().to_owned();
    assert_eq!(ids(&stage), [format!("{whole}-0"), format!("{whole}-1")]);
    assert!(whole.starts_with("same-") && whole != *id, "{whole}");

    drop(first);
    eventually("the id is free again", async || {
        stage.forget();
        assert_eq!(stage.send(&asked(CHAT, &chat("later"))).await.status, 200);
        ids(&stage) == ["same"]
    })
    .await;
    stage.end().await;
}
