//! The checks behind every [`Refusal`] that is about a whole configuration.

use super::groups::GroupKind;
use super::lmcache::MAX_WORLD;
use super::preset::{Connector, Layout};
use super::profile::{KeyConfig, Store, model_name};
use super::ranks::{KvShape, RankRule};
use super::refuse::{MAX_KEYS_PER_BLOCK, Refusal};
use super::template::{Field, Form, Template};

pub(super) fn config(config: &KeyConfig, template: &Template, hash_bytes: usize) -> Result<(), Refusal> {
    sizes(&config.shape)?;
    few_ranks(config, template)?;
    names(config, template)?;
    hash_form(template, hash_bytes)?;
    match config.preset.connector {
        Connector::AscendStore => ascend(config),
        Connector::MooncakeStore => upstream(config),
        Connector::Ucm | Connector::AscendStoreV1 => one_group(config),
        Connector::LmcacheEngine | Connector::LmcacheMp => lmcache(config),
    }
}

fn sizes(shape: &KvShape) -> Result<(), Refusal> {
    let sizes = [
        ("tp", shape.tp),
        ("pp", shape.pp),
        ("pcp", shape.pcp),
        ("dcp", shape.dcp),
        ("kv_heads", shape.kv_heads),
        ("layers", shape.layers),
        ("block_tokens", shape.block_tokens),
        ("peer_tp", shape.peer_tp.unwrap_or(1)),
        ("store_tp", shape.store_tp.unwrap_or(1)),
        ("hash_tokens", shape.hash_tokens.unwrap_or(1)),
        ("a group's block_tokens", shape.groups.iter().map(|g| g.block_tokens).min().unwrap_or(1)),
    ];
    if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
        return Err(Refusal::Zero(name));
    }
    if !shape.tp.is_multiple_of(shape.dcp) {
        return Err(Refusal::Uneven { tp: shape.tp, what: "dcp", size: shape.dcp });
    }
    let heads = shape.kv_heads;
    if !shape.mla && !heads.is_multiple_of(shape.tp) && !shape.tp.is_multiple_of(heads) {
        return Err(Refusal::Uneven { tp: shape.tp, what: "kv_heads", size: heads });
    }
    Ok(())
}

/// An upper bound of the keys of a block, before any of them is made.
fn few_ranks(config: &KeyConfig, template: &Template) -> Result<(), Refusal> {
    let shape = &config.shape;
    let shares = shape.tp.max(shape.peer_tp.unwrap_or(1)).max(shape.store_tp.unwrap_or(1));
    let layers = if template.names(Field::Layer) { shape.layers } else { 1 };
    // Ranks that share a key are bound and then dropped, so that more of them than keys are fine.
    let most = [shape.pp, shape.pcp, shares, layers].iter().fold(shape.groups.len().max(1), |n, size| {
        n.saturating_mul(usize::try_from(*size).unwrap_or(usize::MAX))
    });
    if most > MAX_KEYS_PER_BLOCK { Err(Refusal::TooManyKeys(most)) } else { Ok(()) }
}

fn names(config: &KeyConfig, template: &Template) -> Result<(), Refusal> {
    let preset = config.preset;
    if model_name(&config.model).is_empty() {
        return Err(Refusal::EmptyModel);
    }
    let own_prefix = config.template.is_some() && template.names(Field::Prefix);
    if !config.prefix.is_empty() && !preset.prefix && !own_prefix {
        return Err(Refusal::NotInThisVersion { setting: "cache_prefix", preset: preset.name });
    }
    let roots = match &config.store {
        Store::Files { roots } => roots.as_slice(),
        _ => &[],
    };
    if template.names(Field::Root) && roots.is_empty() {
        return Err(Refusal::NoRoot);
    }
    Ok(())
}

fn hash_form(template: &Template, got: usize) -> Result<(), Refusal> {
    let refuse = |wanted| Err(Refusal::HashBytes { wanted, got });
    if got == 0 {
        return refuse("at least 1");
    }
    for form in template.values().filter(|(field, _)| *field == Field::Hash).map(|(_, form)| form) {
        match form {
            Form::I64 | Form::U64 if got != 8 => return refuse("exactly 8"),
            Form::Word(_) if got != 16 => return refuse("exactly 16"),
            Form::First(digits) if usize::from(digits) > got * 2 => return refuse("more"),
            _ => {}
        }
    }
    Ok(())
}

fn ascend(config: &KeyConfig) -> Result<(), Refusal> {
    let (shape, preset) = (&config.shape, config.preset);
    let not_here = |setting| Err(Refusal::NotInThisVersion { setting, preset: preset.name });
    if shape.store_tp.is_some() {
        return not_here("store_tp");
    }
    let template_names_groups = config.template.is_some() || preset.whole.contains("{group}");
    if shape.groups.len() > 1 && !template_names_groups {
        return not_here("a second KV-cache group");
    }
    if shape.pcp > 1 && shape.pp > 1 && preset.ranks == (RankRule::Ascend { pcp_in_key: true }) {
        return Err(Refusal::PcpWithPp);
    }
    if config.layout != Layout::Whole && config.model.ends_with('/') {
        return Err(Refusal::TrailingSlash);
    }
    match shape.peer_tp {
        Some(peer) if preset.peer_tp => peer_tp(shape, peer),
        _ => Ok(()),
    }
}

fn peer_tp(shape: &KvShape, peer: u32) -> Result<(), Refusal> {
    let larger = shape.tp.max(peer);
    if shape.mla {
        return Err(Refusal::PeerTp("latent attention"));
    }
    if shape.groups.len() > 1 {
        return Err(Refusal::PeerTp("several KV-cache groups"));
    }
    if !larger.is_multiple_of(shape.tp.min(peer)) {
        return Err(Refusal::Uneven { tp: shape.tp, what: "the peer's tp", size: peer });
    }
    if !shape.kv_heads.is_multiple_of(larger) {
        return Err(Refusal::PeerTpHeads { kv_heads: shape.kv_heads, tp: larger });
    }
    Ok(())
}

fn upstream(config: &KeyConfig) -> Result<(), Refusal> {
    let preset = config.preset;
    let shared = config.shape.store_tp.is_some() || !config.namespace.is_empty();
    if shared && !preset.store_tp {
        return Err(Refusal::NotInThisVersion { setting: "store_tp", preset: preset.name });
    }
    if config.shape.store_tp.is_some() && config.namespace.is_empty() {
        return Err(Refusal::NamespaceMissing);
    }
    // One factor for all groups is only known for groups alike.
    let mixed = config.shape.groups.iter().any(|g| g.kind == GroupKind::Mamba);
    let per_group = matches!(preset.ranks, RankRule::Upstream { per_group: true, .. });
    if mixed && !per_group {
        return Err(Refusal::NotInThisVersion {
            setting: "a group of recurrent layers",
            preset: preset.name,
        });
    }
    Ok(())
}

fn one_group(config: &KeyConfig) -> Result<(), Refusal> {
    if config.shape.groups.len() > 1 {
        return Err(Refusal::Hybrid(config.preset.connector.name()));
    }
    Ok(())
}

fn lmcache(config: &KeyConfig) -> Result<(), Refusal> {
    let (shape, preset) = (&config.shape, config.preset);
    let dialect = preset.name;
    if dialect == "lmcache-0.3-builtin" && config.python_minor.is_none_or(|minor| minor < 12) {
        return Err(Refusal::UnreproducibleHash);
    }
    if preset.connector == Connector::LmcacheEngine {
        return one_group(config);
    }
    let world = shape.world(preset.ranks);
    if world > MAX_WORLD {
        return Err(Refusal::WorldTooLarge(world));
    }
    if shape.dcp > 1 && config.template.is_none() {
        return Err(Refusal::DecoratedModel);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
