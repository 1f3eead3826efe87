//! Calls that are repeated, unknown, late or broken; where they may come in, and where not.

use std::time::Duration;

use pd_proxy::sim::{Fault, FaultKind};
use serde_json::json;

use super::{CALLBACK, COMPLETIONS, begin, body, name_of_the_request, script, slow_prefills};
use crate::command::run;
use crate::common::client::{Raw, post_with, read, send};
use crate::common::place;
use crate::common::stage::Stage;
use crate::common::time::eventually;
use crate::surface::samples;

fn call(name: &str) -> String {
    json!({"request_id": name, "do_remote_decode": true, "remote_cached_tokens": 0}).to_string()
}

fn code(raw: &Raw) -> (u16, Option<&str>) {
    (raw.status, raw.header("x-pd-error"))
}

#[tokio::test]
async fn a_call_that_is_repeated_starts_nothing_and_hears_the_same() {
    let stage = Stage::set(slow_prefills(400.0)).await;
    let mut client = begin(stage.gateway, &body(false)).await;
    let name = name_of_the_request(&stage).await;
    eventually("the prefill", async || !stage.seen(&stage.prefillers).is_empty()).await;
    // While the prefiller is at work; other parameters than the first call's.
    let again = stage.post(CALLBACK, &call(&name)).await;
    assert_eq!((again.status, again.json()), (200, json!({"status": "ok"})));
    let answer = read(&mut client).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(stage.seen(&stage.prefillers).len(), 1, "no second prefill");
    // After the answer has begun.
    let late = stage.post(CALLBACK, &call(&name)).await;
    assert_eq!(late.status, 404, "{}", late.text());
    let counted = samples(&stage.get("/metrics").await.text());
    for outcome in ["taken", "again", "unknown"] {
        // Other tests of this process count, too.
        let series = format!("pd_proxy_callbacks_total{{outcome=\"{outcome}\"}}");
        assert!(counted[&series] >= 1.0, "{outcome}");
    }
    stage.assert_nothing_left("at the end").await;
    stage.end().await;
}

#[tokio::test]
async fn calls_about_nothing_are_refused_and_broken_ones_are_told_why() {
    let stage = Stage::set(script()).await;
    stage
        .decoders
        .iter()
        .for_each(|decoder| assert!(decoder.inject(Fault::always(FaultKind::StallBeforeHead))));
    // While nobody waits for a call, none is read.
    for said in [&call("chatcmpl-0123456789abcdef0123456789abcdef"), "[]"] {
        let unknown = stage.post(CALLBACK, said).await;
        assert_eq!(unknown.status, 404, "{}", unknown.text());
    }
    let client = begin(stage.gateway, &body(false)).await;
    name_of_the_request(&stage).await;
    let unknown = stage.post(CALLBACK, &call("chatcmpl-0123456789abcdef0123456789abcdef")).await;
    assert_eq!(unknown.status, 404, "{}", unknown.text());
    for (said, why) in [
        (r#"{"do_remote_decode":true}"#, "request_id"),
        (r#"{"request_id":"x"}"#, "do_remote_decode"),
        (r#"{"request_id":"x","do_remote_decode":true,"do_remote_prefill":true}"#, "do_remote_prefill"),
        ("[]", "JSON object"),
    ] {
        let answer = stage.post(CALLBACK, said).await;
        assert_eq!(answer.status, 400, "{said}");
        assert!(answer.text().contains(why), "{}", answer.text());
    }
    let long = format!(r#"{{"request_id":"{}"}}"#, "x".repeat(5 << 20));
    assert_eq!(code(&stage.post(CALLBACK, &long).await), (413, Some("body_too_large")));
    let get = stage.get(CALLBACK).await;
    assert_eq!(get.status, 405);
    drop(client);
    stage.end().await;
}

#[tokio::test]
async fn a_rendezvous_expires_and_the_call_that_comes_too_late_is_refused() {
    let mut script = script();
    (script.decoders, script.config.retry.attempts) = (1, 1);
    script.config.timeout.first_byte_ms = 200;
    let stage = Stage::set(script).await;
    assert!(stage.decoders[0].inject(Fault::always(FaultKind::StallBeforeHead)));
    let body = body(true).to_string();
    let (answer, name) = tokio::join!(stage.post(COMPLETIONS, &body), name_of_the_request(&stage));
    assert_eq!(code(&answer), (504, Some("decode_timeout")), "{}", answer.text());
    assert_eq!(stage.post(CALLBACK, &call(&name)).await.status, 404);
    assert!(stage.seen(&stage.prefillers).is_empty());
    stage.assert_nothing_left("after the decoder was given up").await;
    stage.end().await;
}

#[tokio::test]
async fn decoders_need_no_key_and_operators_listener_is_not_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let digest = pd_proxy::auth::Digest::of(b"sk-a");
    let keys = dir.path().join("keys.toml");
    std::fs::write(&keys, format!("[[key]]\nname = \"a\"\nsha256 = \"{digest}\"\n")).unwrap();
    let mut script = script();
    script.config.auth.keys_file = Some(keys.to_str().unwrap().to_owned());
    let operators = place::own();
    script.config.server.admin_host = Some(operators.ip().to_string());
    script.config.server.admin_port = operators.port();
    let stage = Stage::set(script).await;
    let request =
        post_with(COMPLETIONS, &[("Authorization", "Bearer sk-a")], body(false).to_string().as_bytes());
    let answer = stage.send(&request).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(stage.seen(&stage.prefillers).len(), 1);
    let elsewhere =
        send(operators, &post_with(CALLBACK, &[("Authorization", "Bearer sk-a")], call("x").as_bytes()))
            .await;
    assert!(matches!(elsewhere.status, 401 | 404), "{}", elsewhere.text());
    assert!(!elsewhere.text().contains("of this name"), "it is no metaserver: {}", elsewhere.text());
    stage.end().await;
}

#[tokio::test]
async fn a_call_is_not_held_for_the_whole_prefill() {
    let stage = Stage::set(slow_prefills(2_500.0)).await;
    let mut client = begin(stage.gateway, &body(false)).await;
    eventually("an answer to the call", async || {
        stage.decoders.iter().any(|engine| !engine.heard().is_empty())
    })
    .await;
    assert!(stage.prefillers.iter().any(|engine| engine.ledger().running == 1), "it is still at work");
    let answer = tokio::time::timeout(Duration::from_secs(20), read(&mut client)).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    stage.end().await;
}

#[test]
fn an_address_that_no_decoder_could_call_is_refused_with_the_reason() {
    let check = |more: &[&str]| {
        let engines = ["--prefill", "10.0.0.1:8100", "--decode", "10.0.0.2:8200"];
        run(&[&["check", "--offline", "--layerwise"], &engines[..], more].concat(), &[])
    };
    for wrong in [
        &["--callback-url", "http://0.0.0.0:8000"][..],
        &["--callback-url", "http://[::]:8000"],
        &["--callback-url", "http://:8000"],
        &["--host", "0.0.0.0"],
        &["--host", "::"],
    ] {
        let (code, _, err) = check(wrong);
        assert_eq!(code, 1, "{wrong:?}: {err}");
        assert!(err.contains("every address of this machine") && err.contains("--callback-url"), "{err}");
    }
    let (code, _, err) = check(&["--host", "0.0.0.0", "--callback-url", "http://10.0.0.9:8000"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let (code, _, err) = check(&["--host", "10.0.0.9", "--port", "9000"]);
    assert_eq!((code, err.as_str()), (0, ""), "as the reference derives it");
}
