//! What a key may take: tokens per minute, and requests at once.

use pd_proxy::sim::EngineSpec;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{CHAT, ask, chat, code, keys, script};
use crate::common::client::{self, post};
use crate::common::stage::{Stage, slow};
use crate::surface::until;

#[tokio::test]
async fn tokens_per_minute_are_reserved_and_settled() {
    let dir =
        keys(&[("poor", "tokens_per_minute = 48"), ("rich", "tokens_per_minute = 100_000"), ("free", "")]);
    let stage = Stage::set(script(&dir)).await;
    let first = stage.send(&ask("poor", &chat(12))).await;
    assert_eq!(first.status, 200);
    let second = stage.send(&ask("poor", &chat(12))).await;
    assert_eq!(code(&second), (429, Some("rate_limit_exceeded")));
    assert_eq!(second.json()["error"]["type"], "rate_limit_error");
    let wait: u64 = second.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(second.header("x-ratelimit-limit-tokens"), Some("48"));
    assert!(second.header("x-ratelimit-reset-tokens").is_some_and(|it| it.ends_with('s')));

    let usage = stage.send(&ask("rich", &chat(5))).await.json()["usage"]["total_tokens"].as_u64().unwrap();
    // Refused by the engine: it costs nothing.
    let mut wrong = chat(5);
    wrong["model"] = "nope".into();
    assert_eq!(stage.send(&ask("rich", &wrong)).await.status, 404);
    let left = async || {
        // A model that is refused here costs nothing, and tells what is left.
        let raw = stage.send(&ask("rich", &wrong)).await;
        raw.header("x-ratelimit-remaining-tokens").unwrap().parse::<u64>().unwrap()
    };
    // 1667 tokens a second come back, so what was taken is seen only for a moment; what is reserved while a request is
    // under way is given back in the end.
    until("all is settled", async || left().await >= 100_000 - usage - 400).await;
    let free = stage.send(&ask("free", &chat(5))).await;
    assert_eq!((free.status, free.header("x-ratelimit-limit-tokens")), (200, None));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_at_once_are_counted_until_their_last_byte() {
    let dir = keys(&[("single", "requests_inflight = 1"), ("other", "")]);
    let mut script = script(&dir);
    script.engine = EngineSpec { tpot_ms: 50.0, ..slow() };
    let stage = Stage::set(script).await;
    let mut body = chat(2_000);
    body["stream"] = true.into();
    let mut first = TcpStream::connect(stage.gateway).await.unwrap();
    first.write_all(&ask("single", &body)).await.unwrap();
    let mut some = [0; 16];
    first.read_exact(&mut some).await.unwrap();
    let refused = stage.send(&ask("single", &chat(1))).await;
    assert_eq!(code(&refused), (429, Some("rate_limit_exceeded")));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(stage.send(&ask("other", &chat(1))).await.status, 200);
    drop(first);
    until("its place is free again", async || stage.send(&ask("single", &chat(1))).await.status == 200).await;
    stage.assert_nothing_left("one left").await;
    stage.end().await;
}

#[tokio::test]
async fn without_a_file_everybody_is_let_in() {
    let stage = Stage::new().await;
    let raw = client::send(stage.gateway, &post(CHAT, &chat(2).to_string())).await;
    assert_eq!((raw.status, raw.header("x-ratelimit-limit-tokens")), (200, None));
    stage.end().await;
}
