use super::*;
use crate::dialect::{Dialect, Transfer, decode_edit};

fn scan(text: &str) -> Object {
    Object::scan(text.to_owned().into(), ScanLimits::default()).unwrap()
}

fn ids(api: Api, body: &Object) -> Option<TokenIds> {
    TokenIds::of(api, body, &Arc::from([5, 60, 7]))
}

fn sent(body: &Object, edit: &Edit) -> String {
    String::from_utf8(body.splice(edit).to_bytes().to_vec()).unwrap()
}

fn prefill_edit(api: Api, body: &Object) -> Edit {
    Dialect::KvTransfer.prefill_edit(api, body, &Transfer::default())
}

#[test]
fn completion_has_its_ids_in_place_of_the_text_on_both_legs() {
    for text in [r#"{"prompt":"a b","max_tokens":9}"#, r#"{"prompt":["a b"],"max_tokens":9}"#] {
        let body = scan(text);
        let ids = ids(Api::Completions, &body).unwrap();
        assert!(!ids.needs_reader());
        let PrefillWithIds { edit, lacks_text } = ids.in_prefill(prefill_edit(Api::Completions, &body));
        assert!(!lacks_text, "there is nothing else that tells the prompt, nor needs to be");
        let prefill = sent(&body, &edit);
        assert!(prefill.ends_with(r#""remote_port":null},"prompt":[5,60,7]}"#), "{prefill}");
        assert_eq!(prefill.matches("\"prompt\"").count(), 1);
        let handoff = Bytes::from_static(br#"{"do_remote_prefill":true}"#);
        assert_eq!(
            sent(&body, &ids.in_decode(decode_edit(Some(&handoff)))),
            r#"{"max_tokens":9,"kv_transfer_params":{"do_remote_prefill":true},"prompt":[5,60,7]}"#
        );
    }
}

#[test]
fn chat_has_its_ids_beside_the_hand_off_and_keeps_its_messages() {
    let body = scan(r#"{"messages":[{"role":"user","content":"a"}],"tools":[]}"#);
    let ids = ids(Api::Chat, &body).unwrap();
    assert!(ids.needs_reader());
    let PrefillWithIds { edit, lacks_text } = ids.in_prefill(prefill_edit(Api::Chat, &body));
    assert!(!lacks_text, "so short messages stay");
    let prefill = sent(&body, &edit);
    assert!(prefill.contains(r#""content":"a""#) && prefill.contains(r#"null,"prompt_token_ids":[5,60,7]}"#));
    let handoff = Bytes::from_static(br#"{"do_remote_prefill":true}"#);
    assert_eq!(
        sent(&body, &ids.in_decode(decode_edit(Some(&handoff)))),
        r#"{"messages":[{"role":"user","content":"a"}],"tools":[],"kv_transfer_params":{"do_remote_prefill":true,"prompt_token_ids":[5,60,7]}}"#
    );
    assert_eq!(
        sent(&body, &ids.in_decode(decode_edit(None))),
        r#"{"messages":[{"role":"user","content":"a"}],"tools":[],"kv_transfer_params":{"prompt_token_ids":[5,60,7]}}"#,
        "a decoder alone, or a pool"
    );
}

#[test]
fn long_messages_are_left_out_of_the_prefill_leg_alone() {
    let long = "x".repeat(SHORT_BYTES);
    let body = scan(&format!(r#"{{"messages":[{{"role":"user","content":"{long}"}}],"max_tokens":5}}"#));
    let ids = ids(Api::Chat, &body).unwrap();
    let PrefillWithIds { edit, lacks_text } = ids.in_prefill(prefill_edit(Api::Chat, &body));
    let prefill = sent(&body, &edit);
    assert!(lacks_text && !prefill.contains(&long), "{prefill}");
    assert!(prefill.ends_with(r#""messages":[{"role":"user","content":"."}]}"#), "{prefill}");
    assert!(sent(&body, &ids.in_decode(decode_edit(None))).contains(&long));
    assert!(ids.is_count(Some(3)) && !ids.is_count(Some(14)) && !ids.is_count(None));
}

#[test]
fn parameters_that_have_ids_or_cannot_be_read_stay_as_they_are() {
    let long = "x".repeat(SHORT_BYTES);
    let body = scan(&format!(r#"{{"messages":[{{"role":"user","content":"{long}"}}]}}"#));
    let ids = ids(Api::Chat, &body).unwrap();
    for params in [r#"{"choices":[{}],"prompt_token_ids":[1]}"#, r#"{"a":1,"prompt_token_ids":null}"#, "[1]"]
    {
        let edit = || decode_edit(Some(&Bytes::copy_from_slice(params.as_bytes())));
        let before = sent(&body, &edit());
        assert_eq!(sent(&body, &ids.in_decode(edit())), before);
        let PrefillWithIds { edit, lacks_text } = ids.in_prefill(edit());
        assert!(!lacks_text && sent(&body, &edit) == before, "{params}");
    }
}

#[test]
fn bodies_whose_answer_depends_on_the_text_are_left_alone() {
    let chat = r#"{"messages":[{"role":"user","content":"a"}]"#;
    let completion = r#"{"prompt":"a""#;
    for (member, api) in [
        (r#""echo":true"#, Api::Completions),
        (r#""echo":1"#, Api::Chat),
        (r#""prompt_logprobs":0"#, Api::Completions),
        (r#""prompt_embeds":"x""#, Api::Completions),
        (r#""suffix":"""#, Api::Completions),
        (r#""use_beam_search":true"#, Api::Chat),
        (r#""truncate_prompt_tokens":5"#, Api::Chat),
        (r#""return_prompt_text":true"#, Api::Chat),
        (r#""return_token_offsets":true"#, Api::Completions),
        (r#""return_what_comes_next":{}"#, Api::Completions),
    ] {
        let start = if api == Api::Chat { chat } else { completion };
        assert!(ids(api, &scan(&format!("{start},{member}}}"))).is_none(), "{member}");
    }
    for member in [r#""echo":false"#, r#""suffix":null"#, r#""return_token_ids":true"#, r#""logprobs":3"#] {
        assert!(ids(Api::Completions, &scan(&format!("{completion},{member}}}"))).is_some(), "{member}");
    }
}

#[test]
fn bodies_without_a_text_of_their_own_have_no_ids() {
    assert!(ids(Api::Completions, &scan(r#"{"prompt":[1,2]}"#)).is_none(), "the client's own");
    assert!(ids(Api::Completions, &scan(r#"{"prompt":[[1,2]]}"#)).is_none());
    assert!(ids(Api::Completions, &scan("{}")).is_none());
    assert!(ids(Api::Chat, &scan("{}")).is_none());
    for api in [Api::Generate, Api::Responses, Api::Messages] {
        assert!(ids(api, &scan(r#"{"messages":[],"prompt":"a"}"#)).is_none());
    }
    let body = scan(r#"{"prompt":"a"}"#);
    assert!(TokenIds::of(Api::Completions, &body, &Arc::from([])).is_none());
}

fn answer(api: Api, text: &'static str) -> PrefillAnswer {
    Dialect::KvTransfer
        .read_prefill(api, Bytes::from_static(text.as_bytes()), &Transfer::default())
        .unwrap()
        .said
}

#[test]
fn ids_that_a_prefiller_told_go_to_its_decoder_alone() {
    let long = "x".repeat(SHORT_BYTES);
    let chat = scan(&format!(r#"{{"messages":[{{"role":"user","content":"{long}"}}]}}"#));
    let completion = scan(&format!(r#"{{"prompt":"{long}"}}"#));
    let of_chat = answer(Api::Chat, r#"{"choices":[{}],"prompt_token_ids":[4, 5]}"#);
    let of_completion = answer(Api::Completions, r#"{"choices":[{"prompt_token_ids":[4,5]}]}"#);
    for (api, body, answer) in [(Api::Chat, &chat, of_chat), (Api::Completions, &completion, of_completion)] {
        assert!(TokenIds::may_be_told(api, body));
        let told = TokenIds::told(api, body, &answer).unwrap();
        let decode = sent(body, &told.in_decode(decode_edit(None)));
        let ids = if api == Api::Chat { r#""prompt_token_ids":[4, 5]"# } else { r#""prompt":[4,5]"# };
        assert!(decode.contains(ids), "{decode}");
        let before = sent(body, &prefill_edit(api, body));
        assert_eq!(sent(body, &told.in_prefill(prefill_edit(api, body)).edit), before);
        assert!(told.count().is_none() && !told.is_count(Some(2)));
        assert!(
            sent(body, &asking_for_prompt(prefill_edit(api, body))).contains(r#""return_token_ids":true"#)
        );
    }
    for text in [
        r#"{"choices":[{}]}"#,
        r#"{"choices":[{}],"prompt_token_ids":null}"#,
        r#"{"choices":[{}],"prompt_token_ids":[]}"#,
    ] {
        assert!(TokenIds::told(Api::Chat, &chat, &answer(Api::Chat, text)).is_none(), "{text}");
    }
}

#[test]
fn prefillers_are_not_asked_for_short_prompts_or_media() {
    assert!(!TokenIds::may_be_told(Api::Chat, &scan(r#"{"messages":[{"role":"user","content":"a"}]}"#)));
    let image = "x".repeat(SHORT_BYTES);
    let part = format!(r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{image}"}}}}"#);
    let body = scan(&format!(r#"{{"messages":[{{"role":"user","content":[{part}]}}]}}"#));
    assert!(!TokenIds::may_be_told(Api::Chat, &body));
    assert!(
        TokenIds::told(Api::Chat, &body, &answer(Api::Chat, r#"{"choices":[{}],"prompt_token_ids":[1]}"#))
            .is_none()
    );
}
