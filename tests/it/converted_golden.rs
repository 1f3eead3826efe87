//! Requests of the Messages and Responses APIs against the token ids of vLLM's own routes.

use bytes::Bytes;
use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::dialect::Api;
use pd_proxy::prompt::{Exactness, Rules};
use serde_json::Value;

use crate::common::model::{golden, prompter};

/// Requests that the engine takes, and of which the prompt is not known here.
const UNKNOWN: [&str; 5] = [
    "messages: a call without an id",
    "messages: a reference",
    "messages: a result by the assistant in blocks",
    "messages: tools change",
    "responses: arguments that are none",
];

#[derive(Default)]
struct Counts {
    equal: usize,
    unknown: usize,
    refused: usize,
    wrong: Vec<String>,
}

fn compare(family: &str, golden: &Value, rules: Rules, counts: &mut Counts) {
    let prompter = prompter(family);
    prompter.set_rules(rules);
    for (name, ids) in golden["families"][family].as_object().unwrap() {
        let request = &golden["requests"][name];
        let api = if request["api"] == "messages" { Api::Messages } else { Api::Responses };
        let body = Object::scan(Bytes::from(request["body"].to_string()), ScanLimits::default()).unwrap();
        let prompt = prompter.prompt(api, &body, None);
        let expected: Option<Vec<u32>> = serde_json::from_value(ids.clone()).unwrap();
        match (expected, prompt.exactness) {
            (None, _) => counts.refused += 1,
            (Some(_), Exactness::Inexact(_)) if UNKNOWN.contains(&name.as_str()) => {
                counts.unknown += 1;
            }
            (Some(ids), Exactness::Prefix { .. }) if UNKNOWN.contains(&name.as_str()) => {
                assert!(ids.starts_with(&prompt.tokens), "{family}/{name}");
                counts.unknown += 1;
            }
            (Some(_), Exactness::Prefix { reason, .. } | Exactness::Inexact(reason)) => {
                counts.wrong.push(format!("{family}/{name}: {}", reason.name()));
            }
            (Some(ids), Exactness::Exact) if ids == prompt.tokens[..] => counts.equal += 1,
            (Some(ids), Exactness::Exact) => {
                counts.wrong.push(format!("{family}/{name}: {ids:?}\n  not {:?}", prompt.tokens));
            }
        }
    }
}

#[test]
fn converted_requests_have_the_prompts_of_vllm() {
    let golden: Value = serde_json::from_str(&golden("converted.json")).unwrap();
    for rules in [Rules::OF_33, Rules::OF_32] {
        let mut counts = Counts::default();
        for family in golden["families"].as_object().unwrap().keys() {
            compare(family, &golden, rules, &mut counts);
        }
        let Counts { equal, unknown, refused, wrong } = counts;
        assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
        assert_eq!((equal, unknown, refused), (275, 15, 79));
    }
}
