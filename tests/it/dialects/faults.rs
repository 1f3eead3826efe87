//! Legs that fail, and clients that leave, in every dialect.

use std::time::Duration;

use pd_proxy::config::DialectName;
use pd_proxy::sim::{ConnectionEnd, EngineSpec, Fault, FaultKind};
use tokio::io::AsyncWriteExt;

use super::{EVERY, chat, completion, script};
use crate::common::client;
use crate::common::stage::{Stage, slow};
use crate::common::time::{eventually, pace};

fn early_faults() -> Vec<FaultKind> {
    vec![
        FaultKind::Refuse,
        FaultKind::ResetAtAccept,
        FaultKind::ResetBeforeHead,
        FaultKind::StallBeforeHead,
        FaultKind::Status(500, None),
        FaultKind::Status(503, None),
        FaultKind::CutAfterBytes { bytes: 30, how: ConnectionEnd::Close },
    ]
}

#[tokio::test]
async fn one_bad_engine_of_either_side_is_invisible() {
    for spoken in EVERY {
        let stage = Stage::set(script(spoken)).await;
        let (path, body) = completion(false);
        let words = stage.post(path, &body).await.words();
        assert!(!words.is_empty(), "{spoken:?}");
        for what in early_faults() {
            for (side, engines) in [("prefill", &stage.prefillers), ("decode", &stage.decoders)] {
                let fault = Fault::always(what.clone()).on_path("/v1/");
                assert!(engines[0].inject(fault));
                for stream in [false, true] {
                    let when = format!("{spoken:?} {side} {what:?} stream {stream}");
                    let answer = stage.post(path, &completion(stream).1).await;
                    assert_eq!((answer.status, answer.complete), (200, true), "{when}: {}", answer.text());
                    assert_eq!(answer.words(), words, "{when}");
                }
                stage.heal();
            }
        }
        stage.assert_nothing_left(&format!("{spoken:?} after all faults")).await;
        stage.assert_all_alive(&format!("{spoken:?} after all faults"));
        stage.end().await;
    }
}

#[tokio::test]
async fn unserved_request_gets_a_true_error_and_strands_nothing() {
    for spoken in EVERY {
        let stage = Stage::set(script(spoken)).await;
        for what in [
            FaultKind::Refuse,
            FaultKind::ResetBeforeHead,
            FaultKind::Status(500, None),
            FaultKind::StallBeforeHead,
        ] {
            for side in ["prefill", "decode"] {
                let fault = Fault::always(what.clone()).on_path("/v1/");
                if side == "prefill" {
                    stage.prefillers_fail(&fault)
                } else {
                    stage.decoders_fail(&fault)
                }
                let answer = stage.post(completion(true).0, &completion(true).1).await;
                let code = answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned();
                let when = format!("{spoken:?} {side} {what:?}: {} {code}", answer.status);
                assert!(matches!(answer.status, 502 | 504), "{when}");
                // Where each waits for the other, nobody knows who it was.
                let mutual = spoken.0 == DialectName::Sglang && matches!(what, FaultKind::StallBeforeHead);
                assert!(code.starts_with(side) || mutual, "{when}");
                stage.heal();
            }
        }
        stage.assert_nothing_left(&format!("{spoken:?}")).await;
        stage.assert_all_alive(&format!("{spoken:?}"));
        stage.end().await;
    }
}

/// Blocks that a decoder keeps for a prefill which never began are freed by nobody.
#[tokio::test]
async fn no_decoder_is_asked_beside_a_prefill_that_never_began() {
    for spoken in EVERY {
        let stage = Stage::set(script(spoken)).await;
        let (path, body) = completion(false);
        assert_eq!(stage.post(path, &body).await.status, 200, "{spoken:?}: who is who is known");
        let asked = async || stage.seen(&stage.decoders).iter().filter(|seen| seen.path == path).count();
        let before = asked().await;
        stage.prefillers_fail(&Fault::always(FaultKind::Refuse).on_path("/v1/"));
        let answer = stage.post(path, &body).await;
        assert_eq!(answer.status, 502, "{spoken:?}: {}", answer.text());
        assert_eq!(asked().await, before, "{spoken:?}");
        stage.end().await;
    }
}

#[tokio::test]
async fn a_refusal_is_the_clients_in_every_dialect() {
    for spoken in EVERY {
        let stage = Stage::set(script(spoken)).await;
        let answer = stage.post("/v1/completions", r#"{"model":"sim","prompt":"x","temperature":-1}"#).await;
        assert_eq!(answer.status, 400, "{spoken:?} {}", answer.text());
        let refusal = r#"{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}"#;
        stage.decoders_fail(&Fault::always(FaultKind::Status(400, Some(refusal.into()))));
        let (path, body) = chat(true);
        let answer = stage.post(path, &body).await;
        assert_eq!((answer.status, answer.text().as_str()), (400, refusal), "{spoken:?}");
        stage.assert_nothing_left(&format!("{spoken:?}")).await;
        assert_eq!(stage.expired(), 0, "{spoken:?}");
        stage.end().await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_at_any_time_strands_nothing() {
    for spoken in EVERY {
        let mut script = script(spoken);
        script.engine = EngineSpec { connector: spoken.1, lease_ms: 20_000, ..slow() };
        script.config.timeout.first_byte_ms = 10_000;
        script.config.timeout.prefill_ms = 10_000;
        script.config.engine.lease_ms = 20_000;
        let stage = Stage::set(script).await;
        let (path, body) = completion(true);
        for round in 0..2 {
            for after_ms in (0..100).step_by(7) {
                let mut socket = tokio::net::TcpStream::connect(stage.gateway).await.unwrap();
                let body = body.replace("of a few", &format!("{round} {after_ms} of a few"));
                socket.write_all(&client::post(path, &body)).await.unwrap();
                pace(Duration::from_millis(after_ms)).await;
                drop(socket);
            }
        }
        stage.assert_nothing_left(&format!("{spoken:?}")).await;
        stage.assert_all_alive(&format!("{spoken:?}"));
        assert_eq!(stage.expired(), 0, "{spoken:?}: blocks were left to their lease");
        stage.end().await;
    }
}

/// A prefiller's answer is booked with the decode leg. One that comes too late is not booked.
#[tokio::test]
async fn a_prefill_whose_client_has_left_is_booked_all_the_same() {
    let mut script = script(EVERY[0]);
    script.prefillers = 1;
    script.engine = EngineSpec { connector: EVERY[0].1, prefill_tokens_per_s: 300.0, ..slow() };
    script.config.engine.abandon_grace_ms = 10_000;
    let stage = Stage::set(script).await;
    let (path, body) = completion(true);
    let mut socket = tokio::net::TcpStream::connect(stage.gateway).await.unwrap();
    socket.write_all(&client::post(path, &body)).await.unwrap();
    let asked = async || stage.seen(&stage.prefillers).iter().any(|seen| seen.path == path);
    eventually("the prefiller is asked", asked).await;
    drop(socket);
    stage.assert_nothing_left("after the release").await;
    let done = format!(
        "pd_proxy_leg_duration_seconds_count{{role=\"prefill\",engine=\"{}\"}} 1\n",
        stage.prefillers[0].addr()
    );
    assert!(stage.get("/metrics").await.text().contains(&done), "{done}");
    stage.end().await;
}
