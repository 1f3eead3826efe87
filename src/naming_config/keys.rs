//! `[key]` → the keys of the pool.

use super::Trouble;
use super::agree::Known;
use super::scheme::{is_lmcache, scheduler_block_tokens};
use crate::config::{Config, KeyLayout, KeyStore};
use crate::kvhash::keys::{Connector, GroupKind, KeyConfig, KvGroup, KvShape, Layout, Preset, Store};
use crate::kvhash::lmcache::CHUNK_TOKENS;

/// The preset of MooncakeStoreConnector that fits the engines' release.
const BY_RELEASE: &str = "mooncake-store";

/// None when no pool is configured. The hashes' length is left to who knows the hasher.
pub(super) fn config(config: &Config, known: &Known) -> Result<Option<KeyConfig>, Trouble> {
    let key = &config.key;
    let Some(name) = &key.preset else { return Ok(None) };
    let refuse = |refusal| Trouble::Keys { preset: name.clone(), refusal };
    let preset = match name.as_str() {
        BY_RELEASE => Preset::of_version(Connector::MooncakeStore, &known.need_version()?.to_string()),
        name => Preset::named(name),
    };
    let preset = preset.map_err(refuse)?;
    Ok(Some(KeyConfig {
        preset,
        template: key.template.clone(),
        layout: layout(key.layout),
        model: Known::need(&known.model, "key.model")?,
        shape: shape(config, known, preset.connector)?,
        store: store(key.store, &key.roots),
        prefix: key.prefix.clone(),
        namespace: key.namespace.clone(),
        dtype: key.dtype.clone(),
        hash_bytes: None,
        python_minor: u8::try_from(key.python_minor).ok().filter(|minor| *minor > 0),
    }))
}

fn shape(config: &Config, known: &Known, connector: Connector) -> Result<KvShape, Trouble> {
    let key = &config.key;
    // The worker of MooncakeStoreConnector makes the blocks of a lone group as large as its
    // scheduler's.
    let scaled = connector == Connector::MooncakeStore && key.groups.len() <= 1 && key.pcp.max(key.dcp) > 1;
    let block_tokens = match config.hash.block_tokens {
        0 if is_lmcache(config) => u32::try_from(CHUNK_TOKENS).unwrap_or(u32::MAX),
        _ if is_lmcache(config) => config.hash.block_tokens,
        _ if scaled => scheduler_block_tokens(key, known)?,
        _ => Known::need(&known.block_tokens, "hash.block_tokens")?,
    };
    let mut groups = key.groups.iter().map(|text| group(text)).collect::<Result<Vec<_>, _>>()?;
    if scaled {
        groups.iter_mut().for_each(|lone| lone.block_tokens = block_tokens);
    }
    Ok(KvShape {
        tp: key.tp,
        pp: key.pp,
        pcp: key.pcp,
        dcp: key.dcp,
        kv_heads: key.kv_heads,
        mla: key.mla,
        peer_tp: some(key.peer_tp),
        store_tp: some(key.store_tp),
        layers: key.layers,
        block_tokens,
        // Groups are cut out of the engine's hash blocks.
        hash_tokens: known.hash_block_tokens.or((!groups.is_empty()).then_some(block_tokens)),
        groups,
    })
}

/// Reads a group, as `tokens[:kind[:family]]`.
fn group(text: &str) -> Result<KvGroup, Trouble> {
    let wrong = |why: &str| Trouble::Value { key: "key.groups", value: text.to_owned(), why: why.to_owned() };
    let mut parts = text.split(':').map(str::trim);
    let tokens = parts.next().and_then(|tokens| tokens.parse().ok());
    let block_tokens = tokens.filter(|tokens| *tokens > 0).ok_or_else(|| {
        wrong("expected tokens:kind:family, as in 128:full or 64:window:c4, the tokens 1 or more")
    })?;
    let kind = match parts.next() {
        None | Some("full") => GroupKind::Full,
        Some("mla") => GroupKind::Mla,
        Some("window") => GroupKind::Window,
        Some("mamba") => GroupKind::Mamba,
        Some(_) => return Err(wrong("the kind is one of full, mla, window, mamba")),
    };
    let default = KvGroup::default();
    let family = parts.next().map_or(default.family.clone(), str::to_owned);
    match parts.next() {
        None => Ok(KvGroup { block_tokens, kind, family, ..default }),
        Some(_) => Err(wrong("expected at most tokens:kind:family")),
    }
}

fn layout(layout: KeyLayout) -> Layout {
    match layout {
        KeyLayout::Whole => Layout::Whole,
        KeyLayout::Layers => Layout::Layers,
        KeyLayout::Gva => Layout::Gva,
        KeyLayout::Shared => Layout::Shared,
    }
}

fn store(store: KeyStore, roots: &[String]) -> Store {
    match store {
        KeyStore::Mooncake => Store::Mooncake,
        KeyStore::Memcache => Store::MemCache,
        KeyStore::Yuanrong => Store::Yuanrong,
        KeyStore::Files => Store::Files { roots: roots.to_vec() },
        KeyStore::S3 => Store::S3,
    }
}

fn some(size: u32) -> Option<u32> {
    (size > 0).then_some(size)
}
