//! The rows about hashes, pickles and Python's `hash()`.

use std::num::NonZeroUsize;

use pd_proxy::codec::pickle::{self, Protocol, ReadLimits};
use pd_proxy::codec::pyhash::{self, HashSecret, StrHash, TupleHasher};
use pd_proxy::kvhash::lmcache::{self, EngineAlgo, EngineHasher, EngineProfile, ServerAlgo, ServerHasher};
use pd_proxy::kvhash::ucm::{Generation, Layout, UcmHasher, UcmProfile};
use pd_proxy::kvhash::{
    Algo, BlockContext, BlockHash, BlockHasher, Embeds, HashProfile, Lora, Media, Seed, VllmVersion,
    ascend011, coarse, ems, with_group_id,
};
use serde_json::Value;

use super::{Row, each, number, numbers, strings, unhex};

/// A request's extras with all that they borrow.
pub(super) struct Extras<'a> {
    lora: Option<Lora<'a>>,
    media: Vec<Media<'a>>,
    salt: Option<&'a str>,
    embeds: Option<(Vec<u8>, usize)>,
}

impl<'a> Extras<'a> {
    pub(super) fn of(row: &'a Row) -> Self {
        let lora = row.param("lora").as_object().map(|lora| Lora {
            name: lora["name"].as_str().unwrap(),
            int_id: lora["int_id"].as_i64().unwrap(),
            path: lora["path"].as_str().unwrap(),
        });
        let items = row.param("mm_features").as_array().map(Vec::as_slice).unwrap_or_default();
        // An item that shares a string points at the one it shares it with.
        let shared: Vec<_> = items.iter().map(|item| item["same_object_as"].as_u64()).collect();
        let object = |index: usize| {
            let own = u64::try_from(index).unwrap();
            let target = shared[index].or_else(|| shared.contains(&Some(own)).then_some(own))?;
            Some(target.try_into().unwrap())
        };
        let media = items.iter().enumerate().map(|(index, item)| Media {
            identifier: item["identifier"].as_str().unwrap(),
            offset_tokens: item["offset"].as_u64().unwrap().try_into().unwrap(),
            length_tokens: item["length"].as_u64().unwrap().try_into().unwrap(),
            object: object(index),
        });
        let embeds = row.param("prompt_embeds").as_object().map(|embeds| {
            let per_token = embeds["bytes_per_token"].as_u64().unwrap().try_into().unwrap();
            (unhex(embeds["hex"].as_str().unwrap()), per_token)
        });
        Self { lora, media: media.collect(), salt: row.param("cache_salt").as_str(), embeds }
    }

    pub(super) fn context(&self) -> BlockContext<'_> {
        let embeds = self.embeds.as_ref();
        BlockContext {
            lora: self.lora,
            media: &self.media,
            cache_salt: self.salt,
            prompt_embeds: embeds.map(|(bytes, per_token)| Embeds { bytes, bytes_per_token: *per_token }),
        }
    }
}

fn seed(row: &Row) -> Seed {
    match (row.param("hash_seed").as_str(), row.param("urandom_hex").as_str()) {
        (Some(text), _) => Seed::Text(text.into()),
        (None, Some(drawn)) => Seed::Drawn(unhex(drawn).try_into().unwrap()),
        (None, None) => Seed::Unset,
    }
}

pub(super) fn profile(row: &Row, version: &str, block_tokens: usize) -> HashProfile {
    HashProfile {
        version: version.parse().unwrap(),
        algo: Algo::from_name(row.text("algo")).unwrap(),
        seed: seed(row),
        block_tokens,
        lookahead_tokens: row.param("hash_lookahead").as_u64().unwrap_or(0).try_into().unwrap(),
    }
}

fn hasher(row: &Row, version: &str, block_tokens: usize) -> BlockHasher {
    BlockHasher::new(&profile(row, version, block_tokens))
        .unwrap_or_else(|e| panic!("{} under {version}: {e}", row.name()))
}

pub(super) fn hashes(hex: &Value) -> Vec<BlockHash> {
    strings(hex).into_iter().map(|hex| BlockHash::from_slice(&unhex(hex)).unwrap()).collect()
}

fn block(tokens: usize) -> NonZeroUsize {
    NonZeroUsize::new(tokens).unwrap()
}

#[test]
pub(super) fn vllm_block_hashes() {
    each("vllm_block_hash", |row| {
        let (tokens, extras) = (row.tokens(), Extras::of(row));
        for version in row.texts("vllm_versions") {
            let hasher = hasher(row, version, row.number("block_size"));
            assert_eq!(
                hasher.none_hash().to_string(),
                row.0["none_hash"].as_str().unwrap(),
                "{}",
                row.name()
            );
            let mut chain = hasher.chain(&tokens, extras.context());
            let first = chain.next();
            if let Some(bytes) = row.0["first_block_serialized"].as_str() {
                assert_eq!(chain.spelled(), unhex(bytes), "{} under {version}", row.name());
            }
            let found: Vec<BlockHash> = first.into_iter().chain(chain).collect();
            assert_eq!(found, hashes(row.expect()), "{} under {version}", row.name());
            let events: Vec<u64> = found.iter().map(BlockHash::event_u64).collect();
            assert_eq!(events, numbers::<u64>(&row.0["expect_event_u64"]), "{} under {version}", row.name());
        }
    });
}

#[test]
pub(super) fn vllm_chains_begin_where_the_seed_says() {
    each("vllm_none_hash", |row| {
        for version in row.texts("vllm_versions") {
            let found = hasher(row, version, 16).none_hash();
            assert_eq!([found], *hashes(row.expect()), "{} under {version}", row.name());
        }
    });
}

/// The keys' own rows were made from hashes, which come with them.
#[test]
pub(super) fn hashes_behind_ascend_store_keys() {
    each("ascend_store", |row| {
        let (tokens, extras) = (row.tokens(), Extras::of(row));
        let versions = row.param("vllm_of").as_object().unwrap();
        assert!(!versions.is_empty(), "{}", row.name());
        for version in versions.values() {
            let hasher = hasher(row, version.as_str().unwrap(), row.number("hash_block_size"));
            let found: Vec<_> = hasher.chain(&tokens, extras.context()).collect();
            assert_eq!(found, hashes(&row.0["block_hashes"]), "{}", row.name());
        }
    });
}

#[test]
pub(super) fn vllm_names_of_coarser_blocks() {
    each("vllm_group_list", |row| {
        let fine = hashes(row.param("block_hashes"));
        let ratio = row.number("target_block_size") / row.number("hash_block_size");
        for version in row.texts("vllm_versions") {
            let rule = version.parse::<VllmVersion>().unwrap().group_rule();
            let join = |parts: &[BlockHash]| parts.iter().map(ToString::to_string).collect::<String>();
            let found: Vec<String> = coarse(&fine, ratio, rule).map(join).collect();
            assert_eq!(found, strings(row.expect()), "{} under {version}", row.name());
        }
    });
    each("vllm_with_group_id", |row| {
        let hash = BlockHash::from_slice(&unhex(row.text("block_hash"))).unwrap();
        let group = row.number("group_id").try_into().unwrap();
        assert_eq!(
            [with_group_id(&hash, group)],
            *strings(row.expect()).into_iter().map(unhex).collect::<Vec<_>>()
        );
    });
}

/// The tokens as a list in MessagePack, whose length has 16 bits.
fn msgpack(tokens: &[u32]) -> Vec<u8> {
    let mut out = vec![0xDC];
    out.extend(u16::try_from(tokens.len()).unwrap().to_be_bytes());
    for token in tokens {
        match (u8::try_from(*token), u16::try_from(*token)) {
            (Ok(token), _) if token < 0x80 => out.push(token),
            (Ok(token), _) => out.extend([0xCC, token]),
            (_, Ok(token)) => out.extend([&[0xCD], token.to_be_bytes().as_slice()].concat()),
            _ => out.extend([&[0xCE], token.to_be_bytes().as_slice()].concat()),
        }
    }
    out
}

#[test]
pub(super) fn hashes_in_kv_events() {
    each("vllm_kv_event_msgpack", |row| {
        let frame = unhex(strings(row.expect())[0]);
        let head = [&[0x93, 0xCB], 1.5_f64.to_be_bytes().as_slice(), &[0x93]].concat();
        assert!(frame.starts_with(&head) && frame.ends_with(b"\xB0AllBlocksCleared\0"), "{}", row.name());
        let holds = |part: &[u8]| assert!(frame.windows(part.len()).any(|it| it == part), "{}", row.name());
        holds(&msgpack(&row.tokens()));
        for hash in row.param("hashes").as_array().unwrap() {
            if let Some(hex) = hash.as_str() {
                let hash = BlockHash::from_slice(&unhex(hex)).unwrap();
                holds(hash.as_bytes());
                holds(&hash.event_u64().to_be_bytes());
            } else {
                let number: u64 = number(hash).try_into().unwrap();
                holds(&[&[0xCF], number.to_be_bytes().as_slice()].concat());
            }
        }
    });
}

#[test]
pub(super) fn ems_chains() {
    each("ems_chain", |row| {
        let tokens = row.tokens();
        let found: Vec<i64> = ems::chain(ems::START, &tokens, block(row.number("block_size"))).collect();
        assert_eq!(found, numbers::<i64>(row.expect()), "{}", row.name());
    });
    each("ems_tuple", |row| {
        let (tokens, parent) = (row.tokens(), number(row.param("prev_block_hash")).try_into().unwrap());
        let found: Vec<i64> = ems::chain(parent, &tokens, block(row.number("block_size"))).collect();
        assert_eq!(found, numbers::<i64>(row.expect()), "{}", row.name());
    });
}

#[test]
pub(super) fn ems_lookups_as_pickles() {
    let protocols = [Protocol::V2, Protocol::V3, Protocol::V4, Protocol::V5];
    each("ems_lookup_pickle", |row| {
        let hashes = numbers::<i128>(row.param("hashes")).into_iter().map(pickle::Value::Int).collect();
        let request_id = pickle::Value::Str(row.text("req_id").to_owned());
        let ask = pickle::Value::List(vec![request_id, pickle::Value::List(hashes)]);
        let reply = pickle::Value::Int(number(row.param("reply")));
        for (value, expected) in [(ask, row.expect()), (reply, &row.0["expect_reply"])] {
            for (hex, protocol) in strings(expected).into_iter().zip(protocols) {
                assert_eq!(pickle::write(&value, protocol).unwrap(), unhex(hex), "{protocol:?}");
                assert_eq!(
                    pickle::read(&unhex(hex), ReadLimits::default()).as_ref(),
                    Ok(&value),
                    "{protocol:?}"
                );
            }
        }
    });
}

#[test]
pub(super) fn python_hashes() {
    each("py_int_hash", |row| {
        let found: Vec<i64> = numbers(row.param("values")).into_iter().map(pyhash::int).collect();
        assert_eq!(found, numbers::<i64>(row.expect()));
    });
    each("py_tuple_hash", |row| {
        let mut tuple = TupleHasher::new();
        numbers(row.param("values")).into_iter().for_each(|item| tuple.lane(pyhash::int(item)));
        assert_eq!([tuple.finish()], *numbers::<i64>(row.expect()));
    });
    each("py_str_hash", |row| {
        let how = str_hash(row.text("python"));
        let secret = HashSecret::from_env(row.text("hash_seed")).unwrap();
        let found: Vec<i64> =
            row.texts("values").into_iter().map(|text| pyhash::text(text, how, secret)).collect();
        assert_eq!(found, numbers::<i64>(row.expect()), "{}", row.name());
    });
}

fn str_hash(python: &str) -> StrHash {
    let minor: u32 = python.split('.').nth(1).unwrap().parse().unwrap();
    if minor >= 11 { StrHash::Sip13 } else { StrHash::Sip24 }
}

pub(super) fn ucm(row: &Row, release: &str) -> UcmProfile {
    let generation = match release {
        "snapshot" => Generation::V0_4,
        "0.7.0" => Generation::V0_7,
        "0.8.0" => Generation::V0_8,
        "0.8.1" => Generation::V0_8_1,
        _ => panic!("{}: UCM {release}", row.name()),
    };
    let speculative = row.param("speculative").as_object().map(|speculative| {
        let tokens = speculative["num_speculative_tokens"].as_u64().unwrap();
        (speculative["method"].as_str().unwrap().into(), tokens.try_into().unwrap())
    });
    let layout = row
        .param("layout_digest")
        .as_str()
        .map(|digest| Layout { dcp: row.number("dcp_size").try_into().unwrap(), digest: digest.into() });
    UcmProfile {
        generation,
        version: row.texts("vllm_versions")[0].parse().unwrap(),
        model: row.text("model").into(),
        dtype: row.text("dtype").into(),
        tp: row.number("hash_tp_size").try_into().unwrap(),
        mla: row.param("is_mla").as_bool().unwrap(),
        block_tokens: row.number("block_size"),
        speculative,
        sfa_c8: row.param("additional_config")["enable_sparse_sfa_c8"].as_bool().unwrap_or(false),
        li_c8: false,
        layout,
    }
}

#[test]
pub(super) fn ucm_block_ids() {
    each("ucm_block_id", |row| {
        let (tokens, extras) = (row.tokens(), Extras::of(row));
        for release in row.texts("ucm_versions") {
            let hasher = UcmHasher::new(&ucm(row, release)).unwrap();
            assert_eq!(hasher.meta(0), row.0["meta_rank0"].as_str().unwrap(), "{}", row.name());
            assert_eq!(hasher.seed().to_string(), row.0["seed"].as_str().unwrap(), "{}", row.name());
            let found: Vec<_> = hasher.chain(&tokens, extras.context()).collect();
            assert_eq!(found, hashes(row.expect()), "{} under {release}", row.name());
            for (rank, expected) in row.0["expect_by_global_rank"].as_object().unwrap() {
                let rank = rank.parse().unwrap();
                let of_rank: Vec<_> = found.iter().map(|id| hasher.of_rank(*id, rank)).collect();
                assert_eq!(of_rank, hashes(expected), "{} under {release}, rank {rank}", row.name());
            }
        }
    });
}

pub(super) fn lmcache_engine(row: &Row, version: &str) -> EngineProfile {
    let algo = match row.text("algo") {
        "builtin" => EngineAlgo::Builtin(str_hash(row.text("python"))),
        "sha256" => EngineAlgo::Sha256,
        "sha256_cbor" => EngineAlgo::Sha256Cbor,
        other => panic!("{}: {other}", row.name()),
    };
    EngineProfile {
        release: lmcache::Release::V0_4,
        algo,
        version: version.parse().unwrap(),
        seed: seed(row),
        chunk_tokens: row.number("chunk_size"),
        partial_chunk: row.param("save_unfull_chunk").as_bool().unwrap(),
    }
}

/// The first two of each `[start, end, key]` of every worker: blocks without gaps from the first
/// token on.
fn assert_spans(row: &Row, block_tokens: usize) {
    let tokens = row.tokens().len();
    for worker in row.expect().as_array().unwrap() {
        for (index, span) in worker.as_array().unwrap().iter().enumerate() {
            let expected = [index * block_tokens, tokens.min((index + 1) * block_tokens)];
            assert_eq!(
                [&span[0], &span[1]].map(number).map(usize::try_from),
                expected.map(Ok),
                "{}",
                row.name()
            );
        }
    }
}

#[test]
pub(super) fn lmcache_in_the_engine() {
    each("lmcache_engine_key", |row| {
        let tokens = row.tokens();
        for version in row.texts("vllm_versions") {
            let hasher = EngineHasher::new(&lmcache_engine(row, version)).unwrap();
            assert_eq!(hasher.none_hash().value(), number(&row.0["none_hash"]), "{}", row.name());
            let found: Vec<_> = hasher.chain(&tokens).collect();
            let values: Vec<i128> = found.iter().map(|hash| hash.value()).collect();
            assert_eq!(values, numbers::<i128>(&row.0["chunk_hashes"]), "{} under {version}", row.name());
            assert_spans(row, row.number("chunk_size"));
            let keys = row.expect()[0].as_array().unwrap().iter().map(|it| it[2].as_str().unwrap());
            let in_keys: Vec<&str> = keys.map(|key| key.split('@').nth(3).unwrap()).collect();
            assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), in_keys, "{}", row.name());
        }
    });
}

pub(super) fn lmcache_server(row: &Row) -> ServerAlgo {
    let version = VllmVersion::new(0, 32, 0);
    match row.text("algo") {
        "blake3" => ServerAlgo::Blake3,
        "sha256_cbor" => ServerAlgo::Sha256Cbor { version, seed: seed(row) },
        other => panic!("{}: {other}", row.name()),
    }
}

#[test]
pub(super) fn lmcache_in_its_server() {
    each("lmcache_mp", |row| {
        let hasher = ServerHasher::new(&lmcache_server(row), row.number("chunk_size")).unwrap();
        assert_eq!(hasher.none_hash().to_string(), row.0["none_hash"].as_str().unwrap(), "{}", row.name());
        assert_eq!(hasher.chain(&row.tokens()), hashes(&row.0["chunk_hashes"]), "{}", row.name());
    });
    each("lmcache_mm", |row| {
        let found: Vec<u32> =
            lmcache::media_tokens(row.text("identifier")).take(row.number("length")).collect();
        assert_eq!(found, numbers::<u32>(row.expect()), "{}", row.name());
    });
}

#[test]
pub(super) fn the_first_ascend_store() {
    each("ascend_011_mooncake_store_v1", |row| {
        let (tokens, size) = (row.tokens(), row.number("block_size"));
        let found: Vec<String> =
            ascend011::chain(None, &tokens, block(size)).map(|hash| hash.to_string()).collect();
        let keys = row.expect()[0].as_array().unwrap();
        let in_keys: Vec<&str> =
            keys.iter().map(|it| it[2].as_str().unwrap().split('@').nth(3).unwrap()).collect();
        assert_eq!(found, in_keys, "{}", row.name());
        assert_spans(row, size);
    });
}
