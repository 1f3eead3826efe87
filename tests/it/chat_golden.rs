//! Chat requests against what vLLM and transformers made of them: every text and every token id.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::dialect::Api;
use pd_proxy::prompt::{
    CacheLimits, ChatTemplate, ContentFormat, Exactness, Local, PrefixCache, PromptSource, Prompter, Reason,
    TemplateFiles, Today,
};
use serde_json::{Value, json};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn read(name: &str) -> String {
    let path = golden(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn object(body: &Value) -> Object {
    Object::scan(Bytes::from(body.to_string()), ScanLimits::default()).unwrap()
}

fn tokenizer() -> Arc<Local> {
    Arc::new(Local::from_json(&read("tokenizer.json")).unwrap())
}

fn template(family: &str, config: &Value) -> ChatTemplate {
    let (source, config) = (read(&format!("templates/{family}.jinja")), config.to_string());
    let files =
        TemplateFiles { tokenizer_config: Some(&config), chat_template: Some(&source), content_format: None };
    ChatTemplate::new(files).unwrap_or_else(|e| panic!("{family}: {e}"))
}

fn text_of(template: &ChatTemplate, body: &Value, today: Today) -> Result<String, Reason> {
    match PromptSource::read(Api::Chat, &object(body))? {
        PromptSource::Messages(chat) => template.render(*chat, today),
        other => panic!("{other:?}"),
    }
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// A cache that every text goes through.
fn prompter(family: &str, config: &Value) -> Prompter {
    let tokenizer = tokenizer();
    let limits = CacheLimits { min_text_bytes: 0, tokens: 1 << 20 };
    let cache = PrefixCache::new(tokenizer.as_ref(), limits, 7);
    Prompter::new(Some(template(family, config)), Some(tokenizer), cache)
}

#[test]
fn chats_render_and_tokenise_as_in_vllm() {
    let golden: Value = serde_json::from_str(&read("chat.json")).unwrap();
    let today = Today { year: 2026, month: 3, day: 7 };
    assert_eq!(golden["today"], json!([2026, 3, 7]));
    let (mut exact, mut refused, mut cached, mut wrong) = (0, 0, 0, Vec::new());
    for (family, entry) in golden["families"].as_object().unwrap() {
        let template = template(family, &entry["config"]);
        let format =
            if entry["content_format"] == "openai" { ContentFormat::OpenAi } else { ContentFormat::String };
        assert_eq!(template.content_format(), format, "{family}");
        let prompter = prompter(family, &entry["config"]);
        for (name, expect) in entry["results"].as_object().unwrap() {
            let body = &told(&golden["requests"][name]);
            let text = text_of(&template, body, today);
            if let Some(error) = expect.get("error") {
                refused += 1;
                if text.is_ok() {
                    wrong.push(format!("{family}/{name}: {error} expected, not {text:?}"));
                }
                continue;
            }
            exact += 1;
            if text.as_deref() != Ok(expect["text"].as_str().unwrap()) {
                wrong.push(format!(
                    "{family}/{name}: {}",
                    difference(&text, expect["text"].as_str().unwrap())
                ));
                continue;
            }
            let prompt = prompter.prompt(Api::Chat, &object(body), today);
            assert_eq!(prompt.exactness, Exactness::Exact, "{family}/{name}");
            assert_eq!(prompt.tokens[..], ids(&expect["ids"])[..], "{family}/{name}");
        }
        let stats = prompter.cache_stats();
        cached += usize::from(stats.tokens > 0 && stats.hits > 0);
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!((exact, refused, cached), (EXACT, REFUSED, 11));
}

/// The request as an engine reads it that shows the template the tools whatever the choice: the
/// default, under which the golden texts were made. Here the choice of no tool is in doubt, since a
/// flag of the engine decides.
fn told(body: &Value) -> Value {
    let mut body = body.clone();
    if body["tool_choice"] == "none" {
        assert_eq!(PromptSource::read(Api::Chat, &object(&body)).err(), Some(Reason::Constraint));
        body.as_object_mut().unwrap().remove("tool_choice");
    }
    body
}

/// The two texts from a little before their first difference on.
fn difference(text: &Result<String, Reason>, expect: &str) -> String {
    let Ok(text) = text else { return format!("{text:?}, not {expect:?}") };
    let same = text.chars().zip(expect.chars()).take_while(|(a, b)| a == b).count();
    let from = |text: &str| text.chars().skip(same.saturating_sub(30)).take(100).collect::<String>();
    format!("\n  got    {:?}\n  expect {:?}", from(text), from(expect))
}

/// Number of golden requests that are exact, and of those that the engine (or its template)
/// refuses.
const EXACT: usize = 496;
const REFUSED: usize = 98;

#[test]
fn completions_tokenise_as_in_vllm() {
    let golden: Value = serde_json::from_str(&read("chat.json")).unwrap();
    let prompter = prompter("qwen3", &json!({}));
    let today = Today { year: 2026, month: 3, day: 7 };
    let cases = golden["completions"].as_array().unwrap();
    assert_eq!(cases.len(), 6);
    for case in cases {
        for (add, key) in [(true, "ids"), (false, "plain_ids")] {
            let body = json!({"model": "m", "prompt": case["prompt"], "add_special_tokens": add});
            let prompt = prompter.prompt(Api::Completions, &object(&body), today);
            assert_eq!(prompt.exactness, Exactness::Exact);
            assert_eq!(prompt.tokens[..], ids(&case[key])[..], "{body}");
        }
    }
}
