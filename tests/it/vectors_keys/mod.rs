//! Pool keys against keys that the connectors themselves made (the golden vectors' README says
//! how).

pub mod ascend;
pub mod stores;

use std::collections::BTreeMap;

use pd_proxy::kvhash::keys::bind::{BlockTexts, Bound, Names};
use pd_proxy::kvhash::keys::{
    Ask, Connector, GroupKind, KeyBatch, KeyProfile, KvGroup, KvShape, Place, Preset, PromptBlocks, Template,
};
use serde_json::Value;

/// The rows of a scheme.
fn rows(scheme: &str) -> Vec<Value> {
    crate::vectors::rows(scheme).into_iter().map(|row| row.0).collect()
}

fn number(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))).unwrap()
}

fn number_or(value: &Value, default: u32) -> u32 {
    if value.is_null() { default } else { number(value) }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a text"))
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(text).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    assert!(hex.len().is_multiple_of(2));
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn hashes(value: &Value) -> Vec<Vec<u8>> {
    texts(value).into_iter().map(bytes).collect()
}

fn tokens(row: &Value) -> u32 {
    u32::try_from(row["token_ids"].as_array().unwrap().len()).unwrap()
}

/// The presets of all versions a row is true for; each of them has to pass it.
fn presets(row: &Value, connector: Connector, versions: &str) -> Vec<&'static Preset> {
    let mut found = BTreeMap::new();
    for version in texts(&row["params"][versions]) {
        let preset = Preset::of_version(connector, version).unwrap();
        found.insert(preset.name, preset);
    }
    assert!(!found.is_empty());
    found.into_values().collect()
}

fn strings(batch: &KeyBatch) -> Vec<&str> {
    batch.iter().collect()
}

fn prompt_keys<H: AsRef<[u8]>>(profile: &KeyProfile, prompt: &PromptBlocks<'_, H>, ask: Ask) -> KeyBatch {
    let mut batch = KeyBatch::default();
    profile.keys_of_prompt(prompt, ask, &mut batch).unwrap();
    batch
}

fn group_keys<H: AsRef<[u8]>>(profile: &KeyProfile, index: usize, prompt: &PromptBlocks<'_, H>) -> KeyBatch {
    let mut batch = KeyBatch::default();
    profile.keys_of_group(index, prompt, &mut batch).unwrap();
    batch
}

/// The key of each `[start, end, key]` of one worker.
fn worker_keys(worker: &Value) -> Vec<&str> {
    worker.as_array().unwrap().iter().map(|k| text(&k[2])).collect()
}

/// One key of one place, by template.
fn one_key(template: &str, names: &Names<'_>, shape: &KvShape, at: Place, hash: &[u8]) -> String {
    let hex: String = hash.iter().map(|b| format!("{b:02x}")).collect();
    let mut out = String::new();
    let block = BlockTexts { hash, hex: &hex, ..BlockTexts::default() };
    Bound::new(&Template::parse(template).unwrap(), names, shape, &at).write(&block, &mut out);
    out
}

fn plain_names(model: &str) -> Names<'_> {
    let empty = "";
    Names {
        model,
        full_model: model,
        prefix: empty,
        namespace: empty,
        dtype: empty,
        world: 1,
        slash: "/",
        end: empty,
    }
}

fn groups_of(params: &Value) -> Vec<KvGroup> {
    let group = |g: &Value| KvGroup {
        block_tokens: number(&g["block_size"]),
        family: g["family"].as_str().unwrap_or("default").to_owned(),
        kind: match g["type"].as_str() {
            None | Some("full") => GroupKind::Full,
            Some("mla") => GroupKind::Mla,
            Some("mamba") => GroupKind::Mamba,
            Some(other) => panic!("unknown group type {other}"),
        },
        role: "kv",
    };
    params["groups"].as_array().unwrap().iter().map(group).collect()
}
