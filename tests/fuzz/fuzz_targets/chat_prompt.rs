//! Sends any body through templates and tokenizer, and forms the question for an engine's
//! tokenizer. Nothing panics, and what is exact does not depend on the cache. The same bytes are
//! read as an engine's answers about itself, which never yield more facts than may be kept.

#![no_main]

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::dialect::{Api, facts};
use pd_proxy::prompt::{CacheLimits, ChatTemplate, Local, PrefixCache, Prompter, TemplateFiles, Today};
use pd_proxy::tokenization::{TokenizeRequest, tokenize_request};

const TEMPLATES: [&str; 4] = [
    include_str!("../../golden/templates/qwen3.jinja"),
    include_str!("../../golden/templates/mistral.jinja"),
    include_str!("../../golden/templates/glm45.jinja"),
    include_str!("../../golden/templates/everything.jinja"),
];
const TOKENIZER: &str = include_str!("../../golden/tokenizer.json");
/// Limit of the cache in tokens, so small that prompts are evicted all the time.
const CACHE_TOKENS: usize = 2000;
const TODAY: Today = Today { year: 2026, month: 3, day: 7 };

/// Longest input, in bytes. A template may write its input several times over; what it makes of
/// this much stays far below any limit on memory.
const MAX_INPUT_BYTES: usize = 64 << 10;

/// Each template with a cache and without.
static PROMPTERS: LazyLock<Vec<[Prompter; 2]>> = LazyLock::new(|| {
    let tokenizer = Arc::new(Local::from_json(TOKENIZER).expect("the golden tokenizer"));
    let with = |source: &str, cache| {
        let config = r#"{"bos_token":"<s>","eos_token":"</s>"}"#;
        let files = TemplateFiles {
            tokenizer_config: Some(config),
            chat_template: Some(source),
            content_format: None,
        };
        let template = ChatTemplate::new(files).expect("a golden template");
        Prompter::new(Some(template), Some(tokenizer.clone()), cache)
    };
    let limits = CacheLimits { min_text_bytes: 0, tokens: CACHE_TOKENS };
    let cache = || PrefixCache::new(tokenizer.as_ref(), limits, 1);
    TEMPLATES.iter().map(|source| [with(source, cache()), with(source, PrefixCache::off())]).collect()
});

/// Checks that the facts hold nothing beyond the answer.
fn read_facts(answer: &[u8]) {
    let texts = |model: &facts::ModelFact| model.id.len() + model.root.as_deref().map_or(0, str::len);
    assert!(facts::models(answer).iter().map(texts).sum::<usize>() <= answer.len());
    assert!(facts::version(answer).is_none_or(|version| version.len() <= answer.len()));
    let text = String::from_utf8_lossy(answer);
    match facts::cache_config(&text) {
        Ok(found) => {
            let algo = found.and_then(|found| found.hash_algo);
            assert!(algo.is_none_or(|algo| algo.len() <= text.len()));
        }
        Err(differing) => assert_ne!(differing.values[0], differing.values[1]),
    }
}

/// Checks that a question to an engine is an object with either `prompt` or `messages`. Tokens that
/// are known need no question.
fn ask(api: Api, object: &Object) {
    if let Ok(TokenizeRequest::Ask(body)) = tokenize_request(api, object) {
        let asked = Object::scan(body, ScanLimits::default()).expect("a question is an object");
        assert!(asked.contains("prompt") != asked.contains("messages"));
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, body)) = data.split_first() else { return };
    if body.len() > MAX_INPUT_BYTES {
        return;
    }
    read_facts(body);
    let Ok(object) = Object::scan(Bytes::copy_from_slice(body), ScanLimits::default()) else { return };
    let api = Api::ALL[usize::from(*choice) % Api::ALL.len()];
    ask(api, &object);
    for [cached, plain] in PROMPTERS.iter() {
        let prompt = cached.prompt(api, &object, TODAY);
        let expect = plain.prompt(api, &object, TODAY);
        assert_eq!(prompt.exactness, expect.exactness);
        assert_eq!(prompt.tokens, expect.tokens);
        assert!(cached.cache_stats().tokens <= CACHE_TOKENS);
    }
});
