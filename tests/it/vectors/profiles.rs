//! Rows by way of the configuration: what an operator says comes to the hashes and keys that
//! engines make.

use pd_proxy::config::{Config, HashAlgo, HashScheme};
use pd_proxy::kvhash::keys::{Ask, Connector, KeyBatch, Preset, PromptBlocks};
use pd_proxy::naming_config::naming;

use super::corpus::own;
use super::hashes::hashes;
use super::{Row, strings};

/// Our rows of this scheme whose engines divide prompts among decode-context-parallel ranks.
fn divided(scheme: &str, name: &str) -> Vec<&'static Row> {
    let rows: Vec<&Row> =
        own().iter().filter(|row| row.scheme() == scheme && row.name().contains(name)).collect();
    assert!(!rows.is_empty(), "{scheme}: {name}");
    rows
}

fn size(row: &Row, param: &str) -> u32 {
    row.number(param).try_into().unwrap()
}

#[test]
fn keys_of_the_upstream_store() {
    for row in divided("vllm_mooncake_store_ws", ".dcp2@") {
        let (hash_tokens, dcp) = (size(row, "hash_block_size"), size(row, "dcp_size"));
        let hashes = hashes(row.param("block_hashes"));
        let prompt = PromptBlocks::new(&hashes, u32::try_from(hashes.len()).unwrap() * hash_tokens);
        let blocks = row.expect()[0].as_array().unwrap();
        for version in row.texts("vllm_versions") {
            let mut config = Config::default();
            let (hash, key) = (&mut config.hash, &mut config.key);
            (hash.version, hash.seed) = (Some(version.to_owned()), Some("0".to_owned()));
            // The scheduler's block, which is hashed, is of so many of the engines'.
            (hash.algo, hash.block_tokens) = (HashAlgo::Sha256, hash_tokens / dcp);
            key.preset = Some(Preset::of_version(Connector::MooncakeStore, version).unwrap().name.to_owned());
            key.model = Some(row.text("model_name").to_owned());
            (key.tp, key.pp, key.dcp) = (size(row, "tp_size"), size(row, "pp_size"), dcp);
            key.kv_heads = size(row, "num_kv_heads");
            let naming =
                naming(&config, &[]).unwrap_or_else(|e| panic!("{} under {version}: {e}", row.name()));
            assert_eq!(naming.hasher.block_tokens().get(), row.number("hash_block_size"));
            let mut keys = KeyBatch::default();
            naming.keys.unwrap().keys_of_prompt(&prompt, Ask::Every, &mut keys).unwrap();
            let expected: Vec<&str> = blocks.iter().flat_map(strings).collect();
            assert_eq!(keys.iter().collect::<Vec<_>>(), expected, "{} under {version}", row.name());
        }
    }
}

#[test]
fn ids_of_ucm() {
    for row in divided("ucm_block_id", ".gqa_cp_connector@") {
        for release in row.texts("ucm_versions") {
            let mut config = Config::default();
            let (hash, key) = (&mut config.hash, &mut config.key);
            let named = if release == "snapshot" { "0.4" } else { release };
            (hash.scheme, hash.release) = (HashScheme::Ucm, Some(named.to_owned()));
            hash.version = Some(row.texts("vllm_versions")[0].to_owned());
            hash.block_tokens = size(row, "block_size");
            key.model = Some(row.text("model").to_owned());
            key.dtype = row.text("dtype").to_owned();
            // The rows say what became of the ranks, not by how many they were divided.
            key.tp = size(row, "tp_size");
            key.dcp = key.tp / size(row, "hash_tp_size");
            assert!(key.dcp > 1, "{}", row.name());
            let naming =
                naming(&config, &[]).unwrap_or_else(|e| panic!("{} under {release}: {e}", row.name()));
            let found = naming.hashes(&row.tokens(), None, None).unwrap();
            assert_eq!(found, hashes(row.expect()), "{} under {release}", row.name());
        }
    }
}
