//! Checks of Mooncake masters.

use pd_proxy::endpoint::Endpoint;
use pd_proxy::kvhash::keys::KeyBatch;
use pd_proxy::pool::mooncake::wire::Form;
use pd_proxy::pool::mooncake::{Mooncake as Client, MooncakeConfig, greet};
use pd_proxy::pool::{KeyStore, Tier};
use pd_proxy::sim::mooncake::{AdminPort, Arguments, Leadership, Mooncake, MooncakeSpec};

use super::{anywhere, check, expect, keys, set};
use crate::command::Process;

const PRESET: &str = "mooncake-store-0.30";

async fn master(keys: &[String]) -> (Mooncake, AdminPort) {
    let master = Mooncake::start(MooncakeSpec::default(), anywhere()).await.unwrap();
    keys.iter().for_each(|key| master.put(key, "10.0.0.7:17000"));
    let admin = master.admin(anywhere()).await.unwrap();
    (master, admin)
}

fn sets(master: &Mooncake, admin: &AdminPort) -> Vec<String> {
    vec![
        set("pool.kind", "mooncake"),
        set("key.preset", PRESET),
        set("key.kv_heads", 8),
        set("pool.addresses", master.addr()),
        set("pool.admins", admin.addr()),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_as_configured_is_described_and_left_as_it_was() {
    let (master, admin) = master(&keys(PRESET, 40, |_| ())).await;
    let found = check(&sets(&master, &admin));
    let takes = format!("ok   Mooncake master {} answers: its RPC takes keys and a tenant", master.addr());
    let lists = format!("ok   {} (pool.admins) lists 40 keys, such as Qwen3-8B@", admin.addr());
    expect(
        &found,
        0,
        &[&takes, &lists, "leads, serving", "1 segment on 10.0.0.7", "all 40 keys looked at are as"],
    );
    let asked = master.asked();
    assert!(!asked.is_empty() && asked.iter().all(|one| one.keys != Some(1)), "{asked:?}");
    assert!(asked.iter().all(|one| one.keys.unwrap_or(0) == 0), "no key gets a lease: {asked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offline_check_asks_no_service() {
    let (master, admin) = master(&[]).await;
    let mut line = vec!["check".to_owned(), "--offline".to_owned()];
    let all = super::BASE.iter().map(|set| (*set).to_owned()).chain(sets(&master, &admin));
    line.extend(all.flat_map(|set| ["--set".to_owned(), set]));
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let (code, _, err) = crate::command::run(&line, &[]);
    assert_eq!((code, err.as_str(), master.connections()), (0, "", 0));
    let found = check(&sets(&master, &admin));
    expect(&found, 0, &["note the pool is empty"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_differing_field_is_named_with_the_key_to_change() {
    let (master, admin) = master(&keys(PRESET, 40, |_| ())).await;
    for (change, words) in [
        (
            "key.model=/models/Llama",
            "model differs: 40 of 40 keys have \"Qwen3-8B\", the configuration makes \"Llama\": see key.model",
        ),
        (
            "key.prefix=blue",
            "prefix differs: 40 of 40 keys have nothing, the configuration makes \"blue\": see key.prefix",
        ),
        (
            "hash.algo=xxhash",
            "the hash differs: 40 of 40 keys have 64 hexadecimal digits, the configuration makes 32: see hash.algo",
        ),
        ("key.tp=2", "no key in the pool has shard 1, which will be asked for: compare key.tp"),
        ("key.preset=ascend-0.26", "they are those of key.preset = \"mooncake-store-0.22\""),
        ("key.template={model}/{hash}", "\"mooncake-store-0.30\", without key.template"),
    ] {
        let found = check(&[sets(&master, &admin), vec![change.to_owned()]].concat());
        expect(
            &found,
            3,
            &["BAD ", words, "pd-proxy: engines or the pool are not as the configuration says"],
        );
    }
    for key in keys(PRESET, 4, |c| c.shape.tp = 2) {
        master.put(&key, "10.0.0.7:17000");
    }
    let found = check(&sets(&master, &admin));
    expect(&found, 3, &["shard differs: 4 of 44 keys have \"1\", the configuration makes \"0\": see key.tp"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_others_do_not_count() {
    let mut all = keys(PRESET, 20, |_| ());
    all.extend(keys(PRESET, 30, |c| c.model = "Llama".to_owned()));
    let (master, admin) = master(&all).await;
    expect(
        &check(&sets(&master, &admin)),
        0,
        &["ok   20 of 50 keys looked at are as", "other models or writers"],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_ports_are_told_apart_and_an_absent_master_is_named() {
    let (master, admin) = master(&[]).await;
    let (rpc, http) = (master.addr(), admin.addr());
    let swapped = |kind: &str, addresses, admins| {
        check(&[
            set("pool.kind", kind),
            set("key.preset", PRESET),
            set("pool.addresses", addresses),
            set("pool.admins", admins),
        ])
    };
    let found = swapped("mooncake", http, rpc);
    expect(
        &found,
        3,
        &[
            "an HTTP server listens there: pool.addresses takes the RPC port",
            "this is a master's RPC port, which belongs into pool.addresses",
        ],
    );
    expect(&swapped("mooncake_http", rpc, rpc), 3, &["(pool.addresses)", "use pool.kind = \"mooncake\""]);
    master.kill();
    let words = format!("BAD  Mooncake master {rpc} (pool.addresses): not reachable");
    expect(&swapped("mooncake", rpc, http), 3, &[&words, "is a master running there"]);
    let alone = check(&[set("pool.kind", "mooncake"), set("key.preset", PRESET), set("pool.addresses", rpc)]);
    expect(&alone, 3, &["in pool.admins"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standbys_are_fine_while_somebody_leads() {
    let (leader, leads) = master(&keys(PRESET, 3, |_| ())).await;
    let (standby, waits) = master(&[]).await;
    standby.kill();
    standby.stand(Leadership::Standby(leader.addr().to_string()));
    let both = |addresses: &[std::net::SocketAddr], admins: &[&AdminPort]| {
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let admins: Vec<String> = admins.iter().map(|admin| admin.addr().to_string()).collect();
        let mut all = sets(&leader, &leads);
        all.extend([set("pool.addresses", addresses.join(",")), set("pool.admins", admins.join(","))]);
        check(&all)
    };
    let found = both(&[standby.addr(), leader.addr()], &[&waits, &leads]);
    expect(
        &found,
        0,
        &["note Mooncake master", "a standby refuses", "is a standby, standby", "lists 3 keys", "all 3 keys"],
    );
    let found = both(&[standby.addr()], &[&waits]);
    expect(&found, 0, &[&format!("Mooncake master {} answers", leader.addr()), "leads"]);
    standby.stand(Leadership::Standby(String::new()));
    expect(&both(&[standby.addr()], &[&waits]), 3, &["it names no leader"]);
    leader.stand(Leadership::WarmingUp);
    expect(&both(&[leader.addr()], &[&leads]), 3, &["does not answer about keys yet"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http_an_old_master_is_not_taken() {
    for (arguments, code, words) in
        [(Arguments::Tenant, 0, "all 3 keys looked at"), (Arguments::Plain, 3, "grants a lease")]
    {
        let master =
            Mooncake::start(MooncakeSpec { arguments, ..MooncakeSpec::default() }, anywhere()).await.unwrap();
        keys(PRESET, 3, |_| ()).iter().for_each(|key| master.put(key, "h:1"));
        let admin = master.admin(anywhere()).await.unwrap();
        let sets = [
            set("pool.kind", "mooncake_http"),
            set("key.preset", PRESET),
            set("pool.addresses", admin.addr()),
        ];
        expect(&check(&sets), code, &[words]);
    }
}

/// `pd-proxy sim mooncake` as somebody without a pool uses it, and the gateway's own client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_of_ones_own_answers_in_the_form_of_its_release() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "mine\n\nyours\n").unwrap();
    let path = file.path().to_str().unwrap();
    for (release, form) in [("0.3.13", Form::Tenant), ("0.3.7", Form::Plain)] {
        let line = ["sim", "mooncake", "--port", "0", "--admin-port", "0", "--keys", path, "--fill", "2"];
        let more = ["--segment", "10.1.1.1:9", "--release", release];
        let mut process = Process::start(&[&line[..], &more].concat(), &[]);
        let said = process.wait_for("simulated Mooncake master on ");
        assert!(said.ends_with(" 4 keys"), "{said}");
        let address = said.split(" on ").nth(1).unwrap().split(',').next().unwrap();
        let client = Client::new(MooncakeConfig {
            masters: vec![Endpoint::parse(address).unwrap()],
            ..MooncakeConfig::default()
        });
        client.connected().await;
        assert_eq!(client.status()[0].form, form);
        let mut batch = KeyBatch::default();
        ["mine", "nobody's", "key-1"].iter().for_each(|key| batch.push(0, key).unwrap());
        let found = client.locate(&batch, &[0, 1, 2]).await.unwrap();
        assert_eq!(found.iter().map(|one| one.present).collect::<Vec<_>>(), [true, false, true]);
        let place = &found[0].places[0];
        assert_eq!((&*place.host, place.tier), ("10.1.1.1", Tier::Memory));
        process.signal("TERM");
        assert!(process.ended().success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_of_ones_own_makes_trouble_when_it_is_told_to() {
    let line = ["sim", "mooncake", "--port", "0", "--admin-port", "0"];
    let mut deaf = Process::start(&[&line[..], &["--deaf"]].concat(), &[]);
    let said = deaf.wait_for("simulated Mooncake master on ");
    let address = said.split(" on ").nth(1).unwrap().split(',').next().unwrap();
    let masters = vec![Endpoint::parse(address).unwrap()];
    let time = std::time::Duration::from_millis(200);
    let config = MooncakeConfig { masters, connect_time: time, ..MooncakeConfig::default() };
    let why = greet(config).await.unwrap_err().to_string();
    assert!(why.contains("no answer in 200 ms"), "{why}");
    let mut standby = Process::start(&[&line[..], &["--standby-of", "10.0.0.1:50051"]].concat(), &[]);
    let said = standby.wait_for("simulated Mooncake master on ");
    let admin = said.split("http://").nth(1).unwrap().split(',').next().unwrap();
    let health = pd_proxy::tls::http()
        .build()
        .unwrap()
        .get(format!("http://{admin}/health"))
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(health.contains("\"standby\"") && health.contains("10.0.0.1:50051"), "{health}");
}
