//! Legs that fail before the first byte: the client must not notice as long as any pair can serve.

use pd_proxy::sim::{ConnectionEnd, EngineSpec, Fault, FaultKind};
use serde_json::{Value, json};

use crate::common::client::{self, Raw};
use crate::common::stage::{Script, Stage, fast};
use crate::common::time::eventually;

const PATH: &str = "/v1/completions";

fn body(stream: bool) -> String {
    json!({"model": "sim", "prompt": "a prompt of a few blocks ".repeat(8), "max_tokens": 12, "stream": stream}).to_string()
}

/// A stage whose deadlines are short enough to run into, and whose leases end within the test.
fn hasty() -> Script {
    let mut script = Script { engine: EngineSpec { lease_ms: 1_500, ..fast() }, ..Script::default() };
    script.config.timeout.prefill_ms = 300;
    script.config.timeout.first_byte_ms = 300;
    script.config.timeout.answer_ms = 300;
    script.config.engine.lease_ms = 1_500;
    // What was broken is whole again in the next moment.
    script.config.health.rest_ms = 1;
    script
}

fn assert_served(answer: &Raw, words: &str, when: &str) {
    assert_eq!((answer.status, answer.complete), (200, true), "{when}: {} {}", answer.head, answer.text());
    assert_eq!(answer.words(), words, "{when}");
}

/// Everything that can go wrong with a leg before its first byte.
fn early_faults() -> Vec<FaultKind> {
    vec![
        FaultKind::Refuse,
        FaultKind::ResetAtAccept,
        FaultKind::ResetBeforeHead,
        FaultKind::StallBeforeHead,
        FaultKind::Status(500, None),
        FaultKind::Status(502, Some("<html>bad gateway</html>".into())),
        FaultKind::Status(503, None),
        FaultKind::CutAfterBytes { bytes: 0, how: ConnectionEnd::Close },
        FaultKind::CutAfterBytes { bytes: 30, how: ConnectionEnd::Close },
    ]
}

#[tokio::test]
async fn one_bad_prefiller_or_decoder_is_invisible() {
    let stage = Stage::set(hasty()).await;
    let words = stage.post(PATH, &body(false)).await.words();
    assert!(!words.is_empty());
    for what in early_faults() {
        for stream in [false, true] {
            for (side, engines) in [("prefill", &stage.prefillers), ("decode", &stage.decoders)] {
                let when = format!("{side} {what:?} stream {stream}");
                assert!(engines[0].inject(Fault::always(what.clone())));
                for _ in 0..2 {
                    assert_served(&stage.post(PATH, &body(stream)).await, &words, &when);
                }
                stage.heal();
            }
        }
    }
    stage.assert_nothing_left("after all faults").await;
    stage.assert_all_alive("after all faults");
    stage.end().await;
}

/// Parts of a streamed response: the names of its events and its text.
fn told(answer: &Raw) -> (Vec<String>, String) {
    let events = answer.events();
    let names = events.iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect();
    (names, events.iter().filter_map(|event| event["delta"].as_str()).collect())
}

/// vLLM says that a response has begun before it has fetched the KV: that is no answer yet.
#[tokio::test]
async fn a_decoder_that_fails_behind_its_announcements_is_replaced() {
    let stage = Stage::set(hasty()).await;
    let body =
        json!({"model": "sim", "input": "Begin.", "max_output_tokens": 12, "stream": true}).to_string();
    let ask = || stage.post("/v1/responses", &body);
    let whole = ask().await;
    let text = whole.text();
    assert_eq!(told(&whole).0[..2], ["response.created", "response.in_progress"], "{text}");
    let [created, begun] = [0, 1].map(|at| text.split_inclusive("\n\n").nth(at).unwrap());
    let with = |event: &str| FaultKind::Events(format!("{created}{begun}{event}\n\n").into());
    // In the second event: the first begins behind a head that is shorter than the second.
    let bytes = created.len() + begun.len() / 2;
    for what in [
        FaultKind::EndAfterEvents(1),
        FaultKind::EndAfterEvents(2),
        with(": that is all"),
        with(r#"data: {"error":{"code":500}}"#),
        with("event: response.failed\ndata: {\"response\":{\"error\":{\"code\":\"server_error\"}}}"),
        FaultKind::CutAfterBytes { bytes, how: ConnectionEnd::Reset },
        FaultKind::StallAfterBytes(bytes),
    ] {
        stage.decoders_fail(&Fault::once(what.clone()));
        stage.forget();
        let answer = ask().await;
        assert_eq!((answer.status, answer.complete), (200, true), "{what:?}: {}", answer.text());
        assert_eq!(told(&answer), told(&whole), "{what:?}");
        assert_eq!(stage.seen(&stage.decoders).len(), 3, "{what:?}: both failed once");
    }
    stage.assert_nothing_left("after all faults").await;
    stage.end().await;
}

/// Its client needs the id in the announcement, and the part that it would repeat goes on
/// elsewhere.
#[tokio::test]
async fn a_response_in_the_background_is_announced_at_once_and_not_begun_twice() {
    let stage = Stage::set(hasty()).await;
    let body = json!({"model": "sim", "input": "Go on.", "max_output_tokens": 12, "stream": true, "background": true});
    stage.decoders_fail(&Fault::always(FaultKind::EndAfterEvents(2)));
    let answer = stage.post("/v1/responses", &body.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(told(&answer).0, ["response.created", "response.in_progress", "error"]);
    assert_eq!(stage.seen(&stage.decoders).len(), 1);
    stage.end().await;
}

/// Side effects of an engine would happen twice.
#[tokio::test]
async fn request_with_engine_side_effects_is_not_begun_twice() {
    const RESPONSES: &str = "/v1/responses";
    /// Two attempts, and one more each time that it has stood in line for room.
    const BUSY_ASKED: usize = 10;
    let stage = Stage::set(hasty()).await;
    for (key, value) in
        [("tools", json!([{"type": "mcp", "server_label": "s"}])), ("background", json!(true))]
    {
        let body =
            json!({"model": "sim", "input": "Go on.", "max_output_tokens": 12, key: value}).to_string();
        for (what, status, asked) in [
            (FaultKind::ResetBeforeHead, 502, 1..=1),
            (FaultKind::StallBeforeHead, 504, 1..=1),
            (FaultKind::Status(500, None), 502, 1..=1),
            (FaultKind::Status(503, None), 503, 2..=BUSY_ASKED),
        ] {
            stage.forget();
            stage.decoders_fail(&Fault::always(what.clone()));
            let answer = stage.post(RESPONSES, &body).await;
            // Beside those that free what was handed over.
            let whole =
                |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap()["max_output_tokens"] == 12;
            let seen = stage.seen(&stage.decoders).iter().filter(|seen| whole(&seen.body)).count();
            assert_eq!(answer.status, status, "{key} {what:?}: {}", answer.text());
            assert!(asked.contains(&seen), "{key} {what:?}: {seen} were asked");
            stage.heal();
        }
        // One that was not reached has begun nothing.
        assert!(stage.decoders[0].inject(Fault::always(FaultKind::Refuse)));
        // Those of its connections that wait are reset meanwhile: nothing is to be written on them.
        stage.let_it_work().await;
        for _ in 0..2 {
            let answer = stage.post(RESPONSES, &body).await;
            assert_eq!(answer.status, 200, "{key}: {}", answer.text());
        }
        stage.heal();
    }
    stage.end().await;
}

/// A prefiller's cached tokens are not those of a decoder that computed the prompt itself.
#[tokio::test]
async fn an_attempt_is_not_told_by_the_counts_of_one_before() {
    let mut script = Script { prefillers: 1, decoders: 1, ..hasty() };
    script.config.timeout.answer_ms = 1_000;
    script.config.route.bypass_without_prefiller = true;
    let stage = Stage::set(script).await;
    let (prefiller, request) = (stage.prefillers[0].addr(), body(false));
    let cached = |answer: &Raw| answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    for _ in 0..2 {
        let warm = client::send(prefiller, &client::post(PATH, &request)).await;
        assert_eq!(warm.status, 200, "{}", warm.text());
    }
    stage.forget();
    stage.decoders_fail(&Fault::once(FaultKind::StallBeforeHead));
    let leaving = async {
        eventually("a decoder is asked", async || !stage.seen(&stage.decoders).is_empty()).await;
        let removal = json!({"type": "prefill", "instances": prefiller.to_string()}).to_string();
        assert_eq!(stage.post("/instances/remove", &removal).await.status, 200);
    };
    let (answer, ()) = tokio::join!(stage.post(PATH, &request), leaving);
    assert_eq!((answer.status, cached(&answer)), (200, json!(0)), "{}", answer.text());
    assert_eq!((stage.seen(&stage.prefillers).len(), stage.seen(&stage.decoders).len()), (1, 2));
    stage.end().await;
}

#[tokio::test]
async fn a_decoder_that_may_have_used_the_handoff_costs_a_fresh_prefill_and_one_that_can_not_have_does_not() {
    let stage = Stage::set(hasty()).await;
    for (what, prefills) in [
        (FaultKind::Refuse, 1),
        (FaultKind::ResetBeforeHead, 2),
        (FaultKind::Status(500, None), 2),
        (FaultKind::Status(503, None), 2),
    ] {
        stage.decoders_fail(&Fault::always(what.clone()));
        stage.forget();
        let answer = stage.post(PATH, &body(false)).await;
        assert_ne!(answer.status, 200);
        stage.heal();
        // The other decoder works; the first, which is tried first or second, does not.
        assert!(stage.decoders[0].inject(Fault::always(what.clone())));
        let mut most = 0;
        for _ in 0..4 {
            stage.forget();
            assert_eq!(stage.post(PATH, &body(false)).await.status, 200, "{what:?}");
            most = most.max(stage.seen(&stage.prefillers).len());
        }
        assert!(most <= prefills, "{what:?}: {most} prefills");
        stage.heal();
    }
    stage.assert_nothing_left("at the end").await;
    stage.end().await;
}

#[tokio::test]
async fn no_decoder_is_given_a_used_handoff() {
    let stage = Stage::set(hasty()).await;
    stage.decoders_fail(&Fault::always(FaultKind::ResetBeforeHead));
    let answer = stage.post(PATH, &body(false)).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (502, Some("decode_failed")));
    let ids: Vec<String> = stage
        .seen(&stage.decoders)
        .iter()
        .map(|s| {
            serde_json::from_slice::<serde_json::Value>(&s.body).unwrap()["kv_transfer_params"].to_string()
        })
        .collect();
    let different: std::collections::HashSet<_> = ids.iter().collect();
    assert_eq!((ids.len(), different.len()), (3, 3), "three attempts, each with a hand-off of its own");
    stage.end().await;
}

#[tokio::test]
async fn unserved_request_error_names_the_side() {
    let stage = Stage::set(hasty()).await;
    let cases = [
        (FaultKind::Refuse, 502, "failed"),
        (FaultKind::ResetBeforeHead, 502, "failed"),
        (FaultKind::Status(500, None), 502, "failed"),
        (FaultKind::Status(503, None), 503, "overloaded"),
        (FaultKind::StallBeforeHead, 504, "timeout"),
    ];
    for (what, status, code) in cases {
        for side in ["prefill", "decode"] {
            let fault = Fault::always(what.clone());
            if side == "prefill" {
                stage.prefillers_fail(&fault)
            } else {
                stage.decoders_fail(&fault)
            }
            let answer = stage.post(PATH, &body(true)).await;
            let code = if code == "overloaded" { code.to_owned() } else { format!("{side}_{code}") };
            let error = &answer.json()["error"];
            assert_eq!(
                (answer.status, error["code"].as_str()),
                (status, Some(code.as_str())),
                "{what:?} {side}"
            );
            assert_eq!(answer.header("x-pd-error"), Some(code.as_str()));
            assert_eq!(answer.header("retry-after").is_some(), status == 503);
            let message = error["message"].as_str().unwrap();
            assert!(!message.contains("127.0.0.1"), "no address of an engine reaches the client: {message}");
            stage.heal();
        }
    }
    stage.assert_nothing_left("at the end").await;
    stage.end().await;
}

#[tokio::test]
async fn an_engines_refusal_is_the_clients_and_is_asked_for_once_if_it_is_about_the_request() {
    let stage = Stage::new().await;
    for (body, status, asked) in [
        // One engine may lack a model that the others have.
        (r#"{"model":"nope","prompt":"x"}"#, 404, 2),
        (r#"{"model":"sim","prompt":"x","temperature":-1}"#, 400, 1),
        (r#"{"model":"sim"}"#, 400, 1),
    ] {
        stage.forget();
        let answer = stage.post(PATH, body).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
        assert!(answer.json()["error"]["code"].is_u64(), "the engine's own words: {}", answer.text());
        assert_eq!((stage.seen(&stage.prefillers).len(), stage.seen(&stage.decoders).len()), (asked, 0));
    }
    // An engine that serves is believed.
    eventually("each decoder has served", async || {
        assert_eq!(stage.post(PATH, &body(true)).await.status, 200);
        stage.decoders.iter().all(|decoder| !decoder.seen().is_empty())
    })
    .await;
    // The decoder refuses what the prefiller took: its answer is the client's, and the KV is given
    // back.
    let refusal = r#"{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}"#;
    stage.decoders_fail(&Fault::always(FaultKind::Status(400, Some(refusal.into()))));
    stage.forget();
    let answer = stage.post(PATH, &body(true)).await;
    assert_eq!((answer.status, answer.text().as_str()), (400, refusal));
    assert_eq!((stage.seen(&stage.prefillers).len(), stage.seen(&stage.decoders).len()), (1, 1));
    stage.assert_nothing_left("after a refusal").await;
    assert_eq!(stage.expired(), 0);
    stage.end().await;
}

#[tokio::test]
async fn bad_prefill_answers_go_elsewhere() {
    let stage = Stage::set(hasty()).await;
    for raw in ["[1]", "\"x\"", "7", "true"] {
        assert!(stage.prefillers[0].inject(Fault::always(FaultKind::BadHandoff(raw.into()))));
        for _ in 0..2 {
            assert_eq!(stage.post(PATH, &body(false)).await.status, 200, "{raw}");
        }
        stage.heal();
    }
    stage.prefillers_fail(&Fault::always(FaultKind::BadHandoff("[1]".into())));
    let answer = stage.post(PATH, &body(false)).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (502, Some("bad_prefill_reply")));
    stage.prefillers_fail(&Fault::always(FaultKind::Status(200, Some("<html></html>".into()))));
    let answer = stage.post(PATH, &body(false)).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (502, Some("bad_prefill_reply")));
    stage.end().await;
}

#[tokio::test]
async fn a_prefill_answer_cut_anywhere_goes_elsewhere() {
    let stage = Stage::set(hasty()).await;
    let words = stage.post(PATH, &body(false)).await.words();
    // The answer has about 1 200 bytes; the last offsets lie beyond it, where nothing is cut.
    for bytes in (0..1_300).step_by(37).chain([1, 2, 16, 17, 18]) {
        let how = if bytes % 2 == 0 { ConnectionEnd::Reset } else { ConnectionEnd::Close };
        assert!(stage.prefillers[0].inject(Fault::once(FaultKind::CutAfterBytes { bytes, how })));
        for _ in 0..2 {
            assert_served(&stage.post(PATH, &body(false)).await, &words, &format!("cut after {bytes}"));
        }
        stage.heal();
    }
    stage.assert_nothing_left("at the end").await;
    stage.end().await;
}

#[tokio::test]
async fn a_handoff_that_is_too_old_is_not_used() {
    let mut script = Script { engine: EngineSpec { lease_ms: 10_000, ..fast() }, ..Script::default() };
    script.config.health.rest_ms = 1;
    // Stale after 3.2 s, in which the second attempt has to be done.
    script.config.engine.lease_ms = 4_000;
    script.config.retry.delay_ms = 5_000.0;
    script.config.retry.delay_max_ms = 5_000.0;
    let stage = Stage::set(script).await;
    // The first decoder refuses the connection: the hand-off is unused, but after the pause it is
    // past its lease.
    stage.decoders_fail(&Fault::always(FaultKind::Refuse));
    let healing = async {
        // The second attempt is seconds away.
        let failed = "pd_proxy_leg_failures_total{role=\"decode\",engine=\"";
        let failed = stage.decoders.iter().map(|decoder| format!("{failed}{}", decoder.addr()));
        let failed: Vec<String> = failed.collect();
        eventually("a decoder refuses", async || {
            let text = stage.get("/metrics").await.text();
            failed.iter().any(|series| text.contains(series))
        })
        .await;
        stage.heal();
    };
    let request = body(false);
    let (answer, ()) = tokio::join!(stage.post(PATH, &request), healing);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(stage.seen(&stage.prefillers).len(), 2, "prefilled again");
    stage.end().await;
}
