//! In virtual time: what a request waits, whatever the pool does.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::Answer;
use super::*;
use crate::kvhash::keys::KeyBatch;

/// Ways in which the scripted pool answers.
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
    bytes: 64 << 10,
};

fn gate(how: How) -> (Arc<Gate>, Arc<Scripted>) {
    let pool = Arc::new(Scripted { how: Mutex::new(how), asked: AtomicUsize::new(0) });
    (Arc::new(Gate::new(pool.clone(), LIMITS)), pool)
}

fn inquiry(n: u32) -> Inquiry {
    Inquiry::formed(Question { tokens: Arc::from([n; 16]), ..Question::default() })
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap()
}

/// The verdict, and how long it took in virtual milliseconds.
async fn timed(gate: &Gate, n: u32) -> (Verdict, u64) {
    let began = Instant::now();
    let lookup = gate.ask(inquiry(n)).await;
    assert_eq!(
        lookup.presence.hit_tokens > 0,
        matches!(lookup.verdict, Verdict::Answered | Verdict::Partial)
    );
    (lookup.verdict, ms(began.elapsed()))
}

#[tokio::test(start_paused = true)]
async fn no_request_waits_beyond_the_pool_deadline() {
    for (how, verdict) in [
        (How::After(0), Verdict::Answered),
        (How::After(4), Verdict::Answered),
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
    assert_eq!(verdicts, [Verdict::Answered; 20]);
    assert_eq!(timed(&gate, 7).await, (Verdict::Answered, 0), "from memory");
    assert_eq!(pool.asked.load(Ordering::Relaxed), 1);
    tokio::time::sleep(LIMITS.fresh + Duration::from_millis(1)).await;
    assert_eq!(timed(&gate, 7).await, (Verdict::Answered, 3), "grown stale");
}

#[tokio::test(start_paused = true)]
async fn renewed_question_ignores_older_answers() {
    let (gate, pool) = gate(How::After(3));
    assert_eq!(timed(&gate, 7).await, (Verdict::Answered, 3));
    let (under_way, anew) = futures_util::future::join(timed(&gate, 8), gate.ask_anew(inquiry(8))).await;
    assert_eq!((under_way.0, anew.verdict), (Verdict::Answered, Verdict::Answered));
    assert_eq!(pool.asked.load(Ordering::Relaxed), 3, "an exchange of its own");
    assert_eq!(gate.ask_anew(inquiry(7)).await.verdict, Verdict::Answered);
    assert_eq!(pool.asked.load(Ordering::Relaxed), 4, "in spite of the fresh answer");
    assert_eq!(timed(&gate, 7).await, (Verdict::Answered, 0), "which it replaces");
    let crowd = (0..6).map(|n| gate.ask_anew(inquiry(n)));
    let crowd = futures_util::future::join_all(crowd).await;
    let busy = crowd.iter().filter(|lookup| lookup.verdict == Verdict::Busy).count();
    assert_eq!(busy, 6 - LIMITS.in_flight, "within the bounds of all questions");
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_serves_the_next_question() {
    let (gate, pool) = gate(How::After(20));
    assert_eq!(timed(&gate, 1).await, (Verdict::TimedOut, 5));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(timed(&gate, 1).await, (Verdict::Answered, 0));
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
    assert!(lock(&gate.shared.state).answers.len() <= LIMITS.answers + 1);
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
        assert_eq!(ask().await.0, Verdict::Answered, "{trouble:?}");
        assert_eq!(ask().await.0, Verdict::Answered, "{trouble:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_answers_by_errors_is_asked_and_its_errors_in_a_row_are_counted() {
    let (gate, pool) = gate(How::Refuses);
    for next in 0..5 {
        assert_eq!(timed(&gate, next).await.0, Verdict::Refused);
        assert_eq!(lock(&gate.shared.state).refusals, next + 1);
    }
    *pool.how.lock().unwrap() = How::After(0);
    assert_eq!(timed(&gate, 5).await.0, Verdict::Answered);
    assert_eq!(lock(&gate.shared.state).refusals, 0);
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
    assert_eq!(timed(&gate, 11).await.0, Verdict::Answered);
}

#[tokio::test]
async fn a_prompt_without_a_block_is_not_asked_for() {
    let (gate, pool) = gate(How::Never);
    let lookup = gate.ask(Inquiry::formed(Question::default())).await;
    let presence = Presence { whole: true, ..Presence::default() };
    assert_eq!(lookup, Lookup { presence, verdict: Verdict::Answered }, "nothing of it is missing");
    assert_eq!(pool.asked.load(Ordering::Relaxed), 0);
    let names: std::collections::HashSet<_> = Verdict::ALL.iter().map(|verdict| verdict.name()).collect();
    assert_eq!(names.len(), Verdict::ALL.len());
}

/// As [`inquiry`], and how it is formed.
fn forming(n: u32, form: impl FnOnce(Question) -> Result<Question, PoolError> + Send + 'static) -> Inquiry {
    let question = Question { tokens: Arc::from([n; 16]), ..Question::default() };
    Inquiry { form: Box::new(|| form(question)), ..inquiry(n) }
}

#[tokio::test(start_paused = true)]
async fn neither_a_known_answer_nor_a_pool_that_rests_costs_a_hash() {
    let (gate, pool) = gate(How::After(0));
    assert_eq!(timed(&gate, 1).await.0, Verdict::Answered);
    let untouched = |n| forming(n, |_| panic!("formed"));
    assert_eq!(gate.ask(untouched(1)).await.verdict, Verdict::Answered);
    *pool.how.lock().unwrap() = How::Unreachable;
    for n in 2..5 {
        timed(&gate, n).await;
    }
    assert_eq!(gate.ask(untouched(9)).await.verdict, Verdict::Off);
}

#[tokio::test]
async fn forming_counts_within_the_deadline_and_is_not_the_pools_fault() {
    let (gate, pool) = gate(How::After(0));
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let slow = |n, held: Option<std::sync::mpsc::Receiver<()>>| Inquiry {
        aside: true,
        ..forming(n, move |question| {
            // Until the other end is gone.
            held.map(|held| held.recv());
            Ok(question)
        })
    };
    assert_eq!(gate.ask(slow(1, Some(held))).await.verdict, Verdict::TimedOut);
    assert_eq!(pool.asked.load(Ordering::Relaxed), 0);
    drop(hold);
    let formed = async {
        while gate.ask(slow(1, None)).await.verdict != Verdict::Answered {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), formed).await.expect("what was formed late is asked");
    assert_eq!(lock(&gate.shared.state).breaker, Breaker::default());
}

#[tokio::test(start_paused = true)]
async fn a_question_that_can_not_be_formed_is_refused_and_says_nothing_of_the_pool() {
    let (gate, pool) = gate(How::After(0));
    for n in 0..9 {
        let inquiry = forming(n, |_| Err(PoolError::TooLarge("too many keys".to_owned())));
        assert_eq!(gate.ask(inquiry).await.verdict, Verdict::Refused);
    }
    assert_eq!((pool.asked.load(Ordering::Relaxed), timed(&gate, 9).await.0), (0, Verdict::Answered));
}

#[tokio::test(start_paused = true)]
async fn questions_under_way_have_a_bound_in_bytes() {
    let (gate, pool) = gate(How::Never);
    let large = |n, bytes| {
        let mut keys = KeyBatch::default();
        keys.push(0, &"k".repeat(bytes)).unwrap();
        forming(n, |question| Ok(Question { keys: Arc::new(keys), ..question }))
    };
    let verdicts = futures_util::future::join_all(
        [(1, 40 << 10), (2, 40 << 10), (3, 10 << 10)].map(|(n, bytes)| gate.ask(large(n, bytes))),
    );
    let verdicts: Vec<Verdict> = verdicts.await.iter().map(|lookup| lookup.verdict).collect();
    assert_eq!(verdicts, [Verdict::TimedOut, Verdict::Busy, Verdict::TimedOut]);
    tokio::time::sleep(LIMITS.exchange).await;
    *pool.how.lock().unwrap() = How::After(0);
    assert_eq!(gate.ask(large(4, 1 << 20)).await.verdict, Verdict::Answered, "alone, one may be of any size");
}

#[tokio::test(start_paused = true)]
async fn a_black_hole_is_left_alone_after_three_deadlines() {
    let (gate, pool) = gate(How::Never);
    let began = Instant::now();
    for n in 0..3 {
        let (gate, again) = (gate.clone(), gate.clone());
        let both = tokio::join!(timed(&gate, n), timed(&again, n));
        assert_eq!(both, ((Verdict::TimedOut, 5), (Verdict::TimedOut, 5)), "joined: it counts once");
    }
    // The exchange counts it at the instant at which those who asked give up, and perhaps after
    // them.
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(timed(&gate, 9).await, (Verdict::Off, 0));
    assert_eq!(
        timed(&gate, 1).await,
        (Verdict::Off, 0),
        "nor is an exchange joined that will not be answered"
    );
    assert!(began.elapsed() < LIMITS.exchange, "no exchange has ended yet");
    assert_eq!(pool.asked.load(Ordering::Relaxed), 3);
}
