//! Tokenizers of every form of a model's directory against the ids that the libraries of these
//! forms make of some texts (`tests/golden/tokenizers`).

use std::collections::BTreeMap;
use std::path::Path;

use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::dialect::Api;
use pd_proxy::naming_config::{LoadedTokenizer, TokenizerForm, load_tokenizer};
use pd_proxy::prompt::{CacheLimits, Exactness, PrefixCache, Reason, Today};
use serde::Deserialize;
use serde_json::Value;

use crate::common::model::{self, golden};

/// Ids that a library makes of texts.
#[derive(Deserialize)]
struct Golden {
    library: String,
    cases: Vec<Case>,
}

/// Ids of one text.
#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    /// With special tokens taken for text.
    plain: Option<Vec<u32>>,
}

const FORMS: [(&str, TokenizerForm); 4] = [
    ("kimi", TokenizerForm::Kimi),
    ("qwen", TokenizerForm::Qwen),
    ("tekken", TokenizerForm::Tekken),
    ("unigram", TokenizerForm::Json),
];

fn load(name: &str) -> LoadedTokenizer {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tokenizers").join(name);
    load_tokenizer(&folder).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn tokens_of_every_form_are_those_of_its_library() {
    let goldens: BTreeMap<String, Golden> = serde_json::from_str(&golden("tokenizers/cases.json")).unwrap();
    assert_eq!(goldens.len(), FORMS.len());
    for (name, form) in FORMS {
        let (loaded, golden) = (load(name), &goldens[name]);
        assert_eq!(loaded.form, form);
        let mut refused = 0;
        for case in &golden.cases {
            let mut ids = Vec::new();
            if loaded.tokenizer.encode_into(&case.text, true, &mut ids).is_err() {
                refused += 1;
                continue;
            }
            assert_eq!(ids, case.ids, "{name} by {}: {:?}", golden.library, case.text);
            if let Some(plain) = &case.plain {
                let mut ids = Vec::new();
                loaded.tokenizer.encode_plain_into(&case.text, &mut ids).unwrap();
                assert_eq!(&ids, plain, "{name} by {}, plain: {:?}", golden.library, case.text);
            }
        }
        assert!(refused <= if name == "qwen" { 10 } else { 0 }, "{name}: {refused} texts are refused");
        assert!(golden.cases.len() > 100, "{name}");
    }
}

/// Conversations that grow, of texts with special tokens between them.
#[test]
fn cached_prefixes_have_the_tokens_of_the_whole() {
    let goldens: BTreeMap<String, Golden> = serde_json::from_str(&golden("tokenizers/cases.json")).unwrap();
    let tokenizer = load("kimi").tokenizer;
    let limits = CacheLimits { min_text_bytes: 0, ..CacheLimits::default() };
    let cache = PrefixCache::new(&*tokenizer, limits, 7);
    let mut text = String::new();
    for case in &goldens["kimi"].cases {
        text += "<|im_user|>user<|im_middle|>";
        text += &case.text;
        let mut whole = Vec::new();
        tokenizer.encode_into(&text, false, &mut whole).unwrap();
        assert_eq!(cache.encode(&*tokenizer, &text).unwrap()[..], whole[..], "{:?}", case.text);
    }
    assert!(cache.stats().hits > 100);
}

/// The texts are those that vLLM rendered; the code of the model, which is not here, says what
/// becomes of tools.
#[test]
fn chats_of_kimi_s_form_are_exact_but_for_those_with_tools() {
    let chats: Value = serde_json::from_str(&golden("chat.json")).unwrap();
    let expect: Value = serde_json::from_str(&golden("tokenizers/chats.json")).unwrap();
    let folder = model::kimi();
    let prompter = model::prompter_of(folder.path());
    let date: Vec<u16> = serde_json::from_value(chats["today"].clone()).unwrap();
    let [month, day] = [1, 2].map(|at: usize| u8::try_from(date[at]).unwrap());
    let today = Today { year: date[0], month, day };
    let (mut exact, mut refused) = (0, 0);
    for (name, ids) in expect["chats"].as_object().unwrap() {
        let request = &chats["requests"][name];
        let body = Object::scan(request.to_string().into(), ScanLimits::default()).unwrap();
        let prompt = prompter.prompt(Api::Chat, &body, today);
        match prompt.exactness {
            Exactness::Exact => {
                assert_eq!(Value::from(&prompt.tokens[..]), *ids, "{name}");
                exact += 1;
            }
            Exactness::Prefix { reason, .. } => {
                assert_eq!(reason, Reason::Constraint, "{name}");
                let ids: Vec<u32> = serde_json::from_value(ids.clone()).unwrap();
                assert!(ids.starts_with(&prompt.tokens) && ids.len() > prompt.tokens.len(), "{name}");
                refused += 1;
            }
            Exactness::Inexact(reason) => {
                assert!([Reason::Template, Reason::Constraint].contains(&reason), "{name}: {reason:?}");
                assert!(request["tools"].is_array(), "{name}");
                refused += 1;
            }
        }
    }
    assert!(exact > 40 && refused > 0, "{exact} exact, {refused} refused");
}
