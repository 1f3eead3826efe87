//! What the hashes of a long prompt cost, beside the bare digests of the bytes that they are taken over; and its keys.

use std::hint::black_box;
use std::num::NonZeroUsize;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pd_proxy::kvhash::keys::{Ask, KeyBatch, KeyConfig, KeyProfile, KvShape, Preset, PromptBlocks};
use pd_proxy::kvhash::{Algo, BlockContext, BlockHasher, HashProfile, Seed, VllmVersion, ems};
use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_128;

/// A long context.
const PROMPT_TOKENS: usize = 32 << 10;
/// Usual on GPUs and on Ascend.
const BLOCK_TOKENS: [usize; 2] = [16, 128];
/// Ids of a vocabulary of usual size, without order.
const VOCABULARY: u64 = 151_936;

fn prompt() -> Vec<u32> {
    let ids = (1..=PROMPT_TOKENS as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) % VOCABULARY);
    ids.filter_map(|id| u32::try_from(id).ok()).collect()
}

fn hasher(algo: Algo, block_tokens: usize) -> Option<BlockHasher> {
    let version = VllmVersion::new(0, 32, 0);
    let profile =
        HashProfile { version, algo, seed: Seed::Text("0".into()), block_tokens, lookahead_tokens: 0 };
    BlockHasher::new(&profile).ok()
}

/// The bytes of each block.
fn spelled(hasher: &BlockHasher, tokens: &[u32]) -> Vec<Vec<u8>> {
    let mut chain = hasher.chain(tokens, BlockContext::default());
    let mut blocks = Vec::new();
    while chain.next().is_some() {
        blocks.push(chain.spelled().to_vec());
    }
    blocks
}

fn bare(algo: Algo, blocks: &[Vec<u8>]) -> u8 {
    if algo.is_xxhash() {
        return blocks.iter().fold(0, |all, block| all ^ xxh3_128(black_box(block)).to_be_bytes()[0]);
    }
    blocks.iter().fold(0, |all, block| all ^ Sha256::digest(black_box(block))[0])
}

fn chains(c: &mut Criterion) {
    let tokens = prompt();
    for block_tokens in BLOCK_TOKENS {
        let mut group = c.benchmark_group(format!("hash_block{block_tokens}"));
        group.throughput(Throughput::Elements(PROMPT_TOKENS as u64));
        for algo in Algo::ALL {
            let Some(hasher) = hasher(algo, block_tokens) else { continue };
            group.bench_function(BenchmarkId::new("chain", algo.name()), |b| {
                b.iter(|| hasher.chain(black_box(&tokens), BlockContext::default()).last());
            });
            let blocks = spelled(&hasher, &tokens);
            group.bench_function(BenchmarkId::new("bare", algo.name()), |b| b.iter(|| bare(algo, &blocks)));
        }
        if let Some(block) = NonZeroUsize::new(block_tokens) {
            group.bench_function("ems", |b| {
                b.iter(|| ems::chain(ems::START, black_box(&tokens), block).last())
            });
        }
        group.finish();
    }
}

/// Prompts of so many keys.
const KEYS: u32 = 1_000;

/// Names `KEYS` keys into a buffer that is used again: many blocks of one rank, few blocks of many.
fn keys(c: &mut Criterion) {
    let mut group = c.benchmark_group("keys");
    group.throughput(Throughput::Elements(u64::from(KEYS)));
    for (preset, ranks) in [("mooncake-store-0.30", 1), ("ascend-0.30", 8)] {
        let shape = KvShape { tp: ranks, kv_heads: ranks, ..KvShape::default() };
        let Ok(preset) = Preset::named(preset) else { continue };
        let Ok(profile) = KeyProfile::new(&KeyConfig::new(preset, "/models/Qwen3-32B", shape)) else {
            continue;
        };
        let blocks = KEYS / ranks;
        let hashes: Vec<[u8; 32]> =
            (0..blocks).map(|block| Sha256::digest(block.to_le_bytes()).into()).collect();
        let prompt = PromptBlocks::new(&hashes, blocks * profile.block_tokens());
        let mut batch = KeyBatch::default();
        let filled = profile.keys_of_prompt(&prompt, Ask::Every, &mut batch);
        assert!(filled.is_ok() && batch.len() == KEYS as usize, "{}", preset.name);
        group.bench_function(BenchmarkId::new(preset.name, format!("{blocks}x{ranks}")), |b| {
            b.iter(|| {
                batch.clear();
                profile.keys_of_prompt(black_box(&prompt), Ask::Every, &mut batch).map(|()| batch.bytes())
            });
        });
    }
    group.finish();
}

criterion_group!(benches, chains, keys);
criterion_main!(benches);
