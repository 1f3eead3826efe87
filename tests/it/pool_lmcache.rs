//! The LMCache client against directories that answer as the real ones were seen to.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use pd_proxy::endpoint::Endpoint;
use pd_proxy::pool::lmcache::{Directory, Lmcache, LmcacheSettings};
use pd_proxy::pool::{KvPool, LoadableBy, Near, PoolError, Presence, Question, Tier};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::common::time::eventually;

const CHUNK: NonZeroUsize = NonZeroUsize::new(4).unwrap();
const PATIENCE: Duration = Duration::from_secs(10);

/// Engines load their own alone.
const OWN: LoadableBy = LoadableBy::Own { fetchable_tokens: 0 };

/// A status that stands for no answer at all.
const NEVER: u16 = 0;

/// Answers by path; dropping it ends it.
pub struct Fake {
    endpoint: Endpoint,
    script: Arc<Mutex<HashMap<&'static str, (u16, String)>>>,
    seen: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl Fake {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::parse(&listener.local_addr().unwrap().to_string()).unwrap();
        let (script, seen) = (Arc::<Mutex<HashMap<_, _>>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (answers, heard) = (script.clone(), seen.clone());
        let router = axum::Router::new().fallback(move |request: Request<Body>| {
            let (answers, heard) = (answers.clone(), heard.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let body = std::str::from_utf8(&body).unwrap();
                heard.lock().unwrap().push(format!("{} {} {body}", head.method, head.uri.path()));
                let (status, text): (u16, String) =
                    answers.lock().unwrap().get(head.uri.path()).cloned().unwrap_or((404, String::new()));
                if status == NEVER {
                    return std::future::pending().await;
                }
                Response::builder()
                    .status(StatusCode::from_u16(status).unwrap())
                    .body(Body::from(text))
                    .unwrap()
            }
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { endpoint, script, seen, _tasks: tasks }
    }

    pub fn answers(&self, path: &'static str, status: u16, body: impl Into<String>) {
        self.script.lock().unwrap().insert(path, (status, body.into()));
    }

    pub fn addr(&self) -> std::net::SocketAddr {
        self.endpoint.to_string().parse().unwrap()
    }

    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    fn pool(&self, directory: Directory) -> Lmcache {
        self.pool_of(directory, false)
    }

    /// A service whose instances lend each other their memory, or not.
    fn pool_of(&self, directory: Directory, p2p: bool) -> Lmcache {
        let http = pd_proxy::tls::http().build().unwrap();
        Lmcache::new(
            http,
            LmcacheSettings { endpoint: self.endpoint.clone(), directory, chunk_tokens: CHUNK, p2p },
        )
    }
}

fn coordinator() -> Directory {
    Directory::Coordinator { model: "m".to_owned(), world_size: 1 }
}

fn prompt(tokens: u32) -> Question {
    Question { tokens: (1..=tokens).collect(), ..Question::default() }
}

async fn ask(pool: &Lmcache, tokens: u32) -> Result<Presence, PoolError> {
    timeout(PATIENCE, pool.lookup(&prompt(tokens))).await.expect("an answer in time")
}

/// Asks until what is told is this: hosts are learnt beside the answers.
async fn comes(pool: &Lmcache, tokens: u32, wanted: &[Near]) {
    eventually("the hosts are learnt", async || {
        let found = ask(pool, tokens).await.unwrap();
        assert_eq!(found.hit_tokens, wanted[0].tokens, "known from the first answer on");
        found.near[..] == *wanted
    })
    .await;
}

fn near(host: &str, tier: Tier, tokens: u32) -> Near {
    Near { host: host.into(), tier, tokens }
}

fn key(chunk: u32, places: &str) -> String {
    format!(
        r#"{{"key":{{"chunk_hash_hex":"{chunk:064x}","model_name":"m","kv_rank":16777472,"object_group_id":0,"cache_salt":""}},"placements":[{places}],"token_ids":[],"access_count":0}}"#
    )
}

fn place(instance: &str, tier: &str) -> String {
    format!(
        r#"{{"instance_id":"{instance}","incarnation":1,"tier":"{tier}","backend":"dram","size_bytes":1,"shared":false}}"#
    )
}

#[tokio::test]
async fn the_controller_is_asked_for_whole_chunks_and_hosts_are_asked_for_once() {
    let fake = Fake::start().await;
    let pool = fake.pool(Directory::Controller);
    let nothing = Presence { reach: OWN, ..Presence::default() };
    let short = Presence { whole: true, ..nothing.clone() };
    assert_eq!(ask(&pool, 3).await.unwrap(), short, "and so nothing is missing");
    assert!(fake.seen().is_empty(), "less than a chunk is nothing to ask");
    fake.answers("/lookup", 200, r#"{"event_id":"Lookup1","layout_info":{"p0":["LocalCPUBackend",8]}}"#);
    let workers = r#"{"workers":[{"instance_id":"p0","worker_id":0,"ip":"10.0.0.1","port":7000,"peer_init_url":null,"registration_time":1795281598.2,"last_heartbeat_time":1795281598.2,"key_count":64}],"total_count":1}"#;
    fake.answers("/controller/workers", 200, workers);
    comes(&pool, 14, &[near("10.0.0.1", Tier::Memory, 8)]).await;
    comes(&pool, 14, &[near("10.0.0.1", Tier::Memory, 8)]).await;
    let question = r#"POST /lookup {"tokens":[1,2,3,4,5,6,7,8,9,10,11,12]}"#;
    let (lists, questions): (Vec<String>, Vec<String>) =
        fake.seen().into_iter().partition(|seen| seen.starts_with("GET"));
    assert_eq!(lists, ["GET /controller/workers "]);
    assert!(questions.len() >= 2 && questions.iter().all(|seen| seen == question));
    fake.answers("/lookup", 200, r#"{"event_id":"Lookup2","layout_info":{}}"#);
    assert_eq!(ask(&pool, 14).await.unwrap(), nothing);
}

#[tokio::test]
async fn memory_of_an_instance_is_shared_only_where_lent() {
    let fake = Fake::start().await;
    fake.answers("/controller/workers", 500, "");
    fake.answers("/instances", 500, "");
    let alone = [fake.pool(Directory::Controller), fake.pool(coordinator())];
    let lending = [Directory::Controller, coordinator()].map(|which| fake.pool_of(which, true));
    let reach = async |pool: &Lmcache| {
        let found = ask(pool, 14).await.unwrap();
        (found.hit_tokens, found.fetchable_tokens(), found.reach == LoadableBy::All)
    };
    let answer = |keys: [String; 3]| format!(r#"{{"chunks":3,"results":[{}]}}"#, keys.join(","));
    fake.answers("/lookup", 200, r#"{"event_id":"a","layout_info":{"p0":["LocalCPUBackend",12]}}"#);
    let memory = place("mp0", "l1");
    fake.answers("/directory/lookup", 200, answer([1, 2, 3].map(|chunk| key(chunk, &memory))));
    for pool in [&alone[0], &alone[1]] {
        assert_eq!(reach(pool).await, (12, 0, false), "{}", pool.name());
    }
    for pool in [&lending[0], &lending[1]] {
        assert_eq!(reach(pool).await, (12, 12, true), "{}", pool.name());
    }
    fake.answers("/lookup", 200, r#"{"event_id":"b","layout_info":{"p0":["LocalDiskBackend",12]}}"#);
    let disk = place("mp0", "l2");
    let shared = disk.replace(r#""shared":false"#, r#""shared":true"#);
    fake.answers("/directory/lookup", 200, answer([key(1, &shared), key(2, &memory), key(3, &disk)]));
    assert_eq!(reach(&alone[0]).await, (12, 0, false));
    assert_eq!(reach(&lending[0]).await, (12, 0, false), "disks are not lent");
    assert_eq!(reach(&alone[1]).await, (12, 4, false), "a store of all is read by all");
    assert_eq!(reach(&lending[1]).await, (12, 8, false));
}

#[tokio::test]
async fn the_coordinator_tells_every_holder() {
    let fake = Fake::start().await;
    let pool = fake.pool(coordinator());
    let both = [place("mp0", "l1"), place("mp1", "l1")].join(",");
    let keys = [key(1, &both), key(2, &both), key(3, &place("mp0", "l2")), key(4, "")].join(",");
    fake.answers("/directory/lookup", 200, format!(r#"{{"chunks":4,"results":[{keys}]}}"#));
    fake.answers("/instances", 200, r#"{"instances":[{"instance_id":"mp0","ip":"10.0.0.1","http_port":8000,"registration_time":1.5,"metadata":{},"p2p_advertised_url":"","mq_port":5555}]}"#);
    let expected = [near("10.0.0.1", Tier::Disk, 12), near("mp1", Tier::Memory, 8)];
    comes(&pool, 17, &expected).await;
    let tokens: Vec<String> = (1..=16).map(|token| token.to_string()).collect();
    let tokens = tokens.join(",");
    let question =
        format!(r#"POST /directory/lookup {{"token_ids":[{tokens}],"model_name":"m","world_size":1}}"#);
    let seen = fake.seen();
    assert!(seen[0] == question && seen.contains(&"GET /instances ".to_owned()), "{seen:?}");
    fake.answers("/instances", 500, "");
    // One of them is not listed, so the list is asked for again, but not at once.
    eventually("it is asked for again", async || {
        let found = ask(&pool, 17).await.unwrap();
        assert_eq!(found.near[..], expected, "without a list the last one stands");
        fake.seen().contains(&"GET /instances ".to_owned())
    })
    .await;
    assert_eq!(ask(&pool, 17).await.unwrap().near[..], expected);
}

#[tokio::test]
async fn a_salted_prompt_is_asked_for_under_its_salt() {
    let fake = Fake::start().await;
    let (of_engines, pool) = (fake.pool(Directory::Controller), fake.pool(coordinator()));
    let salted = Question { salt: "tenant".into(), ..prompt(4) };
    fake.answers("/lookup", 200, r#"{"event_id":"Lookup1","layout_info":{}}"#);
    fake.answers("/instances", 500, "");
    of_engines.lookup(&salted).await.unwrap();
    let unsalted = key(1, &place("mp0", "l1"));
    let own = unsalted.replace(r#""cache_salt":"""#, r#""cache_salt":"tenant""#);
    fake.answers("/directory/lookup", 200, format!(r#"{{"chunks":1,"results":[{own}]}}"#));
    assert_eq!(pool.lookup(&salted).await.unwrap().hit_tokens, 4);
    let questions: Vec<String> = fake.seen().into_iter().filter(|seen| seen.starts_with("POST")).collect();
    let expected = [
        r#"POST /lookup {"tokens":[1,2,3,4]}"#,
        r#"POST /directory/lookup {"token_ids":[1,2,3,4],"model_name":"m","world_size":1,"cache_salt":"tenant"}"#,
    ];
    assert_eq!(questions, expected, "LMCache inside of engines knows no salts");
    fake.answers("/directory/lookup", 200, format!(r#"{{"chunks":1,"results":[{unsalted}]}}"#));
    let error = pool.lookup(&salted).await.unwrap_err();
    assert!(matches!(error, PoolError::Protocol(_)), "what others have is no hit: {error}");
}

#[tokio::test]
async fn no_answer_waits_for_a_list_and_so_many_hosts_are_told() {
    let fake = Fake::start().await;
    let pool = fake.pool(coordinator());
    fake.answers("/instances", NEVER, "");
    let places: Vec<String> = (0..40).map(|n| place(&format!("mp{n:02}"), "l1")).collect();
    fake.answers(
        "/directory/lookup",
        200,
        format!(r#"{{"chunks":1,"results":[{}]}}"#, key(1, &places.join(","))),
    );
    let found = ask(&pool, 4).await.unwrap();
    assert_eq!((found.hit_tokens, found.near.len()), (4, 16));
    assert_eq!(found.near[0], near("mp00", Tier::Memory, 4), "by its name");
}

#[tokio::test]
async fn malformed_answer_is_an_error_and_never_a_hit() {
    let fake = Fake::start().await;
    let (controller, coordinator) = (fake.pool(Directory::Controller), fake.pool(coordinator()));
    for (status, body, refused) in [
        (500, r#"{"detail":"'NoneType' object is not subscriptable"}"#, true),
        (422, r#"{"detail":[{"type":"missing"}]}"#, true),
        (302, "", true),
        (200, "", false),
        (200, "<html></html>", false),
        (200, r#"{"layout_info":{"p0":["LocalCPUBackend",99999]},"chunks":1,"results":[]}"#, false),
        (200, r#"{"layout_info":{"p0":[4]},"chunks":4,"results":[{}]}"#, false),
    ] {
        fake.answers("/lookup", status, body);
        fake.answers("/directory/lookup", status, body);
        for pool in [&controller, &coordinator] {
            match ask(pool, 17).await.unwrap_err() {
                PoolError::Refused(_) if refused => {}
                PoolError::Protocol(_) if !refused => {}
                error => panic!("{}: {status} {body}: {error}", pool.name()),
            }
        }
    }
    // Larger than any true answer: it is given up while it is read.
    fake.answers("/lookup", 200, " ".repeat(33 << 20));
    let Err(PoolError::Protocol(why)) = ask(&controller, 17).await else { panic!("too large") };
    assert!(why.contains("larger than"), "{why}");
    let gone = Fake { endpoint: fake.endpoint.clone(), ..Fake::start().await };
    drop(fake);
    let error = ask(&gone.pool(Directory::Controller), 17).await.unwrap_err();
    assert!(matches!(error, PoolError::Unreachable(_)), "{error}");
}

/// `tests/real/ems.sh` starts the directories, fills them and says where they are.
fn real(name: &str, directory: Directory) -> Lmcache {
    let address = std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let (endpoint, chunk_tokens) = (Endpoint::parse(&address).unwrap(), NonZeroUsize::new(256).unwrap());
    let http = pd_proxy::tls::http().build().unwrap();
    Lmcache::new(http, LmcacheSettings { endpoint, directory, chunk_tokens, p2p: false })
}

#[tokio::test]
#[ignore = "needs the servers of tests/real/ems.sh"]
async fn real_directories_tell_what_they_were_filled_with() {
    let controller = real("LMCACHE_CONTROLLER", Directory::Controller);
    let coordinator = real("LMCACHE_COORDINATOR", coordinator());
    // No answer waits for the list of instances: asked for first, hosts are known from the first
    // answer on.
    for pool in [&controller, &coordinator] {
        pool.instances().await.unwrap();
    }
    for (tokens, hit) in [(255, 0), (256, 256), (600, 512), (16_384, 16_384), (40_000, 16_384)] {
        for pool in [&controller, &coordinator] {
            let found = ask(pool, tokens).await.unwrap();
            assert_eq!(found.hit_tokens, hit, "{}: {tokens} tokens", pool.name());
            let longest = near("10.0.0.1", Tier::Memory, hit);
            assert_eq!(found.near.first(), Some(&longest).filter(|_| hit > 0));
        }
        let second = ask(&coordinator, tokens).await.unwrap().near.get(1).cloned();
        assert_eq!(second, Some(near("mp1", Tier::Memory, hit.min(512))).filter(|_| hit > 0));
    }
    for pool in [&controller, &coordinator] {
        let other = Question { tokens: (2..=16_385).collect(), ..Question::default() };
        let nothing = Presence { reach: OWN, ..Presence::default() };
        assert_eq!(pool.lookup(&other).await.unwrap(), nothing, "{}", pool.name());
    }
    let ranks = Directory::Coordinator { model: "m".to_owned(), world_size: 2 };
    assert_eq!(
        ask(&real("LMCACHE_COORDINATOR", ranks), 600).await.unwrap().hit_tokens,
        0,
        "keys of one rank"
    );
}
