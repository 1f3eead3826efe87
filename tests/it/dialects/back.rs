//! KV that decoders offer back: the next turn's prefill reads it, once, where tokens are provably
//! the same; whatever goes wrong with it, the client gets the right answer.

use pd_proxy::config::{DialectName, Tokens};
use pd_proxy::sim::{Connector, EngineSpec, Fault, FaultKind};
use serde_json::{Value, json};

use super::script;
use crate::common::client;
use crate::common::stage::{Script, Stage};
use crate::common::time::eventually;

const PATH: &str = "/v1/completions";

fn two_way(on: bool, kept_back_ms: u64) -> Script {
    let mut script = script((DialectName::KvTransfer, Connector::Handoff));
    script.prefillers = 1;
    script.engine = EngineSpec { bidirectional: true, kept_back_ms, ..script.engine };
    script.config.dialect.bidirectional = on;
    script.config.prompt.tokens = Tokens::Engine;
    script.config.prompt.budget_ms = 10_000;
    script.config.hash.seed = Some("0".into());
    script.config.timeout.prefill_ms = 5_000;
    script
}

/// BlockNaming is known once the engines have been asked.
async fn stage(script: Script) -> Stage {
    let stage = Stage::set(script).await;
    eventually("blocks have names", async || stage.get("/readyz").await.status == 200).await;
    stage
}

fn body(prompt: &Value, more: &[(&str, Value)]) -> String {
    let mut body = json!({"model": "sim", "prompt": prompt, "max_tokens": 110, "temperature": 0});
    for (key, value) in more {
        body[*key] = value.clone();
    }
    body.to_string()
}

async fn ask(stage: &Stage, prompt: &Value, more: &[(&str, Value)]) -> Value {
    let answer = stage.post(PATH, &body(prompt, more)).await;
    assert_eq!((answer.status, answer.complete), (200, true), "{}", answer.text());
    let answer = answer.json();
    assert_eq!(answer["kv_transfer_params"], Value::Null, "no engine's address leaves the gateway");
    answer
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Prompt and answer of a first turn, by their ids.
async fn first_turn(stage: &Stage, text: &str) -> (Vec<u32>, Vec<u32>) {
    let text = json!(format!("{text} {}", "which is long enough to be worth it ".repeat(20)));
    let answer = ask(stage, &text, &[("return_token_ids", json!(true))]).await;
    (ids(&answer["choices"][0]["prompt_token_ids"]), ids(&answer["choices"][0]["token_ids"]))
}

fn then(parts: &[&[u32]]) -> Value {
    json!(parts.concat())
}

/// The text of a plain engine's answer.
async fn right(prompt: &Value) -> String {
    let alone = Stage::set(Script { prefillers: 1, decoders: 1, ..Script::default() }).await;
    let words = alone.post(PATH, &body(prompt, &[])).await.words();
    alone.end().await;
    words
}

/// The KV that prefillers were told to read, in tokens and blocks; nothing if they were to compute.
fn offers(stage: &Stage) -> Vec<Option<(u64, usize)>> {
    let prefills = stage.seen(&stage.prefillers);
    let prefills = prefills.iter().filter(|seen| seen.path == PATH);
    prefills
        .map(|seen| {
            let body: Value = serde_json::from_slice(&seen.body).unwrap();
            let params = &body["kv_transfer_params"];
            assert_eq!(params["do_remote_decode"], json!(true));
            let blocks = params["remote_block_ids"][0].as_array()?;
            Some((params["remote_num_tokens"].as_u64().unwrap(), blocks.len()))
        })
        .collect()
}

/// The offers, by the decoder's names.
fn names(stage: &Stage) -> Vec<String> {
    let prefills = stage.seen(&stage.prefillers);
    let bodies = prefills.iter().filter(|seen| seen.path == PATH);
    let params =
        bodies.map(|seen| serde_json::from_slice::<Value>(&seen.body).unwrap()["kv_transfer_params"].take());
    params.filter_map(|params| params["remote_request_id"].as_str().map(str::to_owned)).collect()
}

/// Tokens that prefillers had from elsewhere.
async fn read_back(stage: &Stage) -> u64 {
    let mut sum = 0;
    for prefiller in &stage.prefillers {
        let text = client::send(prefiller.addr(), &client::get("/metrics")).await.text();
        let lines = text.lines().filter(|l| l.starts_with("vllm:prompt_tokens_by_source_total"));
        let lines = lines.filter(|l| l.contains("external_kv_transfer"));
        sum += lines.filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).map(|n| n as u64).sum::<u64>();
    }
    sum
}

#[tokio::test]
async fn the_next_turn_reads_what_the_decoder_wrote() {
    let stage = stage(two_way(true, 60_000)).await;
    let (prompt, answer) = first_turn(&stage, "a story").await;
    let held: usize = stage.decoders.iter().map(|d| d.ledger().pinned_handoffs).sum();
    assert_eq!(held, 1, "the decoder keeps it");
    let next = then(&[&prompt, &answer, &prompt[..40]]);
    stage.forget();
    let said = ask(&stage, &next, &[]).await;
    let all = prompt.len() + answer.len() - 1;
    assert_eq!(offers(&stage), [Some(((all / 16 * 16) as u64, all / 16))]);
    let read = read_back(&stage).await;
    assert_eq!(read as usize, (all / 16 - prompt.len() / 16) * 16, "what it did not have itself");
    assert_eq!(said["choices"][0]["text"].as_str().unwrap(), right(&next).await);
    let released: u64 = stage.decoders.iter().map(|d| d.ledger().released_by_decode).sum();
    assert_eq!(released, 1, "what was read is let go");
    // Once: the same turn again is offered what the decoder keeps of this one, and then of that
    // one.
    let first = names(&stage);
    ask(&stage, &next, &[]).await;
    ask(&stage, &next, &[]).await;
    let all = names(&stage);
    assert_eq!((first.len(), all.len()), (1, 3));
    assert_eq!(all.iter().collect::<std::collections::HashSet<_>>().len(), 3, "{all:?}");
    stage.assert_all_alive("turns");
    stage.end().await;
}

#[tokio::test]
async fn decoders_kv_params_do_not_reach_clients() {
    let stage = stage(two_way(true, 60_000)).await;
    let text = json!("a question ".repeat(30));
    let answer = ask(&stage, &text, &[]).await;
    let choice = &answer["choices"][0];
    assert_eq!((&choice["token_ids"], &choice["prompt_token_ids"]), (&Value::Null, &Value::Null));
    let decodes = stage.seen(&stage.decoders);
    let asked: Value = serde_json::from_slice(&decodes.last().unwrap().body).unwrap();
    assert_eq!(asked["return_token_ids"], json!(true), "they are how it is told what is kept");
    stage.end().await;
}

/// vLLM 0.33 says in the last chunk of a stream what its connector returned.
#[tokio::test]
async fn kv_params_in_streams_do_not_reach_clients() {
    for path in [PATH, "/v1/chat/completions"] {
        let mut script = two_way(true, 60_000);
        script.engine.streams_handoff = true;
        let stage = stage(script).await;
        let text = "a question ".repeat(30);
        let more = json!({"prompt": text, "messages": [{"role": "user", "content": text}], "stream": true,
            "max_tokens": 9, "model": "sim"});
        let answer = stage.post(path, &more.to_string()).await;
        assert_eq!((answer.status, answer.complete, answer.done()), (200, true, true), "{}", answer.text());
        let told = |event: &Value| event.get("kv_transfer_params").cloned();
        let events = answer.events();
        assert!(
            events.len() >= 9 && events.iter().all(|event| told(event) == Some(Value::Null)),
            "{events:?}"
        );
        let held: usize = stage.decoders.iter().map(|d| d.ledger().pinned_handoffs).sum();
        assert_eq!(held, 1, "the decoder keeps it");
        stage.end().await;
    }
}

#[tokio::test]
async fn nothing_is_asked_or_offered_where_it_is_off_but_addresses_stay_inside() {
    let stage = stage(two_way(false, 60_000)).await;
    let (prompt, answer) = first_turn(&stage, "an essay").await;
    stage.forget();
    ask(&stage, &then(&[&prompt, &answer, &prompt[..40]]), &[]).await;
    assert_eq!(offers(&stage), [None]);
    let asked: Value = serde_json::from_slice(&stage.seen(&stage.decoders)[0].body).unwrap();
    assert_eq!(asked.get("return_token_ids"), None);
    stage.end().await;
}

#[tokio::test]
async fn another_history_gets_what_it_has_in_common_and_no_more() {
    let stage = stage(two_way(true, 60_000)).await;
    for (name, kept) in [("all but the answer's end", 90), ("a bit of the answer", 20), ("no answer", 0)] {
        let (prompt, answer) = first_turn(&stage, name).await;
        // Behind it something else stands than the decoder wrote.
        let next = then(&[&prompt, &answer[..kept], &prompt[7..100]]);
        stage.forget();
        let said = ask(&stage, &next, &[]).await;
        let common = (prompt.len() + kept) / 16;
        assert_eq!(offers(&stage)[0], Some(((common * 16) as u64, common)), "{name}");
        assert_eq!(said["choices"][0]["text"].as_str().unwrap(), right(&next).await, "{name}");
    }
    // The beginning of what was said, in another order; and a prompt that is shorter.
    let (prompt, answer) = first_turn(&stage, "shorter").await;
    let next = then(&[&prompt, &answer[..30]]);
    stage.forget();
    let said = ask(&stage, &next, &[]).await;
    let common = (prompt.len() + 30 - 1) / 16;
    assert_eq!(offers(&stage)[0], Some(((common * 16) as u64, common)));
    assert_eq!(said["choices"][0]["text"].as_str().unwrap(), right(&next).await);
    let (prompt, answer) = first_turn(&stage, "elsewhere").await;
    stage.forget();
    ask(&stage, &then(&[&prompt[1..], &answer, &prompt]), &[]).await;
    ask(&stage, &then(&[&prompt, &answer, &prompt]), &[("cache_salt", json!("another"))]).await;
    assert_eq!(offers(&stage), [None, None], "another beginning, or another salt");
    stage.end().await;
}

#[tokio::test]
async fn an_offer_that_fails_costs_an_attempt_that_is_not_counted() {
    // The decoder has let go by the time of the next turn.
    let mut script = two_way(true, 1);
    script.config.retry.attempts = 1;
    let gone = stage(script).await;
    let (prompt, answer) = first_turn(&gone, "a report").await;
    let held = || gone.decoders.iter().map(|decoder| decoder.ledger().pinned_handoffs).sum::<usize>();
    eventually("the decoder has let go", async || held() == 0).await;
    let next = then(&[&prompt, &answer, &prompt[..40]]);
    gone.forget();
    let said = ask(&gone, &next, &[]).await;
    assert!(matches!(offers(&gone)[..], [Some(_), None]), "{:?}", offers(&gone));
    assert_eq!(said["choices"][0]["text"].as_str().unwrap(), right(&next).await);
    gone.end().await;

    // A prefiller refuses it, as one may that knows of no such thing.
    for status in [400, 500] {
        let mut script = two_way(true, 60_000);
        script.config.retry.attempts = 1;
        let stage = stage(script).await;
        let (prompt, answer) = first_turn(&stage, "a letter").await;
        let next = then(&[&prompt, &answer, &prompt[..40]]);
        stage.forget();
        stage.prefillers_fail(&Fault::once(FaultKind::Status(status, None)).on_path(PATH));
        ask(&stage, &next, &[]).await;
        assert!(matches!(offers(&stage)[..], [Some(_), None]), "{status}: {:?}", offers(&stage));
        stage.end().await;
    }
}

#[tokio::test]
async fn a_decoder_that_dies_takes_its_offers_along() {
    let stage = stage(two_way(true, 60_000)).await;
    let (prompt, answer) = first_turn(&stage, "a poem").await;
    let keeper = stage.decoders.iter().find(|d| d.ledger().pinned_handoffs > 0).unwrap();
    keeper.kill().await;
    let next = then(&[&prompt, &answer, &prompt[..40]]);
    let said = ask(&stage, &next, &[]).await;
    assert_eq!(said["choices"][0]["text"].as_str().unwrap(), right(&next).await);
    stage.end().await;
}

#[tokio::test]
async fn kv_that_is_not_taken_is_freed_by_the_decoder() {
    let stage = stage(two_way(true, 300)).await;
    first_turn(&stage, "a note").await;
    stage.assert_nothing_left("nobody came back").await;
    // Before vLLM 0.33 streamed answers can't be offered back; what is kept is freed likewise.
    let streamed = stage.post(PATH, &body(&json!("a note ".repeat(40)), &[("stream", json!(true))])).await;
    assert!(streamed.done() && !streamed.text().contains("remote_"));
    stage.assert_nothing_left("of a stream").await;
    stage.end().await;
}

/// Engines that tell at the end of a stream what they keep, as vLLM does from 0.33 on, and whose
/// release the gateway knows.
async fn telling(version: &str, resume: bool) -> Stage {
    let mut script = two_way(true, 60_000);
    script.engine.streams_handoff = true;
    script.engine.version = version.into();
    script.config.retry.resume = resume;
    // Releases are asked by probes.
    script.config.health.probe_ms = 50;
    let stage = stage(script).await;
    eventually("the decoders' releases are known", async || {
        let listed = stage.get("/instances").await.json();
        let all = listed["instances"].as_array().unwrap();
        all.iter().all(|member| member["release"] == *version)
    })
    .await;
    stage
}

/// The ids of a streamed turn: of its prompt, and of its answer.
async fn streamed_turn(stage: &Stage, text: &str) -> (Vec<u32>, Vec<u32>) {
    let text = json!(format!("{text} {}", "which is long enough to be worth it ".repeat(20)));
    let more = [("stream", json!(true)), ("return_token_ids", json!(true))];
    let answer = stage.post(PATH, &body(&text, &more)).await;
    assert_eq!((answer.status, answer.complete, answer.done()), (200, true, true), "{}", answer.text());
    let choices: Vec<Value> = answer.events().iter().map(|event| event["choices"][0].clone()).collect();
    let told = |choice: &Value| ids(&choice["token_ids"]);
    (ids(&choices[0]["prompt_token_ids"]), choices.iter().flat_map(told).collect())
}

#[tokio::test]
async fn the_next_turn_reads_what_a_decoder_wrote_into_a_stream() {
    for resume in [false, true] {
        let stage = telling("0.33.0", resume).await;
        let (prompt, answer) = streamed_turn(&stage, "a story").await;
        assert_eq!(answer.len(), 110);
        let next = then(&[&prompt, &answer, &prompt[..40]]);
        stage.forget();
        let said = stage.post(PATH, &body(&next, &[("stream", json!(true))])).await;
        let all = prompt.len() + answer.len() - 1;
        assert_eq!(offers(&stage), [Some(((all / 16 * 16) as u64, all / 16))], "resume {resume}");
        let read = read_back(&stage).await;
        assert_eq!(read as usize, (all / 16 - prompt.len() / 16) * 16, "what it did not have itself");
        assert_eq!(said.words(), right(&next).await);
        let text = said.text();
        assert!(!text.contains("remote_") && !text.contains("token_ids\":["), "{text}");
        stage.assert_all_alive("turns");
        stage.end().await;
    }
}

#[tokio::test]
async fn a_stream_that_another_decoder_went_on_with_is_offered_whole() {
    let stage = telling("0.33.0", true).await;
    stage.decoders_fail(&Fault::once(FaultKind::EndAfterEvents(50)).on_path(PATH));
    let (prompt, answer) = streamed_turn(&stage, "a tale").await;
    stage.heal();
    assert_eq!(answer.len(), 110);
    let next = then(&[&prompt, &answer, &prompt[..40]]);
    stage.forget();
    let said = ask(&stage, &next, &[]).await;
    let all = prompt.len() + answer.len() - 1;
    assert_eq!(offers(&stage), [Some(((all / 16 * 16) as u64, all / 16))]);
    assert_eq!(said["choices"][0]["text"].as_str().unwrap(), right(&next).await);
    stage.end().await;
}

#[tokio::test]
async fn clients_read_the_stream_of_decoders_that_keep_nothing() {
    let plain = Stage::set(Script { prefillers: 1, decoders: 1, ..Script::default() }).await;
    let stage = telling("0.33.0", false).await;
    for path in [PATH, "/v1/chat/completions"] {
        let text = "a question ".repeat(30);
        let body = json!({"prompt": text, "messages": [{"role": "user", "content": text}], "stream": true,
            "max_tokens": 20, "model": "sim"});
        stage.forget();
        let (told, wanted) =
            (stage.post(path, &body.to_string()).await, plain.post(path, &body.to_string()).await);
        let asked: Value = serde_json::from_slice(&stage.seen(&stage.decoders)[0].body).unwrap();
        assert_eq!(asked["return_token_ids"], json!(true), "they are how it is told what is kept");
        let cleared = |answer: &client::Raw| {
            let mut events = answer.events();
            for event in &mut events {
                for key in ["id", "created", "kv_transfer_params"] {
                    assert!(key != "kv_transfer_params" || event.get(key).is_none_or(Value::is_null));
                    event.as_object_mut().unwrap().remove(key);
                }
            }
            events
        };
        assert_eq!(cleared(&told), cleared(&wanted), "{path}");
    }
    plain.end().await;
    stage.end().await;
}

#[tokio::test]
async fn older_decoders_are_asked_for_no_ids_of_a_stream() {
    let stage = telling("0.32.0", false).await;
    let streamed = stage.post(PATH, &body(&json!("a note ".repeat(40)), &[("stream", json!(true))])).await;
    assert!(streamed.done(), "{}", streamed.text());
    let asked: Value = serde_json::from_slice(&stage.seen(&stage.decoders)[0].body).unwrap();
    assert_eq!(asked.get("return_token_ids"), None);
    stage.end().await;
}
