use super::super::groups::{GroupError, KvGroup};
use super::super::preset::Preset;
use super::super::profile::KeyProfile;
use super::*;

fn ascend(version: &str, shape: KvShape) -> KeyConfig {
    KeyConfig::new(Preset::of_version(Connector::AscendStore, version).unwrap(), "/m/Qwen3", shape)
}

fn named(preset: &str, shape: KvShape) -> KeyConfig {
    KeyConfig::new(Preset::named(preset).unwrap(), "/m/Qwen3", shape)
}

fn refusal(config: &KeyConfig) -> Refusal {
    KeyProfile::new(config).map(|_| ()).unwrap_err()
}

fn accepted(config: &KeyConfig) {
    assert_eq!(KeyProfile::new(config).map(|_| ()), Ok(()));
}

fn two_groups(block_tokens: u32, hash_tokens: u32) -> KvShape {
    let group = |block_tokens| KvGroup { block_tokens, ..KvGroup::default() };
    KvShape {
        hash_tokens: Some(hash_tokens),
        groups: vec![group(block_tokens), group(hash_tokens)],
        ..KvShape::default()
    }
}

#[test]
fn sizes_must_fit() {
    let shape = KvShape { tp: 4, kv_heads: 8, ..KvShape::default() };
    assert_eq!(refusal(&ascend("0.13.0", KvShape { pp: 0, ..shape.clone() })), Refusal::Zero("pp"));
    let uneven = |what, size| Refusal::Uneven { tp: 4, what, size };
    assert_eq!(refusal(&ascend("0.13.0", KvShape { dcp: 3, ..shape.clone() })), uneven("dcp", 3));
    assert_eq!(refusal(&ascend("0.13.0", KvShape { kv_heads: 3, ..shape.clone() })), uneven("kv_heads", 3));
    let many = KvShape { tp: 256, pp: 128, kv_heads: 256, ..shape };
    assert_eq!(refusal(&ascend("0.13.0", many)), Refusal::TooManyKeys(32_768));
}

#[test]
fn stages_and_context_parallelism_do_not_mix_until_0_30() {
    let shape = KvShape { pp: 2, pcp: 2, ..KvShape::default() };
    for version in ["0.13.0", "0.26.0rc1", "main-2026-08"] {
        assert_eq!(refusal(&ascend(version, shape.clone())), Refusal::PcpWithPp);
        accepted(&ascend(version, KvShape { pp: 1, ..shape.clone() }));
    }
    accepted(&ascend("0.30.0", shape));
}

#[test]
fn layer_wise_lookups_need_a_model_without_a_slash_at_its_end() {
    let mut config = ascend("0.23.0", KvShape::default());
    config.model = "/m/Qwen3/".to_owned();
    accepted(&config);
    config.layout = Layout::Layers;
    assert_eq!(refusal(&config), Refusal::TrailingSlash);
    config.model = "//".to_owned();
    assert_eq!(refusal(&config), Refusal::EmptyModel);
    let none = Refusal::NoSuchLayout { preset: "ascend-0.21", layout: "GVA" };
    assert_eq!(refusal(&KeyConfig { layout: Layout::Gva, ..ascend("0.21.0rc1", KvShape::default()) }), none);
}

#[test]
fn memcache_keys_end_at_256_bytes() {
    let mut config = ascend("0.20.2rc1", two_groups(128, 32));
    accepted(&config);
    config.store = Store::MemCache;
    assert_eq!(refusal(&config), Refusal::MemCacheKeyTooLong { bytes: 343 });
    accepted(&KeyConfig { store: Store::MemCache, ..ascend("0.21.0rc1", two_groups(128, 32)) });
    config.shape = KvShape::default();
    config.model = "x".repeat(200);
    assert!(matches!(refusal(&config), Refusal::MemCacheKeyTooLong { .. }));
}

#[test]
fn a_peer_with_another_tp_needs_ordinary_attention() {
    let shape = KvShape { tp: 2, kv_heads: 4, peer_tp: Some(4), ..KvShape::default() };
    accepted(&ascend("0.24.0rc1", shape.clone()));
    let with = |change: &dyn Fn(&mut KvShape)| {
        let mut shape = shape.clone();
        change(&mut shape);
        ascend("0.24.0rc1", shape)
    };
    assert_eq!(refusal(&with(&|s| s.mla = true)), Refusal::PeerTp("latent attention"));
    let groups = two_groups(32, 16).groups;
    assert_eq!(refusal(&with(&|s| s.groups.clone_from(&groups))), Refusal::PeerTp("several KV-cache groups"));
    assert_eq!(refusal(&with(&|s| s.peer_tp = Some(8))), Refusal::PeerTpHeads { kv_heads: 4, tp: 8 });
    let uneven = Refusal::Uneven { tp: 2, what: "the peer's tp", size: 3 };
    assert_eq!(refusal(&with(&|s| s.peer_tp = Some(3))), uneven);
    accepted(&ascend("0.23.0", KvShape { peer_tp: Some(3), ..shape }));
}

#[test]
fn groups_need_a_version_that_names_them() {
    let refused = |config| refusal(&config);
    let missing = Refusal::NotInThisVersion { setting: "a second KV-cache group", preset: "ascend-0.14" };
    assert_eq!(refused(ascend("0.18.0", two_groups(64, 16))), missing);
    let error = GroupError::Uneven { block_tokens: 72, hash_tokens: 16 };
    assert_eq!(refused(ascend("0.30.0", two_groups(72, 16))), Refusal::Group { group: 0, error });
    assert_eq!(refused(named("lmcache", two_groups(64, 16))), Refusal::Hybrid("LMCache"));
    assert_eq!(refused(named("ucm-mooncake", two_groups(64, 16))), Refusal::Hybrid("UCM"));
}

#[test]
fn settings_of_later_versions_are_refused() {
    let refused = |preset, setting, change: &dyn Fn(&mut KeyConfig)| {
        let mut config = named(preset, KvShape::default());
        change(&mut config);
        assert_eq!(refusal(&config), Refusal::NotInThisVersion { setting, preset });
    };
    refused("mooncake-store-0.22", "cache_prefix", &|c| c.prefix = "p".to_owned());
    refused("mooncake-store-0.24", "store_tp", &|c| c.shape.store_tp = Some(2));
    refused("ascend-0.30", "store_tp", &|c| c.shape.store_tp = Some(2));
    refused("mooncake-store-0.24", "a group of recurrent layers", &|c| {
        c.shape = two_groups(32, 16);
        c.shape.groups[1].kind = GroupKind::Mamba;
    });
    let mut shared = named("mooncake-store-0.30", KvShape { store_tp: Some(2), ..KvShape::default() });
    assert_eq!(refusal(&shared), Refusal::NamespaceMissing);
    shared.namespace = "@store_tp:2".to_owned();
    accepted(&shared);
}

#[test]
fn lmcache_has_limits_of_its_own() {
    let mut config = named("lmcache-0.3-builtin", KvShape::default());
    for (minor, fine) in [(None, false), (Some(11), false), (Some(12), true)] {
        config.python_minor = minor;
        let result = KeyProfile::new(&config).map(|_| ());
        assert_eq!(result, if fine { Ok(()) } else { Err(Refusal::UnreproducibleHash) }, "{minor:?}");
    }
    let world = KvShape { tp: 64, pp: 4, kv_heads: 64, ..KvShape::default() };
    assert_eq!(refusal(&named("lmcache-mp", world)), Refusal::WorldTooLarge(256));
    let dcp = KvShape { tp: 2, dcp: 2, kv_heads: 2, ..KvShape::default() };
    assert_eq!(refusal(&named("lmcache-mp", dcp)), Refusal::DecoratedModel);
}

#[test]
fn hashes_directories_and_templates_must_fit() {
    assert_eq!(refusal(&named("ucm-posix", KvShape::default())), Refusal::NoRoot);
    let mut config = named("lmcache", KvShape::default());
    config.hash_bytes = Some(32);
    assert_eq!(refusal(&config), Refusal::HashBytes { wanted: "exactly 8", got: 32 });
    config.hash_bytes = Some(0);
    assert_eq!(refusal(&config), Refusal::HashBytes { wanted: "at least 1", got: 0 });
    let mut own = ascend("0.30.0", KvShape::default());
    own.template = Some("{hash:first32}".to_owned());
    own.hash_bytes = Some(8);
    assert_eq!(refusal(&own), Refusal::HashBytes { wanted: "more", got: 8 });
    own.template = Some("{model}".to_owned());
    assert!(matches!(refusal(&own), Refusal::Template(_)));
    own.template = Some("{hash:le1}".to_owned());
    assert_eq!(refusal(&own), Refusal::HashBytes { wanted: "exactly 16", got: 8 });
}
