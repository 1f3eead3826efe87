//! Costs of a request and of a token in the codec: scan and splice beside the edit of a tree, and
//! SSE framing.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::codec::sse::Framer;

#[path = "inputs/codec.rs"]
mod inputs;

use inputs::{chat, event, prefill_edit, token_ids};

/// Body sizes: a chat, a long context, an attached document.
const SIZES_BYTES: [usize; 3] = [8 << 10, 128 << 10, 1 << 20];
/// Most bytes the framer holds back here.
const FRAME_CAP_BYTES: usize = 1 << 20;

fn json(c: &mut Criterion) {
    let mut group = c.benchmark_group("json");
    let edit = prefill_edit();
    for len_bytes in SIZES_BYTES {
        let body = chat(len_bytes);
        let ids = token_ids(len_bytes);
        let scan = |body: &Bytes| Object::scan(black_box(body.clone()), ScanLimits::default());
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(BenchmarkId::new("scan", len_bytes), |b| b.iter(|| scan(&body)));
        group.bench_function(BenchmarkId::new("scan_token_ids", len_bytes), |b| b.iter(|| scan(&ids)));
        group.bench_function(BenchmarkId::new("scan_splice", len_bytes), |b| {
            b.iter(|| scan(&body).map(|object| object.splice(&edit)));
        });
        group.bench_function(BenchmarkId::new("tree", len_bytes), |b| b.iter(|| tree_edit(black_box(&body))));
    }
    group.finish();
}

/// The same edit by way of a tree, as most gateways do it.
fn tree_edit(body: &[u8]) -> Option<Vec<u8>> {
    let mut dom: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(body).ok()?;
    dom.retain(|key, _| key != "stream_options" && !key.starts_with("bootstrap_"));
    dom.insert("stream".into(), false.into());
    dom.insert("max_tokens".into(), 1.into());
    dom.insert("min_tokens".into(), 1.into());
    let params = serde_json::json!({"do_remote_decode": true, "do_remote_prefill": false});
    dom.insert("kv_transfer_params".into(), params);
    serde_json::to_vec(&dom).ok()
}

fn sse(c: &mut Criterion) {
    let mut group = c.benchmark_group("sse");
    let frame = event();
    let one = Bytes::from(frame.clone());
    let many = Bytes::from(frame.repeat(64));
    for (name, chunk) in [("one_frame", &one), ("64_frames", &many)] {
        group.throughput(Throughput::Bytes(chunk.len() as u64));
        let mut framer = Framer::new(FRAME_CAP_BYTES);
        group.bench_function(name, |b| b.iter(|| framer.push(black_box(chunk.clone()))));
    }
    let (left, right) = (one.slice(..100), one.slice(100..));
    group.throughput(Throughput::Bytes(one.len() as u64));
    let mut framer = Framer::new(FRAME_CAP_BYTES);
    group.bench_function("one_frame_in_two", |b| {
        b.iter(|| (framer.push(black_box(left.clone())), framer.push(black_box(right.clone()))));
    });
    group.finish();
}

criterion_group!(benches, json, sse);
criterion_main!(benches);
