//! The Mooncake clients against a real master. `tests/real/mooncake.sh` starts and fills one and
//! runs this; it is told where by the environment: `MOONCAKE_RPC` and `MOONCAKE_ADMIN`
//! (`host:port`), `MOONCAKE_HOSTS` (key `k-<n>` was put on the n-th of them, round and round),
//! `MOONCAKE_VERSION`.

use std::time::{Duration, Instant};

use pd_proxy::endpoint::Endpoint;
use pd_proxy::kvhash::keys::KeyBatch;
use pd_proxy::pool::mooncake::wire::Form;
use pd_proxy::pool::mooncake::{
    ADMIN_TIME, Admin, Mooncake, MooncakeConfig, MooncakeHttp, MooncakeHttpConfig,
};
use pd_proxy::pool::{KeyStore, Placement, PoolError, Tier};
use tokio::time::timeout;

const AT_MOST: Duration = Duration::from_secs(20);
const SIZES: [u32; 4] = [1, 64, 1024, 20_000];
/// One of so many keys was never stored.
const ABSENT: u32 = 5;

fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

/// The host of each key. 0.3.8 puts objects where it likes; its own page says where, one key at a
/// time.
async fn hosts_of_keys(hosts: &[String], minor: u32) -> Vec<String> {
    let count = SIZES[SIZES.len() - 1] as usize;
    if minor != 8 {
        return hosts.iter().cycle().take(count).cloned().collect();
    }
    let (client, admin) = (pd_proxy::tls::http().build().unwrap(), env("MOONCAKE_ADMIN"));
    let mut found = Vec::new();
    for number in 0..count {
        let url = format!("http://{admin}/query_key?key=k-{number}");
        let page = client.get(url).send().await.unwrap().text().await.unwrap();
        let (_, endpoint) = page.split_once(r#""transport_endpoint_":""#).unwrap();
        found.push(endpoint.split_once(':').unwrap().0.to_owned());
    }
    assert!(hosts.iter().all(|host| found.contains(host)), "both are used");
    found
}

/// Keys, and the host of each that is there; `hosts` has one for every key.
fn questions(count: u32, hosts: &[String]) -> (KeyBatch, Vec<Option<String>>) {
    let mut keys = KeyBatch::default();
    let mut expected = Vec::new();
    for number in 0..count {
        let absent = number % ABSENT == ABSENT - 1;
        keys.push(0, &format!("{}{number}", if absent { "absent-" } else { "k-" })).unwrap();
        expected.push((!absent).then(|| hosts[number as usize].clone()));
    }
    (keys, expected)
}

fn check(answer: &[Placement], expected: &[Option<String>], located: bool) {
    assert_eq!(answer.len(), expected.len());
    for (number, (placement, host)) in answer.iter().zip(expected).enumerate() {
        assert_eq!(placement.present, host.is_some(), "key {number}");
        let found: Vec<_> = placement.places.iter().map(|place| (&*place.host, place.tier)).collect();
        let wanted: Vec<_> =
            host.iter().filter(|_| located).map(|host| (host.as_str(), Tier::Memory)).collect();
        assert_eq!(found, wanted, "key {number}");
    }
}

async fn locate(store: &impl KeyStore, keys: &KeyBatch, chunk: usize) -> Result<Vec<Placement>, PoolError> {
    let indexes: Vec<u32> = (0..u32::try_from(keys.len()).unwrap()).collect();
    let mut all = Vec::new();
    for indexes in indexes.chunks(chunk) {
        all.extend(timeout(AT_MOST, store.locate(keys, indexes)).await.expect("an end")?);
    }
    Ok(all)
}

#[tokio::test]
#[ignore = "needs a real master: tests/real/mooncake.sh"]
async fn a_real_master_is_read_as_it_was_filled() {
    let rpc = Endpoint::parse(&env("MOONCAKE_RPC")).unwrap();
    let endpoint = Endpoint::parse(&env("MOONCAKE_ADMIN")).unwrap();
    let hosts: Vec<String> = env("MOONCAKE_HOSTS").split(',').map(str::to_owned).collect();
    let version = env("MOONCAKE_VERSION");
    let minor: u32 = version.split('.').nth(2).unwrap().parse().unwrap();

    let of_keys = hosts_of_keys(&hosts, minor).await;
    for located in [true, false] {
        let config =
            MooncakeConfig { masters: vec![rpc.clone()], locate: located, ..MooncakeConfig::default() };
        let client = Mooncake::new(config);
        timeout(AT_MOST, client.connected()).await.expect("a connection");
        let form = client.status()[0].form;
        assert_eq!(form, if minor >= 12 { Form::Tenant } else { Form::Plain });
        assert_eq!(client.service().await.unwrap(), if minor > 7 { "2.0.0" } else { "" });
        for count in SIZES {
            let (keys, expected) = questions(count, &of_keys);
            check(&locate(&client, &keys, keys.len()).await.unwrap(), &expected, located);
            let begun = Instant::now();
            check(&locate(&client, &keys, client.batch_keys()).await.unwrap(), &expected, located);
            let took = begun.elapsed();
            println!(
                "{version} rpc {form:?} locations {located} keys {count}: equal, {took:?} in batches, compared"
            );
        }
    }

    let admin = Admin { client: pd_proxy::tls::http().build().unwrap(), endpoint, time: ADMIN_TIME };
    println!("{version} {:?} leader {:?}", admin.health().await.unwrap(), admin.leader().await.unwrap());
    let segments = admin.segments().await.unwrap();
    assert_eq!(segments.is_some(), minor >= 12);
    for segment in segments.iter().flatten() {
        let host = segment.endpoint.rsplit_once(':').unwrap().0;
        assert!(hosts.iter().any(|known| known == host), "{segment:?}");
    }
    println!("{version} segments {:?}", segments.map(|segments| segments.len()));
    let sample = admin.sample_keys(3, 1 << 20).await.unwrap();
    assert!(sample.keys.iter().all(|key| key.starts_with("k-")) && sample.keys.len() == 3 && !sample.more);
    println!("{version} {} keys, as {:?}", sample.seen, sample.keys);
    assert_eq!(admin.grants_leases().await.unwrap(), minor < 12);

    let store =
        |allow_leases| MooncakeHttp::new(MooncakeHttpConfig { admins: vec![admin.clone()], allow_leases });
    if minor < 12 {
        let (keys, _) = questions(1, &of_keys);
        assert!(matches!(locate(&store(false), &keys, 1).await, Err(PoolError::Refused(_))));
    }
    for count in SIZES {
        let (keys, expected) = questions(count, &of_keys);
        let store = store(minor < 12);
        let answer = locate(&store, &keys, store.batch_keys()).await;
        if minor < 9 {
            assert!(matches!(answer, Err(PoolError::Protocol(_))), "there is no such page");
        } else {
            check(&answer.unwrap(), &expected, true);
            println!("{version} http keys {count}: equal");
        }
    }
}
