//! Facts that an engine tells about itself: `GET /version`, `GET /v1/models`, and the cache's
//! configuration in `GET /metrics`.

use std::fmt;

use serde::Deserialize;

/// Most models read from one list; the others are left out.
const MAX_MODELS: usize = 4096;
/// Most data-parallel ranks whose lines are compared; the others are left out.
const MAX_RANKS: usize = 1024;
/// Most labels read from one line; a line with more is not one of ours.
const MAX_LABELS: usize = 256;

/// The gauge that carries vLLM's `CacheConfig` in its labels.
const CACHE_CONFIG: &str = "vllm:cache_config_info";
/// Python's spelling of a setting that was not made.
const UNSET: &str = "None";

const BLOCK_SIZE: &str = "block_size";
const HASH_ALGO: &str = "prefix_caching_hash_algo";
const PREFIX_CACHING: &str = "enable_prefix_caching";
const HASH_BLOCK_SIZE: &str = "hash_block_size";
/// The labels that are read.
const LABELS: [&str; 4] = [BLOCK_SIZE, HASH_ALGO, PREFIX_CACHING, HASH_BLOCK_SIZE];

/// One entry of `GET /v1/models` (vLLM's `ModelCard`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ModelFact {
    /// The name that requests use.
    pub id: String,
    /// Place where the weights come from: the value of `--model`, or a LoRA adapter's path.
    #[serde(default)]
    pub root: Option<String>,
    /// For a LoRA adapter, the model that it adapts.
    #[serde(default)]
    pub parent: Option<String>,
    /// Longest context, in tokens; adapters don't have their own.
    #[serde(default)]
    pub max_model_len: Option<u64>,
}

/// Settings of the cache that decide on block hashes; `None` = the engine did not tell, or left it
/// unset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheFacts {
    /// Tokens per KV block (`block_size`).
    pub block_tokens: Option<u32>,
    /// Name of the block hash (`prefix_caching_hash_algo`), such as `sha256_cbor`.
    pub hash_algo: Option<String>,
    /// True if blocks are hashed at all (`enable_prefix_caching`).
    pub prefix_caching: Option<bool>,
    /// Tokens per hash, where it is not one per block (`hash_block_size`).
    pub hash_block_tokens: Option<u32>,
    /// Data-parallel ranks that said so; at least 1 where anything was said.
    pub ranks: usize,
}

/// The ranks of one engine differ in a setting; no block hash can be right for both.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its ranks differ in {label}: {} and {}", LabelValue(.values[0].as_deref()), LabelValue(.values[1].as_deref()))]
pub struct Contradiction {
    /// The label of `vllm:cache_config_info`.
    pub label: &'static str,
    /// Two of its values as they are spelled; `None` where the label is missing.
    pub values: [Option<String>; 2],
}

/// A label's value in a message.
struct LabelValue<'a>(Option<&'a str>);

/// The values of [`LABELS`] on one line.
type Settings = [Option<String>; LABELS.len()];

impl fmt::Display for LabelValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => write!(f, "{value:?}"),
            None => f.write_str("nothing"),
        }
    }
}

/// The version in an answer to `GET /version` (`{"version":"0.32.0"}`).
pub fn version(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Answer {
        version: String,
    }
    serde_json::from_slice::<Answer>(body).ok().map(|answer| answer.version)
}

/// The models in an answer to `GET /v1/models`; empty when it is not one.
pub fn models(body: &[u8]) -> Vec<ModelFact> {
    #[derive(Deserialize)]
    struct Answer {
        data: Vec<ModelFact>,
    }
    let mut models = serde_json::from_slice::<Answer>(body).map_or_else(|_| Vec::new(), |answer| answer.data);
    models.truncate(MAX_MODELS);
    models
}

/// The cache's configuration in an answer to `GET /metrics` (the Prometheus text format); `None`
/// when it is not there.
///
/// # Errors
/// [`Contradiction`] when the lines of several ranks don't say the same.
pub fn cache_config(text: &str) -> Result<Option<CacheFacts>, Contradiction> {
    let mut lines = text.lines().filter_map(settings).take(MAX_RANKS);
    let Some(first) = lines.next() else { return Ok(None) };
    let mut ranks = 1;
    for other in lines {
        ranks += 1;
        let differs = LABELS.iter().zip(first.iter().zip(other)).find(|(_, (a, b))| *a != b);
        if let Some((label, (a, b))) = differs {
            return Err(Contradiction { label, values: [a.clone(), b] });
        }
    }
    let [block, algo, caching, hash_block] = first.map(|value| value.filter(|value| value != UNSET));
    Ok(Some(CacheFacts {
        block_tokens: block.and_then(|tokens| tokens.parse().ok()),
        hash_algo: algo,
        prefix_caching: caching.and_then(|flag| flag.to_ascii_lowercase().parse().ok()),
        hash_block_tokens: hash_block.and_then(|tokens| tokens.parse().ok()),
        ranks,
    }))
}

/// The labels that we read of one sample of the gauge; `None` for any other or malformed line.
fn settings(line: &str) -> Option<Settings> {
    let labels = line.trim_start().strip_prefix(CACHE_CONFIG)?.trim_start().strip_prefix('{')?;
    let mut found = Settings::default();
    let mut rest = labels.trim_start();
    for _ in 0..MAX_LABELS {
        if rest.starts_with('}') {
            return Some(found);
        }
        let (name, quoted) = rest.split_once('=')?;
        let (value, after) = label_value(quoted.trim_start())?;
        if let Some(at) = LABELS.iter().position(|label| *label == name.trim()) {
            found[at] = Some(value);
        }
        rest = after.trim_start();
        // The comma may also stand behind the last label.
        match rest.strip_prefix(',') {
            Some(next) => rest = next.trim_start(),
            None if rest.starts_with('}') => {}
            None => return None,
        }
    }
    None
}

/// A quoted value (`\\`, `\"` and `\n` are its escapes), and what follows it.
fn label_value(text: &str) -> Option<(String, &str)> {
    let text = text.strip_prefix('"')?;
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            _ => value.push(char),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As vLLM 0.32 prints it, some labels left out.
    const LINE: &str = concat!(
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n",
        "# TYPE vllm:cache_config_info gauge\n",
        "vllm:cache_config_info{_block_size_resolved=\"True\",block_size=\"32\",cache_dtype=\"auto\",",
        "effective_attention_block_size=\"32\",enable_prefix_caching=\"True\",engine=\"0\",",
        "gpu_memory_utilization=\"0.92\",hash_block_size=\"None\",kv_cache_dtype_skip_layers=\"[]\",",
        "mamba_block_size=\"None\",num_gpu_blocks=\"1024\",prefix_caching_hash_algo=\"sha256\",",
        "sliding_window=\"None\",user_specified_block_size=\"True\"} 1.0\n",
    );

    fn facts(text: &str) -> CacheFacts {
        cache_config(text).unwrap().unwrap()
    }

    #[test]
    fn the_cache_is_described_by_the_labels_of_a_gauge() {
        let expect = CacheFacts {
            block_tokens: Some(32),
            hash_algo: Some("sha256".to_owned()),
            prefix_caching: Some(true),
            hash_block_tokens: None,
            ranks: 1,
        };
        assert_eq!(facts(LINE), expect);
        let before = "vllm:num_requests_running{engine=\"0\",model_name=\"block_size=\\\"1\\\"\"} 0.0\n";
        assert_eq!(facts(&format!("{before}{LINE}")), expect);
        assert_eq!(cache_config(before), Ok(None));
        assert_eq!(cache_config(""), Ok(None));
        assert_eq!(cache_config(&LINE.replace("cache_config_info{", "cache_config_info_other{")), Ok(None));
    }

    #[test]
    fn unset_or_malformed_fact_is_unknown() {
        let off = facts(&LINE.replace("enable_prefix_caching=\"True\"", "enable_prefix_caching=\"False\""));
        assert_eq!(off.prefix_caching, Some(false));
        let none = facts("vllm:cache_config_info{ block_size = \"None\", hash_block_size=\"16\" , } 1");
        assert_eq!(none, CacheFacts { hash_block_tokens: Some(16), ranks: 1, ..CacheFacts::default() });
        assert_eq!(facts("vllm:cache_config_info{block_size=\"-1\"} 1").block_tokens, None);
    }

    #[test]
    fn escapes_and_punctuation_in_values_do_not_confuse_the_reader() {
        let tricky = r#"vllm:cache_config_info{a="}\",block_size=\"1\"",prefix_caching_hash_algo="x\\\n",block_size="8"} 1"#;
        assert_eq!(facts(tricky).block_tokens, Some(8));
        assert_eq!(facts(tricky).hash_algo.as_deref(), Some("x\\\n"));
        for broken in
            ["{block_size=\"8\"", "{block_size=8}", "{block_size=\"8\" engine=\"0\"}", "{block_size=\"8\\"]
        {
            assert_eq!(cache_config(&format!("vllm:cache_config_info{broken}")), Ok(None), "{broken}");
        }
    }

    #[test]
    fn ranks_that_agree_are_one_and_others_are_named() {
        let second = LINE.replace("engine=\"0\"", "engine=\"1\"").replace("1024", "1020");
        let two = CacheFacts { ranks: 2, ..facts(LINE) };
        assert_eq!(cache_config(&format!("{LINE}{second}")), Ok(Some(two)));
        let odd = second.replace("\"sha256\"", "\"sha256_cbor\"");
        let error = cache_config(&format!("{LINE}{odd}")).unwrap_err();
        assert_eq!(error.label, "prefix_caching_hash_algo");
        let message = "its ranks differ in prefix_caching_hash_algo: \"sha256\" and \"sha256_cbor\"";
        assert_eq!(error.to_string(), message);
        let silent = second.replace("hash_block_size=\"None\",", "");
        let error = cache_config(&format!("{LINE}{silent}")).unwrap_err();
        assert_eq!(error.to_string(), "its ranks differ in hash_block_size: \"None\" and nothing");
    }

    #[test]
    fn models_and_their_adapters_are_read() {
        let body = br#"{"object":"list","data":[{"id":"tiny","object":"model","created":1795189508,"owned_by":"vllm",
            "root":"/models/tiny-qwen3","parent":null,"max_model_len":2048,"permission":[]},
            {"id":"sql","object":"model","owned_by":"vllm","root":"/adapters/sql","parent":"tiny","max_model_len":null}]}"#;
        let fact = |id: &str, root: &str, parent: Option<&str>, len| ModelFact {
            id: id.to_owned(),
            root: Some(root.to_owned()),
            parent: parent.map(str::to_owned),
            max_model_len: len,
        };
        let expect = [
            fact("tiny", "/models/tiny-qwen3", None, Some(2048)),
            fact("sql", "/adapters/sql", Some("tiny"), None),
        ];
        assert_eq!(models(body), expect);
        for other in ["", "{}", "[]", "{\"data\":[{}]}", "{\"detail\":\"Not Found\"}"] {
            assert_eq!(models(other.as_bytes()), []);
        }
    }

    #[test]
    fn the_version_is_read() {
        assert_eq!(version(br#"{"version":"0.32.0"}"#).as_deref(), Some("0.32.0"));
        assert_eq!(version(br#"{"version":null}"#), None);
        assert_eq!(version(b"\xff"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_text_makes_it_panic(labels in "[a-z_=\"\\\\,{} \nüß0-9]{0,80}", bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = cache_config(&format!("vllm:cache_config_info{{{labels}"));
            let _ = cache_config(&format!("vllm:cache_config_info{{block_size=\"{labels}"));
            let _ = (cache_config(&String::from_utf8_lossy(&bytes)), version(&bytes), models(&bytes));
        }

        #[test]
        fn a_value_survives_its_escaping(value in any::<String>()) {
            let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            // Prometheus has no escape for other line ends, and engines no such values.
            prop_assume!(!value.ends_with('\r') && value != UNSET);
            let text = format!("vllm:cache_config_info{{x=\"1\",prefix_caching_hash_algo=\"{escaped}\"}} 1");
            prop_assert_eq!(facts(&text).hash_algo, Some(value));
        }
    }
}
