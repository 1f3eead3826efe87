//! In virtual time: what a request waits, whatever the pool does.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::Answer;
use super::*;
use crate::kvhash::BlockHash;

/// How the scripted pool answers.
#[derive(Clone, Copy, Debug)]
enum How {
    After(u64),
    Never,
    Refuses,
    Unreachable,
    Panics,
}

struct Scripted {
    how: Mutex<How>,
    asked: AtomicUsize,
}

impl KvPool for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn lookup<'a>(&'a self, question: &'a Question) -> Answer<'a, Presence> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let how = *self.how.lock().unwrap();
        Box::pin(async move {
            match how {
                How::After(wait_ms) => {
                    tokio::time::sleep(Duration::from_millis(wait_ms)).await;
                    let hit_tokens = u32::try_from(question.tokens.len()).unwrap();
                    Ok(Presence { hit_tokens, ..Presence::default() })
                }
                How::Never => std::future::pending().await,
                How::Refuses => Err(PoolError::Refused("no".to_owned())),
                How::Unreachable => Err(PoolError::Unreachable("gone".to_owned())),
                How::Panics => panic!("scripted"),
            }
        })
    }
}

const LIMITS: GateLimits = GateLimits {
    deadline: Duration::from_millis(5),
    exchange: Duration::from_millis(100),
    fresh: Duration::from_millis(1000),
    answers: 3,
    in_flight: 4,
};

fn gate(how: How) -> (Arc<Gate>, Arc<Scripted>) {
    let pool = Arc::new(Scripted { how: Mutex::new(how), asked: AtomicUsize::new(0) });
    (Arc::new(Gate::new(pool.clone(), LIMITS)), pool)
}

fn question(n: u32) -> Arc<Question> {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&n.to_le_bytes());
    let (tokens, hashes) = (Arc::from([n; 16]), Arc::from([BlockHash::from(hash)]));
    Arc::new(Question { tokens, hashes, ..Question::default() })
}

/// The verdict, and how long it took in virtual milliseconds.
async fn timed(gate: &Gate, n: u32) -> (Verdict, u64) {
    let began = Instant::now();
    let lookup = gate.ask(question(n)).await;
    assert_eq!(lookup.presence.hit_tokens > 0, matches!(lookup.verdict, Verdict::Known | Verdict::Partial));
    (lookup.verdict, ms(began.elapsed()))
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_beyond_the_deadline_whatever_the_pool_does() {
    for (how, verdict) in [
        (How::After(0), Verdict::Known),
        (How::After(4), Verdict::Known),
        (How::After(40), Verdict::TimedOut),
        (How::Never, Verdict::TimedOut),
        (How::Refuses, Verdict::Refused),
        (How::Unreachable, Verdict::Unreachable),
        (How::Panics, Verdict::TimedOut),
    ] {
        let (gate, _) = gate(how);
        let (found, took_ms) = timed(&gate, 1).await;
        assert_eq!(found, verdict, "{how:?}");
        assert!(took_ms <= 6, "{how:?} took {took_ms} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn equal_questions_share_one_exchange_and_its_answer() {
    let (gate, pool) = gate(How::After(3));
    let all = (0..20).map(|_| {
        let gate = gate.clone();
        async move { timed(&gate, 7).await.0 }
    });
    let verdicts = futures_util::future::join_all(all).await;
    assert_eq!(verdicts, [Verdict::Known; 20]);
    assert_eq!(timed(&gate, 7).await, (Verdict::Known, 0), "from memory");
    assert_eq!(pool.asked.load(Ordering::Relaxed), 1);
    tokio::time::sleep(LIMITS.fresh + Duration::from_millis(1)).await;
    assert_eq!(timed(&gate, 7).await, (Verdict::Known, 3), "grown stale");
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_serves_the_next_who_asks() {
    let (gate, pool) = gate(How::After(20));
    assert_eq!(timed(&gate, 1).await, (Verdict::TimedOut, 5));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(timed(&gate, 1).await, (Verdict::Known, 0));
    assert_eq!(pool.asked.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn so_many_exchanges_at_most() {
    let (gate, _) = gate(How::Never);
    for n in 0..4 {
        assert_eq!(timed(&gate, n).await.0, Verdict::TimedOut);
    }
    assert_eq!(timed(&gate, 9).await, (Verdict::Busy, 0));
}

#[tokio::test(start_paused = true)]
async fn only_the_latest_answers_are_kept() {
    let (gate, pool) = gate(How::After(0));
    for n in 0..10 {
        timed(&gate, n).await;
    }
    timed(&gate, 9).await;
    assert_eq!(pool.asked.load(Ordering::Relaxed), 10);
    timed(&gate, 1).await;
    assert_eq!(pool.asked.load(Ordering::Relaxed), 11);
    assert!(lock(&gate.state).answers.len() <= LIMITS.answers + 1);
}

#[tokio::test(start_paused = true)]
async fn a_pool_in_trouble_is_left_alone_and_found_again_by_itself() {
    for trouble in [How::Never, How::Unreachable, How::After(50)] {
        let (gate, pool) = gate(trouble);
        let mut next = 0;
        let mut ask = async || {
            next += 1;
            tokio::time::sleep(LIMITS.exchange).await;
            timed(&gate, next).await
        };
        for _ in 0..4 {
            ask().await;
        }
        let asked = pool.asked.load(Ordering::Relaxed);
        let off = ask().await;
        assert_eq!((off, pool.asked.load(Ordering::Relaxed)), ((Verdict::Off, 0), asked), "{trouble:?}");
        *pool.how.lock().unwrap() = How::After(0);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(ask().await.0, Verdict::Known, "{trouble:?}");
        assert_eq!(ask().await.0, Verdict::Known, "{trouble:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_panics_does_not_keep_the_pool_off_for_ever() {
    let (gate, pool) = gate(How::Unreachable);
    for n in 0..3 {
        timed(&gate, n).await;
    }
    *pool.how.lock().unwrap() = How::Panics;
    tokio::time::sleep(Duration::from_millis(300)).await;
    timed(&gate, 10).await;
    *pool.how.lock().unwrap() = How::After(1);
    assert_eq!(timed(&gate, 11).await.0, Verdict::Known);
}

#[tokio::test]
async fn a_prompt_without_a_block_is_not_asked_for() {
    let (gate, pool) = gate(How::Never);
    let lookup = gate.ask(Arc::default()).await;
    assert_eq!(lookup, Lookup { presence: Presence::default(), verdict: Verdict::Known });
    assert_eq!(pool.asked.load(Ordering::Relaxed), 0);
    let names: std::collections::HashSet<_> = Verdict::ALL.iter().map(|verdict| verdict.name()).collect();
    assert_eq!(names.len(), Verdict::ALL.len());
}
