//! Questions to every engine of a fleet at intervals, each asked again as soon as its next turn
//! comes: no engine waits for the answer of another one.
//!
//! Those that did not answer the last time have few places of their own. So however many are
//! silent, and however long each takes to be, the others are asked in time.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::{Id, JoinSet};

/// Questions that are asked now, at most one to each engine.
#[derive(Debug)]
pub(super) struct Rounds<K> {
    asking: JoinSet<bool>,
    asked: HashMap<Id, K>,
    waited_for: HashSet<K>,
    /// Engines that did not answer the last time.
    silent: HashSet<K>,
    places: Arc<Semaphore>,
    silent_places: Arc<Semaphore>,
}

impl<K: Clone + Eq + Hash> Rounds<K> {
    /// So many questions at a time, and beside them so many to engines that were silent.
    pub(super) fn new(at_once: usize, silent_at_once: usize) -> Rounds<K> {
        Rounds {
            asking: JoinSet::new(),
            asked: HashMap::new(),
            waited_for: HashSet::new(),
            silent: HashSet::new(),
            places: Arc::new(Semaphore::new(at_once)),
            silent_places: Arc::new(Semaphore::new(silent_at_once)),
        }
    }

    /// Takes note of the answers that have come. To be called before each round.
    pub(super) fn take_answers(&mut self) {
        while let Some(ended) = self.asking.try_join_next_with_id() {
            let (id, answered) = match ended {
                Ok((id, answered)) => (id, answered),
                Err(broken) => (broken.id(), false),
            };
            if let Some(engine) = self.asked.remove(&id) {
                self.waited_for.remove(&engine);
                if answered {
                    self.silent.remove(&engine);
                } else {
                    self.silent.insert(engine);
                }
            }
        }
    }

    /// Forgets engines that are gone.
    pub(super) fn retain(&mut self, is_member: impl Fn(&K) -> bool) {
        self.silent.retain(is_member);
    }

    /// Asks an engine as soon as there is a place, unless its last question is still open.
    /// `question` says whether it answered.
    pub(super) fn ask(&mut self, engine: K, question: impl Future<Output = bool> + Send + 'static) {
        if !self.waited_for.insert(engine.clone()) {
            return;
        }
        let is_silent = self.silent.contains(&engine);
        let places = if is_silent { self.silent_places.clone() } else { self.places.clone() };
        let asking = self.asking.spawn(async move {
            // Never closed.
            let _place = places.acquire().await;
            question.await
        });
        self.asked.insert(asking.id(), engine);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silent_engines_do_not_delay_others() {
        let answers: Arc<[AtomicUsize]> = (0..100).map(|_| AtomicUsize::new(0)).collect();
        let mut rounds = Rounds::new(16, 4);
        for _ in 0..100 {
            rounds.take_answers();
            for engine in 0..100usize {
                let answers = answers.clone();
                rounds.ask(engine, async move {
                    let is_silent = engine.is_multiple_of(2);
                    let time_ms = if is_silent { 2_000 } else { 10 };
                    tokio::time::sleep(Duration::from_millis(time_ms)).await;
                    answers[engine].fetch_add(1, Ordering::Relaxed);
                    !is_silent
                });
            }
            tokio::time::sleep(Duration::from_millis(1_000)).await;
        }
        let asked = |engine: usize| answers[engine].load(Ordering::Relaxed);
        // But for the first round, in which nobody knows who is silent.
        assert!((0..50).all(|at| asked(2 * at + 1) >= 90), "{answers:?}");
        assert!((0..50).all(|at| asked(2 * at) >= 2), "{answers:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn question_that_breaks_is_asked_again() {
        let mut rounds = Rounds::new(1, 1);
        for _ in 0..3 {
            rounds.take_answers();
            assert!(rounds.waited_for.is_empty());
            rounds.ask("e", async { panic!("a reply that cannot be read") });
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        rounds.take_answers();
        rounds.retain(|_| false);
        assert!(rounds.silent.is_empty() && rounds.asked.is_empty());
    }
}
