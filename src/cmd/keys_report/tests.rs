use super::*;
use crate::kvhash::keys::{KeyConfig, KvGroup, KvShape, Preset, Store};
use crate::prompt::Reason;

/// Row `sha256.bs2.tiny` of the golden vectors: seed "0", blocks of 2 tokens.
const TOKENS: [u32; 5] = [65486, 23627, 7180, 46214, 42200];
const HASHES: [&str; 2] = [
    "0c2802e01403b4fb19f41caa91b553ee8cb5784484aa8442fb144923ee26d552",
    "22189b5a75f960acb3cddd9318be57496df705d244a799fab1e1cf8d173aa4b6",
];
const EVENTS: [u64; 2] = [18_092_166_021_722_330_450, 12_817_754_219_360_199_862];

/// The row of this name in a file of golden vectors.
fn row(file: &str, name: &str) -> Value {
    let path = format!("{}/tests/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    let rows: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    rows.into_iter().find(|row| row["name"] == name).unwrap()
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect()
}

fn tokens(row: &Value) -> Vec<u32> {
    row["token_ids"].as_array().unwrap().iter().map(|it| it.as_u64().unwrap().try_into().unwrap()).collect()
}

fn hash(hex: &str) -> BlockHash {
    let bytes: Vec<u8> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
    BlockHash::from_slice(&bytes).unwrap()
}

fn exact<'a>(tokens: &'a [u32], hashes: &'a [BlockHash], block_tokens: usize) -> Hashed<'a> {
    let block_tokens = NonZeroUsize::new(block_tokens).unwrap();
    Hashed { exactness: Exactness::Exact, tokens, hashes, block_tokens }
}

fn profile(preset: &str, model: &str, shape: KvShape) -> KeyProfile {
    KeyProfile::new(&KeyConfig::new(Preset::named(preset).unwrap(), model, shape)).unwrap()
}

fn mooncake() -> KeyProfile {
    profile("mooncake-store-0.30", "/models/M", KvShape { block_tokens: 2, ..KvShape::default() })
}

fn plain(profile: &KeyProfile) -> Spelling<'_> {
    Spelling { profile, salt: "", tags: "" }
}

fn keys_by_block(listing: &Listing) -> Vec<Vec<&str>> {
    listing.blocks.iter().map(|block| block.keys.iter().map(String::as_str).collect()).collect()
}

#[test]
fn people_read_a_line_per_block_with_its_keys_below() {
    let (hashes, profile) = (HASHES.map(hash), mooncake());
    let listing = Listing::new(&exact(&TOKENS, &hashes, 2), Some(&plain(&profile))).unwrap();
    let expected = format!(
        "tokens 5: 65486 23627 7180 46214 42200\n\
         block 0  tokens 0..2  hash {}  event {}\n    M@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{}\n\
         block 1  tokens 2..4  hash {}  event {}\n    M@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{}\n",
        HASHES[0], EVENTS[0], HASHES[0], HASHES[1], EVENTS[1], HASHES[1]
    );
    assert_eq!(listing.to_string(), expected);
}

#[test]
fn programs_read_json() {
    let hashes = HASHES.map(hash);
    let listing = Listing::new(&exact(&TOKENS, &hashes, 2), None).unwrap();
    let block = |index: usize| {
        json!({
            "index": index, "start_token": 2 * index, "end_token": 2 * index + 2,
            "hash": HASHES[index], "event": EVENTS[index], "keys": [],
        })
    };
    let expected = json!({
        "exact": true, "reason": null, "tokens": TOKENS, "block_tokens": 2, "blocks": [block(0), block(1)],
    });
    assert_eq!(listing.json(), expected);
}

#[test]
fn of_an_inexact_prompt_nothing_is_told_but_why() {
    let (hashes, profile) = (HASHES.map(hash), mooncake());
    let exactness = Exactness::Inexact(Reason::ClientTemplate);
    let prompt = Hashed { exactness, ..exact(&TOKENS, &hashes, 2) };
    let listing = Listing::new(&prompt, Some(&plain(&profile))).unwrap();
    assert_eq!(listing.to_string(), "tokens unknown: client_template\n");
    let expected =
        json!({"exact": false, "reason": "client_template", "tokens": [], "block_tokens": 2, "blocks": []});
    assert_eq!(listing.json(), expected);
}

#[test]
fn long_prompts_show_their_first_ids_in_aligned_columns() {
    let row = row("ascend_store_formats.json", "groups.two@0.30.0rc2");
    let (tokens, hashes) = (tokens(&row), texts(&row["block_hashes"]));
    let hashes: Vec<BlockHash> = hashes.into_iter().map(hash).collect();
    let text = Listing::new(&exact(&tokens, &hashes, 32), None).unwrap().to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "tokens 300: 30085 9058 63163 150404 79451 6397 145612 32421 …");
    assert!(lines[1].starts_with("block 0  tokens   0..32   hash 26eecb6dd64dfb3a"), "{}", lines[1]);
    assert!(lines[9].starts_with("block 8  tokens 256..288  hash "), "{}", lines[9]);
    assert_eq!(lines.len(), 10);
}

/// Blocks of 64 and 32 tokens over hashes of 32: the coarse ones stand with the hash block they
/// begin in.
#[test]
fn keys_of_coarse_groups_stand_where_they_start() {
    let row = row("ascend_store_formats.json", "groups.two@0.30.0rc2");
    let hashes: Vec<BlockHash> = texts(&row["block_hashes"]).into_iter().map(hash).collect();
    let group = |block_tokens, family: &str| KvGroup {
        block_tokens,
        family: family.to_owned(),
        ..KvGroup::default()
    };
    let groups = vec![group(64, "c2"), group(32, "c1")];
    let shape = KvShape { groups, hash_tokens: Some(32), ..KvShape::default() };
    let profile = profile("ascend-0.30", row["params"]["model_name"].as_str().unwrap(), shape);
    let listing = Listing::new(&exact(&tokens(&row), &hashes, 32), Some(&plain(&profile))).unwrap();

    let (coarse, fine) = (texts(&row["expect"][0]), texts(&row["expect"][1]));
    let both = |block: usize| match block {
        // 300 tokens are four whole units of 64: the ninth hash block belongs to none.
        8 => vec![],
        even if even % 2 == 0 => vec![coarse[even / 2], fine[even]],
        odd => vec![fine[odd]],
    };
    assert_eq!(keys_by_block(&listing), (0..9).map(both).collect::<Vec<_>>());
}

#[test]
fn a_partial_block_that_is_stored_has_its_key() {
    let row = row("lmcache_engine_keys.json", "lmcache.builtin.unfull.seed0");
    let numbers = row["chunk_hashes"].as_array().unwrap();
    let hashes: Vec<BlockHash> =
        numbers.iter().map(|it| BlockHash::from(it.as_i64().unwrap().to_be_bytes())).collect();
    let shape = KvShape { block_tokens: 256, ..KvShape::default() };
    let mut config = KeyConfig::new(Preset::named("lmcache-builtin").unwrap(), "Qwen/Qwen3-073", shape);
    config.dtype = "bfloat16".to_owned();
    let profile = KeyProfile::new(&config).unwrap();
    let listing = Listing::new(&exact(&tokens(&row), &hashes, 256), Some(&plain(&profile))).unwrap();

    let worker = row["expect"][0].as_array().unwrap();
    let found = listing.blocks.iter().map(|block| json!([block.start_token, block.end_token, block.keys[0]]));
    assert_eq!(found.collect::<Vec<_>>(), *worker);
}

#[test]
fn salt_and_tags_are_spelled() {
    let hashes = [hash(HASHES[0])];
    let shape = KvShape { block_tokens: 5, ..KvShape::default() };
    let profile = profile("lmcache-mp", "M", shape);
    let spelling = Spelling { profile: &profile, salt: "u-kte", tags: "" };
    let listing = Listing::new(&exact(&TOKENS, &hashes, 5), Some(&spelling)).unwrap();
    let key = format!("M@01000100@0@{}@u-kte", HASHES[0]);
    assert_eq!(keys_by_block(&listing), [[key.as_str()]]);

    let number = [BlockHash::from(0x4300_c28c_39b2_cdcc_u64.to_be_bytes())];
    let mut config = KeyConfig::new(
        Preset::named("lmcache").unwrap(),
        "M",
        KvShape { block_tokens: 5, ..KvShape::default() },
    );
    config.dtype = "half".to_owned();
    config.store = Store::Mooncake;
    let profile = KeyProfile::new(&config).unwrap();
    let spelling = Spelling { profile: &profile, salt: "", tags: "@user%eahb@org%wd7" };
    let listing = Listing::new(&exact(&TOKENS, &number, 5), Some(&spelling)).unwrap();
    assert_eq!(keys_by_block(&listing), [["M@1@0@4300c28c39b2cdcc@half@user%eahb@org%wd7"]]);
}

#[test]
fn inconsistent_arguments_are_refused() {
    let (hashes, profile) = (HASHES.map(hash), mooncake());
    let spelling = plain(&profile);
    let error = |prompt: &Hashed<'_>| Listing::new(prompt, Some(&spelling)).unwrap_err();
    let other = ListingError::BlockTokens { hashed: 4, named: 2 };
    assert_eq!(error(&exact(&TOKENS, &hashes[..1], 4)), other);
    let few = ListingError::Key(KeyError::TooFewHashes { wanted: 2, got: 1 });
    assert_eq!(error(&exact(&TOKENS, &hashes[..1], 2)), few);
    let short = BlockHash::from([1; 16]);
    let bytes = ListingError::Key(KeyError::HashBytes { wanted: 32, got: 16 });
    assert_eq!(error(&exact(&TOKENS, &[short; 2], 2)), bytes);
}
