//! Limits of a key: tokens per minute, and requests at once.

use pd_proxy::sim::{EngineSpec, Fault, FaultKind};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{CHAT, ask, chat, code, keys, request, script};
use crate::common::client::{self, post};
use crate::common::stage::{Stage, slow};
use crate::common::time::eventually;
use crate::surface::samples;

const BATCH: &str = "/v1/chat/completions/batch";

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
    // 1667 tokens a second come back, so what was taken is seen only for a moment; what is reserved
    // while a request is under way is given back in the end.
    eventually("all is settled", async || left().await >= 100_000 - usage - 400).await;
    let free = stage.send(&ask("free", &chat(5))).await;
    assert_eq!((free.status, free.header("x-ratelimit-limit-tokens")), (200, None));
    stage.end().await;
}

/// A request that is larger than a minute's tokens is let in when all are there, and leaves a debt.
#[tokio::test]
async fn key_in_debt_learns_when_it_is_admitted() {
    let dir = keys(&[("debtor", "tokens_per_minute = 1_000")]);
    let stage = Stage::set(script(&dir)).await;
    let mut large = chat(1);
    large["messages"][0]["content"] = "word ".repeat(1_500).into();
    assert_eq!(stage.send(&ask("debtor", &large)).await.status, 200);
    let wait = async |body: &Value| {
        let refused = stage.send(&ask("debtor", body)).await;
        assert_eq!(refused.status, 429, "{}", refused.text());
        refused.header("retry-after").unwrap().parse::<u64>().unwrap()
    };
    let (small, large) = (wait(&chat(1)).await, wait(&large).await);
    // All but a few of the 1 000 tokens, which come back in a minute.
    assert!((50..=60).contains(&large.saturating_sub(small)), "{small} s and {large} s");
    stage.end().await;
}

/// An image has far fewer tokens than its bytes would have as text: its key is not told to wait for
/// those.
#[tokio::test]
async fn key_in_debt_need_not_wait_for_an_images_bytes() {
    let dir = keys(&[("painter", "tokens_per_minute = 20_000")]);
    let stage = Stage::set(script(&dir)).await;
    let mut image = chat(1);
    let url = format!("data:image/png;base64,{}", "QUJDREVGR0hJSktMTU5PUFFS".repeat(20_000));
    image["messages"][0]["content"] = json!([{"type": "image_url", "image_url": {"url": url}}]);
    // The debt of two minutes.
    stage.decoders_fail(&Fault::always(told(10, 60_000)));
    assert_eq!(stage.send(&ask("painter", &image)).await.status, 200);
    stage.heal();
    let wait = async |body: &Value| {
        let refused = stage.send(&ask("painter", body)).await;
        assert_eq!(refused.status, 429, "{}", refused.text());
        refused.header("retry-after").unwrap().parse::<u64>().unwrap()
    };
    let (small, large) = (wait(&chat(1)).await, wait(&image).await);
    // Some thousand tokens, and not all 20 000 of a minute.
    assert!((1..=20).contains(&large.saturating_sub(small)), "{small} s and {large} s");
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
    eventually("its place is free again", async || stage.send(&ask("single", &chat(1))).await.status == 200)
        .await;
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

/// An answer that says that it took so much.
fn told(prompt: u64, output: u64) -> FaultKind {
    let usage =
        json!({"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output});
    let choices = [json!({"message": {"content": "\"usage\":{\"completion_tokens\":1}, x".repeat(500)}})];
    let body = json!({"choices": choices, "usage": usage, "prompt_logprobs": null});
    FaultKind::Status(200, Some(body.to_string().into()))
}

/// The estimate believes no more than 1024 tokens of output, of however many conversations.
#[tokio::test]
async fn decoder_only_answer_costs_its_reported_usage() {
    let dir = keys(&[("batches", "tokens_per_minute = 100_000"), ("unlimited", "")]);
    let stage = Stage::set(script(&dir)).await;
    let batch =
        json!({"model": "sim", "messages": [[{"role": "user", "content": "hi"}]], "max_tokens": 50_000});
    let send = async |name: &str, what: FaultKind| {
        stage.decoders_fail(&Fault::always(what).on_path(BATCH));
        let key = format!("sk-of-{name}");
        let raw = stage.send(&request(BATCH, &[("X-API-Key", &key)], &batch)).await;
        stage.heal();
        raw
    };
    let charged = async |name: &str| {
        let found = samples(&stage.get("/metrics").await.text());
        let of = |kind: &str| {
            let series = format!(r#"pd_proxy_key_tokens_total{{key="{name}",kind="{kind}"}}"#);
            found.get(&series).copied().unwrap_or(0.0)
        };
        (of("prompt"), of("output"))
    };
    // Ten minutes of it, so that none of them are over by the next line, however slow the machine
    // is.
    assert_eq!(send("batches", told(3_000, 996_500)).await.status, 200);
    eventually("it is charged", async || charged("batches").await == (3_000.0, 996_500.0)).await;
    let refused = send("batches", told(1, 1)).await;
    assert_eq!(code(&refused), (429, Some("rate_limit_exceeded")), "the next has to wait");

    assert_eq!(send("unlimited", FaultKind::Status(200, Some("{}".into()))).await.status, 200);
    let estimate = (batch.to_string().len() / 4) as f64;
    eventually("what was expected is charged", async || charged("unlimited").await == (estimate, 1_024.0))
        .await;
    assert_eq!(send("unlimited", FaultKind::Status(400, None)).await.status, 400);
    assert_eq!(send("unlimited", told(7, 5)).await.status, 200);
    eventually("a refusal is not", async || charged("unlimited").await == (estimate + 7.0, 1_029.0)).await;
    stage.end().await;
}
