use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::codec::json::{Object, ScanLimits};
use crate::dialect::Api;

const PROMPT: [u32; 3] = [7, 8, 9];

fn scan(body: &Value) -> Object {
    Object::scan(body.to_string().into(), ScanLimits::default()).unwrap()
}

fn plan(api: Api, body: &Value) -> Plan {
    Plan::of(api, &scan(body), false).unwrap()
}

/// An engine whose answer to [`PROMPT`] is these texts, one per token, as vLLM 0.32 writes them.
struct Engine<'a> {
    texts: &'a [String],
    /// Tells its streams apart.
    created: u64,
}

impl Engine<'_> {
    /// The events of the answer from token `from` on, to a request that is `chat` or not and has
    /// this `body`.
    fn events(&self, chat: bool, from: usize, body: &Value) -> Vec<String> {
        let asked = |key: &str| body.get(key) == Some(&json!(true));
        let option = |key: &str| body["stream_options"].get(key) == Some(&json!(true));
        let ids = asked("return_token_ids");
        let (id, object) =
            if chat { ("chatcmpl-x", "chat.completion.chunk") } else { ("cmpl-x", "text_completion") };
        let prompt: Vec<u32> = PROMPT.into_iter().chain((0..from as u32).map(|i| 100 + i)).collect();
        let created = self.created;
        let event = |choices: String, tail: String| {
            format!(
                "data: {{\"id\":\"{id}\",\"object\":\"{object}\",\"created\":{created},\"model\":\"m\",\"choices\":[{choices}]{tail}}}\n\n"
            )
        };
        let counts = |output: usize| {
            let (p, total) = (prompt.len(), prompt.len() + output);
            format!(
                ",\"usage\":{{\"prompt_tokens\":{p},\"total_tokens\":{total},\"completion_tokens\":{output}}}"
            )
        };
        let prompt_ids = if ids { json!(prompt) } else { Value::Null };
        let mut out = Vec::new();
        if chat {
            let choice = "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}";
            out.push(event(
                choice.into(),
                format!(",\"prompt_token_ids\":{prompt_ids},\"prompt_text\":null"),
            ));
        }
        let mut chars = 0;
        for (i, text) in self.texts.iter().enumerate().skip(from) {
            let last = i + 1 == self.texts.len();
            let finish = if last { json!("length") } else { Value::Null };
            let own = if ids { json!([100 + i]) } else { Value::Null };
            let quoted = json!(text);
            let choice = if chat {
                let stop = if last { "\"stop_reason\":null," } else { "" };
                format!(
                    "{{\"index\":0,\"delta\":{{\"content\":{quoted}}},\"logprobs\":null,\"finish_reason\":{finish},{stop}\"token_ids\":{own}}}"
                )
            } else {
                let told = json!({"text_offset": [chars], "tokens": [text]});
                let logprobs = if body["logprobs"].is_u64() { told } else { Value::Null };
                let first = if i == from { prompt_ids.clone() } else { Value::Null };
                format!(
                    "{{\"index\":0,\"text\":{quoted},\"logprobs\":{logprobs},\"finish_reason\":{finish},\"stop_reason\":null,\"prompt_token_ids\":{first},\"token_ids\":{own}}}"
                )
            };
            chars += text.chars().count();
            let tail = if option("continuous_usage_stats") { counts(i + 1 - from) } else { String::new() };
            out.push(event(choice, tail));
        }
        if option("include_usage") {
            out.push(event(String::new(), counts(self.texts.len() - from)));
        }
        out.push("data: [DONE]\n\n".into());
        out
    }
}

/// The stream that a client gets when it breaks after these numbers of events, each decoder's in
/// turn.
fn with_breaks(api: Api, body: &Value, texts: &[String], breaks: &[usize]) -> String {
    let mut tape = Transcript::new(plan(api, body));
    let mut asked = body.clone();
    if tape_asks(api, body) {
        asked["return_token_ids"] = json!(true);
    }
    let mut out = String::new();
    let mut next = Next::Again;
    for leg in 0..=breaks.len() {
        let engine = Engine { texts, created: 1_000 + leg as u64 };
        let events = match &next {
            Next::Again => engine.events(api == Api::Chat, 0, &asked),
            Next::End(rest) => return out + std::str::from_utf8(rest).unwrap(),
            Next::Continue(bytes, tokens, proof) => {
                if let Some(proof) = proof {
                    let decoded: String =
                        proof.ids.iter().map(|id| texts[*id as usize - 100].as_str()).collect();
                    assert_eq!(proof.text, decoded);
                }
                let mut body: Value = serde_json::from_slice(bytes).unwrap();
                let prompt = body["prompt"].as_array().unwrap();
                assert_eq!(prompt.len() as u64, *tokens);
                let from = prompt.len() - PROMPT.len();
                assert_eq!(body["max_tokens"], texts.len() - from);
                body["return_token_ids"] = json!(true);
                engine.events(false, from, &body)
            }
        };
        let upto = breaks.get(leg).copied().unwrap_or(usize::MAX).min(events.len());
        let (before, rest) = events.split_at(upto);
        // Several events at a time.
        for piece in before.chunks(1 + leg % 3) {
            out.push_str(std::str::from_utf8(&tape.pass(piece.concat().as_bytes())).unwrap());
        }
        if rest.is_empty() {
            return out;
        }
        next = tape.next(&scan(body), None).unwrap();
    }
    unreachable!("the last decoder does not break")
}

fn tape_asks(api: Api, body: &Value) -> bool {
    plan(api, body).exact.is_ok()
}

/// Without the time, of which all events of a stream have the same.
fn timeless(text: &str) -> String {
    let mut parts = text.split("\"created\":");
    let mut out = parts.next().unwrap().to_owned();
    let mut times = std::collections::BTreeSet::new();
    for part in parts {
        times.insert(&part[..4]);
        out.push_str(&part[4..]);
    }
    assert!(times.len() <= 1, "{times:?}");
    out
}

proptest! {
    #[test]
    fn breaks_leave_no_trace(
        mut texts in prop::collection::vec(prop_oneof![2 => "[a-z\"\\\\ü中\u{1f600}]{1,3}", 1 => Just(String::new())], 1..12),
        breaks in prop::collection::vec(0usize..16, 0..4),
        chat: bool, ids: bool, usage: bool, continuous: bool, logprobs: bool,
    ) {
        let api = if chat { Api::Chat } else { Api::Completions };
        texts.push("end".into());
        let mut body = json!({"model": "m", "stream": true, "max_tokens": texts.len(), "return_token_ids": ids});
        if usage {
            body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": continuous});
        }
        if logprobs && !chat {
            body["logprobs"] = json!(1);
        }
        let whole = Engine { texts: &texts, created: 1_000 }.events(chat, 0, &body).concat();
        prop_assert_eq!(timeless(&with_breaks(api, &body, &texts, &breaks)), timeless(&whole));
    }

    #[test]
    fn hostile_events_break_nothing(pieces in prop::collection::vec("[a-z\\[\\]{}:,\"\n 0-9]{0,40}", 0..6), chat: bool) {
        let api = if chat { Api::Chat } else { Api::Completions };
        let body = json!({"stream": true, "max_tokens": 5});
        let mut tape = Transcript::new(plan(api, &body));
        for piece in pieces {
            tape.pass(format!("data: {{\"choices\":[{{{piece}}}]}}\n\n").as_bytes());
            tape.pass(piece.as_bytes());
            let _ = tape.next(&scan(&body), Some(1));
        }
    }
}

fn event(choice: &str) -> String {
    format!(
        "data: {{\"id\":\"a\",\"created\":1,\"choices\":[{{\"index\":0,{choice}}}],\"prompt_token_ids\":[1]}}\n\n"
    )
}

/// Reason why the stream of a chat with these events can't be continued.
fn refusal(events: &[String]) -> Result<Next, Reason> {
    let body = json!({"stream": true});
    let mut tape = Transcript::new(plan(Api::Chat, &body));
    events.iter().for_each(|event| drop(tape.pass(event.as_bytes())));
    tape.next(&scan(&body), None)
}

#[test]
fn a_stream_is_refused_for_what_was_seen_of_it() {
    let text = event(r#""delta":{"content":"x"},"finish_reason":null,"token_ids":[5]"#);
    let reasoning = event(r#""delta":{"reasoning":"hm"},"finish_reason":null,"token_ids":[4]"#);
    let of = |events: &[&String]| refusal(&events.iter().map(|e| (*e).clone()).collect::<Vec<_>>());
    assert_eq!(of(&[&reasoning]), Err(Reason::Reasoning));
    assert!(matches!(of(&[&reasoning, &text]), Ok(Next::Continue(_, 3, _))), "it has ended");
    assert_eq!(of(&[&text, &reasoning]), Err(Reason::Reasoning));
    assert_eq!(of(&[&event(r#""delta":{"content":"x"},"finish_reason":null"#)]), Err(Reason::NoIds));
    let call = event(r#""delta":{"tool_calls":[{"index":0}]},"finish_reason":null,"token_ids":[5]"#);
    assert_eq!(of(&[&text, &call]), Err(Reason::Tools));
    assert_eq!(of(&[&text, &"data: nonsense\n\n".to_owned()]), Err(Reason::Unreadable));
    let silent = event(r#""delta":{"content":""},"finish_reason":null,"token_ids":[6]"#);
    let mut long = vec![text.clone()];
    long.extend(std::iter::repeat_n(silent, 17));
    assert_eq!(refusal(&long), Err(Reason::HeldText));
    long.push(text);
    assert!(matches!(refusal(&long), Ok(Next::Continue(_, 20, _))));
}

#[test]
fn after_several_tokens_at_once_the_text_may_not_be_complete() {
    // Of the last one there may be the first byte of a character only, which no decoder's text can
    // go on from: a tokenizer knows.
    let two = event(r#""delta":{"content":"x"},"finish_reason":null,"token_ids":[5,6]"#);
    let one = event(r#""delta":{"content":"y"},"finish_reason":null,"token_ids":[7]"#);
    let Ok(Next::Continue(_, 4, Some(proof))) = refusal(&[one.clone(), two.clone()]) else {
        panic!("it is asked")
    };
    assert_eq!((&proof.ids[..], proof.text.as_str()), (&[7, 5, 6][..], "yx"));
    let completion = |ids: &str| {
        let mut tape = Transcript::new(plan(Api::Completions, &json!({"stream": true})));
        tape.pass(event(&format!(r#""text":"x","finish_reason":null,"token_ids":{ids}"#)).as_bytes());
        tape.next(&scan(&json!({"stream": true})), None)
    };
    assert!(matches!(completion("[5,6]"), Ok(Next::Continue(_, 3, Some(_)))));
    assert!(matches!(completion("[5]"), Ok(Next::Continue(_, 2, None))), "nothing parses completions");
    let last = event(r#""delta":{"content":"z"},"finish_reason":"stop","token_ids":[8,9]"#);
    assert!(matches!(refusal(&[two, last]), Ok(Next::End(_))), "nothing is to come");
}

#[test]
fn an_event_for_the_sake_of_ids_alone_is_not_passed_on() {
    let body = json!({"stream": true});
    let mut tape = Transcript::new(plan(Api::Chat, &body));
    assert!(tape.pass(event(r#""delta":{},"finish_reason":null,"token_ids":[5]"#).as_bytes()).is_empty());
    let text = tape.pass(event(r#""delta":{"content":"x"},"finish_reason":null,"token_ids":[6]"#).as_bytes());
    assert_eq!(text.windows(5).filter(|w| w == b"data:").count(), 1);
    assert_eq!(tape.tokens(), 3, "one of the prompt, two of the answer");
}

#[test]
fn a_role_beside_each_token_hides_none() {
    let body = json!({"stream": true, "max_tokens": 9});
    let mut tape = Transcript::new(plan(Api::Chat, &body));
    for (content, id) in [("", 5), ("x", 6), ("", 7), ("y", 8), ("", 9)] {
        let delta = format!(
            r#""delta":{{"role":"assistant","content":"{content}"}},"finish_reason":null,"token_ids":[{id}]"#
        );
        tape.pass(event(&delta).as_bytes());
    }
    let Ok(Next::Continue(next, 5, _)) = tape.next(&scan(&body), None) else { panic!("it goes on") };
    assert!(next.starts_with(br#"{"prompt":[1,5,6,7,8]"#), "the last has no text yet");
}

#[test]
fn unreadable_event_rules_out_a_continuation() {
    let body = json!({"stream": true});
    let mut tape = Transcript::new(plan(Api::Chat, &body));
    tape.pass(b"data: {\"error\":{\"code\":400}}\n\n");
    assert_eq!(tape.next(&scan(&body), None), Err(Reason::Unreadable));
}

#[test]
fn data_on_several_lines_stays_on_several_lines() {
    let mut tape = Transcript::new(plan(Api::Completions, &json!({"stream": true})));
    let text = "data: {\"choices\":[{\"text\":\"x\",\ndata: \"token_ids\":[1]}]}\n\n";
    assert_eq!(tape.pass(text.as_bytes()), text.replace("[1]", "null"));
}

#[test]
fn engine_errors_break_the_stream_and_request_errors_do_not() {
    let body = json!({"stream": true});
    let mut tape = Transcript::new(plan(Api::Completions, &body));
    let refusal = b"data: {\"error\":{\"code\":400}}\n\n";
    assert_eq!((tape.pass(refusal), tape.broke()), (Bytes::from_static(refusal), None));
    let failure = b"data: {\"error\":{\"code\":500}}\n\ndata: [DONE]\n\n";
    assert_eq!((tape.pass(failure), tape.broke()), (Bytes::new(), Some(Break::Failed)));
}

#[test]
fn lax_numbers_rule_out_a_continuation() {
    // Engines take all of these for numbers (pydantic's lax mode).
    for odd in [json!("4"), json!(4.0), json!(true)] {
        for key in ["max_tokens", "max_completion_tokens", "min_tokens"] {
            let body = json!({"stream": true, key: odd});
            assert_eq!(plan(Api::Chat, &body).exact, Err(Reason::Member), "{body}");
        }
    }
    let null = json!({"stream": true, "max_tokens": null, "max_completion_tokens": 4, "min_tokens": 0});
    assert_eq!(plan(Api::Chat, &null).exact, Ok(()));
}

#[test]
fn lax_truth_counts_as_asked_for_by_the_client() {
    let body = json!({"stream": true, "return_token_ids": 1, "stream_options": {"include_usage": "yes"}});
    let lax = plan(Api::Chat, &body);
    assert!(lax.wants_ids && lax.include_usage);
    let no = json!({"stream": true, "return_token_ids": false, "stream_options": {"include_usage": null}});
    assert!(!plan(Api::Chat, &no).wants_ids && !plan(Api::Chat, &no).include_usage);
}

/// A request that was aborted ends with its usage and `[DONE]`, without a reason.
#[test]
fn an_end_without_a_reason_passes_nothing_of_what_is_held() {
    let body = json!({"stream": true, "max_tokens": 9});
    let mut tape = Transcript::new(plan(Api::Completions, &body));
    let said = event(r#""text":"x","finish_reason":null,"token_ids":[5]"#);
    assert!(!tape.pass(said.as_bytes()).is_empty());
    let held = event(r#""text":"","finish_reason":null,"token_ids":[6]"#);
    let usage = "data: {\"id\":\"a\",\"created\":1,\"choices\":[],\"usage\":{\"prompt_tokens\":2}}\n\n";
    assert_eq!(tape.pass(format!("{held}{usage}data: [DONE]\n\n").as_bytes()), Bytes::new());
    assert_eq!(tape.broke(), Some(Break::Ended));
    assert!(
        matches!(tape.next(&scan(&body), None), Ok(Next::Continue(_, 2, None))),
        "the first token is kept"
    );
}

#[test]
fn a_continuation_finds_no_more_of_the_prompt_than_there_is() {
    let body = json!({"stream": true, "max_tokens": 9});
    for api in [Api::Chat, Api::Completions] {
        let text = if api == Api::Chat { r#""delta":{"content":"x"}"# } else { r#""text":"x""# };
        let mut tape = Transcript::new(plan(api, &body));
        tape.pass(event(&format!(r#"{text},"finish_reason":null,"token_ids":[5]"#)).as_bytes());
        assert!(matches!(tape.next(&scan(&body), None), Ok(Next::Continue(_, 2, _))));
        tape.pass(event(r#""text":"x","finish_reason":"stop","token_ids":[6]"#).as_bytes());
        let usage = |cached: u64| {
            let details = format!(r#"{{"cached_tokens":{cached}}}"#);
            let counts = format!(
                r#""prompt_tokens":2,"total_tokens":3,"completion_tokens":1,"prompt_tokens_details":{details}"#
            );
            format!("data: {{\"id\":\"a\",\"created\":1,\"choices\":[],\"usage\":{{{counts}}}}}\n\n")
        };
        for (found, told) in [(2, 1), (1, 1), (0, 0)] {
            let out = tape.pass(usage(found).as_bytes());
            let out = std::str::from_utf8(&out).unwrap();
            assert!(out.contains(&format!(r#"{{"cached_tokens":{told}}}"#)), "{out}");
        }
    }
}

#[test]
fn remaining_tokens_of_an_answer() {
    let left = |api, body: Value| body::left(api, &scan(&body), 5);
    use body::Remainder::{Context, Tokens};
    assert_eq!(left(Api::Completions, json!({})), Tokens(11), "vLLM's default is 16");
    assert_eq!(left(Api::Completions, json!({"max_tokens": null})), Context);
    assert_eq!(left(Api::Completions, json!({"max_tokens": 4})), Tokens(0));
    assert_eq!(left(Api::Chat, json!({})), Context);
    assert_eq!(left(Api::Chat, json!({"max_tokens": 9, "max_completion_tokens": 8})), Tokens(3));
}

#[test]
fn end_is_written_locally_when_all_tokens_are_there() {
    let body = json!({"stream": true, "max_tokens": 1, "stream_options": {"include_usage": true}});
    let mut tape = Transcript::new(plan(Api::Chat, &body));
    tape.pass(event(r#""delta":{"content":"x"},"finish_reason":null,"token_ids":[6]"#).as_bytes());
    let Ok(Next::End(end)) = tape.next(&scan(&body), Some(8)) else { panic!("it is over") };
    let end = std::str::from_utf8(&end).unwrap();
    assert!(end.starts_with(r#"data: {"id":"a","created":1,"choices":[{"index":0,"delta":{"content":""},"finish_reason":"length","stop_reason":null,"#), "{end}");
    assert!(end.contains(r#""choices":[],"usage":{"prompt_tokens":1,"total_tokens":2,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":8}}"#));
    assert!(end.ends_with("data: [DONE]\n\n"));
}
