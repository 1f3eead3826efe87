//! Rows with token ids beyond 32 bits, which Python hashes but no tokenizer makes: the chains don't
//! take them, so they are put together here from the codecs, which do.

use md5::Md5;
use pd_proxy::codec::cbor;
use pd_proxy::codec::pickle::{self, Protocol, Value};
use pd_proxy::codec::pyhash::{TupleHasher, int};
use pd_proxy::kvhash::BlockHash;
use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_128;

use super::{Row, numbers, strings, unhex};

/// Number of them in `tests/vectors`.
pub(super) const ROWS: usize = 12;

/// A digest of any length.
type Hash = fn(&[u8]) -> Vec<u8>;

/// Recomputes what the row expects.
pub(super) fn check(row: &Row) {
    match row.scheme() {
        "ems_chain" => assert_eq!(ems(row), numbers::<i64>(row.expect()), "{}", row.name()),
        "vllm_block_hash" => {
            let (with_cbor, hash): (bool, Hash) = match row.text("algo") {
                "sha256" => (false, |bytes| Sha256::digest(bytes).to_vec()),
                "sha256_cbor" => (true, |bytes| Sha256::digest(bytes).to_vec()),
                "xxhash" => (false, |bytes| xxh3_128(bytes).to_be_bytes().to_vec()),
                _ => (true, |bytes| xxh3_128(bytes).to_be_bytes().to_vec()),
            };
            let spell = if with_cbor { in_cbor } else { in_pickle };
            chain(row, row.0["none_hash"].as_str().unwrap(), |parent, tokens| {
                hash(&spell(parent, tokens, true))
            });
        }
        "ucm_block_id" => {
            let meta = row.0["meta_rank0"].as_str().unwrap();
            let extra = row.texts("ucm_versions") == ["0.8.0"];
            chain(row, row.0["seed"].as_str().unwrap(), |parent, tokens| {
                let spelled = in_pickle(parent, tokens, extra);
                Md5::new_with_prefix(meta).chain_update(spelled).finalize().to_vec()
            });
        }
        other => panic!("{}: {other} takes no wide tokens", row.name()),
    }
}

fn chain(row: &Row, start: &str, link: impl Fn(&[u8], &[i128]) -> Vec<u8>) {
    let mut parent = unhex(start);
    let mut found = Vec::new();
    for block in row.wide_tokens().chunks_exact(row.number("block_size")) {
        parent = link(&parent, block);
        found.push(BlockHash::from_slice(&parent).unwrap().to_string());
    }
    assert_eq!(found, strings(row.expect()), "{}", row.name());
}

fn ems(row: &Row) -> Vec<i64> {
    let mut parent = 0;
    let tokens = row.wide_tokens();
    let chain = tokens.chunks_exact(row.number("block_size")).map(|block| {
        let mut tuple = TupleHasher::new();
        [parent].iter().chain(block).for_each(|item| tuple.lane(int(*item)));
        parent = i128::from(tuple.finish());
        tuple.finish()
    });
    chain.collect()
}

fn in_pickle(parent: &[u8], tokens: &[i128], extra: bool) -> Vec<u8> {
    let tokens = tokens.iter().map(|token| Value::Int(*token)).collect();
    let mut items = vec![Value::Bytes(parent.to_vec()), Value::Tuple(tokens)];
    items.extend(extra.then_some(Value::None));
    pickle::write(&Value::Tuple(items), Protocol::V5).unwrap()
}

fn in_cbor(parent: &[u8], tokens: &[i128], extra: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = cbor::Writer::new(&mut out);
    writer.array(2 + usize::from(extra));
    writer.bytes(parent);
    writer.array(tokens.len());
    tokens.iter().for_each(|token| writer.uint((*token).try_into().unwrap()));
    if extra {
        writer.null();
    }
    out
}
