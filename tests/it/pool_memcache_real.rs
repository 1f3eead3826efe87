//! A real MemCache meta service, filled by `tests/real/memcache.sh`, which runs these.

use pd_proxy::endpoint::Endpoint;
use pd_proxy::pool::memcache::{MemCache, MemCacheConfig, MemCacheHttp, MemCacheHttpConfig, RankHosts};
use pd_proxy::pool::{KeyStore, Placement, Tier};

use super::pool_memcache::{all, keys};

/// Keys that the script writes are those of this many blocks; every fourth is left out, the others
/// lie on ranks 0 and 3 in turn.
const BLOCKS: u32 = 20_000;

fn endpoint(name: &str) -> Endpoint {
    Endpoint::parse(&std::env::var(name).unwrap()).unwrap()
}

fn hosts() -> RankHosts {
    [(0, "10.9.8.7"), (3, "10.9.8.8")].into_iter().collect()
}

/// Rank on which the script has put the object of block `index`.
fn wanted(index: u32) -> Option<&'static str> {
    let host = if index.is_multiple_of(2) { "10.9.8.7" } else { "10.9.8.8" };
    (index % 4 != 3).then_some(host)
}

fn check(index: u32, found: &Placement) {
    let places: Vec<(&str, Tier)> = found.places.iter().map(|place| (&*place.host, place.tier)).collect();
    let expected: Vec<(&str, Tier)> = wanted(index).map(|host| (host, Tier::Memory)).into_iter().collect();
    assert_eq!((found.present, places), (wanted(index).is_some(), expected), "block {index}");
}

async fn compare(store: &impl KeyStore, count: u32) {
    let keys = keys(BLOCKS);
    let indexes: Vec<u32> = all(&keys).into_iter().take(count as usize).collect();
    for part in indexes.chunks(store.batch_keys()) {
        let found = store.locate(&keys, part).await.unwrap();
        assert_eq!(found.len(), part.len());
        part.iter().zip(&found).for_each(|(index, found)| check(*index, found));
    }
    println!("{}: {count} keys as they were filled", store.name());
}

#[test]
#[ignore = "prints the keys for tests/real/memcache.sh"]
fn print_keys() {
    let keys = keys(BLOCKS);
    let lines: Vec<&str> = keys.iter().collect();
    std::fs::write(std::env::var("MEMCACHE_KEYS").unwrap(), lines.join("\n")).unwrap();
}

#[tokio::test]
#[ignore = "needs the service of tests/real/memcache.sh"]
async fn the_real_service_has_what_it_was_filled_with() {
    let config = MemCacheConfig { service: endpoint("MEMCACHE_META"), hosts: hosts(), in_flight: 8 };
    let memcache = MemCache::new(config);
    println!("places are asked for in the form {:?}", memcache.form().await.unwrap());
    let config = MemCacheHttpConfig { service: endpoint("MEMCACHE_HTTP"), hosts: hosts(), in_flight: 8 };
    let http = MemCacheHttp::new(pd_proxy::tls::http().build().unwrap(), config);
    for count in [1, 64, 1_024, BLOCKS] {
        compare(&memcache, count).await;
        compare(&http, count).await;
    }
}
