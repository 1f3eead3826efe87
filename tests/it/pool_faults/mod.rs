//! Every kind of pool through every fault that can befall it, asked through the gate that a
//! configuration makes: nobody waits beyond the deadline, no fault is taken for an answer, and when
//! it is over there are answers again.
//!
//! Sockets are real and time is not: a millisecond passes when whoever has something to do has had
//! the time for it.

mod proxy;
mod stage;

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use pd_proxy::app::pool;
use pd_proxy::config::{Config, PoolKind};
use pd_proxy::pool::{Gate, Inquiry, Question, Verdict};
use tokio::time::Instant;

use crate::common::time::{eventually_within, pass, unhurried};
use proxy::Wire;
use stage::{HIT_TOKENS, Stage};

const DEADLINE: Duration = Duration::from_millis(20);
const MS: Duration = Duration::from_millis(1);
/// Time that a fault lasts, with a question every few milliseconds: some exchanges come to their
/// end in it.
const LASTS: Duration = Duration::from_millis(1500);
/// The longest that coming back may take: some checks of EMS, or a pause between attempts to
/// connect.
const RECOVERY: Duration = Duration::from_secs(90);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nobody listens, and connections are reset.
    Refused,
    /// Nothing comes back, until it does again.
    BlackHole,
    /// Answers come, too late.
    Slow,
    /// Half an answer, then the end.
    Half,
    /// Answers to questions that nobody has asked.
    WrongSequence,
    /// Bytes that are no answer.
    Garbage,
    /// Gone, and back at once.
    Restart,
    /// The one that was asked is silent from now on; another one is not.
    LeaderVanishes,
    /// The one that was asked says that it does not lead.
    LeaderChanges,
}

impl Fault {
    /// Another service could answer, too.
    fn leaves_another(self) -> bool {
        matches!(self, Self::LeaderVanishes | Self::LeaderChanges)
    }
}

/// Faults of every kind of pool.
const COMMON: [Fault; 6] =
    [Fault::Refused, Fault::BlackHole, Fault::Slow, Fault::Half, Fault::Garbage, Fault::Restart];
/// Further faults, of some kinds.
const MATRIX: [(PoolKind, &[Fault]); 7] = [
    (PoolKind::Mooncake, &[Fault::WrongSequence, Fault::LeaderVanishes, Fault::LeaderChanges]),
    (PoolKind::MooncakeHttp, &[Fault::LeaderVanishes]),
    (PoolKind::Memcache, &[Fault::WrongSequence]),
    (PoolKind::MemcacheHttp, &[]),
    (PoolKind::Ems, &[Fault::LeaderVanishes]),
    (PoolKind::LmcacheController, &[]),
    (PoolKind::LmcacheCoordinator, &[]),
];

/// The gate of a configuration with this pool.
pub fn gate(kind: PoolKind, addresses: &[String], change: impl FnOnce(&mut Config)) -> Gate {
    let mut config = Config::default();
    config.pool.kind = kind;
    config.pool.addresses = addresses.to_vec();
    config.pool.deadline_ms = u64::try_from(DEADLINE.as_millis()).unwrap();
    config.pool.fresh_ms = 0;
    change(&mut config);
    let control = pd_proxy::tls::http().build().unwrap();
    pool::gate(&config, &control).unwrap().unwrap()
}

/// Asks, within the deadline, and what is told is all of the truth or nothing.
async fn ask(gate: &Gate, question: &Question) -> Verdict {
    let began = Instant::now();
    let lookup = gate.ask(Inquiry::formed(question.clone())).await;
    let took = began.elapsed();
    assert!(took <= DEADLINE + MS, "a request waited {took:?}");
    let there = if lookup.verdict == Verdict::Answered { HIT_TOKENS } else { 0 };
    assert_eq!(lookup.presence.hit_tokens, there, "{:?}", lookup.verdict);
    lookup.verdict
}

/// Asks until there is an answer.
async fn answers(stage: &Stage, when: String) {
    let answer = async || ask(&stage.gate, &stage.question).await == Verdict::Answered;
    eventually_within(RECOVERY, format!("an answer {when}"), answer).await;
}

async fn begin(stage: &Stage, fault: Fault) {
    match fault {
        Fault::Refused => stage.proxy.close(),
        Fault::Restart => {
            stage.proxy.close();
            stage.proxy.open().await;
        }
        Fault::BlackHole | Fault::LeaderVanishes => stage.proxy.set(Wire::Hole),
        Fault::Slow => stage.proxy.set(Wire::Slow(5 * DEADLINE)),
        Fault::Half => stage.proxy.set(Wire::Half),
        Fault::Garbage => stage.proxy.set(Wire::Garbage),
        Fault::WrongSequence => stage.service.wrong_sequence(true),
        Fault::LeaderChanges => stage.service.no_longer_leads(),
    }
}

/// A leader that is gone stays away.
async fn end(stage: &Stage, fault: Fault) {
    match fault {
        Fault::Refused => stage.proxy.open().await,
        Fault::WrongSequence => stage.service.wrong_sequence(false),
        Fault::LeaderVanishes | Fault::LeaderChanges | Fault::Restart => {}
        Fault::BlackHole | Fault::Slow | Fault::Half | Fault::Garbage => stage.proxy.set(Wire::Whole),
    }
}

/// The reports that a fault may cause while it lasts, and those that it must.
fn check(kind: PoolKind, fault: Fault, seen: &BTreeSet<&str>) {
    // Late answers serve who asks next.
    let may_be_known = fault.leaves_another() || matches!(fault, Fault::Restart | Fault::Slow);
    assert!(may_be_known || !seen.contains("answered"), "{}, {fault:?}: {seen:?}", kind.name());
    if matches!(fault, Fault::BlackHole | Fault::Slow) {
        // EMS's servers are left alone one by one, and more strictly.
        let alone = if (kind, fault) == (PoolKind::Ems, Fault::BlackHole) { "refused" } else { "off" };
        assert!(seen.contains("timed_out") && seen.contains(alone), "{}, {fault:?}: {seen:?}", kind.name());
    }
}

async fn survives(kind: PoolKind, fault: Fault) {
    let stage = Stage::new(kind, fault.leaves_another()).await;
    answers(&stage, format!("of {} before {fault:?}", kind.name())).await;
    begin(&stage, fault).await;
    // No answer is as fresh as that, and what was cut is gone.
    pass(2 * MS).await;
    let (began, mut seen) = (Instant::now(), BTreeSet::new());
    while began.elapsed() < LASTS {
        seen.insert(ask(&stage.gate, &stage.question).await.name());
        pass(3 * MS).await;
    }
    check(kind, fault, &seen);
    end(&stage, fault).await;
    answers(&stage, format!("of {} after {fault:?}", kind.name())).await;
}

async fn all_faults_of(wanted: PoolKind) {
    let (kind, own) = MATRIX.into_iter().find(|(kind, _)| *kind == wanted).unwrap();
    unhurried(join_all(COMMON.iter().chain(own).map(|fault| survives(kind, *fault)))).await;
}

#[tokio::test(start_paused = true)]
async fn mooncake() {
    all_faults_of(PoolKind::Mooncake).await;
}

#[tokio::test(start_paused = true)]
async fn mooncake_http() {
    all_faults_of(PoolKind::MooncakeHttp).await;
}

#[tokio::test(start_paused = true)]
async fn memcache() {
    all_faults_of(PoolKind::Memcache).await;
}

#[tokio::test(start_paused = true)]
async fn memcache_http() {
    all_faults_of(PoolKind::MemcacheHttp).await;
}

#[tokio::test(start_paused = true)]
async fn ems() {
    all_faults_of(PoolKind::Ems).await;
}

#[tokio::test(start_paused = true)]
async fn lmcache_controller() {
    all_faults_of(PoolKind::LmcacheController).await;
}

#[tokio::test(start_paused = true)]
async fn lmcache_coordinator() {
    all_faults_of(PoolKind::LmcacheCoordinator).await;
}

/// Files are looked at by threads, for which no clock stands still; what hangs is tested beside the
/// client.
#[tokio::test]
async fn a_share_that_goes_away_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("share");
    let question = stage::files(&root);
    let roots = vec![root.to_str().unwrap().to_owned()];
    let gate = gate(PoolKind::Ucm, &[], |config| {
        (config.key.roots, config.pool.deadline_ms) = (roots, 1000);
    });
    let comes = async |wanted: Verdict| {
        let verdict = async || gate.ask(Inquiry::formed(question.clone())).await.verdict;
        eventually_within(RECOVERY, format!("{wanted:?}"), async || verdict().await == wanted).await;
    };
    comes(Verdict::Answered).await;
    let away = dir.path().join("away");
    std::fs::rename(&root, &away).unwrap();
    comes(Verdict::Unreachable).await;
    comes(Verdict::Off).await;
    std::fs::rename(&away, &root).unwrap();
    comes(Verdict::Answered).await;
}
