//! The choice of a prefiller, and the effect of choice and connector on the legs.

use std::sync::Arc;

use pd_proxy::config::Policy;
use pd_proxy::sim::{Connector, EngineSpec, Fault, FaultKind, Pool};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::common::client::{self, Raw, post};
use crate::common::stage::{Script, Stage, fast};
use crate::common::time::eventually;

use super::{CHAT, body_of, both, chat, count, lone, long_text};

async fn with_policy(policy: Policy) -> Stage {
    let mut script = Script::default();
    script.config.route.policy = policy;
    Stage::set(script).await
}

#[tokio::test]
async fn policies_spread_over_idle_prefillers() {
    for (policy, requests, least) in [
        (Policy::RoundRobin, 10, 5),
        (Policy::LeastWork, 10, 5),
        // One in a hundred million runs of a fair coin has fewer.
        (Policy::Random, 60, 10),
        (Policy::PowerOfTwo, 60, 10),
    ] {
        let stage = with_policy(policy).await;
        for n in 0..requests {
            assert_eq!(stage.post(CHAT, &chat(&format!("request {n}")).to_string()).await.status, 200);
        }
        let spread: Vec<usize> = stage.prefillers.iter().map(count).collect();
        assert_eq!(spread.iter().sum::<usize>(), requests, "{policy}");
        assert!(spread.iter().all(|&n| n >= least), "{policy}: {spread:?}");
        stage.end().await;
    }
}

#[tokio::test]
async fn policies_mind_the_load_or_do_not() {
    for (policy, minds) in
        [(Policy::LeastWork, true), (Policy::PowerOfTwo, true), (Policy::RoundRobin, false)]
    {
        let stage = with_policy(policy).await;
        let stall = Fault { times: 1, ..Fault::always(FaultKind::StallBeforeHead) };
        let mut stall = stall;
        stall.on.contains = Some("STALL".into());
        stage.prefillers_fail(&stall);
        let mut busy = TcpStream::connect(stage.gateway).await.unwrap();
        busy.write_all(&post(CHAT, &chat(&format!("STALL {}", long_text())).to_string())).await.unwrap();
        eventually("one is busy", async || stage.prefillers.iter().any(|p| count(p) == 1)).await;
        let at = usize::from(count(&stage.prefillers[1]) == 1);
        for n in 0..8 {
            assert_eq!(stage.post(CHAT, &chat(&format!("request {n}")).to_string()).await.status, 200);
        }
        let more = count(&stage.prefillers[at]) - 1;
        assert_eq!(more, if minds { 0 } else { 4 }, "{policy}");
        drop(busy);
        stage.end().await;
    }
}

#[tokio::test]
async fn with_a_pool_no_hand_off_is_made_up() {
    let engine = EngineSpec { connector: Connector::Pool, pool: Some(Arc::new(Pool::new(10_000))), ..fast() };
    let stage = Stage::set(Script { engine, ..Script::default() }).await;
    let alone = lone(fast(), "127.0.0.1:0").await;
    let body = chat(&long_text());
    let expected = client::send(alone.addr(), &post(CHAT, &body.to_string())).await.words();
    for body in both(&body) {
        stage.forget();
        let raw = stage.post(CHAT, &body).await;
        assert_eq!((raw.status, raw.words()), (200, expected.clone()));
        let d = stage.seen(&stage.decoders);
        assert_eq!(d.len(), 1);
        let sent: Value = body_of(&d[0]);
        assert_eq!(sent.get("kv_transfer_params"), None, "{sent}");
        assert_eq!(sent, serde_json::from_str::<Value>(&body).unwrap());
    }
    stage.end().await;
}

#[tokio::test]
async fn cached_tokens_are_the_prefillers() {
    let ask = |raw: &Raw| {
        let usage = match raw.header("content-type") {
            Some(kind) if kind.starts_with("text/event-stream") => {
                raw.events().into_iter().rev().find(|e| e["usage"].is_object()).unwrap()["usage"].clone()
            }
            _ => raw.json()["usage"].clone(),
        };
        (usage["prompt_tokens"].clone(), usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap())
    };
    for path in [CHAT, "/v1/completions"] {
        let mut body = chat(&long_text());
        body["prompt"] = long_text().into();
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        streamed["stream_options"] = json!({"include_usage": true});
        for body in [body, streamed] {
            let alone = lone(fast(), "127.0.0.1:0").await;
            let stage = Stage::set(Script { prefillers: 1, decoders: 1, ..Script::default() }).await;
            let request = post(path, &body.to_string());
            for cold in [true, false] {
                let expected = ask(&client::send(alone.addr(), &request).await);
                let raw = stage.send(&request).await;
                assert_eq!(ask(&raw), expected, "{path} cold: {cold} {}", raw.text());
                assert_eq!(expected.1 == 0, cold, "{path}");
            }
            stage.end().await;
        }
    }
}
