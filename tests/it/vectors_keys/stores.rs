//! The upstream Mooncake store, UCM and LMCache.

use pd_proxy::kvhash::keys::bind::Names;
use pd_proxy::kvhash::keys::lmcache;
use pd_proxy::kvhash::keys::{
    Ask, Connector, KeyBatch, KeyConfig, KeyProfile, KvGroup, KvShape, Layout, Place, Preset, PromptBlocks,
    Store, profile, ucm,
};
use serde_json::Value;

use super::*;

#[test]
pub fn mooncake_store_formats() {
    for row in rows("vllm_mooncake_store_fmt") {
        let params = &row["params"];
        let at = Place {
            head: number(&params["tp_rank"]),
            pp: number(&params["pp_rank"]),
            pcp: number(&params["pcp_rank"]),
            dcp: number(&params["dcp_rank"]),
            group: number(&params["group_id"]),
            ..Place::default()
        };
        let names = Names {
            prefix: text(&params["cache_prefix"]),
            namespace: text(&params["store_namespace"]),
            ..plain_names(text(&params["model_name"]))
        };
        let hash = bytes(text(&params["chunk_hash"]));
        for preset in presets(&row, Connector::MooncakeStore, "vllm_versions") {
            let key = one_key(preset.whole, &names, &KvShape::default(), at, &hash);
            assert_eq!(
                [key.as_str()].as_slice(),
                texts(&row["expect"]),
                "{} by {}",
                row["name"],
                preset.name
            );
        }
    }
}

#[test]
pub fn mooncake_store_ranks_and_groups() {
    for row in rows("vllm_mooncake_store_ws") {
        let params = &row["params"];
        let hashes = hashes(&params["block_hashes"]);
        let hash_tokens = number(&params["hash_block_size"]);
        let shape = KvShape {
            tp: number(&params["tp_size"]),
            pp: number(&params["pp_size"]),
            dcp: number(&params["dcp_size"]),
            kv_heads: number(&params["num_kv_heads"]),
            store_tp: Some(&params["store_tp_size"]).filter(|v| !v.is_null()).map(number),
            hash_tokens: Some(hash_tokens),
            groups: groups_of(params),
            ..KvShape::default()
        };
        for preset in presets(&row, Connector::MooncakeStore, "vllm_versions") {
            let mut config = KeyConfig::new(preset, text(&params["model_name"]), shape.clone());
            config.prefix = text(&params["cache_prefix"]).to_owned();
            config.namespace = text(&params["store_namespace"]).to_owned();
            let profile = KeyProfile::new(&config).unwrap();
            let prompt = PromptBlocks::new(&hashes, u32::try_from(hashes.len()).unwrap() * hash_tokens);
            for (index, blocks) in row["expect"].as_array().unwrap().iter().enumerate() {
                let expected: Vec<&str> = blocks.as_array().unwrap().iter().flat_map(texts).collect();
                let batch = group_keys(&profile, index, &prompt);
                assert_eq!(strings(&batch), expected, "{} group {index}", row["name"]);
            }
            mooncake_lookup(&row, &profile, &prompt, &shape);
        }
    }
}

/// The engine asks for its prefixes in this order, each with the hashes of all blocks.
fn mooncake_lookup(row: &Value, profile: &KeyProfile, prompt: &PromptBlocks<'_, Vec<u8>>, shape: &KvShape) {
    let asked = prompt_keys(profile, prompt, Ask::Engine);
    let mut prefixes: Vec<&str> = asked.iter().map(|k| k.rsplit_once('@').unwrap().0).collect();
    prefixes.dedup();
    let lookups = row["lookup_prefixes"].as_array().unwrap();
    let expected: Vec<&str> = lookups
        .iter()
        .zip(&shape.groups)
        .filter(|(_, group)| group.keeps_every_block())
        .flat_map(|(group, _)| texts(group))
        .collect();
    assert_eq!(prefixes, expected, "{}", row["name"]);
}

#[test]
pub fn ucm_paths() {
    for row in rows("libstdcxx_hash_string_view_16") {
        let found: Vec<u64> = hashes(&row["block_ids"]).iter().map(|id| ucm::std_hash(id)).collect();
        let expected: Vec<u64> =
            row["expect"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect();
        assert_eq!(found, expected);
    }
    let stores = [
        ("ucm_path_posix", "ucm-posix"),
        ("ucm_path_posix_noshard", "ucm-posix-flat"),
        ("ucm_path_pcstore", "ucm-pcstore"),
        ("ucm_path_pcstore_noshard", "ucm-pcstore-flat"),
        ("ucm_path_ds3fs", "ucm-ds3fs"),
        ("ucm_path_nfsstore_legacy", "ucm-nfs"),
    ];
    for (scheme, preset) in stores {
        for row in rows(scheme) {
            let roots = texts(&row["params"]["storage_backends"]).into_iter().map(str::to_owned).collect();
            let mut config = KeyConfig::new(Preset::named(preset).unwrap(), "M", KvShape::default());
            config.store = Store::Files { roots };
            let profile = KeyProfile::new(&config).unwrap();
            let mut batch = KeyBatch::default();
            for id in hashes(&row["block_ids"]) {
                profile.keys_of_block(&id, &mut batch).unwrap();
            }
            assert_eq!(strings(&batch), texts(&row["expect"]), "{}", row["name"]);
        }
    }
}

fn lmcache_tags(params: &Value) -> String {
    let config = params["request_configs"].as_object();
    let setting = |(name, value)| lmcache::RequestSetting { name, value: text(value) };
    lmcache::tags(config.into_iter().flatten().map(|(k, v)| setting((k.as_str(), v))))
}

/// The 8 bytes of a hash that may be negative.
fn number_hash(value: &Value) -> [u8; 8] {
    value.as_i64().map_or_else(|| value.as_u64().unwrap().to_be_bytes(), i64::to_be_bytes)
}

#[test]
pub fn lmcache_engine_keys() {
    for row in rows("lmcache_engine_key") {
        let params = &row["params"];
        let (name, tags) = (&row["name"], lmcache_tags(params));
        let preset = if params["algo"] == "builtin" { "lmcache-builtin" } else { "lmcache" };
        let preset = Preset::named(preset).unwrap();
        let shape = KvShape {
            tp: number(&params["world_size"]),
            kv_heads: 8,
            mla: params["use_mla"] == true,
            layers: 2,
            block_tokens: number(&params["chunk_size"]),
            ..KvShape::default()
        };
        let mut config = KeyConfig::new(preset, text(&params["model"]), shape);
        config.dtype = text(&params["dtype"]).to_owned();
        let hashes: Vec<[u8; 8]> = row["chunk_hashes"].as_array().unwrap().iter().map(number_hash).collect();
        // The unfull tail counts as a chunk.
        let covered = u32::try_from(hashes.len()).unwrap() * number(&params["chunk_size"]);
        let prompt = PromptBlocks { hashes: &hashes, prompt_tokens: covered, salt: "", tags: &tags };
        let batch = prompt_keys(&KeyProfile::new(&config).unwrap(), &prompt, Ask::Every);
        let workers: Vec<Vec<&str>> = row["expect"].as_array().unwrap().iter().map(worker_keys).collect();
        // With MLA only worker 0 stores.
        let stored = if params["use_mla"] == true { 1 } else { workers.len() };
        let by_chunk: Vec<&str> =
            (0..hashes.len()).flat_map(|i| workers[..stored].iter().map(move |w| w[i])).collect();
        assert_eq!(strings(&batch), by_chunk, "{name}");

        config.layout = Layout::Layers;
        let layered = prompt_keys(&KeyProfile::new(&config).unwrap(), &prompt, Ask::Every);
        let first = texts(&row["expect_layerwise_first_chunk"]);
        assert_eq!(strings(&layered).into_iter().take(first.len()).collect::<Vec<_>>(), first, "{name}");
        assert_eq!(layered.len(), 2 * batch.len());
    }
}

#[test]
pub fn lmcache_mp_keys_and_file_names() {
    for row in rows("lmcache_mp") {
        let params = &row["params"];
        let hashes = hashes(&row["chunk_hashes"]);
        let chunk_tokens = number(&params["chunk_size"]);
        let object_group = number(&params["object_group_id"]);
        let group = KvGroup { block_tokens: chunk_tokens, ..KvGroup::default() };
        let shape = KvShape {
            tp: number(&params["world_size"]),
            kv_heads: 8,
            block_tokens: chunk_tokens,
            groups: vec![group; object_group as usize + 1],
            ..KvShape::default()
        };
        let prompt = PromptBlocks {
            salt: text(&params["cache_salt"]),
            ..PromptBlocks::new(&hashes, u32::try_from(hashes.len()).unwrap() * chunk_tokens)
        };
        let files = Store::Files { roots: Vec::new() };
        for (preset, store, expected) in
            [("lmcache-mp", Store::Mooncake, "expect"), ("lmcache-mp-files", files, "expect_fs_filenames")]
        {
            let mut config =
                KeyConfig::new(Preset::named(preset).unwrap(), text(&params["model"]), shape.clone());
            config.store = store;
            let batch = group_keys(&KeyProfile::new(&config).unwrap(), object_group as usize, &prompt);
            let workers: Vec<Vec<&str>> = row[expected].as_array().unwrap().iter().map(texts).collect();
            let by_chunk: Vec<&str> =
                (0..hashes.len()).flat_map(|i| workers.iter().map(move |w| w[i])).collect();
            assert_eq!(strings(&batch), by_chunk, "{} {expected}", row["name"]);
        }
    }
}

#[test]
pub fn the_model_of_a_key_is_the_last_component_of_its_path() {
    for row in rows("ascend_store") {
        let Some(key) = row["expect_lookup"][0].as_str() else { continue };
        assert_eq!(profile::model_name(text(&row["params"]["model"])), key.split('@').next().unwrap());
    }
}
