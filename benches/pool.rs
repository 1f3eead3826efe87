//! Costs of asking a Mooncake master: the gateway's own work for up to 1 024 keys, and whole
//! exchanges over RPC and HTTP. Also measured is the look-up of a prompt in the blocks that
//! prefillers reported by KV events.
//!
//! Exchanges are with a simulated master in this process, or with a real one that has the keys of
//! `engine_key`. `MOONCAKE_RPC` and `MOONCAKE_ADMIN` (`host:port`) name the real one.
//! `MOONCAKE_RUN="cargo bench --bench pool" tests/real/mooncake.sh 0.3.13.post1` starts and fills
//! one.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures_util::future::try_join_all;
use pd_proxy::endpoint::Endpoint;
use pd_proxy::kvhash::BlockHash;
use pd_proxy::kvhash::keys::KeyBatch;
use pd_proxy::pool::KeyStore;
use pd_proxy::pool::events::decode::{Event, Medium as EventMedium, Stored};
use pd_proxy::pool::events::index::{BlockIndex, IndexLimits};
use pd_proxy::pool::mooncake::wire::{Call, Form, Function, read_answer, write_request};
use pd_proxy::pool::mooncake::{
    ADMIN_TIME, Admin, Mooncake, MooncakeConfig, MooncakeHttp, MooncakeHttpConfig,
};
use pd_proxy::sim::mooncake::{
    AdminPort, KeyEntry, Medium, Mooncake as Master, MooncakeSpec, Replica, write_replicas,
};
use tokio::runtime::{Builder, Runtime};

const SIZES: [u32; 3] = [1, 64, 1024];
const HOSTS: u32 = 16;

/// A key as long as those that engines write.
fn engine_key(number: u32) -> String {
    format!("some/model@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@group:0@{number:064x}")
}

fn batch(count: u32) -> KeyBatch {
    let mut batch = KeyBatch::default();
    for number in 0..count {
        // The limit of a batch is far above this count.
        let _ = batch.push(0, &engine_key(number));
    }
    batch
}

fn held(number: u32) -> KeyEntry {
    let place = format!("10.20.30.{}:17001", number % HOSTS);
    KeyEntry::Object(vec![Replica { medium: Medium::Memory, place, complete: true }])
}

/// Measures the encoding of requests and the decoding of answers.
fn wire(c: &mut Criterion) {
    let mut group = c.benchmark_group("mooncake_wire");
    for count in SIZES {
        let keys = batch(count);
        let indexes: Vec<u32> = (0..count).collect();
        let answer = write_replicas(MooncakeSpec::default(), &(0..count).map(held).collect::<Vec<_>>());
        let function = Function::BatchGetReplicaList;
        let call = Call { function, form: Form::Tenant, tenant: "default", sequence: 1, literal: false };
        let mut out = Vec::new();
        group.throughput(Throughput::Elements(u64::from(count)));
        group.bench_function(BenchmarkId::new("encode_and_decode", count), |b| {
            b.iter(|| {
                out.clear();
                let written = write_request(&mut out, call, black_box(&keys), &indexes);
                assert!(written.is_ok());
                read_answer(black_box(&answer), indexes.len()).map(|placements| placements.len())
            });
        });
    }
    group.finish();
}

/// Addresses of the master to ask, and the simulated one if there is no other.
struct Asked {
    rpc: Endpoint,
    admin: Endpoint,
    _simulated: Option<(Master, AdminPort)>,
}

fn asked(runtime: &Runtime) -> Result<Asked, Box<dyn std::error::Error>> {
    if let (Ok(rpc), Ok(admin)) = (std::env::var("MOONCAKE_RPC"), std::env::var("MOONCAKE_ADMIN")) {
        let (rpc, admin) = (Endpoint::parse(&rpc)?, Endpoint::parse(&admin)?);
        return Ok(Asked { rpc, admin, _simulated: None });
    }
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (master, port) = runtime.block_on(async {
        let master = Master::start(MooncakeSpec::default(), loopback).await?;
        let port = master.admin(loopback).await?;
        Ok::<_, std::io::Error>((master, port))
    })?;
    for number in 0..1024 {
        master.hold(&engine_key(number), held(number));
    }
    let endpoint = |addr: SocketAddr| Endpoint::new(addr.ip().to_string(), addr.port());
    let (rpc, admin) = (endpoint(master.addr()), endpoint(port.addr()));
    Ok(Asked { rpc, admin, _simulated: Some((master, port)) })
}

/// Counts the keys that are there. It asks as the gateway does: in parts as large as the store
/// takes, side by side.
async fn found(store: &dyn KeyStore, keys: &KeyBatch, indexes: &[u32]) -> usize {
    let parts = indexes.chunks(store.batch_keys()).map(|part| store.locate(keys, part));
    let answers = try_join_all(parts).await.unwrap_or_default();
    answers.iter().flatten().filter(|placement| placement.present && !placement.places.is_empty()).count()
}

/// Measures whole exchanges, JSON included.
fn exchanges(c: &mut Criterion) {
    let Ok(runtime) = Builder::new_multi_thread().worker_threads(2).enable_all().build() else { return };
    let Ok(asked) = asked(&runtime) else { return };
    let Ok(client) = pd_proxy::tls::http().build() else { return };
    let rpc = runtime.block_on(async {
        let client =
            Mooncake::new(MooncakeConfig { masters: vec![asked.rpc.clone()], ..MooncakeConfig::default() });
        client.connected().await;
        client
    });
    let admin = Admin { client, endpoint: asked.admin.clone(), time: ADMIN_TIME };
    let http = MooncakeHttp::new(MooncakeHttpConfig { admins: vec![admin], allow_leases: true });
    let stores: [(&str, &dyn KeyStore); 2] = [("rpc", &rpc), ("http", &http)];
    let mut group = c.benchmark_group("mooncake_exchange");
    group.measurement_time(Duration::from_secs(3));
    for count in SIZES {
        let keys = batch(count);
        let indexes: Vec<u32> = (0..count).collect();
        group.throughput(Throughput::Elements(u64::from(count)));
        for (name, store) in stores {
            group.bench_function(BenchmarkId::new(name, count), |b| {
                b.iter(|| assert_eq!(runtime.block_on(found(store, &keys, &indexes)), indexes.len()));
            });
        }
    }
    group.finish();
}

/// Measures the look-up of a prompt of 1 000 blocks among 64 prefillers that have reported 3 000
/// other blocks each. All have its first 60 blocks, four have all.
fn events(c: &mut Criterion) {
    const HOLDERS: u32 = 64;
    let hash = |number: u64| BlockHash::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    let prompt: Vec<BlockHash> = (0..1_000).map(hash).collect();
    let numbers: Vec<u64> = prompt.iter().map(BlockHash::event_u64).collect();
    let stored = |hashes: Vec<u64>| {
        Event::Stored(Stored { hashes, medium: EventMedium::Gpu, block_tokens: 16, ..Stored::default() })
    };
    let mut index = BlockIndex::new(IndexLimits { holders: 64, blocks: 4_000 });
    for rank in 0..HOLDERS {
        let Some(holder) = index.holder(3, rank) else { return };
        index.apply(holder, &stored((0..3_000).map(|block| u64::from(rank) << 32 | block).collect()));
        let has = if rank < 4 { numbers.len() } else { 60 };
        index.apply(holder, &stored(numbers[..has].to_vec()));
    }
    assert_eq!(index.prefixes(&prompt, 16).holders.len(), HOLDERS as usize);
    let mut group = c.benchmark_group("events_index");
    group.throughput(Throughput::Elements(prompt.len() as u64));
    group.bench_function("prefixes_of_64_holders", |b| b.iter(|| index.prefixes(black_box(&prompt), 16)));
    group.finish();
}

criterion_group!(benches, wire, exchanges, events);
criterion_main!(benches);
