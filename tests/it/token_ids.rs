//! Prompts whose tokens are known go to both engines as tokens (`prompt.send_ids`): with the same
//! answers, and only where the engines take them.

use pd_proxy::config::Tokens;
use pd_proxy::sim::{Engine, EngineSpec, Fault, FaultKind};
use serde_json::{Value, json};

use crate::common::stage::{Script, Stage, fast};
use crate::common::time::eventually;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// One pair of engines, whose `/tokenize` is asked.
fn script(send_ids: bool, engine: EngineSpec) -> Script {
    let mut script = Script { prefillers: 1, decoders: 1, engine, ..Script::default() };
    script.config.prompt.tokens = Tokens::Engine;
    script.config.prompt.budget_ms = 5_000;
    script.config.prompt.verify_interval_ms = 100;
    script.config.prompt.send_ids = send_ids;
    // Their releases are asked by probes.
    script.config.health.probe_ms = 50;
    script
}

fn completion(stream: bool) -> String {
    let prompt = "a prompt of some blocks ".repeat(20);
    json!({"model": "sim", "prompt": prompt, "max_tokens": 12, "stream": stream}).to_string()
}

fn chat(words: usize, stream: bool) -> String {
    let content = "many words ".repeat(words);
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]);
    json!({"model": "sim", "messages": messages, "max_tokens": 12, "stream": stream}).to_string()
}

/// Bodies that an engine received from clients, not from the gateway's own questions.
fn legs(engine: &Engine, path: &str) -> Vec<Value> {
    let seen = engine.seen().into_iter().filter(|seen| seen.path == path);
    let bodies = seen.map(|seen| serde_json::from_slice::<Value>(&seen.body).unwrap());
    bodies.filter(|body| ids(body).is_none_or(|ids| ids.len() != 3)).collect()
}

/// The ids of a chat's leg.
fn ids(body: &Value) -> Option<&Vec<Value>> {
    body.pointer("/kv_transfer_params/prompt_token_ids")?.as_array()
}

async fn words(stage: &Stage, path: &str, body: &str) -> String {
    let raw = stage.post(path, body).await;
    assert_eq!((raw.status, raw.complete), (200, true), "{}", raw.text());
    raw.words()
}

/// Sends chats until both legs of one have ids; the legs of the last one.
async fn legs_with_ids(stage: &Stage, body: &str) -> [Value; 2] {
    eventually("both legs have ids", async || {
        stage.forget();
        words(stage, CHAT, body).await;
        let last = |engine: &Engine| legs(engine, CHAT).pop().filter(|body| ids(body).is_some());
        Some([last(&stage.prefillers[0])?, last(&stage.decoders[0])?])
    })
    .await
}

/// Sends completions until both legs of one have ids: the engines' releases are known then.
async fn await_releases(stage: &Stage) {
    eventually("both legs have ids", async || {
        stage.forget();
        words(stage, COMPLETIONS, &completion(false)).await;
        let has_ids =
            |engine: &Engine| legs(engine, COMPLETIONS).iter().all(|body| body["prompt"].is_array());
        stage.engines().all(has_ids).then_some(())
    })
    .await;
    stage.forget();
}

#[tokio::test]
async fn completions_are_answered_as_without_ids_and_both_legs_have_them() {
    let (plain, stage) = (Stage::set(script(false, fast())).await, Stage::set(script(true, fast())).await);
    await_releases(&stage).await;
    for stream in [false, true] {
        let body = completion(stream);
        assert_eq!(words(&stage, COMPLETIONS, &body).await, words(&plain, COMPLETIONS, &body).await);
    }
    for (engines, is_list) in [(&plain, false), (&stage, true)] {
        for engine in engines.engines() {
            let legs = legs(engine, COMPLETIONS);
            assert_eq!(legs.len(), 2);
            assert!(legs.iter().all(|body| body["prompt"].is_array() == is_list), "{legs:?}");
        }
    }
    stage.assert_nothing_left("as tokens").await;
    plain.end().await;
    stage.end().await;
}

#[tokio::test]
async fn bodies_whose_answer_needs_the_text_go_as_they_came() {
    let stage = Stage::set(script(true, fast())).await;
    await_releases(&stage).await;
    let ids = json!({"model": "sim", "prompt": [90, 91, 92], "max_tokens": 2}).to_string();
    let echo = json!({"model": "sim", "prompt": "a text", "max_tokens": 2, "echo": true}).to_string();
    let other = json!({"model": "other", "prompt": "a text", "max_tokens": 2}).to_string();
    for body in [&ids, &echo] {
        words(&stage, COMPLETIONS, body).await;
    }
    assert_eq!(stage.post(COMPLETIONS, &other).await.status, 404, "it may be an adapter");
    let prompts: Vec<Value> =
        legs(&stage.prefillers[0], COMPLETIONS).into_iter().map(|mut body| body["prompt"].take()).collect();
    assert_eq!(prompts, [json!([90, 91, 92]), json!("a text"), json!("a text")]);
    stage.end().await;
}

#[tokio::test]
async fn completions_have_ids_at_releases_that_were_compared() {
    for (version, has_ids) in [("0.17.1", false), ("0.18.0", true)] {
        let stage = Stage::set(script(true, EngineSpec { version: version.to_owned(), ..fast() })).await;
        eventually("their releases are known", async || {
            let listed = stage.get("/instances").await;
            (listed.text().matches(version).count() >= 2).then_some(())
        })
        .await;
        words(&stage, COMPLETIONS, &completion(false)).await;
        for engine in stage.engines() {
            let body = legs(engine, COMPLETIONS).pop().unwrap();
            assert_eq!(body["prompt"].is_array(), has_ids, "{version}: {body}");
        }
        stage.end().await;
    }
}

#[tokio::test]
async fn chats_have_ids_once_engines_have_shown_that_they_take_them() {
    let (plain, stage) = (Stage::set(script(false, fast())).await, Stage::set(script(true, fast())).await);
    let (short, long) = (chat(9, false), chat(900, true));
    let [prefill, decode] = legs_with_ids(&stage, &short).await;
    let messages = serde_json::from_str::<Value>(&short).unwrap()["messages"].take();
    assert!(prefill["messages"] == messages && decode["messages"] == messages);
    assert_eq!(ids(&prefill), ids(&decode));
    assert_eq!(words(&stage, CHAT, &short).await, words(&plain, CHAT, &short).await);

    let [prefill, decode] = legs_with_ids(&stage, &long).await;
    let messages = serde_json::from_str::<Value>(&long).unwrap()["messages"].take();
    assert!(prefill["messages"][0]["content"] == "." && decode["messages"] == messages);
    assert_eq!(words(&stage, CHAT, &long).await, words(&plain, CHAT, &long).await);
    assert!(plain.engines().all(|engine| legs(engine, CHAT).iter().all(|body| ids(body).is_none())));
    stage.assert_nothing_left("as tokens").await;
    plain.end().await;
    stage.end().await;
}

#[tokio::test]
async fn engines_that_take_no_ids_of_chats_are_sent_none() {
    let older = EngineSpec { version: "0.31.1".to_owned(), takes_chat_ids: false, ..fast() };
    let other = EngineSpec { takes_chat_ids: false, ..fast() };
    for (spec, questions) in [(older, 0), (other, 1)] {
        let stage = Stage::set(script(true, spec)).await;
        let asked = |engine: &Engine| {
            let seen = engine.seen().into_iter().filter(|seen| seen.path == CHAT);
            seen.filter(|seen| serde_json::from_slice(&seen.body).is_ok_and(|body| ids(&body).is_some()))
                .count()
        };
        // Whoever is asked is asked once its release is known, which an answer of `/version` shows.
        eventually("they are looked at", async || {
            stage.engines().all(|engine| {
                engine.seen().iter().any(|seen| seen.path == "/version") && asked(engine) == questions
            })
        })
        .await;
        words(&stage, CHAT, &chat(900, false)).await;
        assert!(stage.engines().all(|engine| asked(engine) == questions));
        stage.end().await;
    }
}

#[tokio::test]
async fn prefiller_that_computes_something_else_is_not_believed() {
    let stage = Stage::set(script(true, fast())).await;
    let body = chat(900, false);
    legs_with_ids(&stage, &body).await;
    let expect = words(&stage, CHAT, &body).await;
    stage.forget();
    // What a process of an older release makes of the stand-in.
    let answer =
        json!({"choices": [{}], "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}});
    let mut fault = Fault::once(FaultKind::Status(200, Some(answer.to_string().into())));
    fault.on.contains = Some("\"content\":\".\"".to_owned());
    assert!(stage.prefillers[0].inject(fault));
    assert_eq!(words(&stage, CHAT, &body).await, expect);
    let legs = legs(&stage.prefillers[0], CHAT);
    assert_eq!(legs.iter().map(|body| ids(body).is_some()).collect::<Vec<_>>(), [true, false]);
    stage.end().await;
}

#[tokio::test]
async fn decoders_get_the_ids_that_their_prefiller_made_where_nobody_else_knows_them() {
    let untold = |send_ids| {
        let mut script = script(send_ids, fast());
        script.config.prompt.tokens = Tokens::Off;
        script
    };
    let (plain, stage) = (Stage::set(untold(false)).await, Stage::set(untold(true)).await);
    let prompt = "a prompt of some blocks ".repeat(300);
    for stream in [false, true] {
        let completion =
            json!({"model": "sim", "prompt": prompt, "max_tokens": 12, "stream": stream}).to_string();
        let answer = words(&stage, COMPLETIONS, &completion).await;
        assert_eq!(answer, words(&plain, COMPLETIONS, &completion).await);
        let body = chat(900, stream);
        let decode = eventually("the decoder has ids", async || {
            stage.forget();
            words(&stage, CHAT, &body).await;
            legs(&stage.decoders[0], CHAT).pop().filter(|body| ids(body).is_some())
        })
        .await;
        let prefill = legs(&stage.prefillers[0], CHAT).pop().unwrap();
        assert!(ids(&prefill).is_none() && prefill["return_token_ids"] == json!(true), "{prefill}");
        assert_eq!((&decode["messages"], decode.get("return_token_ids")), (&prefill["messages"], None));
        assert_eq!(words(&stage, CHAT, &body).await, words(&plain, CHAT, &body).await);
    }
    let prefill = legs(&plain.prefillers[0], COMPLETIONS).pop().unwrap();
    assert!(prefill["prompt"].is_string() && prefill.get("return_token_ids").is_none());
    words(&stage, COMPLETIONS, &completion(false)).await;
    let decode = legs(&stage.decoders[0], COMPLETIONS).pop().unwrap();
    assert!(decode["prompt"].is_string(), "so short a prompt is not worth it");
    stage.assert_nothing_left("as tokens").await;
    plain.end().await;
    stage.end().await;
}

#[tokio::test]
async fn failing_engines_and_broken_streams_are_invisible_with_ids_too() {
    for tokens in [Tokens::Engine, Tokens::Off] {
        // A decoder that fails with a hand-off leaves it to its lease.
        let mut script = script(true, EngineSpec { lease_ms: 1_500, ..fast() });
        script.config.engine.lease_ms = 1_500;
        script.config.prompt.tokens = tokens;
        (script.prefillers, script.decoders) = (2, 2);
        script.config.retry.resume = true;
        script.config.health.rest_ms = 1;
        let stage = Stage::set(script).await;
        let bodies = [(CHAT, chat(900, true)), (COMPLETIONS, completion(true))];
        eventually("decoders have ids", async || {
            stage.forget();
            words(&stage, CHAT, &bodies[0].1).await;
            stage.decoders.iter().flat_map(|decoder| legs(decoder, CHAT)).any(|body| ids(&body).is_some())
        })
        .await;
        for (path, body) in &bodies {
            let expect = words(&stage, path, body).await;
            for fault in [
                FaultKind::ResetBeforeHead,
                FaultKind::Status(500, None),
                FaultKind::Status(503, None),
                FaultKind::EndAfterEvents(5),
            ] {
                for engines in [&stage.prefillers, &stage.decoders] {
                    let when = format!("{tokens:?} {path} {fault:?}");
                    assert!(engines[0].inject(Fault::once(fault.clone()).on_path(path)));
                    for _ in 0..3 {
                        assert_eq!(words(&stage, path, body).await, expect, "{when}");
                    }
                    stage.heal();
                }
            }
        }
        stage.assert_nothing_left("after faults").await;
        stage.end().await;
    }
}
