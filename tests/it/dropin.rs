//! Both legs' bodies and headers against the contract of the proxies that this gateway replaces,
//! written down a second time here with a JSON tree instead of a splice, and against what such a
//! proxy was recorded to send.

use std::sync::Arc;

use pd_proxy::sim::{Connector, EngineSpec, Fault, FaultKind, ObservedRequest, Pool};
use serde_json::{Value, json};

use crate::common::client;
use crate::common::stage::{Script, Stage, fast};

/// The contract for the prefill leg, on a tree.
fn prefill_of(client: &Value) -> Value {
    let mut body = client.as_object().unwrap().clone();
    for dropped in ["stream_options", "ec_transfer_params", "bootstrap_room"] {
        body.remove(dropped);
    }
    body.insert(
        "kv_transfer_params".into(),
        json!({"do_remote_decode": true, "do_remote_prefill": false,
        "remote_engine_id": null, "remote_block_ids": null, "remote_host": null, "remote_port": null}),
    );
    body.insert("stream".into(), json!(false));
    body.insert("max_tokens".into(), json!(1));
    body.insert("min_tokens".into(), json!(1));
    for only_if_sent in ["max_completion_tokens", "n"] {
        if body.contains_key(only_if_sent) {
            body.insert(only_if_sent.into(), json!(1));
        }
    }
    body.into()
}

/// The contract for the decode leg: the client's body, and the hand-off in place of whatever the
/// client put there.
fn decode_of(client: &Value, handoff: &Value) -> Value {
    let mut body = client.as_object().unwrap().clone();
    for dropped in ["ec_transfer_params", "bootstrap_room"] {
        body.remove(dropped);
    }
    body.insert("kv_transfer_params".into(), handoff.clone());
    body.into()
}

fn json_of(seen: &ObservedRequest) -> Value {
    serde_json::from_slice(&seen.body).unwrap()
}

fn header<'a>(seen: &'a ObservedRequest, name: &str) -> Vec<&'a str> {
    seen.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str()).collect()
}

/// Bodies as clients send them: odd spelling, unknown members, hostile members.
const BODIES: [(&str, &str); 8] = [
    ("/v1/completions", r#"{"model":"sim","prompt":"The import statement","max_tokens":4,"temperature":0}"#),
    (
        "/v1/completions",
        r#"{ "model" : "sim" , "prompt":"Grüße \ud83d\ude00 世界","max_tokens":4 , "stream":true,"stream_options":{"include_usage":true} }"#,
    ),
    (
        "/v1/completions",
        r#"{"prompt":[5,6,7],"model":"sim","seed":9223372036854775807,"top_p":1.0,"temperature":1e-2,"n":1}"#,
    ),
    (
        "/v1/completions",
        r#"{"prompt":"x","max_tokens":3,"max_tokens":4,"min_tokens":2,"zz_unknown":[1,{"a":null}]}"#,
    ),
    (
        "/v1/chat/completions",
        r#"{"messages":[{"role":"user","content":"a\"b\\c"}],"max_completion_tokens":5}"#,
    ),
    (
        "/v1/chat/completions",
        r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}],"tools":[],"stream":true,"max_tokens":3}"#,
    ),
    (
        "/v1/chat/completions",
        r#"{"kv_transfer_params":{"do_remote_prefill":true},"messages":[{"role":"user","content":"x"}],"ec_transfer_params":{"a":1},"bootstrap_room":7}"#,
    ),
    (
        "/v1/chat/completions",
        r#"{"messages":[{"role":"user","content":"kv_transfer_params"}],"kv_\u0074ransfer_params":{"do_remote_prefill":true},"kv_transfer_params":1}"#,
    ),
];

#[tokio::test]
async fn both_legs_get_what_the_contract_says() {
    let stage = Stage::new().await;
    for (path, body) in BODIES {
        stage.forget();
        let answer = stage.post(path, body).await;
        assert_eq!((answer.status, answer.complete), (200, true), "{body}: {}", answer.text());
        let (prefill, decode) = (stage.seen(&stage.prefillers), stage.seen(&stage.decoders));
        assert_eq!((prefill.len(), decode.len()), (1, 1), "{body}");
        let client: Value = serde_json::from_str(body).unwrap();
        assert_eq!(json_of(&prefill[0]), prefill_of(&client), "{body}");
        let sent = json_of(&decode[0]);
        let handoff = &sent["kv_transfer_params"];
        assert_eq!(handoff["do_remote_prefill"], json!(true), "{body}");
        assert_eq!(sent, decode_of(&client, handoff), "{body}");
        assert_eq!((prefill[0].path.as_str(), decode[0].path.as_str()), (path, path));
    }
    stage.assert_all_alive("after hostile bodies");
    stage.end().await;
}

#[tokio::test]
async fn other_members_are_forwarded_byte_for_byte() {
    let stage = Stage::new().await;
    let kept =
        r#""temperature":1.0E-0 , "prompt" : "\u00fc\ud83d\ude00 ü 😀","logit_bias":{"5":1e1},"zz":[ 1,2 ]"#;
    let body = format!(r#"{{"max_tokens":4,{kept},"stream":true}}"#);
    stage.post("/v1/completions", &body).await;
    for seen in stage.seen(&stage.prefillers).iter().chain(&stage.seen(&stage.decoders)) {
        let text = String::from_utf8(seen.body.to_vec()).unwrap();
        assert!(text.contains(kept), "{text}");
        assert_eq!(header(seen, "content-length"), [text.len().to_string()]);
    }
    stage.end().await;
}

#[tokio::test]
async fn both_legs_share_the_request_id_and_the_clients_headers() {
    let stage = Stage::new().await;
    let headers = [
        ("x-request-id", "run-7"),
        ("authorization", "Bearer abc"),
        ("traceparent", "00-a-b-01"),
        ("x-data-parallel-rank", "7"),
        ("accept-encoding", "gzip"),
    ];
    let answer = stage
        .send(&client::post_with("/v1/completions", &headers, br#"{"prompt":"x","max_tokens":2}"#))
        .await;
    assert_eq!(answer.header("x-request-id"), Some("run-7"));
    assert_eq!(answer.json()["id"], "cmpl-run-7");
    for seen in stage.seen(&stage.prefillers).iter().chain(&stage.seen(&stage.decoders)) {
        assert_eq!(header(seen, "x-request-id"), ["run-7"]);
        assert_eq!(header(seen, "authorization"), ["Bearer abc"]);
        assert_eq!(header(seen, "traceparent"), ["00-a-b-01"]);
        assert_eq!(header(seen, "content-type"), ["application/json"]);
        assert!(
            header(seen, "x-data-parallel-rank").is_empty() && header(seen, "accept-encoding").is_empty()
        );
    }
    stage.forget();
    let answer = stage
        .send(&client::post_with("/v1/completions", &[("x-request-id", "a b")], br#"{"prompt":"x"}"#))
        .await;
    let made = answer.header("x-request-id").unwrap().to_owned();
    assert_eq!(made.len(), 36, "a new uuid in place of an id that is not sane: {made}");
    assert_eq!(header(&stage.seen(&stage.prefillers)[0], "x-request-id"), [made.as_str()]);
    assert_eq!(header(&stage.seen(&stage.decoders)[0], "x-request-id"), [made.as_str()]);
    stage.end().await;
}

/// A recorded request of vllm-ascend's proxy, as JSON.
fn recorded(file: &str, nth: usize) -> Value {
    let path = format!("{}/tests/transcripts/tap-ascend/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let bodies: Vec<&str> =
        text.lines().filter(|l| l.starts_with("{\"model\"") && l.contains("kv_transfer_params\":")).collect();
    serde_json::from_str(bodies[nth]).unwrap()
}

#[tokio::test]
async fn the_reference_proxy_was_recorded_to_send_the_same() {
    let stage = Stage::new().await;
    let recorded_prefill = recorded("prefill-ok-001.txt", 0);
    let recorded_decode = recorded("decode-ok-001.txt", 0);
    let mut client = recorded_decode.clone();
    client.as_object_mut().unwrap().remove("kv_transfer_params");
    client["model"] = json!("sim");
    stage.post("/v1/completions", &client.to_string()).await;
    let as_recorded = |mut v: Value| {
        v["model"] = json!("tiny");
        v
    };
    assert_eq!(as_recorded(json_of(&stage.seen(&stage.prefillers)[0])), recorded_prefill);
    let mut decode = as_recorded(json_of(&stage.seen(&stage.decoders)[0]));
    let names = |v: &Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&decode["kv_transfer_params"]), names(&recorded_decode["kv_transfer_params"]));
    decode["kv_transfer_params"] = recorded_decode["kv_transfer_params"].clone();
    assert_eq!(decode, recorded_decode);
    stage.end().await;
}

/// Engines that move KV through a pool: what is in `kv_transfer_params` is nothing to them.
fn through_a_pool() -> Script {
    let engine = EngineSpec { connector: Connector::Pool, pool: Some(Arc::new(Pool::new(1024))), ..fast() };
    Script { engine, ..Script::default() }
}

#[tokio::test]
async fn a_handoff_reaches_the_decoder_as_the_prefiller_wrote_it() {
    let stage = Stage::set(through_a_pool()).await;
    let odd = r#"{"remote_block_ids": [[1,  2]],"ü":"\u00e9","x":1.0e0, "nested":{"kv_transfer_params":{}}}"#;
    stage.prefillers_fail(&Fault::always(FaultKind::BadHandoff(odd.into())));
    let answer = stage.post("/v1/completions", r#"{"prompt":"x","max_tokens":2}"#).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let decode = String::from_utf8(stage.seen(&stage.decoders)[0].body.to_vec()).unwrap();
    assert!(decode.contains(&format!(r#""kv_transfer_params":{odd}"#)), "{decode}");
    stage.end().await;
}

#[tokio::test]
async fn without_a_handoff_the_decoder_gets_none() {
    let stage = Stage::set(through_a_pool()).await;
    let prompt = "a prompt of several blocks ".repeat(20);
    let body = json!({"prompt": prompt, "max_tokens": 4, "kv_transfer_params": {"do_remote_prefill": true}})
        .to_string();
    let answer = stage.post("/v1/completions", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let decode = json_of(&stage.seen(&stage.decoders)[0]);
    assert_eq!(decode, json!({"prompt": prompt, "max_tokens": 4}));
    stage.end().await;
}
