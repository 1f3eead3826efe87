//! What a request and a token cost in the codec: scan and splice beside the edit of a tree, and SSE framing.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pd_proxy::codec::json::{Edit, Object, ScanLimits};
use pd_proxy::codec::sse::Framer;

/// Body sizes: a chat, a long context, an attached document.
const SIZES_BYTES: [usize; 3] = [8 << 10, 128 << 10, 1 << 20];
/// Most bytes the framer holds back here.
const FRAME_CAP_BYTES: usize = 1 << 20;

/// A chat request of about `len_bytes`: turns of English prose with an escape every line.
fn chat(len_bytes: usize) -> Bytes {
    let turn = r#"{"role":"user","content":"#.to_owned()
        + "\""
        + &r#"Consider the following passage, and tell me what the \"author\" means by it.\n"#.repeat(12)
        + "\"}";
    let turns = vec![turn.as_str(); (len_bytes / turn.len()).max(1)].join(", ");
    let head =
        r#"{"model":"some/model","stream":true,"stream_options":{"include_usage":true},"max_tokens":512"#;
    Bytes::from(format!("{head},\"messages\":[{turns}],\"temperature\":0.7,\"user\":\"someone\"}}"))
}

/// A completion request of about `len_bytes` of token ids.
fn token_ids(len_bytes: usize) -> Bytes {
    let ids = (0..len_bytes / 6).map(|id| (10_000 + id % 90_000).to_string()).collect::<Vec<_>>().join(",");
    Bytes::from(format!("{{\"model\":\"some/model\",\"prompt\":[{ids}],\"max_tokens\":512}}"))
}

fn prefill_edit() -> Edit {
    let one = || Bytes::from_static(b"1");
    let edit = Edit::new().drop("stream_options").drop("max_completion_tokens").drop_prefix("bootstrap_");
    let edit =
        edit.set("stream", Bytes::from_static(b"false")).set("max_tokens", one()).set("min_tokens", one());
    edit.set(
        "kv_transfer_params",
        Bytes::from_static(br#"{"do_remote_decode":true,"do_remote_prefill":false}"#),
    )
}

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
        #[cfg(feature = "gateway")]
        group.bench_function(BenchmarkId::new("tree", len_bytes), |b| b.iter(|| tree_edit(black_box(&body))));
    }
    group.finish();
}

/// The same edit by way of a tree, as most gateways do it.
#[cfg(feature = "gateway")]
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
    let frame = format!(
        "data: {{\"id\":\"cmpl-1\",\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n",
        "x".repeat(150)
    );
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
