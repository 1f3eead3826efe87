//! Any body through templates and tokenizer: never a panic, and what is exact does not depend on the cache.

#![no_main]

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::dialect::Api;
use pd_proxy::prompt::{CacheLimits, ChatTemplate, Local, PrefixCache, Prompter, TemplateFiles, Today};

const TEMPLATES: [&str; 4] = [
    include_str!("../../golden/templates/qwen3.jinja"),
    include_str!("../../golden/templates/mistral.jinja"),
    include_str!("../../golden/templates/glm45.jinja"),
    include_str!("../../golden/templates/everything.jinja"),
];
const TOKENIZER: &str = include_str!("../../golden/tokenizer.json");
/// Small, so that prompts are evicted all the time.
const CACHE_TOKENS: usize = 2000;
const TODAY: Today = Today { year: 2026, month: 3, day: 7 };

/// One template with a cache and without.
static PROMPTERS: LazyLock<Vec<[Prompter; 2]>> = LazyLock::new(|| {
    let tokenizer = Arc::new(Local::from_json(TOKENIZER).expect("the golden tokenizer"));
    let with = |source: &str, cache| {
        let config = r#"{"bos_token":"<s>","eos_token":"</s>"}"#;
        let files = TemplateFiles { tokenizer_config: Some(config), chat_template: Some(source), content_format: None };
        let template = ChatTemplate::new(files).expect("a golden template");
        Prompter::new(Some(template), Some(tokenizer.clone()), cache)
    };
    let limits = CacheLimits { min_text_bytes: 0, tokens: CACHE_TOKENS };
    let cache = || PrefixCache::new(tokenizer.as_ref(), limits, 1);
    TEMPLATES.iter().map(|source| [with(source, cache()), with(source, PrefixCache::off())]).collect()
});

fuzz_target!(|data: &[u8]| {
    let Some((choice, body)) = data.split_first() else { return };
    let Ok(object) = Object::scan(Bytes::copy_from_slice(body), ScanLimits::default()) else { return };
    let api = Api::ALL[usize::from(*choice) % Api::ALL.len()];
    for [cached, plain] in PROMPTERS.iter() {
        let prompt = cached.prompt(api, &object, TODAY);
        let expect = plain.prompt(api, &object, TODAY);
        assert_eq!(prompt.exactness, expect.exactness);
        assert_eq!(prompt.tokens, expect.tokens);
        assert!(cached.cache_stats().tokens <= CACHE_TOKENS);
    }
});
