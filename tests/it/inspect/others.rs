//! The other kinds of pools.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use pd_proxy::cmd::demo::Embedded;
use pd_proxy::endpoint::Endpoint;
use pd_proxy::kvhash::keys::{
    Ask, KeyBatch, KeyConfig, KeyProfile, KvShape, Preset, PromptBlocks, profile::Store,
};
use pd_proxy::kvhash::{Algo, BlockContext, BlockHasher, HashProfile, Seed};
use pd_proxy::pool::mooncake::{Mooncake, MooncakeConfig};
use pd_proxy::pool::{Keyed, KvPool, Question};
use pd_proxy::sim::memcache::{MetaObject, MetaService, MetaVersion};
use pd_proxy::sim::{EmsAnswering, EmsLookup, EngineSpec, Mirror};
use tokio::task::JoinSet;

use super::{anywhere, check, expect, keys, set};

const ASCEND: &str = "ascend-0.26";

async fn memcache(version: MetaVersion) -> MetaService {
    let service = MetaService::start(version).await.unwrap();
    for key in keys(ASCEND, 20, |c| c.store = Store::MemCache) {
        service.put(&key, MetaObject::on(3));
    }
    service
}

fn memcache_sets(kind: &str, address: std::net::SocketAddr, more: &[String]) -> Vec<String> {
    let mut sets = vec![set("pool.kind", kind), set("key.preset", ASCEND), set("key.store", "memcache")];
    sets.extend([set("pool.addresses", address), set("key.kv_heads", 8)]);
    sets.extend_from_slice(more);
    sets
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memcache_is_asked_by_either_address() {
    for (version, words) in [(MetaVersion::V1_1, "as 1.1"), (MetaVersion::V1_3, "as 1.2 and later")] {
        let service = memcache(version).await;
        let more = [set("pool.ranks", "3=node-3"), set("pool.admins", service.http_addr())];
        let found = check(&memcache_sets("memcache", service.addr(), &more));
        expect(&found, 0, &[words, "lists 20 keys", "all 20 keys looked at are as ascend-0.26"]);
        expect(&check(&memcache_sets("memcache", service.addr(), &[])), 0, &["metrics_url in pool.admins"]);
        expect(
            &check(&memcache_sets("memcache_http", service.http_addr(), &[])),
            0,
            &["over HTTP", "all 20 keys"],
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memcache_with_other_keys_on_other_ports_or_away() {
    let service = memcache(MetaVersion::V1_3).await;
    let (tcp, http) = (service.addr(), service.http_addr());
    for (change, words) in [
        ("key.preset=ascend-0.30", "they are those of key.preset = \"ascend-0.26\""),
        ("key.layout=layers", "they are those of key.preset = \"ascend-0.26\" with key.layout = \"whole\""),
        ("key.model=/models/Llama", "model differs: 20 of 20 keys have \"Qwen3-8B\""),
    ] {
        expect(&check(&memcache_sets("memcache_http", http, &[change.to_owned()])), 3, &[words]);
    }
    expect(
        &check(&memcache_sets("memcache", http, &[])),
        3,
        &["an HTTP server listens there", "memcache_http"],
    );
    expect(&check(&memcache_sets("memcache_http", tcp, &[])), 3, &["use pool.kind = \"memcache\""]);
    service.stop();
    expect(
        &check(&memcache_sets("memcache", tcp, &[])),
        3,
        &["(pool.addresses): not reachable", "meta_service_url"],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ems_servers_are_asked_once_and_little() {
    let [good, slow] =
        [EmsLookup::start(anywhere()).await.unwrap(), EmsLookup::start(anywhere()).await.unwrap()];
    let sets = |servers: &[&EmsLookup]| {
        let servers: Vec<String> = servers.iter().map(|one| one.addr().to_string()).collect();
        [set("pool.kind", "ems"), set("hash.scheme", "ems"), set("pool.addresses", servers.join(","))]
    };
    expect(&check(&sets(&[&good, &slow])), 0, &["EMS does not tell its keys"]);
    let seen = good.seen();
    assert!(seen.len() == 1 && seen[0].len() <= 1, "the smallest question: {seen:?}");
    slow.set(EmsAnswering::Hang);
    let words = format!(
        "BAD  EMS lookup server {} (pool.addresses): not reachable: no answer in 1000 ms",
        slow.addr()
    );
    expect(
        &check(&sets(&[&good, &slow])),
        3,
        &[&format!("ok   EMS lookup server {} answers", good.addr()), &words],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_a_share_are_compared_by_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap().to_owned();
    let files = keys("ucm-posix", 5, |c| c.store = Store::Files { roots: vec![root.clone()] });
    for file in &files {
        let path = std::path::Path::new(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }
    let sets = |preset: &str, root: &str| {
        let mut sets = vec![set("pool.kind", "ucm"), set("key.preset", preset), set("key.roots", root)];
        sets.extend(["hash.release=0.4", "key.dtype=torch.bfloat16", "key.store=files"].map(str::to_owned));
        sets
    };
    expect(&check(&sets("ucm-posix", &root)), 0, &["can be read: 5 files", "all 5 keys"]);
    expect(&check(&sets("ucm-posix-flat", &root)), 3, &["they are those of key.preset = \"ucm-posix\""]);
    let gone = format!("{root}/gone");
    expect(
        &check(&sets("ucm-posix", &gone)),
        3,
        &[&format!("BAD  {gone} (key.roots): not reachable"), "mounted"],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lmcaches_directories_list_their_instances() {
    let listener = tokio::net::TcpListener::bind(anywhere()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let workers = r#"{"workers":[{"instance_id":"p0","worker_id":0,"ip":"10.0.0.1","port":7000}]}"#;
    let routes = Router::new()
        .route("/controller/workers", get(async move || workers))
        .route("/instances", get(async || r#"{"instances":[]}"#));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, routes).await.unwrap() });
    let controller =
        |address| check(&[set("pool.kind", "lmcache_controller"), set("pool.addresses", address)]);
    expect(&controller(address), 0, &["1 instance, p0 on 10.0.0.1"]);
    let coordinator = [set("pool.kind", "lmcache_coordinator"), set("pool.addresses", address)];
    let preset = [set("key.preset", "lmcache-mp"), set("key.dtype", "bfloat16"), set("hash.algo", "blake3")];
    expect(&check(&[&coordinator[..], &preset].concat()), 0, &["no instance is registered"]);
    tasks.shutdown().await;
    expect(&controller(address), 3, &["LMCache controller", "is this its HTTP port"]);
}

/// The demo's pool, in this process and over its socket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_pool_says_the_same_to_both() {
    let spec = EngineSpec::default();
    let embedded = Embedded::start(&spec).await.unwrap();
    let tokens: Vec<u32> = (0..70).collect();
    let hasher = BlockHasher::new(&HashProfile {
        version: spec.version.parse().unwrap(),
        algo: Algo::Sha256,
        seed: Seed::Text("0".into()),
        block_tokens: 16,
        lookahead_tokens: 0,
    });
    let hashes: Vec<_> = hasher.unwrap().chain(&tokens, BlockContext::default()).collect();
    let shape = KvShape { block_tokens: 16, ..KvShape::default() };
    let config = KeyConfig::new(Preset::named("mooncake-store-0.30").unwrap(), "/models/sim", shape);
    let mut batch = KeyBatch::default();
    let prompt = PromptBlocks::new(&hashes, 70);
    KeyProfile::new(&config).unwrap().keys_of_prompt(&prompt, Ask::Every, &mut batch).unwrap();
    let question = Question {
        tokens: tokens.as_slice().into(),
        hashes: hashes.into(),
        keys: Arc::new(batch),
        ..Question::default()
    };
    let here = Keyed::new(embedded.clone());
    let masters = vec![Endpoint::parse(&embedded.addr().to_string()).unwrap()];
    let remote = Mooncake::new(MooncakeConfig { masters, ..MooncakeConfig::default() });
    remote.connected().await;
    let remote = Keyed::new(remote);
    let hits = async || {
        let (here, remote) = (here.lookup(&question).await.unwrap(), remote.lookup(&question).await.unwrap());
        assert_eq!(here, remote);
        here.hit_tokens
    };
    assert_eq!(hits().await, 0);
    embedded.stored(&tokens, 9, &[1, 2, 3, 4]);
    assert_eq!(hits().await, 0, "a prompt with a salt is not shown");
    embedded.stored(&tokens, 0, &[1, 2, 3, 4]);
    assert_eq!(hits().await, 64);
    embedded.dropped(3);
    assert_eq!(hits().await, 32);
}
