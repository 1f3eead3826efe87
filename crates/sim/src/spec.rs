//! Specification of an engine: role, sizes, speeds. Everything a test or a bench may want to vary.

use std::fmt;
use std::sync::Arc;

use super::encodings::{Encodings, Part};
use super::pool::Pool;

/// From the body of a `POST /tokenize` to its tokens; `None` refuses it. It must not block.
pub type TokenizeFn = dyn Fn(&[u8]) -> Option<Vec<u32>> + Send + Sync;

/// A tokenizer other than the toy.
#[derive(Clone)]
pub struct Tokenizing(pub Arc<TokenizeFn>);

impl fmt::Debug for Tokenizing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokenizing")
    }
}

/// Role that the engine is deployed in. It only labels the engine and decides who fills a [`Pool`]:
/// as with vLLM's `kv_role=kv_both`, any engine can take either leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Computes prompts and hands their KV over.
    Prefill,
    /// Continues from KV that was computed elsewhere; does not fill the pool.
    Decode,
    /// The engine serves both legs.
    Both,
}

/// Ways in which KV travels between engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connector {
    /// NIXL pull: the prefiller's answer carries `kv_transfer_params`, the decoder reads the blocks
    /// it names.
    Handoff,
    /// vLLM's MooncakeConnector: KV is kept under a `transfer_id`; `GET /query` says who the engine
    /// is.
    Mooncake,
    /// vLLM's NixlPushConnector: KV is sent to the request of the same id.
    Push,
    /// SGLang: KV is sent to the request in the same room; a prefill ends when it has been.
    Sglang,
    /// A shared store: whole blocks are found by hash, `kv_transfer_params` are ignored and
    /// answered with null.
    Pool,
    /// vllm-ascend's layerwise connector: the decoder calls a metaserver, the prefiller writes into
    /// the decoder's blocks.
    Layerwise,
    /// vLLM's MoRIIOConnector, READ: a hand-off under a `transfer_id`; a decoder never computes a
    /// prompt.
    Moriio,
}

impl Connector {
    /// True if a prefiller's answer contains the location of its blocks.
    #[must_use]
    pub fn hands_over(self) -> bool {
        matches!(self, Connector::Handoff | Connector::Moriio)
    }
}

/// Ways in which a server answers that is told to take the other role; only with
/// [`Connector::Sglang`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleSwitch {
    /// Its release has no such route.
    Absent,
    /// It was started without `--enable-pd-role-switch`.
    Disabled,
    /// It takes the role.
    Enabled,
    /// It leaves its role, and fails to build what the other one needs.
    Breaks,
}

/// The shape of one simulated engine.
#[derive(Clone, Debug)]
pub struct EngineSpec {
    /// Label of the engine.
    pub role: Role,
    /// Served model name, reported in every body.
    pub model: String,
    /// LoRA adapters that it has loaded, by name: `GET /v1/models` lists them after the model, and
    /// requests may name them.
    pub adapters: Vec<String>,
    /// Tokens per KV block.
    pub block_tokens: usize,
    /// KV blocks of the engine; prompts wait while none are free.
    pub kv_blocks: usize,
    /// Prefill speed, one prompt at a time; infinite = instant.
    pub prefill_tokens_per_s: f64,
    /// Time per output token of a lone stream, in milliseconds; 0 = instant.
    pub tpot_ms: f64,
    /// Time per output token added by each running stream, in milliseconds.
    pub slope_ms: f64,
    /// Time for which a finished prefill stays pinned for its decoder, in milliseconds (vLLM:
    /// `kv_lease_duration`).
    pub lease_ms: u64,
    /// Longest context, in tokens; it is also bounded by `kv_blocks * block_tokens`.
    pub max_model_len: usize,
    /// Way in which KV travels.
    pub connector: Connector,
    /// Guards `/v1` like vLLM's `--api-key`; None = open.
    pub api_key: Option<String>,
    /// A store that engines share: the only way for KV with [`Connector::Pool`], a second cache
    /// behind the engine's own with [`Connector::Handoff`] (vLLM's MultiConnector of NIXL and a
    /// store).
    pub pool: Option<Arc<Pool>>,
    /// True if a decoder keeps what it wrote for the next turn's prefill (vLLM's NixlConnector,
    /// `bidirectional_kv_xfer`); only with [`Connector::Handoff`].
    pub bidirectional: bool,
    /// For how long, in milliseconds (vLLM: `decoder_kv_blocks_ttl`).
    pub kept_back_ms: u64,
    /// Answer to the order to take the other role.
    pub role_switch: RoleSwitch,
    /// Time that a prompt takes to get into the store after it is computed, in milliseconds; the
    /// answer does not wait for it.
    pub store_delay_ms: u64,
    /// True if `usage.prompt_tokens_details` is reported (vLLM: `--enable-prompt-tokens-details`).
    pub prompt_details: bool,
    /// Version that `GET /version` tells.
    pub version: String,
    /// Answer to `GET /kv_event_sources` (vLLM from 0.32 on: an object by rank, empty where nothing
    /// is published); empty = the path is unknown.
    pub event_sources: String,
    /// True if KV goes to engines of the same version alone, with NIXL's connectors (vLLM:
    /// `enforce_handshake_compat`).
    pub compares_versions: bool,
    /// True if each chunk of a stream has `kv_transfer_params`, null but for the last (vLLM from
    /// 0.33 on).
    pub streams_handoff: bool,
    /// True if the ids in a chat's `kv_transfer_params` take the place of its messages (vLLM from
    /// 0.32 on).
    pub takes_chat_ids: bool,
    /// `root` in `GET /v1/models` (vLLM: the value of `--model`); `None` = `/models/` and the
    /// served name.
    pub root: Option<String>,
    /// Name of the block hash in `GET /metrics` (vLLM: `--prefix-caching-hash-algo`); a label only.
    pub hash_algo: String,
    /// True if `GET /metrics` says that prefixes are cached; a label only.
    pub prefix_caching: bool,
    /// Data-parallel ranks behind the one port, chosen by `X-data-parallel-rank` or in turn. They
    /// share the engine's speed and blocks; what each finds cached is its own. Engines with a pool
    /// have one.
    pub ranks: u16,
    /// Place where embeddings of items are kept, and what the engine does with them; decoders
    /// nothing.
    pub encodings: Option<(Part, Arc<Encodings>)>,
    /// Answers `POST /tokenize` instead of the toy tokenizer.
    pub tokenize: Option<Tokenizing>,
    /// Answers `POST /v1/chat/completions/render` by `tokenize`, as vLLM does from 0.32 on.
    pub renders: bool,
    /// Mean length of answers, which then end by themselves as at an end-of-sequence token: where,
    /// follows from what was written, on whichever engine. 0 = only `max_tokens` or a stop string
    /// ends one.
    pub answer_tokens: u32,
    /// Mean number of tokens of an answer of which one is special; 0 = none is.
    pub special_every: u32,
    /// True if the special tokens of a chat's answer are shown whatever the request says, as by
    /// the `adjust_request` of vLLM's parsers (0.32 and 0.33).
    pub parses_chats: bool,
    /// Tokens of each image of a chat, whatever its size; 0 = images are not looked at.
    pub image_tokens: usize,
    /// Number of the last requests that [`super::Engine::seen`] remembers; 0 = none, for load that
    /// nobody looks at afterwards.
    pub seen_requests: usize,
}

impl Default for EngineSpec {
    fn default() -> Self {
        EngineSpec {
            role: Role::Both,
            model: "sim".to_owned(),
            adapters: Vec::new(),
            block_tokens: 16,
            kv_blocks: 4096,
            prefill_tokens_per_s: f64::INFINITY,
            tpot_ms: 0.0,
            slope_ms: 0.0,
            lease_ms: 30_000,
            max_model_len: 1_000_000,
            connector: Connector::Handoff,
            api_key: None,
            pool: None,
            bidirectional: false,
            kept_back_ms: 480_000,
            role_switch: RoleSwitch::Absent,
            store_delay_ms: 0,
            prompt_details: true,
            version: "0.32.0".to_owned(),
            event_sources: "{}".to_owned(),
            compares_versions: true,
            streams_handoff: false,
            takes_chat_ids: true,
            root: None,
            hash_algo: "sha256".to_owned(),
            prefix_caching: true,
            ranks: 1,
            encodings: None,
            tokenize: None,
            renders: true,
            answer_tokens: 0,
            special_every: 0,
            parses_chats: false,
            image_tokens: 0,
            seen_requests: 4096,
        }
    }
}

impl EngineSpec {
    /// Tokens the longest accepted prompt may have.
    #[must_use]
    pub fn context_tokens(&self) -> usize {
        self.max_model_len.min(self.kv_blocks.saturating_mul(self.block_tokens))
    }
}
