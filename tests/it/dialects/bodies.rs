//! Bodies of both legs, against the known form of each connector (the sources are named in
//! `dialect/…`), for both APIs, streamed and not.

use pd_proxy::config::DialectName;
use pd_proxy::sim::{EngineSpec, ObservedRequest};
use serde_json::{Value, json};

use super::{EVERY, SPOKEN, Spoken, chat, completion, script};
use crate::common::memory::Memory;
use crate::common::stage::{Stage, slow};
use crate::common::time::{eventually, pass};

fn body(seen: &ObservedRequest) -> Value {
    serde_json::from_slice(&seen.body).unwrap()
}

fn header<'a>(seen: &'a ObservedRequest, name: &str) -> Option<&'a str> {
    seen.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// The client's body with what a prefiller must see in it: one token, not streamed.
fn one_token(sent: &str, stream: bool) -> Value {
    let mut body: Value = serde_json::from_str(sent).unwrap();
    body["max_tokens"] = json!(1);
    body["min_tokens"] = json!(1);
    body["stream"] = json!(false);
    assert!(stream || body.get("stream_options").is_none());
    body
}

fn params(value: &mut Value) -> Value {
    value.as_object_mut().unwrap().remove("kv_transfer_params").unwrap_or(Value::Null)
}

/// SGLang: the client's body, and the same room on both sides.
fn rooms((mut p, mut d): (Value, Value), client: Value, when: &str) {
    for key in ["bootstrap_host", "bootstrap_port", "bootstrap_room"] {
        assert_eq!(p[key], d[key], "{when}");
        p.as_object_mut().unwrap().remove(key).unwrap();
        d.as_object_mut().unwrap().remove(key).unwrap();
    }
    let mut whole = client.clone();
    whole["stream"] = json!(false);
    assert_eq!((p, d), (whole, client), "{when}");
}

fn check((name, _): Spoken, sent: &str, stream: bool, prefill: &ObservedRequest, decode: &ObservedRequest) {
    let when = format!("{name} stream {stream}");
    let (mut p, mut d) = (body(prefill), body(decode));
    let id = header(prefill, "x-request-id");
    assert!(id.is_some() && id == header(decode, "x-request-id"), "{when}: one id for both legs");
    let (asked, given) = (params(&mut p), params(&mut d));
    let client: Value = serde_json::from_str(sent).unwrap();
    match name {
        DialectName::KvTransfer | DialectName::NixlPush => {
            assert_eq!((p, d), (one_token(sent, stream), client), "{when}");
            assert_eq!(
                asked,
                json!({"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
                    "remote_block_ids": null, "remote_host": null, "remote_port": null}),
                "{when}"
            );
            assert_eq!(
                (&given["do_remote_prefill"], &given["do_remote_decode"]),
                (&json!(true), &json!(false))
            );
            assert!(
                given["remote_engine_id"].is_string() && given["remote_host"].is_string(),
                "{when}: {given}"
            );
            assert!(
                given["remote_request_id"].is_string() && given["remote_block_ids"].is_array(),
                "{when}: {given}"
            );
        }
        DialectName::Mooncake => {
            assert_eq!((p, d), (one_token(sent, stream), client), "{when}");
            let id = asked["transfer_id"].as_str().unwrap();
            assert_eq!(id.len(), 32, "{when}");
            assert_eq!(
                asked,
                json!({"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": id})
            );
            let at = given["remote_bootstrap_addr"].as_str().unwrap();
            assert!(at.starts_with("http://127."), "{when}: {at}");
            assert_eq!((&given["transfer_id"], given.as_object().unwrap().len()), (&json!(id), 5), "{when}");
            assert!(
                given["remote_engine_id"].is_string() && given["do_remote_prefill"] == json!(true),
                "{when}"
            );
        }
        DialectName::Sglang => {
            assert_eq!((&asked, &given), (&Value::Null, &Value::Null), "{when}");
            rooms((p, d), client, &when);
        }
        DialectName::Moriio => panic!("that one is in golden.rs"),
        DialectName::Auto | DialectName::Pool | DialectName::Layerwise => panic!("nothing is handed over"),
    }
}

#[tokio::test]
async fn each_engine_is_told_what_its_connector_wants() {
    for spoken in SPOKEN {
        let stage = Stage::set(script(spoken)).await;
        for stream in [false, true] {
            for (path, sent) in [completion(stream), chat(stream)] {
                stage.forget();
                assert_eq!(stage.post(path, &sent).await.status, 200, "{spoken:?}");
                let (prefills, decodes) = (stage.seen(&stage.prefillers), stage.seen(&stage.decoders));
                assert_eq!((prefills.len(), decodes.len()), (1, 1), "{spoken:?}");
                check(spoken, &sent, stream, &prefills[0], &decodes[0]);
            }
        }
        stage.end().await;
    }
}

#[tokio::test]
async fn names_and_rooms_are_never_used_twice() {
    for spoken in [SPOKEN[1], SPOKEN[3]] {
        let stage = Stage::set(script(spoken)).await;
        for _ in 0..8 {
            assert_eq!(stage.post(completion(false).0, &completion(false).1).await.status, 200);
        }
        let prefills = stage.seen(&stage.prefillers);
        let names = prefills.iter().map(|seen| {
            let body = body(seen);
            body.pointer("/kv_transfer_params/transfer_id").unwrap_or(&body["bootstrap_room"]).to_string()
        });
        let names: std::collections::HashSet<String> = names.collect();
        assert_eq!(names.len(), 8, "{spoken:?}");
        stage.end().await;
    }
}

#[tokio::test]
async fn a_client_can_not_choose_where_engines_meet() {
    for spoken in EVERY {
        let stage = Stage::set(script(spoken)).await;
        let (path, sent) = completion(false);
        let evil = sent.replacen('{', r#"{"kv_transfer_params":{"transfer_id":"evil","remote_host":"evil"},"bootstrap_room":666,"bootstrap_host":"evil","#, 1);
        assert_eq!(stage.post(path, &evil).await.status, 200, "{spoken:?}");
        for seen in stage.seen(&stage.prefillers).iter().chain(&stage.seen(&stage.decoders)) {
            let text = String::from_utf8_lossy(&seen.body);
            assert!(!text.contains("evil") && !text.contains("666,"), "{spoken:?}: {text}");
        }
        stage.end().await;
    }
}

/// The decoder has its request while the prefiller still computes. In virtual time: what is not
/// sent in the first part of a prefill is not sent at once.
#[tokio::test(start_paused = true)]
async fn legs_that_can_run_at_once_do() {
    for (spoken, at_once) in [(SPOKEN[0], false), (SPOKEN[1], false), (SPOKEN[2], true), (SPOKEN[3], true)] {
        let mut script = script(spoken);
        let engine = EngineSpec { connector: spoken.1, prefill_tokens_per_s: 300.0, ..slow() };
        script.config.timeout.prefill_ms = 20_000;
        script.config.timeout.answer_ms = 20_000;
        let memory = Memory::set(1, &engine, script.config).await;
        // The first request to a prefiller teaches who it is.
        let (path, sent) = completion(false);
        let (status, text) = memory.post(path, r#"{"model":"sim","prompt":"x","max_tokens":2}"#).await;
        assert_eq!(status, 200, "{spoken:?}: {text}");
        memory.decoders[0].clear_seen();
        let early = async {
            eventually("a prefill", async || memory.prefillers[0].ledger().running == 1).await;
            pass(std::time::Duration::from_millis(60)).await;
            let asked = memory.decoders[0].seen().iter().filter(|seen| seen.path == path).count();
            (asked, memory.prefillers[0].ledger().running)
        };
        let ((status, text), (decodes, prefills)) = tokio::join!(memory.post(path, sent.clone()), early);
        assert_eq!(status, 200, "{spoken:?}: {text}");
        assert_eq!(prefills, 1, "{spoken:?}: it takes about a tenth of a second and more");
        assert_eq!(decodes, usize::from(at_once), "{spoken:?}");
    }
}
