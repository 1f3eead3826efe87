use super::*;
use crate::codec::json::ScanLimits;

fn scan(text: impl Into<Bytes>) -> Object {
    Object::scan(text.into(), ScanLimits::default()).unwrap()
}

fn split(text: &str, most: usize) -> Option<Batch> {
    Batch::of(Api::Completions, &scan(text.to_owned()), most)
}

#[test]
fn a_body_is_split_and_nothing_else_of_it_changes() {
    let text = r#"{"seed":1e3,"pr\u006fmpt":["a \"b\"", "\u00e4"] ,"n":2,"x":[1,2],"prompt":["c","d","e"]}"#;
    let (whole, batch) = (scan(text), split(text, 3).unwrap());
    assert_eq!((batch.prompts(), batch.choices()), (3, 2), "the last of two counts");
    let body = |at| String::from_utf8(batch.body(&whole, at).unwrap().bytes().to_vec()).unwrap();
    assert_eq!(body(0), r#"{"seed":1e3 ,"n":2,"x":[1,2],"prompt":"c"}"#);
    assert_eq!(body(2), r#"{"seed":1e3 ,"n":2,"x":[1,2],"prompt":"e"}"#);
    let empty = r#"{"prompt":["a",""]}"#;
    let part = split(empty, 9).unwrap().body(&scan(empty), 1).unwrap();
    assert_eq!(&part.bytes()[..], br#"{"prompt":[""]}"#);
    let lists = r#"{"prompt":[[1, 2],[3],[]]}"#;
    let part = split(lists, 9).unwrap().body(&scan(lists), 0).unwrap();
    assert_eq!(&part.bytes()[..], br#"{"prompt":[1, 2]}"#);
}

#[test]
fn batch_that_an_engine_must_see_whole_is_not_split() {
    for prompt in [
        r#""a""#,
        "[1,2]",
        "[]",
        r#"["a"]"#,
        r#"["a",[1]]"#,
        r#"["a",1]"#,
        r#"[["a"],["b"]]"#,
        "[[1],[[2]]]",
        "null",
        r#"["a","b","c","d"]"#,
    ] {
        assert!(split(&format!(r#"{{"prompt":{prompt}}}"#), 3).is_none(), "{prompt}");
    }
    let two = r#"{"prompt":["a","b"]}"#;
    assert!(split(two, 2).is_some() && split(two, 1).is_none());
    // Engines take these for numbers (pydantic's lax mode): counted as 1 here, two prompts would
    // share an index.
    for several in [r#""2""#, "2.0", "2e0", r#"" 2 ""#, "true", "-1"] {
        assert!(split(&format!(r#"{{"prompt":["a","b"],"n":{several}}}"#), 3).is_none(), "{several}");
    }
    let choices = |n: &str| split(&format!(r#"{{"prompt":["a","b"],"n":{n}}}"#), 3).map(|it| it.choices());
    assert_eq!((choices("null"), choices("1"), choices("3")), (Some(1), Some(1), Some(3)));
    assert!(Batch::of(Api::Chat, &scan(two), 9).is_none());
}

#[test]
fn bytes_repeated_in_each_body_are_bounded() {
    let body = |length: usize| {
        format!(r#"{{"user":"{}","prompt":[{}"z"]}}"#, "u".repeat(length), r#""a","#.repeat(1_000))
    };
    assert!(split(&body(100), 4_096).is_some());
    assert!(split(&body(REPEATED_BYTES / 1_000), 4_096).is_none());
}

#[test]
fn whole_answers_become_one_as_vllm_writes_it() {
    let answer = |at: usize, texts: [&str; 2], prompt: u64| {
        let choice = |index: usize, text: &str| {
            format!(
                r#"{{"index":{index},"text":"{text}","logprobs":null,"finish_reason":"length","token_ids":null}}"#
            )
        };
        let total = prompt + 6;
        scan(format!(
            r#"{{"id":"cmpl-r-{at}","object":"text_completion","created":{},"model":"tiny","choices":[{},{}],"usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":6,"prompt_tokens_details":{{"cached_tokens":{at},"multimodal_tokens":null}}}},"kv_transfer_params":null,"metrics":{{"ttft":1}}}}"#,
            100 + at,
            choice(0, texts[0]),
            choice(1, texts[1])
        ))
    };
    let answers = [answer(0, ["a", "b"], 4), answer(1, ["c", "d"], 2)];
    let merged = String::from_utf8(merge(&answers, 2).unwrap().to_vec()).unwrap();
    let choice = |index: usize, text: &str| {
        format!(
            r#"{{"index":{index},"text":"{text}","logprobs":null,"finish_reason":"length","token_ids":null}}"#
        )
    };
    let choices = [choice(0, "a"), choice(1, "b"), choice(2, "c"), choice(3, "d")].join(",");
    assert_eq!(
        merged,
        format!(
            r#"{{"id":"cmpl-r","object":"text_completion","created":100,"model":"tiny","choices":[{choices}],"usage":{{"prompt_tokens":6,"total_tokens":18,"completion_tokens":12,"prompt_tokens_details":{{"cached_tokens":1,"multimodal_tokens":null}}}},"kv_transfer_params":null,"metrics":null}}"#
        )
    );
    assert_eq!(merge(&[scan(r#"{"choices":[{"text":"no index"}]}"#)], 1), None);
    assert_eq!(merge(&[scan(r#"{"object":"error"}"#)], 1), None);
    assert_eq!(merge(&[], 1), None);
}

fn event(at: usize, index: usize, text: &str) -> Bytes {
    format!(
        "data: {{\"id\":\"cmpl-r-{at}\",\"created\":{},\"choices\":[{{\"index\":{index},\"text\":\"{text}\"}}]}}\n\n",
        7 + at
    )
    .into()
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn streams_become_one_with_one_id_and_one_end() {
    let mut merge = Merge::new(2, 3);
    let first = text(&merge.pass(1, &event(1, 2, "x")).unwrap());
    assert_eq!(
        first,
        "data: {\"id\":\"cmpl-r\",\"created\":8,\"choices\":[{\"index\":5,\"text\":\"x\"}]}\n\n"
    );
    let second = text(&merge.pass(0, &event(0, 1, "y")).unwrap());
    assert_eq!(
        second,
        "data: {\"id\":\"cmpl-r\",\"created\":8,\"choices\":[{\"index\":1,\"text\":\"y\"}]}\n\n"
    );
    let counts = |at: usize| {
        format!(
            "data: {{\"id\":\"cmpl-r-{at}\",\"created\":9,\"choices\":[],\"usage\":{{\"prompt_tokens\":{at}}}}}\n\ndata: [DONE]\n\n"
        )
    };
    assert_eq!(text(&merge.pass(1, &counts(1).into()).unwrap()), "");
    assert!(!merge.ended());
    assert_eq!(text(&merge.pass(0, &": still here\n\n".into()).unwrap()), ": still here\n\n");
    assert_eq!(
        text(&merge.pass(0, &counts(0).into()).unwrap()),
        "data: {\"id\":\"cmpl-r\",\"created\":8,\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\ndata: [DONE]\n\n"
    );
    assert!(merge.ended());
    assert_eq!(merge.events(), 4);
    assert_eq!(text(&merge.pass(0, &event(0, 0, "late")).unwrap()), "");
}

#[test]
fn an_engines_own_error_ends_all_and_what_is_no_event_is_none() {
    let mut merge = Merge::new(2, 1);
    let error = "data: {\"error\":{\"code\":400}}\n\n";
    assert_eq!(
        text(&merge.pass(1, &format!("{error}data: [DONE]\n\n").into()).unwrap()),
        format!("{error}data: [DONE]\n\n")
    );
    assert!(merge.ended());
    for bad in ["data: <html>\n\n", "data: {}\n\n", "data: {\"choices\":[{}]}\n\n", "data: {\"choices\":[]"] {
        assert_eq!(Merge::new(1, 1).pass(0, &bad.into()), Err(Unreadable), "{bad}");
    }
    let unterminated = Merge::new(1, 1).pass(0, &"data: [DONE]".into()).unwrap();
    assert_eq!(text(&unterminated), "data: [DONE]\n\n");
}

#[test]
fn ids_lose_what_the_gateway_added_and_nothing_else() {
    let own = |id: &str, at| {
        let object = scan(format!(r#"{{"id":{id}}}"#));
        text(&whole_id(&object.get("id").unwrap(), at))
    };
    assert_eq!(own(r#""cmpl-a-1-12""#, 12), r#""cmpl-a-1""#);
    assert_eq!(own(r#""cmpl-a-2""#, 1), r#""cmpl-a-2""#);
    assert_eq!(own("null", 1), "null");
}
