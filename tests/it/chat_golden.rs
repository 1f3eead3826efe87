//! Chat requests against what vLLM and transformers made of them: every text and every token id.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::dialect::Api;
use pd_proxy::prompt::{
    CacheLimits, ChatTemplate, ContentFormat, Edition, EffortMap, Exactness, Local, PrefixCache,
    PromptSource, Prompter, Reason, Rules, Stop, TemplateFiles, Today,
};
use serde_json::{Value, json};

const TODAY: Today = Today { year: 2026, month: 3, day: 7 };

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

/// One release's golden chats, and the rules under which they are made here.
struct Golden {
    chats: Value,
    edition: Edition,
    rules: Rules,
}

impl Golden {
    fn of_32() -> Self {
        let chats = serde_json::from_str(&read("chat.json")).unwrap();
        Self { chats, edition: Edition::Of32, rules: Rules::OF_32 }
    }

    fn of_33() -> Self {
        let chats = serde_json::from_str(&read("chat-0.33.json")).unwrap();
        Self { chats, edition: Edition::Of33, rules: Rules::OF_33 }
    }

    /// Compares one family's results under `key`, and says which differ.
    fn compare(&self, family: &str, key: &str, efforts: &EffortMap, counts: &mut Counts) {
        let entry = &self.chats["families"][family];
        let template = template(family, &entry["config"]);
        let format =
            if entry["content_format"] == "openai" { ContentFormat::OpenAi } else { ContentFormat::String };
        assert_eq!(template.content_format(self.edition), format, "{family}");
        let prompter = prompter(family, &entry["config"]).with_efforts(efforts.clone());
        prompter.set_rules(self.rules);
        for (name, expect) in entry[key].as_object().unwrap() {
            let body = &told(&self.chats["requests"][name]);
            let text = self.text_of(&template, body, efforts);
            if let Some(error) = expect.get("error") {
                counts.refused += 1;
                if text.is_ok() {
                    counts.wrong.push(format!("{family}/{name}: {error} expected, not {text:?}"));
                }
                continue;
            }
            counts.exact += 1;
            let expected = expect["text"].as_str().unwrap();
            if text.as_deref() != Ok(expected) {
                counts.wrong.push(format!("{family}/{name}: {}", difference(&text, expected)));
                continue;
            }
            let prompt = prompter.prompt(Api::Chat, &object(body), TODAY);
            assert_eq!(prompt.exactness, Exactness::Exact, "{family}/{name}");
            assert_eq!(prompt.tokens[..], ids(&expect["ids"])[..], "{family}/{name}");
        }
        let stats = prompter.cache_stats();
        counts.cached += usize::from(stats.tokens > 0 && stats.hits > 0);
    }

    fn text_of(&self, template: &ChatTemplate, body: &Value, efforts: &EffortMap) -> Result<String, Reason> {
        match PromptSource::read(Api::Chat, &object(body))? {
            PromptSource::Messages(mut chat) => {
                chat.map_effort(efforts);
                template.render_until(*chat, self.edition, Some(TODAY), &Stop::default())
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Numbers of golden chats that came out, and those that came out wrong.
#[derive(Default)]
struct Counts {
    exact: usize,
    refused: usize,
    cached: usize,
    wrong: Vec<String>,
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
    for golden in [Golden::of_32(), Golden::of_33()] {
        assert_eq!(golden.chats["today"], json!([2026, 3, 7]));
        let mut counts = Counts::default();
        for family in golden.chats["families"].as_object().unwrap().keys() {
            golden.compare(family, "results", &EffortMap::new(), &mut counts);
        }
        let Counts { exact, refused, cached, wrong } = counts;
        assert!(wrong.is_empty(), "{:?}: {} differ:\n{}", golden.edition, wrong.len(), wrong.join("\n"));
        assert_eq!((exact, refused, cached), (EXACT, REFUSED, FAMILIES), "{:?}", golden.edition);
    }
}

#[test]
fn efforts_are_mapped_as_in_vllm_since_33() {
    let golden = Golden::of_33();
    let efforts: EffortMap = serde_json::from_value(golden.chats["effort_map"].clone()).unwrap();
    let mut counts = Counts::default();
    let families = golden.chats["families"].as_object().unwrap();
    for family in families.keys() {
        golden.compare(family, "mapped", &efforts, &mut counts);
    }
    assert!(counts.wrong.is_empty(), "{}", counts.wrong.join("\n"));
    assert_eq!((counts.exact, counts.refused), (MAPPED, FAMILIES));
    let changed = families.values().flat_map(|entry| {
        let mapped = entry["mapped"].as_object().unwrap();
        mapped.iter().filter(|(name, result)| entry["results"][name.as_str()] != **result)
    });
    assert!(changed.count() > 4, "some of them are another text than without the map");
}

/// A chat is exact on engines of both releases side by side if both make the same of it.
#[test]
fn a_fleet_of_both_releases_is_exact_where_they_agree() {
    let (older, newer) = (Golden::of_32(), Golden::of_33());
    let (mut exact, mut differ) = (0, BTreeSet::new());
    for (family, entry) in older.chats["families"].as_object().unwrap() {
        let prompter = prompter(family, &entry["config"]);
        prompter.set_rules(Rules::ANY_EDITION);
        for (name, of_32) in entry["results"].as_object().unwrap() {
            let of_33 = &newer.chats["families"][family]["results"][name];
            let prompt = prompter.prompt(Api::Chat, &object(&told(&older.chats["requests"][name])), TODAY);
            if of_32 != of_33 {
                differ.insert(family.as_str());
                assert_eq!(prompt.exactness, Exactness::Inexact(Reason::Release), "{family}/{name}");
            } else if of_32.get("error").is_none() {
                exact += 1;
                assert_eq!(prompt.exactness, Exactness::Exact, "{family}/{name}");
                assert_eq!(prompt.tokens[..], ids(&of_32["ids"])[..], "{family}/{name}");
            }
        }
    }
    assert_eq!((exact, differ), (AGREED, BTreeSet::from(["namespaces"])));
}

/// The request as an engine reads it that shows the template the tools whatever the choice: the
/// default, under which the golden texts were made. Here the choice of no tool is in doubt, since a
/// flag of the engine decides.
fn told(body: &Value) -> Value {
    let mut body = body.clone();
    if body["tool_choice"] == "none" {
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
const EXACT: usize = 672;
const REFUSED: usize = 120;
const FAMILIES: usize = 12;
/// Number of those with an effort that is mapped.
const MAPPED: usize = 84;
/// Number of those that are the same in both releases.
const AGREED: usize = 615;

#[test]
fn completions_tokenise_as_in_vllm() {
    let golden: Value = serde_json::from_str(&read("chat.json")).unwrap();
    let prompter = prompter("qwen3", &json!({}));
    let cases = golden["completions"].as_array().unwrap();
    assert_eq!(cases.len(), 6);
    for case in cases {
        for (add, key) in [(true, "ids"), (false, "plain_ids")] {
            let body = json!({"model": "m", "prompt": case["prompt"], "add_special_tokens": add});
            let prompt = prompter.prompt(Api::Completions, &object(&body), TODAY);
            assert_eq!(prompt.exactness, Exactness::Exact);
            assert_eq!(prompt.tokens[..], ids(&case[key])[..], "{body}");
        }
    }
}
