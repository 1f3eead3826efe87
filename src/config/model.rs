//! Facts about the model and its engines from which a prompt's blocks are named: `[prompt]`,
//! `[hash]` and `[key]`. Keys that are left out are asked from the engines; a contradiction is an
//! error (`profile`).

use super::values::{ContentFormat, HashAlgo, HashScheme, KeyLayout, KeyStore, Tokens};
use serde::{Deserialize, Serialize};

/// `[prompt]`: how a request becomes the token ids that the engines see.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Prompt {
    /// The tokenizer that is used.
    pub tokens: Tokens,
    /// The model's directory, with `tokenizer.json`, `tokenizer_config.json` and perhaps
    /// `chat_template.jinja`.
    pub model_path: Option<String>,
    /// A file, as the engines' `--chat-template`; None = the model's own.
    pub chat_template: Option<String>,
    /// As the engines' `--chat-template-content-format`.
    pub content_format: ContentFormat,
    /// The engines' `--default-chat-template-kwargs`: a JSON object.
    pub template_kwargs: Option<String>,
    /// The engines' offset from UTC, as `+08:00`, for templates that print the date; None = such
    /// chats are not exact.
    pub utc_offset: Option<String>,
    /// Local tokens count only when an engine's `/tokenize` made the same of a set of canary
    /// requests.
    pub verify: bool,
    /// Pause between attempts to verify, and between looks at the engines' facts, ms.
    pub verify_interval_ms: u64,
    /// The longest that a request waits for an engine's `/tokenize`, ms; after it, it is routed by
    /// load.
    pub budget_ms: u64,
}

/// `[hash]`: how the engines hash their KV blocks.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hash {
    /// Origin of the way in which blocks are hashed.
    pub scheme: HashScheme,
    /// The engines' vLLM release; None = asked.
    pub version: Option<String>,
    /// `--prefix-caching-hash-algo`, or LMCache's `pre_caching_hash_algorithm`.
    pub algo: HashAlgo,
    /// `PYTHONHASHSEED` of all engine processes; None = unset there, too.
    pub seed: Option<String>,
    /// The engines' `--block-size`, or tokens of LMCache's chunks; 0 = asked (LMCache: 256).
    pub block_tokens: u32,
    /// UCM's or LMCache's release.
    pub release: Option<String>,
    /// UCM 0.8.1: what `_layout_source_digest()` prints, 16 hex digits.
    pub layout_digest: Option<String>,
    /// UCM: speculation as `method:tokens`.
    pub speculation: Option<String>,
    /// UCM from 0.7: `enable_sparse_sfa_c8`.
    pub sfa_c8: bool,
    /// UCM from 0.7: what its namespace calls `li_c8`.
    pub li_c8: bool,
    /// LMCache's setting `save_unfull_chunk`.
    pub partial_chunk: bool,
}

/// `[key]`: how the pool that the engines share names their blocks.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Key {
    /// The connector and version that writes the keys; None = no pool.
    pub preset: Option<String>,
    /// A template in place of the preset's.
    pub template: Option<String>,
    /// Way in which layers share objects.
    pub layout: KeyLayout,
    /// Place where the blocks are.
    pub store: KeyStore,
    /// Directories of a store of files.
    pub roots: Vec<String>,
    /// The engines' `--model`; None = asked (`root` in `/v1/models`).
    pub model: Option<String>,
    /// Tensor-parallel size of an engine.
    pub tp: u32,
    /// Pipeline-parallel size of an engine.
    pub pp: u32,
    /// Prefill-context-parallel size of an engine.
    pub pcp: u32,
    /// Decode-context-parallel size of an engine.
    pub dcp: u32,
    /// KV heads of the whole model (`num_key_value_heads`).
    pub kv_heads: u32,
    /// Latent attention (DeepSeek): all ranks hold the same KV.
    pub mla: bool,
    /// Tensor-parallel size of the other side, where the connector is told one; 0 = not told.
    pub peer_tp: u32,
    /// Shards of a shared store (`store_tp_size`); 0 = none.
    pub store_tp: u32,
    /// Layers of one pipeline stage, for layer-wise keys.
    pub layers: u32,
    /// KV-cache groups of a hybrid model, each `tokens:kind:family`, kind one of full, mla, window,
    /// mamba.
    pub groups: Vec<String>,
    /// Connector's setting `cache_prefix`.
    pub prefix: String,
    /// The store's namespace, with its leading `@`.
    pub namespace: String,
    /// Type of the cached values, as UCM and LMCache write it.
    pub dtype: String,
    /// The y of the engines' Python 3.y; 0 = not said.
    pub python_minor: u32,
}

impl Prompt {
    /// `utc_offset` in seconds; None when it is not set, or is no offset.
    pub fn utc_offset_s(&self) -> Option<i32> {
        offset_s(self.utc_offset.as_deref()?)
    }

    /// `template_kwargs`; empty when it is not set, or is no JSON object.
    pub fn template_defaults(&self) -> serde_json::Map<String, serde_json::Value> {
        self.template_kwargs.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }
}

/// `+08:00` in seconds; offsets are whole minutes within 14 hours.
pub(super) fn offset_s(text: &str) -> Option<i32> {
    let (sign, time) = match text.split_at_checked(1)? {
        ("+", time) => (1, time),
        ("-", time) => (-1, time),
        _ => return None,
    };
    let (hours, minutes) = time.split_once(':')?;
    let two_digits = |text: &str| (text.len() == 2).then(|| text.parse::<i32>().ok()).flatten();
    let (hours, minutes) = (two_digits(hours)?, two_digits(minutes)?);
    let seconds = (hours * 60 + minutes) * 60;
    (minutes < 60 && seconds <= 14 * 3600 && hours >= 0 && minutes >= 0).then_some(sign * seconds)
}

impl Default for Prompt {
    fn default() -> Self {
        Self {
            tokens: Tokens::Off,
            model_path: None,
            chat_template: None,
            content_format: ContentFormat::Auto,
            template_kwargs: None,
            utc_offset: None,
            verify: true,
            verify_interval_ms: 10_000,
            budget_ms: 100,
        }
    }
}

impl Default for Key {
    fn default() -> Self {
        Self {
            preset: None,
            template: None,
            layout: KeyLayout::Whole,
            store: KeyStore::Mooncake,
            roots: Vec::new(),
            model: None,
            tp: 1,
            pp: 1,
            pcp: 1,
            dcp: 1,
            kv_heads: 1,
            mla: false,
            peer_tp: 0,
            store_tp: 0,
            layers: 1,
            groups: Vec::new(),
            prefix: String::new(),
            namespace: String::new(),
            dtype: String::new(),
            python_minor: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_signed_hours_and_minutes() {
        for (text, seconds) in [("+00:00", 0), ("+08:00", 28_800), ("-03:30", -12_600), ("+14:00", 50_400)] {
            assert_eq!(offset_s(text), Some(seconds), "{text}");
        }
        for text in ["", "+", "08:00", "+8:00", "+08:60", "+15:00", "+-8:00", "+08:0\u{661}", "Z"] {
            assert_eq!(offset_s(text), None, "{text}");
        }
    }
}
