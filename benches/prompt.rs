//! Costs of a prompt: rendering, tokenising by the crate alone and through the cache, and the
//! second turn of a conversation.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pd_proxy::codec::json::Object;
use pd_proxy::dialect::Api;
use pd_proxy::prompt::{CacheLimits, ChatTemplate, Local, PrefixCache, Prompter, Tokenize};
use serde_json::json;

#[path = "inputs/prompt.rs"]
mod inputs;

use inputs::{TODAY, messages, object, template as template_of_it, text, tokenizer};

const SIZES_BYTES: [usize; 2] = [8 << 10, 128 << 10];
/// Distinct conversations: more than the caches of the tokenizer itself remember.
const CONVERSATIONS: usize = 64;

fn prompts(c: &mut Criterion) {
    let (Some(template), Some(tokenizer)) = (template_of_it(), tokenizer()) else { return };
    let mut group = c.benchmark_group("prompt");
    for len_bytes in SIZES_BYTES {
        let bodies: Vec<Object> =
            (0..CONVERSATIONS).filter_map(|n| object(&messages(len_bytes, n))).collect();
        let texts: Vec<String> = bodies.iter().filter_map(|body| text(&template, body)).collect();
        let (Some(body), Some(first)) = (bodies.first(), texts.first()) else { return };
        group.throughput(Throughput::Bytes(first.len() as u64));
        group.bench_function(BenchmarkId::new("render", len_bytes), |b| {
            b.iter(|| text(&template, black_box(body)))
        });
        let mut turn = 0;
        let mut next = || {
            turn += 1;
            texts[turn % texts.len()].as_str()
        };
        group.bench_function(BenchmarkId::new("crate_alone", len_bytes), |b| {
            b.iter(|| {
                let mut ids = Vec::new();
                tokenizer.encode_into(next(), false, &mut ids).map(|()| ids.len())
            });
        });
        // A cache too small to hold one prompt: every look-up misses.
        let misses = PrefixCache::new(tokenizer.as_ref(), CacheLimits { min_text_bytes: 0, tokens: 1 }, 1);
        group.bench_function(BenchmarkId::new("first_turn", len_bytes), |b| {
            b.iter(|| misses.encode(tokenizer.as_ref(), next()).map(|ids| ids.len()));
        });
        second_turn(&mut group, len_bytes, (&template, &tokenizer));
    }
    group.finish();
}

type Group<'a> = criterion::BenchmarkGroup<'a, criterion::measurement::WallTime>;

/// The cache knows the first turn; every iteration asks a different second question.
fn second_turn(group: &mut Group<'_>, len_bytes: usize, (template, tokenizer): (&ChatTemplate, &Arc<Local>)) {
    let cache = PrefixCache::new(tokenizer.as_ref(), CacheLimits::default(), 1);
    let mut turns = messages(len_bytes, 0);
    let Some(first) = object(&turns).and_then(|body| text(template, &body)) else { return };
    if cache.encode(tokenizer.as_ref(), &first).is_err() {
        return;
    }
    turns.push(json!({"role": "assistant", "content": "So it is."}));
    turns.push(json!({"role": "user", "content": "And why? 0000"}));
    let Some(second) = object(&turns).and_then(|body| text(template, &body)) else { return };
    let texts: Vec<String> =
        (0..1000).map(|n| second.replace("why? 0000", &format!("why? {n:04}"))).collect();
    let mut turn = 0;
    group.bench_function(BenchmarkId::new("second_turn", len_bytes), |b| {
        b.iter(|| {
            turn += 1;
            cache.encode(tokenizer.as_ref(), &texts[turn % texts.len()]).map(|ids| ids.len())
        });
    });
    let whole = Prompter::new(
        template_of_it(),
        Some(tokenizer.clone()),
        PrefixCache::new(tokenizer.as_ref(), CacheLimits::default(), 1),
    );
    let Some(body) = object(&turns) else { return };
    group.bench_function(BenchmarkId::new("body_to_tokens_again", len_bytes), |b| {
        b.iter(|| whole.prompt(Api::Chat, black_box(&body), TODAY).tokens.len());
    });
}

criterion_group!(benches, prompts);
criterion_main!(benches);
