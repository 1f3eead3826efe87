use super::*;
use crate::codec::json::ScanLimits;
use crate::dialect::{Bypass, Dialect, Shape, decode_edit, release_edit};

fn scan(text: &str) -> Object {
    Object::scan(text.to_owned().into(), ScanLimits::default()).unwrap()
}

fn prefill(api: Api, text: &str) -> String {
    let body = scan(text);
    let spliced = body.splice(&prefill_edit(api, &body, None)).to_bytes();
    String::from_utf8(spliced.to_vec()).unwrap()
}

const ASKED: &str = r#""kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;

#[test]
fn prefill_asks_for_one_token_and_keeps_the_rest_as_sent() {
    let sent = r#"{"model":"m", "temperature":1.0e0,"prompt":"\u00fc\ud83d\ude00 ü","max_tokens":50,"stream":true,"stream_options":{"include_usage":true},"zz":[1, 2]}"#;
    assert_eq!(
        prefill(Api::Completions, sent),
        format!(
            r#"{{"model":"m", "temperature":1.0e0,"prompt":"\u00fc\ud83d\ude00 ü","zz":[1, 2],"stream":false,"max_tokens":1,"min_tokens":1,{ASKED}}}"#
        )
    );
}

#[test]
fn fields_that_the_client_did_not_send_are_not_added() {
    let plain = prefill(Api::Chat, r#"{"messages":[]}"#);
    assert!(!plain.contains("max_completion_tokens") && !plain.contains(r#""n""#), "{plain}");
    let both = prefill(Api::Chat, r#"{"messages":[],"max_completion_tokens":9,"n":3}"#);
    assert!(both.contains(r#""max_completion_tokens":1"#) && both.contains(r#""n":1"#), "{both}");
}

#[test]
fn other_apis_use_their_own_names() {
    let responses =
        prefill(Api::Responses, r#"{"input":"x","max_output_tokens":50,"store":true,"background":true}"#);
    assert_eq!(
        responses,
        format!(r#"{{"input":"x","stream":false,"max_output_tokens":1,"store":false,{ASKED}}}"#)
    );
    let messages = prefill(Api::Messages, r#"{"messages":[],"max_tokens":50,"stream":true}"#);
    assert_eq!(messages, format!(r#"{{"messages":[],"stream":false,"max_tokens":1,{ASKED}}}"#));
    let generate =
        prefill(Api::Generate, r#"{"token_ids":[1],"sampling_params":{"max_tokens":9,"temperature":0}}"#);
    assert_eq!(
        generate,
        format!(
            r#"{{"token_ids":[1],"stream":false,"sampling_params":{{"temperature":0,"max_tokens":1,"min_tokens":1,"n":1}},{ASKED}}}"#
        )
    );
}

#[test]
fn decode_is_the_clients_body_and_the_handoff() {
    let body = scan(r#"{"prompt":"x","kv_transfer_params":{"evil":1},"max_tokens":5}"#);
    let handoff = Bytes::from_static(br#"{"remote_block_ids": [[1,2]]}"#);
    let with = body.splice(&decode_edit(Some(&handoff))).to_bytes();
    assert_eq!(with, r#"{"prompt":"x","max_tokens":5,"kv_transfer_params":{"remote_block_ids": [[1,2]]}}"#);
    let without = body.splice(&decode_edit(None)).to_bytes();
    assert_eq!(without, r#"{"prompt":"x","max_tokens":5}"#);
}

#[test]
fn a_release_is_one_token_with_the_handoff() {
    let body = scan(r#"{"prompt":"x","max_tokens":500,"stream":true,"n":4}"#);
    let spliced = body
        .splice(&release_edit(Api::Completions, &body, &Bytes::from_static(b"{\"a\":1}"), None))
        .to_bytes();
    assert_eq!(
        spliced,
        r#"{"prompt":"x","stream":false,"max_tokens":1,"min_tokens":1,"n":1,"kv_transfer_params":{"a":1}}"#
    );
}

/// The body of the recorded HTTP answer in a transcript of real vLLM 0.32.
fn recorded_answer(name: &str) -> Bytes {
    let path = format!("{}/tests/transcripts/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let answer = text.split("<<<").nth(1).unwrap();
    Bytes::from(answer.lines().find(|l| l.starts_with('{')).unwrap().to_owned())
}

#[test]
fn real_prefill_answers_are_read() {
    let chat = read_prefill(Api::Chat, recorded_answer("12-pd-prefill-chat.txt")).unwrap();
    assert!(
        chat.handoff
            .unwrap()
            .starts_with(br#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[["#)
    );
    assert_eq!((chat.said.usage().prompt, chat.said.usage().cached), (Some(101), Some(0)));
    let generate = read_prefill(Api::Generate, recorded_answer("A7-generate-prefill.txt")).unwrap();
    assert!(generate.handoff.is_some());
    // A plain engine answers null: nothing to hand over, as with pool connectors.
    assert_eq!(read_prefill(Api::Completions, recorded_answer("30-completions.txt")).unwrap().handoff, None);
    assert_eq!(
        read_prefill(Api::Responses, recorded_answer("54-responses.txt")).unwrap().said.usage().prompt,
        Some(17)
    );
}

#[test]
fn bad_answers_are_told_apart() {
    let read = |text: &'static str| read_prefill(Api::Chat, Bytes::from_static(text.as_bytes()));
    assert!(matches!(read("<html>"), Err(BadReply::NotJson(_))));
    assert!(matches!(read(r#"{"kv_transfer_params":{"a":1}"#), Err(BadReply::NotJson(_))));
    assert_eq!(read(r#"{"kv_transfer_params":[1]}"#), Err(BadReply::NotAnObject));
    assert_eq!(read(r#"{"error":{"message":"x"}}"#), Err(BadReply::ErrorObject));
    assert_eq!(read(r#"{"kv_transfer_params":{}}"#).unwrap().handoff, None);
}

#[test]
fn hand_offs_name_their_engine() {
    let scan = |handoff: &str| Object::scan(handoff.to_owned().into(), ScanLimits::default()).ok();
    let id = |handoff: &str| scan(handoff).as_ref().and_then(engine_id);
    let one = id(r#"{"remote_block_ids":[[1,2]],"remote_engine_id":"3f2c-a","remote_port":5600}"#);
    assert!(one.is_some());
    assert_eq!(id(r#"{"remote_engine_id":"3f2c-a_dp1"}"#), one, "a rank of it");
    assert_eq!(id(r#"{"remote_engine_id":"3f2c-a_dp0"}"#), one);
    assert_ne!(id(r#"{"remote_engine_id":"3f2c-b"}"#), one);
    for none in [r#"{"remote_engine_id":null}"#, "{}", r#"{"remote_engine_id":7}"#, "[]"] {
        assert_eq!(id(none), None, "{none}");
    }
}

#[test]
fn a_hand_off_is_for_one_answer() {
    let why = |api, text: &str| {
        let body = scan(text);
        Dialect::KvTransfer.bypass(api, &body, &Shape::read(api, &body), false)
    };
    let several = Some(Bypass::SeveralChoices);
    assert_eq!(why(Api::Chat, r#"{"messages":[],"n":2}"#), several);
    assert_eq!(why(Api::Completions, r#"{"prompt":"a","best_of":3}"#), several);
    assert_eq!(why(Api::Generate, r#"{"sampling_params":{"n":2}}"#), several);
    assert_eq!(why(Api::Completions, r#"{"prompt":"a","n":1,"best_of":null}"#), None);
    assert_eq!(why(Api::Chat, r#"{"use_beam_search":true,"n":2}"#), Some(Bypass::Beam));
}

#[test]
fn a_hand_off_that_names_nothing_is_none() {
    let read = |params: &str| {
        let reply = format!(r#"{{"id":"x","kv_transfer_params":{params}}}"#);
        read_prefill(Api::Completions, reply.into()).map(|reply| reply.handoff.is_some())
    };
    for nothing in [
        r#"{"do_remote_prefill":true}"#,
        r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":null}"#,
    ] {
        assert!(matches!(read(nothing), Err(BadReply::Nothing)), "{nothing}");
    }
    assert_eq!(read(r#"{"do_remote_prefill":true,"transfer_id":"t"}"#).ok(), Some(true));
    assert_eq!(read(r#"{"do_remote_prefill":false}"#).ok(), Some(true), "it tells nobody to fetch");
}
