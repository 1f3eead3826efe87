use proptest::prelude::*;

use super::super::groups::GroupKind;
use super::*;

fn profile(preset: &str, shape: KvShape) -> KeyProfile {
    KeyProfile::new(&KeyConfig::new(Preset::named(preset).unwrap(), "org/Model", shape)).unwrap()
}

#[test]
fn a_thousand_keys_lie_in_one_buffer() {
    let shape = KvShape { tp: 8, kv_heads: 8, ..KvShape::default() };
    let profile = profile("ascend-0.30", shape);
    let hashes: Vec<[u8; 32]> = (0..125).map(|i| [i; 32]).collect();
    let mut batch = KeyBatch::default();
    for _ in 0..2 {
        batch.clear();
        profile.keys_of_prompt(&PromptBlocks::new(&hashes, 16_001), Ask::Needed, &mut batch).unwrap();
        assert_eq!((batch.len(), batch.hit_tokens([true; 1000])), (1000, 16_000));
        assert_eq!(batch.bytes(), batch.iter().map(str::len).sum::<usize>());
    }
    assert_eq!(batch.iter().map(str::len).max(), Some(profile.max_key_bytes()));
    let key = format!(
        "Model@dcp:0@head_or_tp_rank:1@pp_rank:0@group:0@cache_role:kv@cache_family:default@{}",
        "02".repeat(32)
    );
    assert_eq!(batch.get(17), Some(key.as_str()));
    assert_eq!(batch.hit_tokens((0..1000).map(|i| i != 17)), 256);
}

#[test]
fn wrong_hashes_are_errors() {
    let profile = profile("ascend-0.30", KvShape::default());
    let mut batch = KeyBatch::default();
    let wrong = KeyError::HashBytes { wanted: 32, got: 16 };
    assert_eq!(profile.keys_of_block(&[0; 16], &mut batch), Err(wrong));
    let two = [[0_u8; 32]; 2];
    let missing = KeyError::TooFewHashes { wanted: 3, got: 2 };
    assert_eq!(profile.keys_of_prompt(&PromptBlocks::new(&two, 384), Ask::Every, &mut batch), Err(missing));
    assert!(batch.is_empty());
}

#[test]
fn a_hit_leaves_a_token_or_a_block_to_compute() {
    let tokens = |preset, hit, prompt| profile(preset, KvShape::default()).usable_tokens(hit, prompt);
    assert_eq!(tokens("ascend-0.30", 256, 256), 255);
    assert_eq!(tokens("mooncake-store-0.30", 256, 256), 128);
    assert_eq!([tokens("ascend-0.30", 256, 300), tokens("mooncake-store-0.30", 256, 300)], [256; 2]);
    assert_eq!(tokens("mooncake-store-0.30", 0, 0), 0);
}

#[test]
fn groups_that_forget_blocks_are_not_needed() {
    let group = |kind| KvGroup { block_tokens: 16, kind, ..KvGroup::default() };
    let shape =
        KvShape { groups: vec![group(GroupKind::Window), group(GroupKind::Full)], ..KvShape::default() };
    let profile = profile("ascend-0.30", shape);
    let count = |ask| {
        let mut batch = KeyBatch::default();
        profile.keys_of_prompt(&PromptBlocks::new(&[[1_u8; 32]; 2], 32), ask, &mut batch).unwrap();
        (batch.len(), batch.iter().all(|k| k.contains("@group:1@")))
    };
    assert_eq!([Ask::Every, Ask::Needed, Ask::Engine].map(count), [(4, false), (2, true), (2, true)]);
}

#[test]
fn files_of_lmcache_have_no_slash() {
    let mut config = KeyConfig::new(Preset::named("lmcache").unwrap(), "org/Model", KvShape::default());
    config.dtype = "half".to_owned();
    let key = |store| {
        let mut batch = KeyBatch::default();
        let config = KeyConfig { store, ..config.clone() };
        KeyProfile::new(&config).unwrap().keys_of_block(&[0, 0, 0, 0, 0, 0, 1, 2], &mut batch).unwrap();
        batch.get(0).unwrap().to_owned()
    };
    assert_eq!(key(Store::Files { roots: Vec::new() }), "org-SEP-Model@1@0@102@half.data");
    assert_eq!(key(Store::S3), "org_Model@1@0@102@half");
    assert_eq!(key(Store::Mooncake), "org/Model@1@0@102@half");
}

#[test]
fn a_dot_in_the_model_name_changes_yuanrong_keys_until_0_26() {
    let key = |preset| {
        let mut config = KeyConfig::new(Preset::named(preset).unwrap(), "Qwen2.5", KvShape::default());
        config.store = Store::Yuanrong;
        let mut batch = KeyBatch::default();
        KeyProfile::new(&config).unwrap().keys_of_block(&[7; 32], &mut batch).unwrap();
        batch.get(0).unwrap().to_owned()
    };
    assert!(key("ascend-0.26").starts_with("Qwen2_5@") && key("ascend-0.26").contains("__"));
    assert!(key("ascend-0.30").starts_with("Qwen2.5@") && key("ascend-0.30").ends_with("07"));
}

proptest! {
    #[test]
    fn the_number_of_keys_follows_from_the_shape(
        tp_log in 0_u32..5, heads_log in 0_u32..6, dcp_log in 0_u32..5, pp in 1_u32..4, pcp in 1_u32..4, mla: bool,
    ) {
        let (tp, dcp) = (1 << tp_log, 1 << dcp_log.min(tp_log));
        let pcp = if pp > 1 { 1 } else { pcp };
        let shape = KvShape { tp, pp, pcp, dcp, kv_heads: 1 << heads_log, mla, ..KvShape::default() };
        let step = shape.replicas();
        let expected = pp * pcp * (tp / step) * step.min(dcp);
        let profile = profile("ascend-0.26", shape);
        prop_assert_eq!(profile.keys_per_block(), expected as usize);
        prop_assert_eq!(profile.block_tokens(), 128 * pcp * dcp);

        let hash = [[3_u8; 32]];
        let keys = |ask| {
            let mut batch = KeyBatch::default();
            profile.keys_of_prompt(&PromptBlocks::new(&hash, profile.block_tokens()), ask, &mut batch).unwrap();
            batch.iter().map(str::to_owned).collect::<HashSet<String>>()
        };
        let (every, engine) = (keys(Ask::Every), keys(Ask::Engine));
        prop_assert_eq!(every.len(), expected as usize, "no key twice");
        prop_assert!(engine.is_subset(&every));
        prop_assert_eq!(engine.len(), (expected / pcp) as usize);
    }
}
