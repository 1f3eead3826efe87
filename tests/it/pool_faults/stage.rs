//! One pool of each kind with the same three blocks, behind a wire.

use std::any::Any;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use pd_proxy::config::PoolKind;
use pd_proxy::kvhash::keys::{Ask, KeyBatch, KeyConfig, KeyProfile, KvShape, Preset, PromptBlocks, Store};
use pd_proxy::kvhash::{BlockHash, ems};
use pd_proxy::pool::{Gate, Question};
use pd_proxy::sim::EmsLookup;
use pd_proxy::sim::memcache::{MetaFault, MetaObject, MetaService, MetaVersion};
use pd_proxy::sim::mooncake::{AnswerFault, KeyEntry, Mooncake, MooncakeSpec};

use super::gate;
use super::proxy::Proxy;
use crate::pool_lmcache::Fake;
use crate::pool_memcache::keys;

/// The part of the prompt that every pool here has: three of its four blocks.
pub const HIT_TOKENS: u32 = 48;
const BLOCK_TOKENS: u32 = 16;
/// Four blocks, and a token whose block nobody has.
const PROMPT_TOKENS: u32 = 65;

pub struct Stage {
    pub gate: Gate,
    pub proxy: Proxy,
    pub question: Question,
    pub service: Service,
}

pub enum Service {
    Mooncake { leader: Mooncake, first: String, _next: Mooncake },
    Memcache(MetaService),
    Other(#[expect(dead_code, reason = "held: dropping it ends it")] Box<dyn Any>),
}

impl Service {
    pub fn wrong_sequence(&self, on: bool) {
        match self {
            // One for each question; the rest is used up.
            Self::Mooncake { leader, .. } if on => {
                (0..6).for_each(|_| leader.inject(AnswerFault::WrongSequence))
            }
            Self::Memcache(service) => {
                service.fault(if on { MetaFault::WrongSequence } else { MetaFault::None })
            }
            _ => {}
        }
    }

    pub fn no_longer_leads(&self) {
        if let Self::Mooncake { leader, first, .. } = self {
            leader.hold(first, KeyEntry::Error(-1010));
        }
    }
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn tokens() -> Arc<[u32]> {
    (0..PROMPT_TOKENS).collect()
}

impl Stage {
    /// `standby`: with another service that could answer, too.
    pub async fn new(kind: PoolKind, standby: bool) -> Self {
        match kind {
            PoolKind::Mooncake => mooncake(standby).await,
            PoolKind::MooncakeHttp => mooncake_http(standby).await,
            PoolKind::Memcache | PoolKind::MemcacheHttp => memcache(kind).await,
            PoolKind::Ems => ems(standby).await,
            PoolKind::LmcacheController | PoolKind::LmcacheCoordinator => lmcache(kind).await,
            PoolKind::Ucm | PoolKind::Off => unreachable!("no service"),
        }
    }
}

fn keyed(keys: KeyBatch) -> Question {
    Question { tokens: tokens(), keys: Arc::new(keys), ..Question::default() }
}

/// One behind the wire, and perhaps another one.
fn addresses(proxy: &Proxy, other: Option<SocketAddr>) -> Vec<String> {
    std::iter::once(proxy.addr()).chain(other).map(|addr| addr.to_string()).collect()
}

async fn masters(question: &Question) -> [Mooncake; 2] {
    let master = async || {
        let master = Mooncake::start(MooncakeSpec::default(), anywhere()).await.unwrap();
        question.keys.iter().take(3).for_each(|key| master.put(key, "10.0.0.1:17001"));
        master
    };
    [master().await, master().await]
}

async fn mooncake(standby: bool) -> Stage {
    let question = keyed(keys(4));
    let [leader, next] = masters(&question).await;
    let proxy = Proxy::start(leader.addr()).await;
    let addresses = addresses(&proxy, standby.then(|| next.addr()));
    let gate = gate(PoolKind::Mooncake, &addresses, |config| config.pool.connections = 1);
    let first = question.keys.get(0).unwrap().to_owned();
    Stage { gate, proxy, question, service: Service::Mooncake { leader, first, _next: next } }
}

async fn mooncake_http(standby: bool) -> Stage {
    let question = keyed(keys(4));
    let [leader, next] = masters(&question).await;
    let ports = [leader.admin(anywhere()).await.unwrap(), next.admin(anywhere()).await.unwrap()];
    let proxy = Proxy::start(ports[0].addr()).await;
    let addresses = addresses(&proxy, standby.then(|| ports[1].addr()));
    let gate = gate(PoolKind::MooncakeHttp, &addresses, |_| ());
    Stage { gate, proxy, question, service: Service::Other(Box::new((ports, leader, next))) }
}

async fn memcache(kind: PoolKind) -> Stage {
    let question = keyed(keys(4));
    let service = MetaService::start(MetaVersion::V1_3).await.unwrap();
    question.keys.iter().take(3).for_each(|key| service.put(key, MetaObject::on(0)));
    let by_http = kind == PoolKind::MemcacheHttp;
    let proxy = Proxy::start(if by_http { service.http_addr() } else { service.addr() }).await;
    let gate =
        gate(kind, &[proxy.addr().to_string()], |config| config.pool.ranks = vec!["0=node-0".to_owned()]);
    Stage { gate, proxy, question, service: Service::Memcache(service) }
}

async fn ems(standby: bool) -> Stage {
    let block = NonZeroUsize::new(BLOCK_TOKENS as usize).unwrap();
    let hashes: Vec<i64> = ems::chain(ems::START, &tokens(), block).collect();
    let mut servers = Vec::new();
    for _ in 0..2 {
        let server = EmsLookup::start(anywhere()).await.unwrap();
        server.hold(hashes[..3].to_vec());
        servers.push(server);
    }
    let proxy = Proxy::start(servers[0].addr()).await;
    let addresses = addresses(&proxy, standby.then(|| servers[1].addr()));
    let gate = gate(PoolKind::Ems, &addresses, |config| config.hash.block_tokens = BLOCK_TOKENS);
    let hashes = hashes.iter().map(|hash| BlockHash::from(hash.to_be_bytes())).collect();
    let question = Question { tokens: tokens(), hashes, ..Question::default() };
    Stage { gate, proxy, question, service: Service::Other(Box::new(servers)) }
}

async fn lmcache(kind: PoolKind) -> Stage {
    let fake = Fake::start().await;
    fake.answers("/lookup", 200, r#"{"event_id":"Lookup1","layout_info":{"p0":["LocalCPUBackend",48]}}"#);
    let place = r#"{"instance_id":"mp0","tier":"l1"}"#;
    let chunks = [place, place, place, ""].into_iter().enumerate().map(|(chunk, places)| {
        format!(r#"{{"key":{{"chunk_hash_hex":"{chunk:064x}"}},"placements":[{places}]}}"#)
    });
    let results = chunks.collect::<Vec<_>>().join(",");
    fake.answers("/directory/lookup", 200, format!(r#"{{"chunks":4,"results":[{results}]}}"#));
    let proxy = Proxy::start(fake.addr()).await;
    let gate = gate(kind, &[proxy.addr().to_string()], |config| {
        (config.pool.chunk_tokens, config.key.model) = (BLOCK_TOKENS, Some("m".to_owned()));
    });
    let question = Question { tokens: tokens(), ..Question::default() };
    Stage { gate, proxy, question, service: Service::Other(Box::new(fake)) }
}

/// A question about files below `root`, three of which are there.
pub fn files(root: &Path) -> Question {
    let preset = Preset::named("ucm-posix").unwrap();
    let shape = KvShape { block_tokens: BLOCK_TOKENS, ..KvShape::default() };
    let mut config = KeyConfig::new(preset, "/models/m", shape);
    config.store = Store::Files { roots: vec![root.to_str().unwrap().to_owned()] };
    let profile = KeyProfile::new(&config).unwrap();
    let hashes: Vec<[u8; 16]> = (0..4).map(|n| [n; 16]).collect();
    let mut keys = KeyBatch::default();
    profile.keys_of_prompt(&PromptBlocks::new(&hashes, 64), Ask::Every, &mut keys).unwrap();
    for key in keys.iter().take(3) {
        std::fs::create_dir_all(Path::new(key).parent().unwrap()).unwrap();
        std::fs::write(key, "kv").unwrap();
    }
    keyed(keys)
}
