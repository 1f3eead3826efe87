//! Facts about the model and its engines from which a prompt's blocks are named: `[prompt]`,
//! `[hash]` and `[key]`. Keys that are left out are asked from the engines; a contradiction is an
//! error (`naming_config`).

use std::collections::BTreeMap;

use super::Config;
use super::bounds::{block_tokens, ms, parallel, within};
use super::table::{Rule, section};
use super::values::{ContentFormat, HashAlgo, HashScheme, KeyLayout, KeyStore, PoolKind, Tokens};

/// Python 3.255 is far.
const MAX_PYTHON_MINOR: u64 = 255;

section! {
    /// `[prompt]`: how a request becomes the token ids that the engines see.
    Prompt = "prompt" {
        /// The tokenizer that is used.
        tokens: Tokens = Tokens::Auto, AfterRestart;
        /// The model's directory, with a tokenizer's file, `tokenizer_config.json` and perhaps
        /// `chat_template.jinja`.
        model_path: Option<String> = None, AfterRestart, Rule::NotEmpty;
        /// A file, as the engines' `--chat-template`; None = the model's own.
        chat_template: Option<String> = None, AfterRestart, Rule::NotEmpty;
        /// As the engines' `--chat-template-content-format`.
        content_format: ContentFormat = ContentFormat::Auto, AfterRestart;
        /// The engines' `--default-chat-template-kwargs`: a JSON object.
        template_kwargs: Option<String> = None, AfterRestart, Rule::NotEmpty;
        /// The engines' `--reasoning-effort-map`, from vLLM 0.33 on: a JSON object.
        reasoning_effort_map: Option<String> = None, AfterRestart, Rule::NotEmpty;
        /// The engines' offset from UTC, as `+08:00`, for templates that print the date; None =
        /// such chats are not exact.
        utc_offset: Option<String> = None, AfterRestart, Rule::NotEmpty;
        /// Local tokens count only when an engine's `/tokenize` made the same of a set of canary
        /// requests.
        verify: bool = true, AfterRestart;
        /// Pause between attempts to verify, and between looks at the engines' facts, ms.
        verify_interval_ms: u64 = 10_000, AfterRestart, ms(100);
        /// The longest that a request waits for an engine's `/tokenize`, ms; after it, it is routed
        /// by load.
        budget_ms: u64 = 100, AfterRestart, ms(1);
        /// Engines get a prompt's tokens in place of its text where they are known, if they are
        /// known to take them.
        send_ids: bool = true, AfterRestart;
    }
}

section! {
    /// `[hash]`: how the engines hash their KV blocks.
    Hash = "hash" {
        /// Origin of the way in which blocks are hashed.
        scheme: HashScheme = HashScheme::Auto, AfterRestart;
        /// The engines' vLLM release; None = asked.
        version: Option<String> = None, AfterRestart, Rule::NotEmpty;
        /// `--prefix-caching-hash-algo`, or LMCache's `pre_caching_hash_algorithm`.
        algo: HashAlgo = HashAlgo::Auto, AfterRestart;
        /// `PYTHONHASHSEED` of all engine processes; None = unset there, too.
        seed: Option<String> = None, AfterRestart;
        /// The engines' `--block-size`, or tokens of LMCache's chunks; 0 = asked (LMCache: 256).
        block_tokens: u32 = 0, AfterRestart, block_tokens();
        /// UCM's or LMCache's release.
        release: Option<String> = None, AfterRestart, Rule::NotEmpty;
        /// UCM 0.8.1: what `_layout_source_digest()` prints, 16 hex digits.
        layout_digest: Option<String> = None, AfterRestart, Rule::NotEmpty;
        /// UCM: speculation as `method:tokens`.
        speculation: Option<String> = None, AfterRestart, Rule::NotEmpty;
        /// UCM from 0.7: `enable_sparse_sfa_c8`.
        sfa_c8: bool = false, AfterRestart;
        /// UCM from 0.7: what its namespace calls `li_c8`.
        li_c8: bool = false, AfterRestart;
        /// LMCache's setting `save_unfull_chunk`.
        partial_chunk: bool = false, AfterRestart;
    }
}

section! {
    /// `[key]`: how the pool that the engines share names their blocks.
    Key = "key" {
        /// The connector and version that writes the keys; None = no pool.
        preset: Option<String> = None, AfterRestart, Rule::NotEmpty;
        /// A template in place of the preset's.
        template: Option<String> = None, AfterRestart, Rule::NotEmpty;
        /// Way in which layers share objects.
        layout: KeyLayout = KeyLayout::Whole, AfterRestart;
        /// Place where the blocks are.
        store: KeyStore = KeyStore::Mooncake, AfterRestart;
        /// Directories of a store of files.
        roots: Vec<String> = Vec::new(), AfterRestart;
        /// The engines' `--model`; None = asked (`root` in `/v1/models`).
        model: Option<String> = None, AfterRestart, Rule::NotEmpty;
        /// Tensor-parallel size of an engine.
        tp: u32 = 1, AfterRestart, parallel(1);
        /// Pipeline-parallel size of an engine.
        pp: u32 = 1, AfterRestart, parallel(1);
        /// Prefill-context-parallel size of an engine.
        pcp: u32 = 1, AfterRestart, parallel(1);
        /// Decode-context-parallel size of an engine.
        dcp: u32 = 1, AfterRestart, parallel(1);
        /// KV heads of the whole model (`num_key_value_heads`).
        kv_heads: u32 = 1, AfterRestart, parallel(1);
        /// Latent attention (DeepSeek): all ranks hold the same KV.
        mla: bool = false, AfterRestart;
        /// Tensor-parallel size of the other side, where the connector is told one; 0 = not told.
        peer_tp: u32 = 0, AfterRestart, parallel(0);
        /// Shards of a shared store (`store_tp_size`); 0 = none.
        store_tp: u32 = 0, AfterRestart, parallel(0);
        /// Layers of one pipeline stage, for layer-wise keys.
        layers: u32 = 1, AfterRestart, parallel(1);
        /// KV-cache groups of a hybrid model, each `tokens:kind:family`, kind one of full, mla,
        /// window, mamba.
        groups: Vec<String> = Vec::new(), AfterRestart;
        /// Connector's setting `cache_prefix`.
        prefix: String = String::new(), AfterRestart;
        /// The store's namespace, with its leading `@`.
        namespace: String = String::new(), AfterRestart;
        /// Type of the cached values, as UCM and LMCache write it.
        dtype: String = String::new(), AfterRestart;
        /// The y of the engines' Python 3.y; 0 = not said.
        python_minor: u32 = 0, AfterRestart, within(0, MAX_PYTHON_MINOR);
    }
}

impl Prompt {
    /// `utc_offset` in seconds; None when it is not set, or is no offset.
    pub fn utc_offset_s(&self) -> Option<i32> {
        offset_s(self.utc_offset.as_deref()?)
    }

    /// `reasoning_effort_map`; empty when it is not set, or is no JSON object of strings.
    pub fn efforts(&self) -> BTreeMap<String, String> {
        let text = self.reasoning_effort_map.as_deref();
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// `template_kwargs`; empty when it is not set, or is no JSON object.
    pub fn template_defaults(&self) -> serde_json::Map<String, serde_json::Value> {
        self.template_kwargs.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }
}

impl Config {
    /// The tokenizer of prompts: [`Tokens::Auto`] only where something needs tokens, a pool or KV
    /// events.
    pub fn tokens(&self) -> Tokens {
        let is_needed = self.pool.kind != PoolKind::Off || self.events.listen;
        match self.prompt.tokens {
            Tokens::Auto if !is_needed => Tokens::Off,
            tokens => tokens,
        }
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
