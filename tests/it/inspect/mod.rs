//! `pd-proxy check` before engines and pools that are as the configuration says, differ, are away,
//! or are something else.

mod engines;
mod init;
mod mooncake;
mod others;
mod stored;

use std::net::SocketAddr;

use pd_proxy::kvhash::keys::{Ask, KeyBatch, KeyConfig, KeyProfile, KvShape, Preset, PromptBlocks};

use crate::command::run;
use crate::common::place;

/// A port of a host where nobody else listens, also after what is started there has ended.
pub fn anywhere() -> SocketAddr {
    place::own_host()
}

/// The settings of every configuration here: nothing is left for engines to say.
const BASE: [&str; 7] = [
    "prompt.tokens=engine",
    "hash.version=0.32.0",
    "hash.algo=sha256",
    "hash.seed=0",
    "hash.block_tokens=16",
    "key.model=/models/Qwen3-8B",
    "timeout.models_ms=1000",
];

/// Exit code, and what was said of engines and the pool.
pub fn check(sets: &[String]) -> (i32, String) {
    check_with(sets, &[])
}

/// The same, with variables of the environment.
pub fn check_with(sets: &[String], env: &[(&str, &str)]) -> (i32, String) {
    let sets = BASE.iter().map(|set| (*set).to_owned()).chain(sets.iter().cloned());
    let line: Vec<String> =
        std::iter::once("check".to_owned()).chain(sets.flat_map(|set| ["--set".to_owned(), set])).collect();
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let (code, out, err) = run(&line, env);
    let said: Vec<&str> = out
        .lines()
        .filter(|line| ["# ok", "# note", "# warn", "# BAD"].iter().any(|word| line.starts_with(word)))
        .collect();
    let worst =
        |line: &&str| ["# BAD", "# warn", "# note", "# ok"].iter().position(|word| line.starts_with(word));
    assert!(said.is_sorted_by_key(worst), "the worst is first:\n{out}");
    assert!(code == 1 || said.len() == out.lines().count(), "the configuration is not printed:\n{out}");
    (code, format!("{}\n{err}", said.join("\n")))
}

pub fn set(key: &str, value: impl std::fmt::Display) -> String {
    format!("{key}={value}")
}

/// Keys of so many blocks as a connector names them.
pub fn keys(preset: &str, blocks: u8, change: impl FnOnce(&mut KeyConfig)) -> Vec<String> {
    let shape = KvShape { block_tokens: 16, kv_heads: 8, ..KvShape::default() };
    let mut config = KeyConfig::new(Preset::named(preset).unwrap(), "/models/Qwen3-8B", shape);
    change(&mut config);
    let bytes = config.hash_bytes.unwrap_or(config.preset.hash_bytes);
    let hashes: Vec<Vec<u8>> = (1..=blocks).map(|n| vec![n; bytes]).collect();
    let mut batch = KeyBatch::default();
    let prompt = PromptBlocks::new(&hashes, u32::from(blocks) * 16);
    KeyProfile::new(&config).unwrap().keys_of_prompt(&prompt, Ask::Every, &mut batch).unwrap();
    batch.iter().map(str::to_owned).collect()
}

/// That the check ended with this code and said all of these.
#[track_caller]
pub fn expect(found: &(i32, String), code: i32, words: &[&str]) {
    assert_eq!(found.0, code, "{}", found.1);
    for word in words {
        assert!(found.1.contains(word), "{word:?} in\n{}", found.1);
    }
}
