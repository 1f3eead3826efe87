//! Pool keys against keys that the connectors themselves made (the golden vectors' README says how).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pd_proxy::kvhash::keys::bind::{BlockTexts, Bound, Names};
use pd_proxy::kvhash::keys::lmcache;
use pd_proxy::kvhash::keys::{
    Ask, Connector, GroupKind, KeyBatch, KeyConfig, KeyProfile, KvGroup, KvShape, Layout, Place, Preset,
    PromptBlocks, Store, Template, profile, ucm, yuanrong,
};
use serde_json::Value;

/// `PD_PROXY_VECTORS`, the repository's own copy, or the one next to it.
fn vectors_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("PD_PROXY_VECTORS") {
        return dir.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = root.join("tests/vectors");
    if own.is_dir() { own } else { root.join("../shared/vectors") }
}

/// The rows of a file with this scheme, of which there must be `count`.
fn rows(file: &str, scheme: &str, count: usize) -> Vec<Value> {
    let path = vectors_dir().join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let all: Vec<Value> = serde_json::from_str(&text).unwrap();
    let found: Vec<Value> = all.into_iter().filter(|r| r["scheme"] == scheme).collect();
    assert_eq!(found.len(), count, "rows of {scheme} in {file}");
    found
}

fn number(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))).unwrap()
}

fn number_or(value: &Value, default: u32) -> u32 {
    if value.is_null() { default } else { number(value) }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a text"))
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(text).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    assert!(hex.len().is_multiple_of(2));
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn hashes(value: &Value) -> Vec<Vec<u8>> {
    texts(value).into_iter().map(bytes).collect()
}

fn tokens(row: &Value) -> u32 {
    u32::try_from(row["token_ids"].as_array().unwrap().len()).unwrap()
}

/// The presets of all versions a row is true for; each of them has to pass it.
fn presets(row: &Value, connector: Connector, versions: &str) -> Vec<&'static Preset> {
    let mut found = BTreeMap::new();
    for version in texts(&row["params"][versions]) {
        let preset = Preset::of_version(connector, version).unwrap();
        found.insert(preset.name, preset);
    }
    assert!(!found.is_empty());
    found.into_values().collect()
}

fn strings(batch: &KeyBatch) -> Vec<&str> {
    batch.iter().collect()
}

fn prompt_keys<H: AsRef<[u8]>>(profile: &KeyProfile, prompt: &PromptBlocks<'_, H>, ask: Ask) -> KeyBatch {
    let mut batch = KeyBatch::default();
    profile.keys_of_prompt(prompt, ask, &mut batch).unwrap();
    batch
}

fn group_keys<H: AsRef<[u8]>>(profile: &KeyProfile, index: usize, prompt: &PromptBlocks<'_, H>) -> KeyBatch {
    let mut batch = KeyBatch::default();
    profile.keys_of_group(index, prompt, &mut batch).unwrap();
    batch
}

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
fn ascend_store_keys_and_lookups() {
    let mut all = rows("ascend_store_keys_1.json", "ascend_store", 50);
    all.extend(rows("ascend_store_keys_2.json", "ascend_store", 37));
    for row in &all {
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

/// One key of one place, by template.
fn one_key(template: &str, names: &Names<'_>, shape: &KvShape, at: Place, hash: &[u8]) -> String {
    let hex: String = hash.iter().map(|b| format!("{b:02x}")).collect();
    let mut out = String::new();
    let block = BlockTexts { hash, hex: &hex, ..BlockTexts::default() };
    Bound::new(&Template::parse(template).unwrap(), names, shape, &at).write(&block, &mut out);
    out
}

fn plain_names(model: &str) -> Names<'_> {
    let empty = "";
    Names {
        model,
        full_model: model,
        prefix: empty,
        namespace: empty,
        dtype: empty,
        world: 1,
        slash: "/",
        end: empty,
    }
}

fn role(name: &str) -> &'static str {
    ["kv", "state"].into_iter().find(|r| *r == name).unwrap()
}

#[test]
fn ascend_store_formats() {
    for row in rows("ascend_store_formats.json", "ascend_store_fmt", 20) {
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
fn ascend_layerwise_memcache_keys() {
    for row in rows("ascend_store_formats.json", "ascend_store_gva", 8) {
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

fn groups_of(params: &Value) -> Vec<KvGroup> {
    let group = |g: &Value| KvGroup {
        block_tokens: number(&g["block_size"]),
        family: g["family"].as_str().unwrap_or("default").to_owned(),
        kind: match g["type"].as_str() {
            None | Some("full") => GroupKind::Full,
            Some("mla") => GroupKind::Mla,
            Some("mamba") => GroupKind::Mamba,
            Some(other) => panic!("unknown group type {other}"),
        },
        role: "kv",
    };
    params["groups"].as_array().unwrap().iter().map(group).collect()
}

#[test]
fn ascend_store_groups() {
    for row in rows("ascend_store_formats.json", "ascend_store_groups", 11) {
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
fn yuanrong_rewrites() {
    for row in rows("ascend_yuanrong_keys.json", "ascend_yuanrong_normalize", 3) {
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

/// The key of each `[start, end, key]` of one worker.
fn worker_keys(worker: &Value) -> Vec<&str> {
    worker.as_array().unwrap().iter().map(|k| text(&k[2])).collect()
}

#[test]
fn ascend_store_v1_keys() {
    for row in rows("ascend_011_store_v1.json", "ascend_011_mooncake_store_v1", 6) {
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

#[test]
fn mooncake_store_formats() {
    for row in rows("vllm_mooncake_store_keys.json", "vllm_mooncake_store_fmt", 3) {
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
fn mooncake_store_ranks_and_groups() {
    for row in rows("vllm_mooncake_store_keys.json", "vllm_mooncake_store_ws", 9) {
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
fn ucm_paths() {
    for row in rows("ucm_paths.json", "libstdcxx_hash_string_view_16", 1) {
        let found: Vec<u64> = hashes(&row["block_ids"]).iter().map(|id| ucm::std_hash(id)).collect();
        let expected: Vec<u64> =
            row["expect"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect();
        assert_eq!(found, expected);
    }
    let stores = [
        ("ucm_path_posix", 2, "ucm-posix"),
        ("ucm_path_posix_noshard", 2, "ucm-posix-flat"),
        ("ucm_path_pcstore", 2, "ucm-pcstore"),
        ("ucm_path_pcstore_noshard", 2, "ucm-pcstore-flat"),
        ("ucm_path_ds3fs", 1, "ucm-ds3fs"),
        ("ucm_path_nfsstore_legacy", 2, "ucm-nfs"),
    ];
    for (scheme, count, preset) in stores {
        for row in rows("ucm_paths.json", scheme, count) {
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
    lmcache::tags(config.into_iter().flatten().map(|(k, v)| (k.as_str(), text(v))))
}

/// The 8 bytes of a hash that may be negative.
fn number_hash(value: &Value) -> [u8; 8] {
    value.as_i64().map_or_else(|| value.as_u64().unwrap().to_be_bytes(), i64::to_be_bytes)
}

#[test]
fn lmcache_engine_keys() {
    for row in rows("lmcache_engine_keys.json", "lmcache_engine_key", 43) {
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
fn lmcache_mp_keys_and_file_names() {
    for row in rows("lmcache_mp_keys.json", "lmcache_mp", 9) {
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
fn the_model_of_a_key_is_the_last_component_of_its_path() {
    for row in rows("ascend_store_keys_2.json", "ascend_store", 37) {
        let Some(key) = row["expect_lookup"][0].as_str() else { continue };
        assert_eq!(profile::model_name(text(&row["params"]["model"])), key.split('@').next().unwrap());
    }
}
