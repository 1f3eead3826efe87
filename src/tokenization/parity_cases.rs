//! The fixed requests of the comparison with an engine.

use bytes::Bytes;

use crate::codec::json::{Edit, Object, ScanLimits, quote};
use crate::dialect::Api;
use crate::prompt::AddedToken;

/// Most special tokens whose text is tried; there may be thousands, and they are alike.
const SPECIAL_TOKENS: usize = 16;
/// Longest text of one that is tried, in bytes.
const SPECIAL_TOKEN_BYTES: usize = 64;

/// Name of the request with the tokenizer's own special tokens.
const SPECIAL: &str = "special tokens";

/// A fixed request.
struct Canary {
    name: &'static str,
    api: Api,
    /// Body without `model`.
    body: &'static str,
}

/// All requests, with the model's name and one with the text of the tokenizer's special tokens.
/// Chats come last.
pub(super) fn parity_cases(model: Option<&str>, added: &[AddedToken]) -> Vec<(&'static str, Api, Object)> {
    let edit = || model.map_or_else(Edit::new, |model| Edit::new().set("model", quote(model)));
    let special = special_tokens(added);
    let fixed =
        CANARIES.iter().map(|canary| (canary.name, canary.api, Bytes::from_static(canary.body.as_bytes())));
    let (texts, chats): (Vec<_>, Vec<_>) = fixed.partition(|(_, api, _)| *api == Api::Completions);
    let special = special.map(|body| (SPECIAL, Api::Completions, body));
    texts
        .into_iter()
        .chain(special)
        .chain(chats)
        .filter_map(|(name, api, body)| {
            let scan = |body| Object::scan(body, ScanLimits::default()).ok();
            let body = scan(scan(body)?.splice(&edit()).to_bytes())?;
            Some((name, api, body))
        })
        .collect()
}

/// Special tokens with text before, between and behind them.
fn special_tokens(added: &[AddedToken]) -> Option<Bytes> {
    let short = added.iter().filter(|token| (1..=SPECIAL_TOKEN_BYTES).contains(&token.content.len()));
    let text: String = short.take(SPECIAL_TOKENS).map(|token| format!(" a{}b ", token.content)).collect();
    (!text.is_empty())
        .then(|| Object::scan(Bytes::from_static(b"{}"), ScanLimits::default()).ok())
        .flatten()
        .map(|empty| empty.splice(&Edit::new().set("prompt", quote(&text))).to_bytes())
}

const fn completion(name: &'static str, body: &'static str) -> Canary {
    Canary { name, api: Api::Completions, body }
}

const fn chat(name: &'static str, body: &'static str) -> Canary {
    Canary { name, api: Api::Chat, body }
}

/// Requests about which tokenizers and templates are known to disagree.
const CANARIES: [Canary; 46] = [
    completion(
        "ascii",
        r#"{"prompt":"The quick brown fox jumps over the lazy dog. It's what they'd do, isn't it?"}"#,
    ),
    completion("chinese", r#"{"prompt":"大语言模型的预填充与解码分离部署,可以降低首字延迟。「你好」!"}"#),
    completion("emoji", r#"{"prompt":"😀👩‍👩‍👧‍👦🏳️‍🌈👍🏽 ok"}"#),
    completion("spaces", r#"{"prompt":"  a   b\t\tc \n\n\n   d\r\n    e  \u00a0 \u3000f   "}"#),
    completion("digits", r#"{"prompt":"0 12 345 6789 1234567890 3.14159 1,000,000 2026-03-07T08:09:10Z"}"#),
    completion(
        "code",
        r#"{"prompt":"fn main() {\n    let x = vec![1, 2];\n\tprintln!(\"{:?}\", x);\n}\n// __init__ == None\n"}"#,
    ),
    completion("accents", r#"{"prompt":"Größe, naïve, façade, Ångström, Việt Nam, Привет, مرحبا, नमस्ते"}"#),
    completion(
        "decomposed",
        r#"{"prompt":"e\u0301 u\u0308 A\u030a n\u0303 \u1100\u1161 \ufb01 \uff21 \u00bd"}"#,
    ),
    completion("no special tokens", r#"{"prompt":"plain","add_special_tokens":false}"#),
    completion(
        "text of turns",
        r#"{"prompt":"<|im_start|>user\nHi<|im_end|>\n<s>[INST] x [/INST]</s><|endoftext|> <think>"}"#,
    ),
    chat("one turn", r#"{"messages":[{"role":"user","content":"Hello there"}]}"#),
    chat(
        "system and turns",
        r#"{"messages":[{"role":"system","content":"Be brief.\n"},{"role":"user","content":" Hi "},
        {"role":"assistant","content":"Hello!"},{"role":"user","content":"How are you?\n\n"}]}"#,
    ),
    chat(
        "tools",
        r#"{"messages":[{"role":"user","content":"Weather in Bern?"}],"tools":[{"type":"function","function":{
        "name":"get_weather","description":"Weather of a <city> & \"more\"","parameters":{"type":"object",
        "properties":{"city":{"type":"string","description":"e.g. 北京"},"days":{"type":"integer","default":3}},
        "required":["city"]}}}]}"#,
    ),
    chat(
        "tool call and result",
        r#"{"messages":[{"role":"user","content":"Weather?"},{"role":"assistant","content":null,"tool_calls":[
        {"id":"call12345","type":"function","function":{"name":"get_weather",
        "arguments":"{\"city\": \"Zürich\", \"days\": 2}"}}]},
        {"role":"tool","tool_call_id":"call12345","content":"{\"t\": 21.5}"}],
        "tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{}}}}]}"#,
    ),
    chat(
        "parts",
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two "}]}]}"#,
    ),
    chat("empty content", r#"{"messages":[{"role":"user","content":""}]}"#),
    chat(
        "reasoning",
        r#"{"messages":[{"role":"user","content":"1+1?"},
        {"role":"assistant","content":"2","reasoning_content":"Add them."},{"role":"user","content":"And 2+2?"}]}"#,
    ),
    chat(
        "continued answer",
        r#"{"messages":[{"role":"user","content":"Go on"},{"role":"assistant","content":"I am fine, and"}],
        "add_generation_prompt":false,"continue_final_message":true}"#,
    ),
    chat(
        "no generation prompt",
        r#"{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello."}],
        "add_generation_prompt":false}"#,
    ),
    chat(
        "thinking off",
        r#"{"messages":[{"role":"user","content":"Hi"}],"chat_template_kwargs":{"enable_thinking":false}}"#,
    ),
    chat("effort", r#"{"messages":[{"role":"user","content":"Hi"}],"reasoning_effort":"low"}"#),
    // Engines may map each of them to something else.
    chat("effort none", r#"{"messages":[{"role":"user","content":"Hi"}],"reasoning_effort":"none"}"#),
    chat("effort minimal", r#"{"messages":[{"role":"user","content":"Hi"}],"reasoning_effort":"minimal"}"#),
    chat("effort medium", r#"{"messages":[{"role":"user","content":"Hi"}],"reasoning_effort":"medium"}"#),
    chat("effort high", r#"{"messages":[{"role":"user","content":"Hi"}],"reasoning_effort":"high"}"#),
    chat("effort xhigh", r#"{"messages":[{"role":"user","content":"Hi"}],"reasoning_effort":"xhigh"}"#),
    chat("effort max", r#"{"messages":[{"role":"user","content":"Hi"}],"reasoning_effort":"max"}"#),
    chat(
        "reasoning under its newer name",
        r#"{"messages":[{"role":"user","content":"1+1?"},
        {"role":"assistant","content":"2","reasoning":"Add them.\n"},{"role":"user","content":"And 2+2?"}]}"#,
    ),
    chat(
        "documents",
        r#"{"messages":[{"role":"user","content":"Hi"}],"documents":[{"title":"T","text":"it's"},{"id":"2"}]}"#,
    ),
    chat(
        "developer",
        r#"{"messages":[{"role":"developer","content":"Be brief."},{"role":"user","content":"Hi"}]}"#,
    ),
    chat(
        "developer after system",
        r#"{"messages":[{"role":"system","content":"Sys."},{"role":"user","content":"a"},
        {"role":"assistant","content":"b"},{"role":"developer","content":"Dev."},{"role":"user","content":"c"}]}"#,
    ),
    chat(
        "odd role and task",
        r#"{"messages":[{"role":"user","content":"a","task":"t"},{"role":"critic","content":"b"}]}"#,
    ),
    chat(
        "strict tool",
        r#"{"messages":[{"role":"user","content":"Go"}],"tools":[{"function":{"strict":true,"description":"d",
        "parameters":{"type":"object","properties":{},"x":[1.5,null]},"name":"n"},"type":"function"}]}"#,
    ),
    chat(
        "deferred tool",
        r#"{"messages":[{"role":"user","content":"Go"}],"tools":[{"type":"function","defer_loading":true,
        "function":{"name":"n","parameters":{}}}]}"#,
    ),
    chat(
        "tool result in parts",
        r#"{"messages":[{"role":"user","content":"Weather?"},{"role":"assistant","content":"","tool_calls":[
        {"id":"call12345","type":"function","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"call12345","content":[{"type":"text","text":"sun"},{"type":"text","text":"wind"}]}]}"#,
    ),
    chat(
        "calls without arguments",
        r#"{"messages":[{"role":"user","content":"Go"},{"role":"assistant","content":"x","tool_calls":[
        {"id":"call12345","type":"function","function":{"name":"f","arguments":"[1]"}}]},
        {"role":"tool","tool_call_id":"call12345","content":"ok"}]}"#,
    ),
    chat(
        "no calls",
        r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","tool_calls":[]},
        {"role":"user","content":"c"}]}"#,
    ),
    chat(
        "parts with more members",
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]},
        {"role":"assistant","content":[{"type":"refusal","refusal":"no"}]},{"role":"user","content":"b"}]}"#,
    ),
    chat(
        "billing header",
        r#"{"messages":[{"role":"system","content":"x-anthropic-billing-header: v=1\nKeep"},
        {"role":"user","content":"Hi"}]}"#,
    ),
    chat(
        "unset variable",
        r#"{"messages":[{"role":"user","content":"Hi"}],"chat_template_kwargs":{"enable_thinking":null,"x":"auto"}}"#,
    ),
    chat(
        "messages after the first",
        r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user",
        "content":[{"type":"text","text":"c"},{"type":"text","text":"d"}]},{"role":"system","content":"Now."},
        {"role":"user","content":"e"}]}"#,
    ),
    // A white square of 64 by 64 pixels. Models for text refuse it.
    chat(
        "image",
        r#"{"messages":[{"role":"system","content":"Look."},{"role":"user","content":[{"type":"image_url","image_url":{"url":
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAIAAAAlC+aJAAAAS0lEQVR42u3PMQ0AAAwDoPo33UrYvQQckD4XAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAYHLAMpT0sIcNbcEAAAAAElFTkSuQmCC"}},{"type":"text","text":"?"}]}]}"#,
    ),
    chat(
        "text and image",
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"This is:\n"},{"type":"image_url","image_url":{"url":
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAIAAAAlC+aJAAAAS0lEQVR42u3PMQ0AAAwDoPo33UrYvQQckD4XAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAYHLAMpT0sIcNbcEAAAAAElFTkSuQmCC"}}]}]}"#,
    ),
    chat(
        "turns in content",
        r#"{"messages":[{"role":"user","content":"<|im_end|>\n<|im_start|>system\n</s> {{ x }} {% y %}"}]}"#,
    ),
    Canary {
        name: "messages",
        api: Api::Messages,
        body: r#"{"max_tokens":64,"system":[{"type":"text","text":"x-anthropic-billing-header: v=1"},{"type":"text","text":"Be "},
        {"type":"text","text":"brief.","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"Weather?"},
        {"role":"assistant","content":[{"type":"text","text":"I look."},{"type":"tool_use","id":"call12345","name":"f","input":{"city":"Zürich"}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"call12345","content":[{"type":"text","text":"sun"},
        {"type":"text","text":"wind"}]},{"type":"text","text":"And now?"}]},{"role":"system","content":"Now."},{"role":"user","content":"Go"}],
        "tools":[{"name":"f","description":"d","input_schema":{"properties":{"city":{"type":"string"}}}}]}"#,
    },
    Canary {
        name: "responses",
        api: Api::Responses,
        body: r#"{"instructions":"Be brief.","input":[{"role":"user","content":[{"type":"input_text","text":"Weather?"},{"type":"input_text",
        "text":"Now"}]},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I look."}]},{"type":"function_call",
        "call_id":"call12345","name":"f","arguments":"{\"city\": \"Zürich\"}"},{"type":"function_call_output","call_id":"call12345",
        "output":"sun"}],"tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object","properties":{}}}]}"#,
    },
];

#[cfg(test)]
mod tests {
    use super::super::tokenize_request::{TokenizeRequest, tokenize_request};
    use super::*;
    use crate::prompt::{PromptSource, Reason, Topic};
    use std::collections::BTreeSet;

    #[test]
    fn every_canary_is_a_question_and_has_a_name_of_its_own() {
        let added = [AddedToken { content: "<|\"x|>".to_owned(), cuts: true }];
        let requests = parity_cases(Some("m\"1"), &added);
        assert_eq!(requests.len(), CANARIES.len() + 1);
        let names: BTreeSet<&str> = requests.iter().map(|(name, ..)| *name).collect();
        assert_eq!(names.len(), requests.len());
        for (name, api, body) in requests {
            let asked = match tokenize_request(api, &body) {
                Ok(TokenizeRequest::Ask(asked)) => asked,
                // It is asked about as it is, which is done with no client's images.
                Err(Reason::Media) => body.bytes().clone(),
                // `/render` alone takes them.
                Err(Reason::Api) if matches!(api, Api::Messages | Api::Responses) => body.bytes().clone(),
                other => panic!("{name} is not asked: {other:?}"),
            };
            let body: serde_json::Value = serde_json::from_slice(&asked).unwrap();
            assert_eq!(body["model"], "m\"1", "{name}");
            if name == SPECIAL {
                assert_eq!(body["prompt"], " a<|\"x|>b ");
            }
        }
    }

    /// One that has several would take them all away where one of them differs.
    #[test]
    fn a_canary_has_one_topic_and_every_topic_has_a_canary() {
        let mut found = Vec::new();
        for (name, api, body) in parity_cases(None, &[]) {
            if let Ok(PromptSource::Messages(chat)) = PromptSource::read(api, &body) {
                let topics: Vec<Topic> = chat.needs().iter().collect();
                assert!(topics.len() < 2, "{name}: {topics:?}");
                found.extend(topics);
            }
        }
        // All chats of some models have that one.
        found.push(Topic::Encoding);
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), BTreeSet::from(Topic::ALL));
    }

    #[test]
    fn without_special_tokens_there_is_no_request_for_them() {
        assert_eq!(parity_cases(None, &[]).len(), CANARIES.len());
        let long = AddedToken { content: "x".repeat(SPECIAL_TOKEN_BYTES + 1), cuts: true };
        assert_eq!(special_tokens(&[long]), None);
    }
}
