//! Requests that engines of some dialects can't serve: each is refused before an engine is asked.

use pd_proxy::config::DialectName;
use pd_proxy::sim::{Connector, Fault, FaultKind};

use super::{EVERY, completion, script};
use crate::common::stage::Stage;

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn deadly_requests_never_reach_a_decoder() {
    let moriio: &[(&str, &str)] = &[
        (CHAT, r#"{"model":"sim","n":2,"messages":[{"role":"user","content":"a"}]}"#),
        ("/v1/completions", r#"{"model":"sim","prompt":"a","best_of":2}"#),
        ("/v1/completions", r#"{"model":"sim","prompt":"a","echo":true,"logprobs":1}"#),
    ];
    let sglang = &moriio[..2];
    for (spoken, asked) in [
        ((DialectName::Moriio, Connector::Moriio), moriio),
        ((DialectName::Sglang, Connector::Sglang), sglang),
    ] {
        let stage = Stage::set(script(spoken)).await;
        for (path, body) in asked {
            let answer = stage.post(path, body).await;
            let when = format!("{spoken:?} {path} {body}: {}", answer.text());
            assert_eq!((answer.status, answer.header("x-pd-error")), (400, Some("invalid_value")), "{when}");
        }
        assert_eq!(stage.seen(&stage.prefillers).len() + stage.seen(&stage.decoders).len(), 0, "{spoken:?}");
        // Several prompts are asked one by one.
        let two = r#"{"model":"sim","prompt":["a few words","some more words"],"max_tokens":3}"#;
        let answer = stage.post("/v1/completions", two).await;
        assert_eq!(
            (answer.status, answer.json()["choices"].as_array().unwrap().len()),
            (200, 2),
            "{spoken:?}"
        );
        stage.assert_nothing_left(&format!("{spoken:?}")).await;
        stage.assert_all_alive(&format!("{spoken:?}"));
        stage.end().await;
    }
}

/// A decoder is never asked to compute a prompt: not without prefillers, nor for a prompt that is
/// short.
#[tokio::test]
async fn no_decoder_serves_alone_that_can_not() {
    for spoken in EVERY.into_iter().skip(3) {
        let mut script = script(spoken);
        script.config.route.bypass_without_prefiller = true;
        script.config.route.bypass_tokens = 1_000;
        let stage = Stage::set(script).await;
        assert_eq!(stage.post(completion(true).0, &completion(true).1).await.status, 200, "{spoken:?}");
        assert_eq!(stage.seen(&stage.prefillers).len(), 1, "{spoken:?}");
        stage.prefillers_fail(&Fault::always(FaultKind::Refuse));
        assert_eq!(stage.post(completion(true).0, &completion(true).1).await.status, 502, "{spoken:?}");
        assert!(stage.seen(&stage.decoders).len() <= 4, "{spoken:?}");
        stage.end().await;
    }
}

/// Each attempt is by a pair of its own, and both its engines know it by a room that no other
/// attempt has.
#[tokio::test]
async fn a_pair_that_fails_is_followed_by_another_in_another_room() {
    let stage = Stage::set(script((DialectName::Sglang, Connector::Sglang))).await;
    assert!(stage.decoders[0].inject(Fault::always(FaultKind::Status(500, None)).on_path("/v1/")));
    let mut attempts = 0;
    for _ in 0..4 {
        stage.forget();
        let answer = stage.post(completion(true).0, &completion(true).1).await;
        assert_eq!((answer.status, answer.complete), (200, true), "{}", answer.text());
        let room = |seen: &pd_proxy::sim::ObservedRequest| {
            let body: serde_json::Value = serde_json::from_slice(&seen.body).unwrap();
            body["bootstrap_room"].as_u64().unwrap()
        };
        let mut prefills: Vec<u64> = stage.seen(&stage.prefillers).iter().map(room).collect();
        let mut decodes: Vec<u64> = stage.seen(&stage.decoders).iter().map(room).collect();
        prefills.sort_unstable();
        decodes.sort_unstable();
        assert_eq!(prefills, decodes);
        prefills.dedup();
        assert_eq!(prefills.len(), decodes.len(), "no room twice");
        attempts += prefills.len();
    }
    assert!(attempts > 4, "one of them was tried again");
    stage.end().await;
}
