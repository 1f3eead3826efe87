//! What a prompt costs: render, tokenise by the crate alone and through the cache, the second turn of a conversation.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::dialect::Api;
use pd_proxy::prompt::{
    CacheLimits, ChatTemplate, Local, PrefixCache, PromptSource, Prompter, TemplateFiles, Today, Tokenize,
};
use serde_json::{Value, json};

const SIZES_BYTES: [usize; 2] = [8 << 10, 128 << 10];
const TODAY: Today = Today { year: 2026, month: 3, day: 7 };
/// Distinct conversations: more than the caches of the tokenizer itself remember.
const CONVERSATIONS: usize = 64;

fn golden(name: &str) -> Option<String> {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)).ok()
}

fn template() -> Option<ChatTemplate> {
    let source = golden("templates/qwen3.jinja")?;
    ChatTemplate::new(TemplateFiles { chat_template: Some(&source), ..Default::default() }).ok()
}

fn tokenizer() -> Option<Arc<Local>> {
    Local::from_json(&golden("tokenizer.json")?).ok().map(Arc::new)
}

/// Turns of prose that differ by conversation, about `len_bytes` long.
fn messages(len_bytes: usize, conversation: usize) -> Vec<Value> {
    let turn = |at: usize| {
        let words = (0..150)
            .map(|w| format!("word{} of-{}, ", (w * 7919 + at * 104_729 + conversation) % 9973, at * w));
        let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
        json!({"role": role, "content": words.collect::<String>()})
    };
    let one = turn(0).to_string().len();
    (0..(len_bytes / one) | 1).map(turn).collect()
}

fn object(messages: &[Value]) -> Option<Object> {
    let body = json!({"model": "m", "messages": messages}).to_string();
    Object::scan(Bytes::from(body), ScanLimits::default()).ok()
}

fn text(template: &ChatTemplate, body: &Object) -> Option<String> {
    match PromptSource::read(Api::Chat, body).ok()? {
        PromptSource::Messages(chat) => template.render(*chat, TODAY).ok(),
        _ => None,
    }
}

fn prompts(c: &mut Criterion) {
    let (Some(template), Some(tokenizer)) = (template(), tokenizer()) else { return };
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
        self::template(),
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
