//! Chats of models that engines render by code, against what vLLM's own code made of them.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::dialect::Api;
use pd_proxy::prompt::{
    ChatEncoding, ChatForm, ChatRenderer, Edition, MistralFormat, MistralVersion, Moment, Piece,
    PromptSource, Reason, Rendered, Stop, Today,
};
use serde_json::{Map, Value, json};

const TODAY: Today = Today { year: 2026, month: 3, day: 7 };

/// A family of the golden file.
struct Family {
    name: &'static str,
    encoding: ChatEncoding,
    /// Architecture or model type that chooses its code, if one does.
    chosen_by: Option<&'static str>,
}

fn families() -> Vec<Family> {
    let of = |name, encoding, chosen_by| Family { name, encoding, chosen_by: Some(chosen_by) };
    let efforts =
        json!({"type": "enum", "accepts_none": true, "default": "none", "values": ["none", "low", "high"]});
    let settings = json!({ "reasoning_effort": efforts });
    let mistral = |name, version, settings: Option<&Value>| {
        let format = MistralFormat::new(version, settings).unwrap();
        Family { name, encoding: ChatEncoding::Mistral(format), chosen_by: None }
    };
    vec![
        of("deepseek_v32", ChatEncoding::DeepseekV32, "DeepseekV32ForCausalLM"),
        of("deepseek_v4", ChatEncoding::DeepseekV4, "DeepseekV4ForCausalLM"),
        of("deepseek_v41", ChatEncoding::DeepseekV41, "DeepseekV41ForCausalLM"),
        of("gpt_oss", ChatEncoding::Harmony, "gpt_oss"),
        mistral("mistral_v3", MistralVersion::V3, None),
        mistral("mistral_v7", MistralVersion::V7, None),
        mistral("mistral_v11", MistralVersion::V11, None),
        mistral("mistral_v13", MistralVersion::V13, None),
        mistral("mistral_v15", MistralVersion::V15, Some(&settings)),
    ]
}

fn golden(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// Requests of both files, with the choice of tools left out under which the texts are the same and
/// which an engine's flag decides about.
fn requests(encoded: &Value) -> Map<String, Value> {
    let chats = golden("chat.json");
    let mut all = chats["requests"].as_object().unwrap().clone();
    all.extend(encoded["requests"].as_object().unwrap().clone());
    for body in all.values_mut() {
        body.as_object_mut().unwrap().remove("tool_choice");
    }
    all
}

fn render(encoding: ChatEncoding, edition: Edition, body: &Value) -> Result<Rendered, Reason> {
    let body = Object::scan(Bytes::from(body.to_string()), ScanLimits::default()).unwrap();
    let PromptSource::Messages(chat) = PromptSource::read(Api::Chat, &body)? else { panic!("no chat") };
    let stop = Stop::default();
    encoding.render(*chat, Moment { edition, today: Some(TODAY), stop: &stop })
}

/// In the form of the golden file: special tokens in lists, texts side by side as one.
fn shown(rendered: Rendered) -> Value {
    let pieces = match rendered {
        Rendered::Text(text) => return json!({ "text": text }),
        Rendered::Pieces(pieces) | Rendered::Beginning { pieces, .. } => pieces,
    };
    let mut shown: Vec<Value> = Vec::new();
    for piece in pieces {
        match (piece, shown.last_mut()) {
            (Piece::Special(token), _) => shown.push(json!([token])),
            (Piece::Plain(text), Some(Value::String(before))) => before.push_str(&text),
            (Piece::Plain(text), _) => shown.push(Value::from(text)),
        }
    }
    json!({ "pieces": shown })
}

/// Numbers of rows by what came of them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    /// The same prompt.
    equal: usize,
    /// Refused by the engine and here.
    both_refuse: usize,
    /// Refused here alone, by reason.
    refused: BTreeMap<&'static str, usize>,
    /// Another prompt, or one that the engine refuses.
    wrong: Vec<String>,
}

fn compare(family: &str, encoding: ChatEncoding, edition: Edition) -> Counts {
    let older = golden("encoded.json");
    let mut results = older["families"][family].as_object().unwrap().clone();
    if edition == Edition::Of33 {
        results.extend(golden("encoded-0.33.json")["families"][family].as_object().unwrap().clone());
    }
    let requests = requests(&older);
    assert_eq!(results.len(), requests.len());
    let mut counts = Counts::default();
    for (name, mut expect) in results {
        expect.as_object_mut().unwrap().remove("tokens");
        match (expect.get("error"), render(encoding, edition, &requests[&name])) {
            (Some(_), Err(_)) => counts.both_refuse += 1,
            (None, Err(reason)) => *counts.refused.entry(reason.name()).or_default() += 1,
            (None, Ok(found)) if shown(found.clone()) == expect => counts.equal += 1,
            (_, Ok(found)) => {
                counts.wrong.push(format!("{name}:\n  got    {}\n  expect {expect}", shown(found)));
            }
        }
    }
    counts
}

#[test]
fn encoded_chats_are_those_of_vllm_or_refused() {
    let mut found = Vec::new();
    for Family { name: family, encoding, .. } in families() {
        for edition in [Edition::Of32, Edition::Of33] {
            let counts = compare(family, encoding, edition);
            let wrong = counts.wrong.join("\n");
            assert!(wrong.is_empty(), "{family} {edition:?}: {} differ:\n{wrong}", counts.wrong.len());
            found.push((family, edition, counts.equal, counts.both_refuse, counts.refused));
        }
    }
    let expect: Vec<_> = EXPECT
        .into_iter()
        .flat_map(|Rows { family, equal, both_refuse, refused }| {
            let refused: BTreeMap<&'static str, usize> = refused.iter().copied().collect();
            [Edition::Of32, Edition::Of33].map(|edition| {
                // 0.33 refuses one more of V4.1's.
                let more = usize::from(family == "deepseek_v41" && edition == Edition::Of33);
                (family, edition, equal - more, both_refuse + more, refused.clone())
            })
        })
        .collect();
    assert_eq!(found, expect);
}

/// Results of a family's rows under the engine's 0.32.
struct Rows {
    family: &'static str,
    equal: usize,
    both_refuse: usize,
    /// Refused here alone, by reason.
    refused: &'static [(&'static str, usize)],
}

impl Rows {
    const fn of(
        family: &'static str,
        [equal, both_refuse]: [usize; 2],
        refused: &'static [(&'static str, usize)],
    ) -> Rows {
        Rows { family, equal, both_refuse, refused }
    }
}

const EXPECT: [Rows; 9] = [
    Rows::of("deepseek_v32", [120, 21], &[("json", 1), ("shape", 7)]),
    Rows::of("deepseek_v4", [131, 9], &[("json", 1), ("shape", 8)]),
    Rows::of("deepseek_v41", [118, 27], &[("json", 1), ("shape", 3)]),
    Rows::of("gpt_oss", [121, 18], &[("json", 1), ("shape", 9)]),
    Rows::of("mistral_v3", [63, 83], &[("json", 3)]),
    Rows::of("mistral_v7", [69, 79], &[("json", 1)]),
    Rows::of("mistral_v11", [68, 80], &[("json", 1)]),
    Rows::of("mistral_v13", [82, 66], &[("json", 1)]),
    Rows::of("mistral_v15", [79, 69], &[("json", 1)]),
];

#[test]
fn codes_are_chosen_by_the_models_configuration() {
    for Family { encoding, chosen_by, .. } in families() {
        let Some(name) = chosen_by else { continue };
        let config = json!({ "architectures": [name], "model_type": name });
        assert_eq!(ChatForm::of_model(&config), ChatForm::Encoding(encoding), "{name}");
    }
    assert_eq!(ChatForm::of_model(&json!({ "architectures": ["Qwen3ForCausalLM"] })), ChatForm::Template);
    assert_eq!(ChatForm::of_model(&Value::Null), ChatForm::Template);
    let kimi = json!({ "architectures": ["KimiK3ForConditionalGeneration"] });
    assert_eq!(ChatForm::of_model(&kimi), ChatForm::Unknown);
}

#[test]
fn chats_of_gpt_oss_are_unknown_without_a_date() {
    let body = json!({ "messages": [{ "role": "user", "content": "a" }] });
    let body = Object::scan(Bytes::from(body.to_string()), ScanLimits::default()).unwrap();
    let Ok(PromptSource::Messages(chat)) = PromptSource::read(Api::Chat, &body) else { panic!("no chat") };
    let stop = Stop::default();
    let moment = Moment { edition: Edition::Of33, today: None, stop: &stop };
    assert_eq!(ChatEncoding::Harmony.render(*chat, moment), Err(Reason::Date));
}
