//! The Mooncake client against simulated masters: every version, every failure, and back again.

use std::net::SocketAddr;
use std::time::Duration;

use pd_proxy::endpoint::Endpoint;
use pd_proxy::kvhash::keys::KeyBatch;
use pd_proxy::pool::mooncake::wire::Form;
use pd_proxy::pool::mooncake::{
    ADMIN_TIME, Admin, Mooncake, MooncakeConfig, MooncakeHttp, MooncakeHttpConfig,
};
use pd_proxy::pool::{KeyStore, Placement, PoolError, ReplicaPlace, Tier};
use pd_proxy::sim::mooncake::{
    AnswerFault, Arguments, KeyEntry, Mooncake as Master, MooncakeSpec, Replicas, function_id,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::common::place;
use crate::common::time::eventually;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
/// Nothing here takes as long unless it hangs.
const AT_MOST: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_millis(200);

fn batch(keys: &[&str]) -> KeyBatch {
    let mut batch = KeyBatch::default();
    for key in keys {
        batch.push(0, key).unwrap();
    }
    batch
}

fn endpoint(addr: SocketAddr) -> Endpoint {
    Endpoint::new(addr.ip().to_string(), addr.port())
}

async fn master(spec: MooncakeSpec) -> Master {
    let master = Master::start(spec, LOOPBACK).await.unwrap();
    fill(&master);
    master
}

fn fill(master: &Master) {
    master.put("aa", "10.0.0.1:17001");
    master.put("bb", "[fd00::2]:17002");
}

async fn client(masters: &[&Master], change: impl FnOnce(&mut MooncakeConfig)) -> Mooncake {
    let masters = masters.iter().map(|master| endpoint(master.addr())).collect();
    let mut config =
        MooncakeConfig { masters, connections: 1, patience: PATIENCE, ..MooncakeConfig::default() };
    change(&mut config);
    let client = Mooncake::new(config);
    timeout(AT_MOST, client.connected()).await.expect("a connection");
    client
}

fn on(host: &str) -> Placement {
    Placement {
        present: true,
        places: std::iter::once(ReplicaPlace { host: host.into(), tier: Tier::Memory }).collect(),
    }
}

/// The filled master's answer about `zz`, `bb`, `aa`.
fn placed() -> Vec<Placement> {
    vec![Placement::default(), on("fd00::2"), on("10.0.0.1")]
}

async fn ask(store: &impl KeyStore) -> Result<Vec<Placement>, PoolError> {
    let keys = batch(&["aa", "bb", "zz"]);
    timeout(AT_MOST, store.locate(&keys, &[2, 1, 0])).await.expect("an end")
}

/// Asks until there is an answer.
async fn recovered(store: &impl KeyStore) -> Vec<Placement> {
    eventually("a recovery", async || ask(store).await).await
}

#[tokio::test]
async fn every_version_is_asked_in_its_own_form() {
    for arguments in [Arguments::Tenant, Arguments::Plain] {
        for replicas in [Replicas::A, Replicas::B, Replicas::C, Replicas::D, Replicas::E, Replicas::Later] {
            for terse in [false, true] {
                let spec = MooncakeSpec { arguments, replicas, terse };
                let master = master(spec).await;
                let client = client(&[&master], |_| ()).await;
                let form = if arguments == Arguments::Tenant { Form::Tenant } else { Form::Plain };
                assert_eq!(client.status()[0].form, form);
                assert_eq!(timeout(AT_MOST, client.service()).await.unwrap().unwrap(), "2.0.0");
                let somewhere =
                    [false, true, true].map(|present| Placement { present, ..Placement::default() });
                match (replicas, terse) {
                    (Replicas::Later, true) => {
                        assert!(
                            matches!(ask(&client).await, Err(PoolError::Protocol(_))),
                            "nothing tells its type"
                        );
                    }
                    (Replicas::Later, false) => assert_eq!(ask(&client).await.unwrap(), somewhere),
                    _ => assert_eq!(ask(&client).await.unwrap(), placed(), "{spec:?}"),
                }
            }
        }
    }
}

#[tokio::test]
async fn without_locations_the_cheaper_question_is_asked() {
    let master = master(MooncakeSpec::default()).await;
    let client = client(&[&master], |config| config.locate = false).await;
    let answer = ask(&client).await.unwrap();
    assert_eq!(answer.iter().map(|placement| placement.present).collect::<Vec<_>>(), [false, true, true]);
    assert!(answer.iter().all(|placement| placement.places.is_empty()));
    let exist = function_id("BatchExistKey");
    assert!(master.asked().iter().all(|asked| asked.function == exist));
    let keys = batch(&[]);
    assert_eq!(client.locate(&keys, &[]).await.unwrap(), []);
    assert!(matches!(client.locate(&keys, &[0]).await, Err(PoolError::Protocol(_))), "no such key");
    assert_eq!(master.asked().len(), 2, "the negotiation and one question");
}

#[tokio::test]
async fn many_questions_share_two_connections_and_get_their_own_answers() {
    let master = master(MooncakeSpec::default()).await;
    for number in 0..200 {
        master.put(&format!("k{number}"), &format!("10.0.1.{number}:1"));
    }
    let client = client(&[&master], |config| (config.connections, config.in_flight) = (2, 500)).await;
    let keys: Vec<String> = (0..200).map(|number| format!("k{number}")).collect();
    let keys = batch(&keys.iter().map(String::as_str).collect::<Vec<_>>());
    let indexes: Vec<[u32; 1]> = (0..200).map(|index| [index]).collect();
    let all = indexes.iter().map(|index| client.locate(&keys, index));
    let answers = timeout(AT_MOST, futures_util::future::join_all(all)).await.unwrap();
    for (number, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.unwrap(), [on(&format!("10.0.1.{number}"))]);
    }
    assert!(master.connections() <= 2);
    assert!(client.status().iter().all(|link| link.open == 0));
}

#[tokio::test]
async fn a_question_that_is_given_up_leaves_the_connection_usable() {
    let master = master(MooncakeSpec::default()).await;
    let client = client(&[&master], |config| config.patience = AT_MOST).await;
    master.inject(AnswerFault::Delay(Duration::from_millis(100)));
    let keys = batch(&["aa"]);
    let given_up = timeout(Duration::from_millis(10), client.locate(&keys, &[0])).await;
    assert!(given_up.is_err(), "the answer takes longer");
    assert_eq!(ask(&client).await.unwrap(), placed());
    assert_eq!((master.connections(), client.status()[0].open), (1, 0));
}

#[tokio::test]
async fn faults_are_reported_and_pass() {
    use PoolError::{Protocol, Refused, Unreachable};
    let faults = [
        (AnswerFault::Close, Unreachable(String::new())),
        (AnswerFault::Cut(5), Unreachable(String::new())),
        (AnswerFault::Cut(20), Unreachable(String::new())),
        (AnswerFault::Stall(5), Unreachable(String::new())),
        (AnswerFault::Stall(20), Unreachable(String::new())),
        (AnswerFault::NoAnswer, Unreachable(String::new())),
        (AnswerFault::Garbage, Protocol(String::new())),
        (AnswerFault::WrongSequence, Protocol(String::new())),
        (AnswerFault::Huge, Protocol(String::new())),
        (AnswerFault::Short, Protocol(String::new())),
        (AnswerFault::Error(4), Protocol(String::new())),
        (AnswerFault::Error(10), Refused(String::new())),
    ];
    for (mishap, kind) in faults {
        let master = master(MooncakeSpec::default()).await;
        let client = client(&[&master], |_| ()).await;
        master.inject(mishap);
        let error = ask(&client).await.expect_err("a failure");
        let same = std::mem::discriminant(&error) == std::mem::discriminant(&kind);
        assert!(same, "{mishap:?}: {error:?}");
        assert_eq!(recovered(&client).await, placed(), "{mishap:?}");
        let connections = if mishap == AnswerFault::Error(10) { 1 } else { 2 };
        assert_eq!(master.connections(), connections, "{mishap:?}");
    }
}

#[tokio::test]
async fn more_open_questions_than_allowed_are_refused_at_once() {
    let master = master(MooncakeSpec::default()).await;
    let client = client(&[&master], |config| (config.in_flight, config.patience) = (2, AT_MOST)).await;
    master.set_deaf(true);
    let keys = batch(&["aa"]);
    for _ in 0..2 {
        // Given up, but still open: the master may be working on them.
        let given_up = timeout(Duration::from_millis(10), client.locate(&keys, &[0])).await;
        assert!(given_up.is_err());
    }
    assert_eq!(client.locate(&keys, &[0]).await, Err(PoolError::Busy));
}

#[tokio::test]
async fn a_master_that_is_gone_is_replaced_by_the_next_and_back() {
    let (one, other) = (
        master(MooncakeSpec::default()).await,
        Master::start(MooncakeSpec::default(), LOOPBACK).await.unwrap(),
    );
    other.kill();
    let client = client(&[&one, &other], |_| ()).await;
    assert_eq!(ask(&client).await.unwrap(), placed());
    one.kill();
    // The new leader is of another version and knows nothing yet.
    let older = MooncakeSpec { arguments: Arguments::Plain, replicas: Replicas::C, terse: false };
    other.restart(older).unwrap();
    assert_eq!(recovered(&client).await, vec![Placement::default(); 3]);
    assert_eq!((client.status()[0].form, &client.status()[0].master), (Form::Plain, &endpoint(other.addr())));
    fill(&other);
    assert_eq!(ask(&client).await.unwrap(), placed());
    // Stopped, not ended: connections are made by the kernel, but nobody answers.
    one.restart(MooncakeSpec::default()).unwrap();
    fill(&one);
    other.set_deaf(true);
    assert_eq!(recovered(&client).await, placed());
    assert_eq!(client.status()[0].master, endpoint(one.addr()));
}

#[tokio::test]
async fn a_master_that_does_not_lead_is_left() {
    let (standby, leader) = (master(MooncakeSpec::default()).await, master(MooncakeSpec::default()).await);
    let client = client(&[&standby, &leader], |_| ()).await;
    standby.hold("aa", KeyEntry::Error(-1010));
    assert!(matches!(ask(&client).await, Err(PoolError::Refused(_))));
    assert_eq!(recovered(&client).await, placed());
    assert_eq!(client.status()[0].master, endpoint(leader.addr()));
}

#[tokio::test]
async fn without_a_master_the_answer_is_no_and_comes_at_once() {
    let gone = master(MooncakeSpec::default()).await;
    gone.kill();
    let masters = vec![endpoint(gone.addr())];
    let client = Mooncake::new(MooncakeConfig { masters, ..MooncakeConfig::default() });
    assert!(matches!(ask(&client).await, Err(PoolError::Unreachable(_))));
    gone.restart(MooncakeSpec::default()).unwrap();
    fill(&gone);
    assert_eq!(recovered(&client).await, placed());
}

/// An admin port that has these pages and no others.
async fn admin_port(pages: Vec<(&'static str, String)>) -> (Admin, JoinSet<()>) {
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let endpoint = endpoint(listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(tcp.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            let path = head.split(' ').nth(1).unwrap();
            let page = pages.iter().find(|(page, _)| *page == path);
            let (status, body) = page.map_or(("404 Not Found", ""), |(_, body)| ("200 OK", body));
            let length = body.len();
            let answer =
                format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
            tcp.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (admin(endpoint), tasks)
}

fn admin(endpoint: Endpoint) -> Admin {
    let client = pd_proxy::tls::http().build().unwrap();
    Admin { client, endpoint, time: ADMIN_TIME }
}

#[tokio::test]
async fn over_http_nothing_is_touched_or_nothing_is_asked() {
    let plain = MooncakeSpec { arguments: Arguments::Plain, ..MooncakeSpec::default() };
    let (new, old) = (master(MooncakeSpec::default()).await, master(plain).await);
    let (new_port, old_port) = (new.admin(LOOPBACK).await.unwrap(), old.admin(LOOPBACK).await.unwrap());
    let [new_admin, old_admin] = [&new_port, &old_port].map(|port| admin(endpoint(port.addr())));
    let store = |admins: &[&Admin], allow_leases| {
        let admins = admins.iter().map(|admin| (*admin).clone()).collect();
        MooncakeHttp::new(MooncakeHttpConfig { admins, allow_leases })
    };
    assert_eq!(ask(&store(&[&new_admin], false)).await.unwrap(), placed());
    let refused = ask(&store(&[&old_admin], false)).await;
    assert!(matches!(refused, Err(PoolError::Refused(why)) if why.contains("lease")));
    assert_eq!(ask(&store(&[&old_admin], true)).await.unwrap(), placed());
    let both = store(&[&old_admin, &new_admin], false);
    assert_eq!(ask(&both).await.unwrap(), placed(), "the second can be asked");
    assert_eq!(ask(&both).await.unwrap(), placed());

    let odd = "model name/100%@é&x=1#+";
    new.put(odd, "10.0.0.9:1");
    let found = store(&[&new_admin], false);
    assert_eq!(found.locate(&batch(&[odd]), &[0]).await.unwrap(), [on("10.0.0.9")]);
}

#[tokio::test]
async fn over_http_a_master_that_vanished_is_left_when_its_question_is_given_up() {
    // One that refuses, one that is silent, one that answers.
    let refusing = place::own();
    let gone = TcpListener::bind(LOOPBACK).await.unwrap();
    let there = master(MooncakeSpec::default()).await;
    let port = there.admin(LOOPBACK).await.unwrap();
    let admins = [refusing, gone.local_addr().unwrap(), port.addr()];
    let admins = admins.map(|addr| admin(endpoint(addr))).to_vec();
    let store = MooncakeHttp::new(MooncakeHttpConfig { admins, allow_leases: false });
    let keys = batch(&["aa"]);
    let given_up = timeout(Duration::from_millis(50), store.locate(&keys, &[0])).await;
    assert!(given_up.is_err(), "connections are made by the kernel, but nobody answers");
    assert_eq!(ask(&store).await.unwrap(), placed());
}

#[tokio::test]
async fn over_http_a_question_is_cut_to_what_a_url_takes() {
    let master = master(MooncakeSpec::default()).await;
    let port = master.admin(LOOPBACK).await.unwrap();
    let admins = vec![admin(endpoint(port.addr()))];
    let store = MooncakeHttp::new(MooncakeHttpConfig { admins, allow_leases: false });
    let long: Vec<String> = (0..256).map(|n| format!("{n:03}{}", "k".repeat(400))).collect();
    master.put(&long[255], "10.0.0.9:1");
    let keys = batch(&long.iter().map(String::as_str).collect::<Vec<_>>());
    let indexes: Vec<u32> = (0..256).collect();
    let found = store.locate(&keys, &indexes).await.unwrap();
    assert_eq!((found.len(), &found[255]), (256, &on("10.0.0.9")));
    assert!(found[..255].iter().all(|placement| !placement.present));
}

#[tokio::test]
async fn the_admin_port_leads_to_the_master() {
    let leader = master(MooncakeSpec::default()).await;
    let health = format!(
        r#"{{"status":"ok","role":"standby","ha_state":"standby","service_ready":false,"leader_address":"{}","view_version":7}}"#,
        leader.addr()
    );
    let keys = "k1\nk2\nk3\n".to_owned();
    let (admin, _port) = admin_port(vec![("/health", health), ("/get_all_keys", keys)]).await;
    let health = admin.health().await.unwrap();
    assert_eq!((health.role.as_deref(), health.service_ready), (Some("standby"), Some(false)));
    let sample = admin.sample_keys(2, 100).await.unwrap();
    assert_eq!((sample.seen, sample.more, sample.keys), (3, false, vec!["k1".to_owned(), "k3".to_owned()]));
    assert!(admin.sample_keys(2, 8).await.unwrap().more);
    assert_eq!(admin.segments().await.unwrap(), None);
    assert!(admin.grants_leases().await.unwrap());
    let (alone, _alone) = admin_port(vec![("/health", "OK".into())]).await;
    assert_eq!(alone.leader().await.unwrap(), None);

    let admins = vec![alone, admin];
    let client = Mooncake::new(MooncakeConfig { admins, ..MooncakeConfig::default() });
    timeout(AT_MOST, client.connected()).await.unwrap();
    assert_eq!(ask(&client).await.unwrap(), placed());
}
