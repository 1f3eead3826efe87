use super::*;

fn scan(text: &str) -> Object {
    Object::scan(text.to_owned().into(), ScanLimits::default()).unwrap()
}

fn ids(range: std::ops::Range<u32>) -> Vec<u32> {
    range.collect()
}

/// As vLLM 0.32 wrote it, but for the ids: 250 tokens of prompt, 40 of answer, all but the last of
/// them kept in blocks of 32.
fn answer(change: impl Fn(&mut serde_json::Value)) -> Object {
    let mut whole = serde_json::json!({
        "id": "cmpl-1", "object": "text_completion", "choices": [{"index": 0, "text": "x", "logprobs": null,
            "finish_reason": "length", "stop_reason": null, "token_ids": ids(250..290), "prompt_logprobs": null,
            "prompt_token_ids": ids(0..250)}],
        "usage": {"prompt_tokens": 250, "total_tokens": 290, "completion_tokens": 40},
        "kv_transfer_params": {"do_remote_prefill": false, "do_remote_decode": true,
            "remote_block_ids": [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]],
            "remote_engine_id": "74a05240-937b-4d8b-8f1b-173099b87221",
            "remote_request_id": "cmpl-bc4ddf58f6eb987f-0-b38cb83e", "remote_host": "127.0.0.1", "remote_port": 5601,
            "tp_size": 1, "dcp_size": 1, "pp_size": 1, "remote_num_tokens": 289,
            "remote_blocks_expiry_time": 62110.429946707, "transfer_mode": "pull"}});
    change(&mut whole);
    scan(&whole.to_string())
}

fn read(change: impl Fn(&mut serde_json::Value)) -> Option<Returned> {
    Returned::read(&answer(change))
}

#[test]
fn offer_is_cut_to_common_whole_blocks() {
    let returned = read(|_| ()).unwrap();
    assert_eq!((returned.tokens().len(), returned.prompt().len()), (289, 250));
    let longer = ids(0..400);
    assert_eq!(returned.blocks_of(&longer, 32), 9, "the last of ten is not full");
    let other = [ids(0..250), ids(900..1200)].concat();
    assert_eq!(returned.blocks_of(&other, 32), 7, "another answer than the decoder's stands in the history");
    assert_eq!(returned.blocks_of(&ids(0..160), 32), 4, "the last token of a prompt is computed");
    assert_eq!(returned.blocks_of(&ids(1..400), 32), 0);
    assert_eq!(returned.blocks_of(&ids(0..100), 32), 0, "too little");
    let offer = scan(std::str::from_utf8(&returned.offer(7, 32).unwrap()).unwrap());
    assert_eq!(offer.get("remote_block_ids").unwrap().raw(), b"[[1,2,3,4,5,6,7]]");
    assert_eq!(offer.get("remote_num_tokens").unwrap().raw(), b"224");
    let same =
        ["remote_engine_id", "remote_request_id", "remote_port", "remote_blocks_expiry_time", "tp_size"];
    let told = answer(|_| ());
    let told = told.get(PARAMS).unwrap().object().unwrap();
    for key in same {
        assert_eq!(offer.get(key).unwrap().raw(), told.get(key).unwrap().raw(), "{key}");
    }
    assert_eq!(offer.get("do_remote_decode").unwrap().raw(), b"true");
    assert!(returned.offer(11, 32).is_none());
}

#[test]
fn blocks_of_another_size_are_told_by_their_number() {
    let returned = read(|_| ()).unwrap();
    for block_tokens in [8, 16, 64, 128, 0] {
        assert_eq!(returned.blocks_of(&ids(0..400), block_tokens), 0, "{block_tokens}");
    }
    let early = read(|a| a[PARAMS]["remote_block_ids"] = serde_json::json!([ids(1..12)])).unwrap();
    assert_eq!(early.blocks_of(&ids(0..400), 32), 9, "one block was taken for a token that did not come");
    let more = read(|a| a[PARAMS]["remote_block_ids"] = serde_json::json!([ids(1..13)])).unwrap();
    assert_eq!(more.blocks_of(&ids(0..400), 32), 0);
}

#[test]
fn incomplete_kv_is_not_offered() {
    for (member, value) in [
        ("remote_block_ids", serde_json::json!([[1, 2], [3, 4]])),
        ("remote_block_ids", serde_json::json!(null)),
        ("remote_block_ids", serde_json::json!("x")),
        ("remote_num_tokens", serde_json::json!(null)),
        ("remote_num_tokens", serde_json::json!(-1)),
        ("dcp_size", serde_json::json!(2)),
        ("pp_size", serde_json::json!(2)),
        ("do_remote_decode", serde_json::json!(false)),
        ("do_remote_prefill", serde_json::json!(true)),
    ] {
        assert_eq!(read(|a| a[PARAMS][member] = value.clone()), None, "{member} {value}");
    }
    assert_eq!(read(|a| a[PARAMS] = serde_json::Value::Null), None);
    assert_eq!(read(|a| a["choices"][0]["token_ids"] = serde_json::Value::Null), None);
    assert_eq!(read(|a| a["choices"][0]["prompt_token_ids"] = serde_json::Value::Null), None);
    assert_eq!(read(|a| a["choices"] = serde_json::json!([a["choices"][0], a["choices"][0]])), None);
    assert_eq!(read(|a| a[PARAMS]["remote_num_tokens"] = 1_000_000.into()).unwrap().tokens().len(), 290);
    let chat = read(|a| {
        a["prompt_token_ids"] = a["choices"][0]["prompt_token_ids"].take();
    });
    assert_eq!(chat, read(|_| ()), "chats tell the prompt's ids at the top");
}

#[test]
fn clients_see_what_they_would_see_without() {
    let plain = |text: &str, asked| hidden(&scan(text), &answer(|_| ()), asked).map(|o| o.bytes().clone());
    let value = |text: &str, asked| -> serde_json::Value {
        serde_json::from_slice(&plain(text, asked).unwrap()).unwrap()
    };
    let mut nothing: serde_json::Value = serde_json::from_slice(answer(|_| ()).bytes()).unwrap();
    nothing[PARAMS] = serde_json::Value::Null;
    assert_eq!(value("{}", false), nothing, "ids that we did not ask for are the engine's own idea");
    assert_eq!(value(r#"{"return_token_ids":true}"#, true), nothing);
    nothing["choices"][0]["token_ids"] = serde_json::Value::Null;
    nothing["choices"][0]["prompt_token_ids"] = serde_json::Value::Null;
    assert_eq!(value(r#"{"return_token_ids":false}"#, true), nothing);
    let silent = scan(r#"{"choices":[{"token_ids":null}],"kv_transfer_params":null}"#);
    assert!(hidden(&scan("{}"), &silent, true).is_none());
}

#[test]
fn ids_are_asked_for_where_there_is_one_answer() {
    let may = |api, text: &str| may_return(api, &scan(text));
    assert!(may(Api::Chat, r#"{"n":1,"stream":false}"#) && may(Api::Completions, "{}"));
    assert!(may(Api::Chat, r#"{"stream":true}"#) && may(Api::Chat, r#"{"include_reasoning":false}"#));
    assert!(!may(Api::Responses, "{}") && !may(Api::Messages, "{}"));
    for text in
        [r#"{"stream":true,"include_reasoning":false}"#, r#"{"n":2}"#, r#"{"best_of":3}"#, r#"{"echo":true}"#]
    {
        assert!(!may(Api::Completions, text), "{text}");
    }
}

#[test]
fn lax_truth_is_true() {
    let body = |text: &'static str| Object::scan(text.into(), ScanLimits::default()).unwrap();
    assert!(may_return(Api::Chat, &body(r#"{"stream":false,"echo":null}"#)));
    let unanswered = [
        r#"{"stream":1,"include_reasoning":0}"#,
        r#"{"stream":"true","include_reasoning":"no"}"#,
        r#"{"echo":"on"}"#,
    ];
    for streamed in unanswered {
        assert!(!may_return(Api::Chat, &body(streamed)), "{streamed}");
    }
    let answer = body(r#"{"prompt_token_ids":[1],"choices":[]}"#);
    assert!(hidden(&body(r#"{"return_token_ids":1}"#), &answer, true).is_none(), "the client asked for them");
}
