//! Costs of a long prompt's hashes, beside bare digests of the same bytes, and of its keys.

use std::hint::black_box;
use std::num::NonZeroUsize;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pd_proxy::kvhash::keys::{Ask, KeyBatch, PromptBlocks};
use pd_proxy::kvhash::{Algo, BlockContext, BlockHasher, ems};
use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_128;

#[path = "inputs/hash.rs"]
mod inputs;

use inputs::{KEYS, PROMPT_TOKENS, hasher, key_profile, prompt};

/// Tokens per block that are usual on GPUs and on Ascend.
const BLOCK_TOKENS: [usize; 2] = [16, 128];
/// The bytes of each block that its hash is taken over.
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

/// Measures writing `KEYS` keys into a reused buffer: many blocks of one rank, few blocks of many.
fn keys(c: &mut Criterion) {
    let mut group = c.benchmark_group("keys");
    group.throughput(Throughput::Elements(u64::from(KEYS)));
    for (preset, ranks) in [("mooncake-store-0.30", 1), ("ascend-0.30", 8)] {
        let Some(profile) = key_profile(preset, ranks) else { continue };
        let blocks = KEYS / ranks;
        let hashes: Vec<[u8; 32]> =
            (0..blocks).map(|block| Sha256::digest(block.to_le_bytes()).into()).collect();
        let prompt = PromptBlocks::new(&hashes, blocks * profile.block_tokens());
        let mut batch = KeyBatch::default();
        let filled = profile.keys_of_prompt(&prompt, Ask::Every, &mut batch);
        assert!(filled.is_ok() && batch.len() == KEYS as usize, "{preset}");
        group.bench_function(BenchmarkId::new(preset, format!("{blocks}x{ranks}")), |b| {
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
