//! The EMS client against a simulated lookup server: faithful on the wire, and as fragile as the
//! real one.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use pd_proxy::endpoint::Endpoint;
use pd_proxy::kvhash::BlockHash;
use pd_proxy::kvhash::ems;
use pd_proxy::pool::ems::{Ems, EmsSettings};
use pd_proxy::pool::{Gate, GateLimits, Inquiry, KvPool, LoadableBy, PoolError, Presence, Question, Verdict};
use pd_proxy::sim::{EmsAnswering, EmsLookup};
use tokio::time::timeout;

use crate::common::place;
use crate::common::time::{eventually, eventually_within};

const BLOCK: NonZeroUsize = NonZeroUsize::new(4).unwrap();
/// Longer than any exchange over loopback that is to succeed.
const PATIENCE: Duration = Duration::from_secs(10);
/// Short enough to give up a question that is not to be answered.
const IMPATIENCE: Duration = Duration::from_millis(50);

async fn server() -> EmsLookup {
    server_at(place::own_host()).await
}

async fn server_at(at: SocketAddr) -> EmsLookup {
    EmsLookup::start(at).await.unwrap()
}

fn settings<'a>(servers: impl IntoIterator<Item = &'a EmsLookup>) -> EmsSettings {
    let endpoint = |server: &EmsLookup| Endpoint::parse(&server.addr().to_string()).unwrap();
    EmsSettings {
        servers: servers.into_iter().map(endpoint).collect(),
        block_tokens: BLOCK,
        reads_local: false,
        least_tokens: 0,
    }
}

/// A prompt of so many tokens, and the hashes of its blocks.
fn prompt(tokens: u32) -> (Question, Vec<i64>) {
    let tokens: Vec<u32> = (7..7 + tokens).collect();
    let hashes: Vec<i64> = ems::chain(ems::START, &tokens, BLOCK).collect();
    let question = Question {
        tokens: tokens.into(),
        hashes: hashes.iter().map(|hash| BlockHash::from(hash.to_be_bytes())).collect(),
        ..Question::default()
    };
    (question, hashes)
}

async fn ask(pool: &Ems, question: &Question) -> Result<Presence, PoolError> {
    let found = timeout(PATIENCE, pool.lookup(question)).await.expect("an answer in time")?;
    let blocks = question.tokens.len().saturating_sub(1) / BLOCK;
    assert_eq!(found.whole, found.hit_tokens as usize >= blocks * BLOCK.get(), "{found:?}");
    Ok(Presence { whole: false, ..found })
}

fn hit(tokens: u32) -> Result<Presence, PoolError> {
    Ok(Presence { hit_tokens: tokens, ..Presence::default() })
}

/// Drops a question when the server has it.
async fn give_up_once_heard(pool: &Ems, question: &Question, server: &EmsLookup) {
    let before = server.seen().len();
    tokio::select! {
        found = pool.lookup(question) => panic!("{found:?} from a server that hangs"),
        () = eventually("it arrives", async || server.seen().len() > before) => {}
    }
}

#[tokio::test]
async fn leading_blocks_are_found_and_the_one_of_the_last_token_is_not_asked_for() {
    let server = server().await;
    let pool = Ems::new(settings([&server]));
    let (question, hashes) = prompt(20);
    assert_eq!(ask(&pool, &question).await, hit(0));
    server.hold(hashes.iter().copied().filter(|hash| *hash != hashes[2]));
    assert_eq!(ask(&pool, &question).await, hit(8));
    server.hold(hashes.clone());
    let found = ask(&pool, &question).await;
    assert_eq!(found, hit(16), "20 tokens are five blocks, the last is computed anew");
    assert_eq!(found.unwrap().fetchable_tokens(), 16, "by every engine");
    for asked in server.seen() {
        assert_eq!((&asked[..4], asked.len()), (&hashes[..4], 5), "and one hash that does not exist");
        assert!(!hashes.contains(&asked[4]));
    }
    for short in [0, 1, 4] {
        assert_eq!(ask(&pool, &prompt(short).0).await, hit(0));
    }
    assert_eq!(
        (server.seen().len(), server.connections()),
        (3, 1),
        "nothing to ask, and one connection for all"
    );
    let (long, hashes) = prompt(5000);
    server.hold(hashes);
    assert_eq!(ask(&pool, &long).await, hit(4996));
    let wrong = Question { hashes: Arc::from([BlockHash::from([1; 32])]), ..question };
    assert!(matches!(ask(&pool, &wrong).await, Err(PoolError::Refused(_))));
    assert!(!server.is_dead());
}

#[tokio::test]
async fn a_pool_that_raises_has_everything_and_is_not_believed() {
    let server = server().await;
    let pool = Ems::new(settings([&server]));
    server.set(EmsAnswering::All);
    let Err(PoolError::Refused(why)) = ask(&pool, &prompt(400).0).await else { panic!("not believed") };
    assert!(why.contains("does not exist"), "{why}");
    let Err(PoolError::Refused(why)) = ask(&pool, &prompt(400).0).await else { panic!("nor asked again") };
    assert!(why.contains("left alone"), "{why}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn one_question_at_a_time_and_others_do_not_wait() {
    let server = server().await;
    let pool = Ems::new(settings([&server]));
    let (question, _) = prompt(20);
    server.set(EmsAnswering::Late(IMPATIENCE));
    let asked = futures_util::future::join_all((0..8).map(|_| ask(&pool, &question))).await;
    assert_eq!(asked[0], hit(0));
    assert!(asked[1..].iter().all(|other| *other == Err(PoolError::Busy)), "{asked:?}");
    assert_eq!((server.most_open(), server.seen().len()), (1, 1));
}

#[tokio::test]
async fn a_question_that_is_given_up_takes_its_socket_along() {
    let server = server().await;
    let pool = Ems::new(settings([&server]));
    let (question, hashes) = prompt(20);
    assert_eq!(ask(&pool, &question).await, hit(0));
    server.hold(hashes);
    server.set(EmsAnswering::Hang);
    give_up_once_heard(&pool, &question, &server).await;
    assert!(matches!(ask(&pool, &question).await, Err(PoolError::Refused(_))), "left alone at once");
    server.set(EmsAnswering::Prefix);
    // A second later it is checked, three times, with nothing but the hash that does not exist.
    let found = eventually("it comes back", async || {
        let answer = ask(&pool, &question).await;
        assert!(matches!(answer, Ok(_) | Err(PoolError::Refused(_))), "{answer:?}");
        answer
    });
    assert_eq!(found.await.hit_tokens, 16);
    assert_eq!(server.connections(), 2, "the socket of the question given up was not used again");
    let lengths: Vec<usize> = server.seen().iter().map(Vec::len).collect();
    assert_eq!(lengths, [5, 5, 1, 1, 1, 5]);
    assert!(!server.is_dead());
}

#[tokio::test]
async fn malformed_answer_is_an_error_and_never_a_hit() {
    let frames = |body: &[u8]| [&[1, 0, 0, u8::try_from(body.len()).unwrap()], body].concat();
    for (how, unreachable) in [
        (EmsAnswering::Close, true),
        (EmsAnswering::Says(b"\x80\x04K\x06.".to_vec()), false),
        (EmsAnswering::Says(b"\x80\x04J\xff\xff\xff\xff.".to_vec()), false),
        (EmsAnswering::Says(b"\x80\x04N.".to_vec()), false),
        (EmsAnswering::Says(b"\x80\x04cos\nsystem\n(tR.".to_vec()), false),
        (EmsAnswering::Says(Vec::new()), false),
        (EmsAnswering::Sends(b"\x02\xff\xff\xff\xff\xff\xff\xff\xff".to_vec()), false),
        (EmsAnswering::Sends(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()), false),
        (EmsAnswering::Sends([frames(b"\x80\x04K\x01."), frames(b"\x80\x04K\x01.")].concat()), false),
    ] {
        let server = server().await;
        let pool = Ems::new(settings([&server]));
        server.set(how.clone());
        let error = ask(&pool, &prompt(20).0).await.unwrap_err();
        match error {
            PoolError::Unreachable(_) if unreachable => {}
            PoolError::Protocol(_) if !unreachable => {}
            _ => panic!("{how:?}: {error}"),
        }
    }
    let endpoint = Endpoint::parse(&place::own().to_string()).unwrap();
    let pool = Ems::new(EmsSettings { servers: vec![endpoint], ..settings([]) });
    assert!(matches!(ask(&pool, &prompt(20).0).await, Err(PoolError::Unreachable(_))));
    assert!(matches!(ask(&Ems::new(settings([])), &prompt(20).0).await, Err(PoolError::Refused(_))));
}

#[tokio::test]
async fn a_server_that_restarted_between_questions_is_connected_to_anew() {
    let first = server().await;
    let (addr, pool) = (first.addr(), Ems::new(settings([&first])));
    let (question, hashes) = prompt(20);
    assert_eq!(ask(&pool, &question).await, hit(0));
    drop(first);
    let second = eventually("the port is free again", async || EmsLookup::start(addr).await).await;
    second.hold(hashes);
    assert_eq!(ask(&pool, &question).await, hit(16), "no question was lost on the dead connection");
}

#[tokio::test]
async fn another_server_answers_for_a_shared_pool() {
    let (broken, good) = (server().await, server().await);
    let pool = Ems::new(settings([&broken, &good]));
    let (question, hashes) = prompt(20);
    broken.set(EmsAnswering::All);
    good.hold(hashes[..3].to_vec());
    for _ in 0..4 {
        assert_eq!(ask(&pool, &question).await, hit(12));
    }
    assert_eq!((broken.seen().len(), good.seen().len()), (1, 4), "asked in turn, until one is in trouble");
}

#[tokio::test]
async fn servers_that_read_their_own_host_say_where_blocks_are() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (mut listen, servers) =
        (Vec::new(), [server_at(any).await, server_at(any).await, server_at(any).await]);
    for (name, server) in ["127.0.0.1", "localhost", "127.0.0.1"].iter().zip(&servers) {
        listen.push(Endpoint::new(*name, server.addr().port()));
    }
    let (question, hashes) = prompt(40);
    servers[0].hold(hashes[..2].to_vec());
    servers[1].hold(hashes[..5].to_vec());
    // Another rank of the first one's host.
    servers[2].hold(hashes[..2].to_vec());
    let local = EmsSettings { servers: listen, reads_local: true, least_tokens: 8, ..settings([]) };
    let found = ask(&Ems::new(local.clone()), &question).await.unwrap();
    let near: Vec<_> = found.near.iter().map(|near| (&*near.host, near.tokens)).collect();
    assert_eq!((found.hit_tokens, near), (20, vec![("localhost", 20), ("127.0.0.1", 8)]));
    assert_eq!(found.fetchable_tokens(), 0, "engines read nothing from other hosts");
    servers[1].set(EmsAnswering::Close);
    let pool = Ems::new(EmsSettings { least_tokens: 12, ..local });
    let nothing = Presence { reach: LoadableBy::Own { fetchable_tokens: 0 }, ..Presence::default() };
    assert_eq!(
        ask(&pool, &question).await,
        Ok(nothing.clone()),
        "one is in trouble, engines don't load what the other has"
    );
    assert_eq!(ask(&pool, &prompt(1).0).await, Ok(nothing), "too short to be asked for");
    servers[0].set(EmsAnswering::Close);
    servers[2].set(EmsAnswering::Close);
    assert!(matches!(ask(&pool, &question).await, Err(PoolError::Unreachable(_))));
}

#[tokio::test]
async fn behind_the_gate_a_server_that_hangs_costs_the_deadline_once() {
    let server = server().await;
    server.set(EmsAnswering::Hang);
    let limits = GateLimits {
        deadline: Duration::from_millis(20),
        exchange: Duration::from_millis(500),
        fresh: Duration::from_secs(1),
        answers: 8,
        in_flight: 4,
        bytes: 1 << 20,
    };
    let gate = Gate::new(Arc::new(Ems::new(settings([&server]))), limits);
    let question = prompt(20).0;
    assert_eq!(gate.ask(Inquiry::formed(question.clone())).await.verdict, Verdict::TimedOut);
    let refused = async || gate.ask(Inquiry::formed(question.clone())).await.verdict == Verdict::Refused;
    eventually("the exchange is given up, and the server left alone", refused).await;
    assert_eq!((server.seen().len(), server.is_dead()), (1, false));
}

/// `tests/real/ems.sh` starts the servers and says where they are.
fn real(name: &str, block_tokens: usize) -> Ems {
    let address = std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let block_tokens = NonZeroUsize::new(block_tokens).unwrap();
    Ems::new(EmsSettings { servers: vec![Endpoint::parse(&address).unwrap()], block_tokens, ..settings([]) })
}

fn real_prompt(first: u32, tokens: u32) -> Question {
    let tokens: Vec<u32> = (first..first + tokens).collect();
    let hashes = ems::chain(ems::START, &tokens, NonZeroUsize::new(128).unwrap());
    let hashes = hashes.map(|hash| BlockHash::from(hash.to_be_bytes())).collect();
    Question { tokens: tokens.into(), hashes, ..Question::default() }
}

#[tokio::test]
#[ignore = "needs the servers of tests/real/ems.sh"]
async fn real_servers_find_what_they_have() {
    let pool = real("EMS_PREFIX", 128);
    for (first, tokens, found) in
        [(0, 128, 0), (0, 129, 128), (0, 8193, 8192), (0, 100_000, 8192), (0, 2_500_000, 8192), (1, 8193, 0)]
    {
        assert_eq!(ask(&pool, &real_prompt(first, tokens)).await, hit(found), "{tokens} tokens from {first}");
    }
    let pool = real("EMS_ALL", 128);
    let error = ask(&pool, &real_prompt(0, 8193)).await.unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
}

#[tokio::test]
#[ignore = "needs the servers of tests/real/ems.sh"]
async fn real_servers_that_are_slow_or_hang_are_spared() {
    let (pool, question) = (real("EMS_SLOW", 128), real_prompt(0, 8193));
    let asked = futures_util::future::join_all((0..8).map(|_| ask(&pool, &question))).await;
    assert_eq!(asked[0], hit(8192));
    assert!(asked[1..].iter().all(|other| *other == Err(PoolError::Busy)), "{asked:?}");
    let pool = real("EMS_HANGS", 128);
    for _ in 0..2 {
        assert_eq!(ask(&pool, &question).await, hit(8192), "it answers twice");
    }
    assert!(timeout(IMPATIENCE, pool.lookup(&question)).await.is_err(), "it hangs");
    for _ in 0..3 {
        let error = ask(&pool, &question).await.unwrap_err();
        assert!(error.to_string().contains("left alone"), "{error}");
    }
    // Another server has taken its place after a while: `tests/real/ems.sh` sees to that.
    let recovered = async || ask_briefly(&pool, &question).await == Some(hit(8192));
    eventually_within(6 * PATIENCE, "it comes back", recovered).await;
}

async fn ask_briefly(pool: &Ems, question: &Question) -> Option<Result<Presence, PoolError>> {
    timeout(IMPATIENCE, pool.lookup(question)).await.ok()
}
