//! AscendStore, in all its spellings.

use pd_proxy::kvhash::keys::{
    Ask, Connector, GroupKind, KeyBatch, KeyConfig, KeyProfile, KvGroup, KvShape, Layout, Place, Preset,
    PromptBlocks, Store, yuanrong,
};
use serde_json::Value;

use super::*;

fn ascend_config(row: &Value, preset: &'static Preset) -> KeyConfig {
    let params = &row["params"];
    let extra = &params["extra_config"];
    let peer = [&extra["decode_tp_size"], &extra["prefill_tp_size"]].into_iter().find(|v| !v.is_null());
    let shape = KvShape {
        tp: number(&params["tp_size"]),
        pp: number(&params["pp_size"]),
        pcp: number(&params["pcp_size"]),
        dcp: number(&params["dcp_size"]),
        kv_heads: number(&params["num_kv_heads"]),
        mla: params["use_mla"] == true,
        peer_tp: peer.map(number),
        layers: number(&params["num_layers"]),
        block_tokens: number(&params["block_size"]),
        ..KvShape::default()
    };
    let mut config = KeyConfig::new(preset, text(&params["model"]), shape);
    config.layout = if params["layerwise"] == true { Layout::Layers } else { Layout::Whole };
    config.store = match extra["backend"].as_str() {
        Some("memcache") => Store::MemCache,
        Some("yuanrong") => Store::Yuanrong,
        None => Store::Mooncake,
        Some(other) => panic!("unknown backend {other}"),
    };
    config
}

#[test]
pub fn ascend_store_keys_and_lookups() {
    for row in &rows("ascend_store") {
        let name = &row["name"];
        for preset in presets(row, Connector::AscendStore, "vllm_ascend_versions") {
            let profile = KeyProfile::new(&ascend_config(row, preset)).unwrap();
            let hashes = hashes(&row["block_hashes"]);
            let prompt = PromptBlocks::new(&hashes, tokens(row));
            let mut flat = Vec::new();
            let mut single = KeyBatch::default();
            for (hash, expected) in hashes.iter().zip(row["expect"].as_array().unwrap()) {
                let expected = texts(expected);
                single.clear();
                profile.keys_of_block(hash, &mut single).unwrap();
                assert_eq!(strings(&single), expected, "{name} by {}", preset.name);
                assert_eq!(profile.keys_per_block(), expected.len());
                flat.extend(expected);
            }
            assert_eq!(
                strings(&prompt_keys(&profile, &prompt, Ask::Every)),
                flat,
                "{name} by {}",
                preset.name
            );
            assert_eq!(profile.block_tokens(), number(&row["params"]["effective_block_size"]), "{name}");
            let asked = prompt_keys(&profile, &prompt, Ask::Engine);
            assert_eq!(strings(&asked), texts(&row["expect_lookup"]), "{name} by {}", preset.name);
            let hit = number(&row["hit_tokens_if_all_present"]);
            assert_eq!(asked.hit_tokens(std::iter::repeat(true)), hit, "{name}");
            assert_eq!(hit, number(&row["params"]["aligned_token_len"]), "{name}");
        }
    }
}

fn role(name: &str) -> &'static str {
    ["kv", "state"].into_iter().find(|r| *r == name).unwrap()
}

#[test]
pub fn ascend_store_formats() {
    for row in rows("ascend_store_fmt") {
        let params = &row["params"];
        let family = text(&params["cache_family"]).to_owned();
        let group = KvGroup {
            block_tokens: 1,
            family,
            kind: GroupKind::Full,
            role: role(text(&params["cache_role"])),
        };
        let index = number(&params["group_id"]);
        let shape = KvShape { groups: vec![group; index as usize + 1], ..KvShape::default() };
        let at = Place {
            head: number(&params["head_or_tp_rank"]),
            pp: number(&params["pp_rank"]),
            pcp: number(&params["pcp_rank"]),
            dcp: number(&params["dcp_rank"]),
            group: index,
            ..Place::default()
        };
        let hash = bytes(text(&params["chunk_hash"]));
        let names = plain_names(text(&params["model_name"]));
        for preset in presets(&row, Connector::AscendStore, "vllm_ascend_versions") {
            let layered = preset.layers.unwrap();
            let keys = [
                one_key(preset.whole, &names, &shape, at, &hash),
                one_key(layered, &names, &shape, at, &hash),
                one_key(layered, &names, &shape, Place { layer: 1, ..at }, &hash),
            ];
            assert_eq!(keys.as_slice(), texts(&row["expect"]), "{} by {}", row["name"], preset.name);
        }
    }
}

#[test]
pub fn ascend_layerwise_memcache_keys() {
    for row in rows("ascend_store_gva") {
        let params = &row["params"];
        let groups =
            vec![KvGroup { block_tokens: 1, ..KvGroup::default() }; number(&params["num_groups"]) as usize];
        let ranks = number(&params["ranks"]);
        let shape = KvShape { pp: number_or(&params["pp_size"], 1), groups, ..KvShape::default() };
        let hash = bytes(text(&params["chunk_hash"]));
        let names = plain_names(text(&params["model_name"]));
        for preset in presets(&row, Connector::AscendStore, "vllm_ascend_versions") {
            let place = |head| Place {
                head,
                group: number(&params["group_id"]),
                pp: number_or(&params["pp_rank"], 0),
                ..Place::default()
            };
            let keys: Vec<String> = (0..ranks)
                .map(|head| one_key(preset.gva.unwrap(), &names, &shape, place(head), &hash))
                .collect();
            assert_eq!(keys, texts(&row["expect"]), "{} by {}", row["name"], preset.name);
        }
    }
}

#[test]
pub fn ascend_store_groups() {
    for row in rows("ascend_store_groups") {
        let params = &row["params"];
        let hashes = hashes(&row["block_hashes"]);
        let shape = KvShape {
            groups: groups_of(params),
            hash_tokens: Some(number(&params["hash_block_size"])),
            ..KvShape::default()
        };
        for preset in presets(&row, Connector::AscendStore, "vllm_ascend_versions") {
            let config = KeyConfig::new(preset, text(&params["model_name"]), shape.clone());
            let profile = KeyProfile::new(&config).unwrap();
            let prompt = PromptBlocks::new(&hashes, tokens(&row));
            let expected: Vec<Vec<&str>> = row["expect"].as_array().unwrap().iter().map(texts).collect();
            for (index, keys) in expected.iter().enumerate() {
                let batch = group_keys(&profile, index, &prompt);
                assert_eq!(strings(&batch), *keys, "{} group {index} by {}", row["name"], preset.name);
            }
            let every = prompt_keys(&profile, &prompt, Ask::Every);
            assert_eq!(strings(&every), expected.concat());
            assert_eq!(every.hit_tokens(std::iter::repeat(true)), number(&params["aligned_token_len"]));
        }
    }
}

#[test]
pub fn yuanrong_rewrites() {
    for row in rows("ascend_yuanrong_normalize") {
        let keys = texts(&row["params"]["keys"]);
        assert_eq!(keys.len(), 9);
        for preset in presets(&row, Connector::AscendStore, "vllm_ascend_versions") {
            let rewritten = |key: &&str| {
                let mut text = (*key).to_owned();
                preset.yuanrong_max_chars.iter().for_each(|max| yuanrong::rewrite(&mut text, 0, *max));
                text
            };
            let found: Vec<String> = keys.iter().map(rewritten).collect();
            assert_eq!(found, texts(&row["expect"]), "{} by {}", row["name"], preset.name);
        }
    }
}

#[test]
pub fn ascend_store_v1_keys() {
    for row in rows("ascend_011_mooncake_store_v1") {
        let params = &row["params"];
        let workers: Vec<Vec<&str>> = row["expect"].as_array().unwrap().iter().map(worker_keys).collect();
        let shape =
            KvShape { tp: number(&params["world_size"]), layers: 2, kv_heads: 8, ..KvShape::default() };
        for preset in presets(&row, Connector::AscendStoreV1, "vllm_ascend_versions") {
            let mut config = KeyConfig::new(preset, text(&params["model"]), shape.clone());
            let whole = KeyProfile::new(&config).unwrap();
            config.layout = Layout::Layers;
            let layered = KeyProfile::new(&config).unwrap();
            let mut batch = KeyBatch::default();
            for (index, key) in workers[0].iter().enumerate() {
                let hash = bytes(key.rsplit('@').next().unwrap());
                batch.clear();
                whole.keys_of_block(&hash, &mut batch).unwrap();
                let expected: Vec<&str> = workers.iter().map(|w| w[index]).collect();
                assert_eq!(strings(&batch), expected, "{}", row["name"]);
                if index == 0 {
                    batch.clear();
                    layered.keys_of_block(&hash, &mut batch).unwrap();
                    let first: Vec<Vec<&str>> =
                        row["expect_layerwise_first_chunk"].as_array().unwrap().iter().map(texts).collect();
                    assert_eq!(strings(&batch), first.concat(), "{}", row["name"]);
                }
            }
        }
    }
}
