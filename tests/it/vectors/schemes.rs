//! The rows of all ways to hash, through the one type that has them all.

use pd_proxy::kvhash::keys::{KeyBatch, KeyConfig, KeyProfile, KvShape, Preset, PromptBlocks};
use pd_proxy::kvhash::scheme::{Hasher, Scheme};
use pd_proxy::kvhash::{BlockContext, BlockHash};

use super::hashes::{Extras, hashes, lmcache_engine, lmcache_server, profile, ucm};
use super::{Row, each, number, numbers};

/// The row's hashes, computed whole and from each block on.
fn check(row: &Row, scheme: &Scheme, context: BlockContext<'_>, expected: &[BlockHash]) {
    let tokens = row.tokens();
    let hasher = Hasher::new(scheme).unwrap_or_else(|e| panic!("{}: {e}", row.name()));
    assert_eq!(hasher.hashes(&tokens, context), expected, "{}", row.name());
    for known in 0..=hasher.settled_blocks(tokens.len()) {
        let found = hasher.extend(&expected[..known], &tokens, context);
        assert_eq!(found, expected, "{} from block {known}", row.name());
    }
    assert!(expected.iter().all(|hash| hash.as_bytes().len() == hasher.hash_bytes()), "{}", row.name());
}

fn plain() -> BlockContext<'static> {
    BlockContext::default()
}

#[test]
pub(super) fn vllm() {
    each("vllm_block_hash", |row| {
        let extras = Extras::of(row);
        for version in row.texts("vllm_versions") {
            let scheme = Scheme::Vllm(profile(row, version, row.number("block_size")));
            check(row, &scheme, extras.context(), &hashes(row.expect()));
        }
    });
}

#[test]
pub(super) fn ucm_ids() {
    each("ucm_block_id", |row| {
        let extras = Extras::of(row);
        for release in row.texts("ucm_versions") {
            check(row, &Scheme::Ucm(ucm(row, release)), extras.context(), &hashes(row.expect()));
        }
    });
}

#[test]
pub(super) fn lmcache_chunks() {
    each("lmcache_engine_key", |row| {
        let bytes = |it| i128::to_be_bytes(number(it)).last_chunk::<8>().copied().unwrap();
        let expected = row.0["chunk_hashes"].as_array().unwrap().iter().map(|it| BlockHash::from(bytes(it)));
        let expected: Vec<BlockHash> = expected.collect();
        for version in row.texts("vllm_versions") {
            check(row, &Scheme::LmcacheEngine(lmcache_engine(row, version)), plain(), &expected);
        }
    });
    each("lmcache_mp", |row| {
        let (algo, chunk_tokens) = (lmcache_server(row), row.number("chunk_size"));
        let scheme = Scheme::LmcacheServer { algo, chunk_tokens };
        check(row, &scheme, plain(), &hashes(&row.0["chunk_hashes"]));
    });
}

/// Signed numbers, which the pool's protocol wants back.
#[test]
pub(super) fn ems_numbers() {
    each("ems_chain", |row| {
        let scheme = Scheme::Ems { block_tokens: row.number("block_size") };
        let expected = numbers::<i64>(row.expect());
        let bytes: Vec<BlockHash> = expected.iter().map(|it| BlockHash::from(it.to_be_bytes())).collect();
        check(row, &scheme, plain(), &bytes);
        let found = Hasher::new(&scheme).unwrap().hashes(&row.tokens(), plain());
        let back: Vec<i64> = found.iter().map(|hash| hash.leading_u64().cast_signed()).collect();
        assert_eq!(back, expected, "{}", row.name());
    });
}

/// Its keys are all that the rows have, so hashes and keys are checked together, the partial
/// block's too.
#[test]
pub(super) fn the_first_ascend_store_and_its_keys() {
    each("ascend_011_mooncake_store_v1", |row| {
        let block_tokens = row.number("block_size");
        let tokens = row.tokens();
        let hasher = Hasher::new(&Scheme::Ascend011 { block_tokens }).unwrap();
        let found = hasher.hashes(&tokens, plain());
        let shape = KvShape {
            tp: row.number("world_size").try_into().unwrap(),
            kv_heads: 8,
            block_tokens: block_tokens.try_into().unwrap(),
            ..KvShape::default()
        };
        let preset = Preset::named("ascend-legacy-0.10").unwrap();
        let profile = KeyProfile::new(&KeyConfig::new(preset, row.text("model"), shape)).unwrap();
        let mut keys = KeyBatch::default();
        for hash in &found {
            profile.keys_of_block(hash.as_bytes(), &mut keys).unwrap();
        }
        let workers = row.expect().as_array().unwrap();
        let blocks = workers[0].as_array().unwrap().len();
        let expected: Vec<&str> = (0..blocks)
            .flat_map(|block| workers.iter().map(move |worker| worker[block][2].as_str().unwrap()))
            .collect();
        assert_eq!(keys.iter().collect::<Vec<_>>(), expected, "{}", row.name());
        for known in 0..=hasher.settled_blocks(tokens.len()) {
            assert_eq!(hasher.extend(&found[..known], &tokens, plain()), found, "{}", row.name());
        }
    });
}

/// A scheme's hashes go into the keys of the stores that use it: those of a real engine.
#[test]
pub(super) fn keys_of_an_lmcache_prompt() {
    each("lmcache_mp", |row| {
        let (algo, chunk_tokens) = (lmcache_server(row), row.number("chunk_size"));
        let hasher = Hasher::new(&Scheme::LmcacheServer { algo, chunk_tokens }).unwrap();
        if row.number("object_group_id") > 0 || row.number("world_size") > 1 {
            return;
        }
        let shape = KvShape { block_tokens: chunk_tokens.try_into().unwrap(), ..KvShape::default() };
        let preset = Preset::named("lmcache-mp").unwrap();
        let profile = KeyProfile::new(&KeyConfig::new(preset, row.text("model"), shape)).unwrap();
        assert_eq!(usize::try_from(profile.hash_tokens()), Ok(hasher.block_tokens().get()));
        let tokens = row.tokens();
        let found = hasher.hashes(&tokens, plain());
        let prompt = PromptBlocks::new(&found, tokens.len().try_into().unwrap());
        let mut keys = KeyBatch::default();
        profile.keys_of_prompt(&prompt, pd_proxy::kvhash::keys::Ask::Every, &mut keys).unwrap();
        let expected: Vec<&str> =
            row.expect()[0].as_array().unwrap().iter().map(|key| key.as_str().unwrap()).collect();
        assert_eq!(keys.iter().collect::<Vec<_>>(), expected, "{}", row.name());
    });
}
