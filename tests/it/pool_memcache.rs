//! MemCache's clients against a simulated meta service: all versions, all faults, and that no rank
//! is ever named.

use std::task::{Context, Waker};
use std::time::Duration;

use pd_proxy::endpoint::Endpoint;
use pd_proxy::kvhash::keys::{Ask, KeyBatch, KeyConfig, KeyProfile, KvShape, Preset, PromptBlocks};
use pd_proxy::pool::memcache::wire::Form;
use pd_proxy::pool::memcache::{MemCache, MemCacheConfig, MemCacheHttp, MemCacheHttpConfig, RankHosts};
use pd_proxy::pool::{KeyStore, Placement, PoolError, ReplicaPlace, Tier};
use pd_proxy::sim::memcache::{MetaFault, MetaObject, MetaService, MetaVersion};

use crate::common::place;
use crate::common::time::eventually;

const VERSIONS: [(MetaVersion, Form); 3] = [
    (MetaVersion::V1_1, Form::Plain),
    (MetaVersion::V1_2, Form::Flagged),
    (MetaVersion::V1_3, Form::Flagged),
];
/// For what happens in the background; nothing is concluded from it but failure.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn keys(blocks: u32) -> KeyBatch {
    let preset = Preset::named("mooncake-store-0.30").unwrap();
    let shape = KvShape { block_tokens: 16, ..KvShape::default() };
    let profile = KeyProfile::new(&KeyConfig::new(preset, "/models/m", shape)).unwrap();
    let hashes: Vec<[u8; 32]> =
        (0..blocks).map(|n| std::array::from_fn(|i| n.to_le_bytes()[i % 4])).collect();
    let mut batch = KeyBatch::default();
    profile.keys_of_prompt(&PromptBlocks::new(&hashes, blocks * 16), Ask::Every, &mut batch).unwrap();
    assert_eq!(batch.len(), blocks as usize);
    batch
}

pub fn all(keys: &KeyBatch) -> Vec<u32> {
    (0..u32::try_from(keys.len()).unwrap()).collect()
}

fn hosts() -> RankHosts {
    [(0, "10.0.0.1"), (3, "10.0.0.2")].into_iter().collect()
}

fn endpoint(addr: std::net::SocketAddr) -> Endpoint {
    Endpoint::new(addr.ip().to_string(), addr.port())
}

fn client(service: &MetaService, hosts: RankHosts) -> MemCache {
    MemCache::new(MemCacheConfig { service: endpoint(service.addr()), hosts, in_flight: 4 })
}

fn on(host: &str, tier: Tier) -> Placement {
    Placement { present: true, places: [ReplicaPlace { host: host.into(), tier }].into_iter().collect() }
}

/// Key 0 in memory of rank 0, 1 on a disk of rank 3, 2 on a rank without host, 3 being written, the
/// others not there.
async fn filled(version: MetaVersion, keys: &KeyBatch) -> MetaService {
    let service = MetaService::start(version).await.unwrap();
    let objects = [
        MetaObject::on(0),
        MetaObject { replicas: vec![(3, 2)], readable: true },
        MetaObject::on(9),
        MetaObject { replicas: vec![(0, 1)], readable: false },
    ];
    for (key, object) in keys.iter().zip(objects) {
        service.put(key, object);
    }
    service
}

fn placed() -> Vec<Placement> {
    vec![
        on("10.0.0.1", Tier::Memory),
        on("10.0.0.2", Tier::Disk),
        Placement::somewhere(),
        Placement::default(),
        Placement::default(),
    ]
}

/// Asks until there is an answer again.
async fn recovers(memcache: &MemCache, keys: &KeyBatch) -> Vec<Placement> {
    let indexes = all(keys);
    eventually("it recovers", async || memcache.locate(keys, &indexes).await).await
}

fn check_ranks(service: &MetaService) {
    let hellos = service.hellos();
    assert!(!hellos.is_empty() && hellos.iter().all(|rank| *rank == u64::MAX), "{hellos:?}");
}

#[tokio::test]
async fn every_version_tells_places_and_presence() {
    let keys = keys(5);
    for (version, form) in VERSIONS {
        let service = filled(version, &keys).await;
        let with_places = client(&service, hosts());
        assert_eq!(with_places.locate(&keys, &all(&keys)).await, Ok(placed()), "{version:?}");
        assert_eq!(with_places.form().await, Ok(Some(form)));
        assert_eq!(with_places.locate(&keys, &[4, 1]).await.unwrap()[1], placed()[1]);
        assert_eq!(with_places.locate(&keys, &[]).await, Ok(Vec::new()));

        let without = client(&service, RankHosts::default());
        let there: Vec<bool> =
            without.locate(&keys, &all(&keys)).await.unwrap().iter().map(|at| at.present).collect();
        assert_eq!((there, without.form().await), (vec![true, true, true, false, false], Ok(None)));
        check_ranks(&service);
    }
}

#[tokio::test]
async fn a_service_that_tells_no_places_is_asked_for_presence() {
    let keys = keys(5);
    let service = filled(MetaVersion::V1_3, &keys).await;
    service.fault(MetaFault::SilentAboutPlaces);
    let memcache = client(&service, hosts());
    let found = memcache.locate(&keys, &all(&keys)).await.unwrap();
    assert_eq!(found[..3], [Placement::somewhere(), Placement::somewhere(), Placement::somewhere()]);
    assert_eq!(memcache.form().await, Ok(None));
}

#[tokio::test]
async fn answers_find_their_questions() {
    let keys = keys(5);
    for fault in [MetaFault::Strange, MetaFault::Swapped] {
        let service = filled(MetaVersion::V1_3, &keys).await;
        service.fault(fault.clone());
        let memcache = client(&service, hosts());
        let (one, other) = tokio::join!(memcache.locate(&keys, &[0, 4]), memcache.locate(&keys, &[1]));
        assert_eq!(one.unwrap(), [placed()[0].clone(), placed()[4].clone()], "{fault:?}");
        assert_eq!(other.unwrap(), [placed()[1].clone()], "{fault:?}");
    }
}

#[tokio::test]
async fn questions_that_are_dropped_leave_the_connection() {
    let keys = keys(5);
    let service = filled(MetaVersion::V1_3, &keys).await;
    let memcache = client(&service, hosts());
    memcache.form().await.unwrap();
    service.fault(MetaFault::Swapped);
    // Held back by the service, so dropped without an answer; the next one sets it free, behind its
    // own answer.
    for _ in 0..8 {
        let held = memcache.locate(&keys, &[0]);
        assert!(tokio::time::timeout(Duration::from_millis(20), held).await.is_err());
        assert_eq!(memcache.locate(&keys, &[1]).await.unwrap(), [placed()[1].clone()]);
    }
    assert_eq!(service.hellos().len(), 1, "one connection all along");
}

#[tokio::test]
async fn no_more_questions_are_on_the_way_than_configured() {
    let keys = keys(5);
    let service = filled(MetaVersion::V1_3, &keys).await;
    let memcache = client(&service, hosts());
    memcache.form().await.unwrap();
    service.fault(MetaFault::WrongSequence);
    let mut open: Vec<_> = (0..4).map(|_| memcache.locate(&keys, &[0])).collect();
    for asked in &mut open {
        assert!(asked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(memcache.locate(&keys, &[0]).await, Err(PoolError::Busy));
    drop(open);
    service.fault(MetaFault::None);
    assert_eq!(recovers(&memcache, &keys).await, placed(), "their places are free again");
    assert_eq!(service.hellos().len(), 1, "unknown numbers are skipped");
}

#[tokio::test]
async fn unreadable_answer_ends_the_connection() {
    let keys = keys(5);
    for fault in
        [MetaFault::Garbage, MetaFault::Empty, MetaFault::Cut(0), MetaFault::Cut(9), MetaFault::Cut(40)]
    {
        let service = filled(MetaVersion::V1_3, &keys).await;
        let memcache = client(&service, hosts());
        memcache.form().await.unwrap();
        service.fault(fault.clone());
        let error = memcache.locate(&keys, &all(&keys)).await.unwrap_err();
        match fault {
            MetaFault::Cut(_) => assert!(matches!(error, PoolError::Unreachable(_)), "{error}"),
            _ => assert!(matches!(error, PoolError::Protocol(_)), "{error}"),
        }
        service.fault(MetaFault::None);
        assert_eq!(recovers(&memcache, &keys).await, placed(), "{fault:?}");
        check_ranks(&service);
    }
}

#[tokio::test]
async fn a_service_that_goes_and_comes_back() {
    let keys = keys(5);
    let service = filled(MetaVersion::V1_3, &keys).await;
    let memcache = client(&service, hosts());
    assert_eq!(memcache.locate(&keys, &all(&keys)).await, Ok(placed()));
    service.stop();
    let gone = async || matches!(memcache.locate(&keys, &[0]).await, Err(PoolError::Unreachable(_)));
    eventually("it is gone", gone).await;
    service.resume().unwrap();
    assert_eq!(recovers(&memcache, &keys).await, placed());
    check_ranks(&service);
}

#[tokio::test]
async fn a_refused_hello_is_said_and_tried_again() {
    let keys = keys(5);
    let service = filled(MetaVersion::V1_3, &keys).await;
    service.fault(MetaFault::Refuse);
    let memcache = client(&service, hosts());
    assert!(matches!(memcache.locate(&keys, &[0]).await, Err(PoolError::Refused(_))));
    service.fault(MetaFault::None);
    assert_eq!(recovers(&memcache, &keys).await, placed());
}

#[tokio::test]
async fn silence_ends_the_connection() {
    let keys = keys(5);
    let service = filled(MetaVersion::V1_3, &keys).await;
    let memcache = client(&service, hosts());
    memcache.form().await.unwrap();
    service.fault(MetaFault::Silent);
    let asked = tokio::time::timeout(PATIENCE, memcache.locate(&keys, &[0])).await.expect("ends by itself");
    assert!(matches!(asked, Err(PoolError::Unreachable(_))));
    service.fault(MetaFault::None);
    assert_eq!(recovers(&memcache, &keys).await, placed());
}

#[tokio::test]
async fn too_many_keys_are_refused_and_a_full_batch_is_not() {
    let keys = keys(1025);
    let service = MetaService::start(MetaVersion::V1_2).await.unwrap();
    for key in keys.iter().take(1000) {
        service.put(key, MetaObject::on(3));
    }
    let memcache = client(&service, hosts());
    assert!(matches!(memcache.locate(&keys, &all(&keys)).await, Err(PoolError::TooLarge(_))));
    let found = memcache.locate(&keys, &all(&keys)[..1024]).await.unwrap();
    assert_eq!(found.iter().filter(|at| **at == on("10.0.0.2", Tier::Memory)).count(), 1000);
    assert!(matches!(memcache.locate(&keys, &[1025]).await, Err(PoolError::TooLarge(_))));
}

fn http(service: &MetaService) -> MemCacheHttp {
    let config = MemCacheHttpConfig { service: endpoint(service.http_addr()), hosts: hosts(), in_flight: 4 };
    MemCacheHttp::new(pd_proxy::tls::http().build().unwrap(), config)
}

#[tokio::test]
async fn http_tells_the_same() {
    let keys = keys(5);
    for (version, _) in VERSIONS {
        let service = filled(version, &keys).await;
        let memcache = http(&service);
        let mut wanted = placed();
        if version == MetaVersion::V1_1 {
            // It does not tell that this one is still being written.
            wanted[3] = on("10.0.0.1", Tier::Memory);
        }
        assert_eq!(memcache.locate(&keys, &all(&keys)).await, Ok(wanted), "{version:?}");
        assert_eq!(memcache.locate(&keys, &[]).await, Ok(Vec::new()));
        service.fault(MetaFault::Refuse);
        assert!(matches!(memcache.locate(&keys, &[0]).await, Err(PoolError::Refused(_))));
    }
}

#[tokio::test]
async fn http_cuts_questions_to_what_the_version_reads() {
    let keys = keys(256);
    for (version, _) in VERSIONS {
        let service = MetaService::start(version).await.unwrap();
        for key in keys.iter().take(200) {
            service.put(key, MetaObject::on(0));
        }
        let memcache = http(&service);
        let mut requests = Vec::new();
        for _ in 0..2 {
            let before = service.asked().len();
            let found = memcache.locate(&keys, &all(&keys)).await.unwrap();
            assert_eq!(found.iter().filter(|at| at.present).count(), 200);
            requests.push(service.asked().len() - before);
        }
        let later = if version == MetaVersion::V1_1 { requests[0] } else { 1 };
        assert!(requests[0] > 1 && requests[1] == later, "{version:?}: {requests:?}");
    }
}

#[tokio::test]
async fn http_that_is_not_there_is_unreachable() {
    let keys = keys(1);
    let service = endpoint(place::own());
    let config = MemCacheHttpConfig { service, hosts: hosts(), in_flight: 4 };
    let memcache = MemCacheHttp::new(pd_proxy::tls::http().build().unwrap(), config);
    assert!(matches!(memcache.locate(&keys, &[0]).await, Err(PoolError::Unreachable(_))));
}
