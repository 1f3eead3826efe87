//! Single flight: equal questions share one exchange. A caller that asks while it is under way
//! waits for its outcome, too.
//!
//! The caller decides the type of an outcome, how long it is kept, and how long it is waited for.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::task::JoinSet;

/// Exchanges under way, by their question. Dropping it ends them.
pub struct SingleFlight<T> {
    table: Arc<Table<T>>,
    tasks: Mutex<JoinSet<()>>,
    most: usize,
}

type Table<T> = Mutex<HashMap<u128, PendingOutcome<T>>>;

/// Outcomes of starting a question.
pub enum Start<T, S> {
    /// An equal one is under way: its outcome is this one's.
    Join(PendingOutcome<T>),
    /// The caller makes the exchange and reports its outcome.
    Lead(FlightLeader<T>, PendingOutcome<T>),
    /// No exchange is needed: the value settles the question.
    Settled(S),
}

/// The outcome of an exchange, once it has one.
pub struct PendingOutcome<T>(watch::Receiver<Option<T>>);

/// The reporting end of an exchange. Dropping it removes the exchange from the table.
pub struct FlightLeader<T> {
    id: u128,
    table: Arc<Table<T>>,
    report: watch::Sender<Option<T>>,
}

impl<T> SingleFlight<T> {
    /// An empty table for at most `most` exchanges at a time.
    pub fn new(most: usize) -> Self {
        Self { table: Arc::default(), tasks: Mutex::default(), most }
    }

    /// Joins the exchange of `id`, or begins one unless `settle` settles the question. `settle`
    /// gets true if there is room for another exchange. It runs under the table's lock, and sees
    /// everything that an exchange stored before it finished.
    pub fn start<S>(&self, id: u128, settle: impl FnOnce(bool) -> Option<S>) -> Start<T, S> {
        let mut table = lock(&self.table);
        if let Some(coming) = table.get(&id) {
            return Start::Join(coming.clone());
        }
        if let Some(settled) = settle(table.len() < self.most) {
            return Start::Settled(settled);
        }
        let (report, coming) = watch::channel(None);
        let coming = PendingOutcome(coming);
        table.insert(id, coming.clone());
        Start::Lead(FlightLeader { id, table: self.table.clone(), report }, coming)
    }

    /// Runs an exchange. Must be called inside a tokio runtime.
    pub fn run(&self, exchange: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        // Ended tasks are dropped here, so that the set holds only those under way.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(exchange);
    }
}

impl<T> FlightLeader<T> {
    /// Sends the outcome to all waiting callers. A value that is to serve later callers must be
    /// stored before.
    pub fn finish(self, outcome: T) {
        self.report.send_replace(Some(outcome));
    }
}

impl<T> Drop for FlightLeader<T> {
    fn drop(&mut self) {
        lock(&self.table).remove(&self.id);
    }
}

impl<T: Clone> PendingOutcome<T> {
    /// Answer of the exchange; `None` when it ended without one: it was cut, or it panicked.
    pub async fn outcome(mut self) -> Option<T> {
        self.0.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone())
    }
}

impl<T> Clone for PendingOutcome<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for SingleFlight<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flights")
            .field("under_way", &lock(&self.table).len())
            .field("most", &self.most)
            .finish()
    }
}

/// Locks, ignoring poison: every change under the lock is one statement, so a panic leaves it
/// consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(single_flight: &SingleFlight<u8>, id: u128) -> Start<u8, &'static str> {
        single_flight.start(id, |room| (!room).then_some("full"))
    }

    #[tokio::test]
    async fn equal_questions_wait_for_one_outcome() {
        let single_flight = SingleFlight::new(1);
        let Start::Lead(flight, first) = begin(&single_flight, 7) else { panic!("nothing is under way") };
        let Start::Join(second) = begin(&single_flight, 7) else { panic!("an equal one is under way") };
        assert!(matches!(begin(&single_flight, 8), Start::Settled("full")));
        single_flight.run(async move { flight.finish(3) });
        assert_eq!((first.outcome().await, second.outcome().await), (Some(3), Some(3)));
        assert!(matches!(begin(&single_flight, 8), Start::Lead(..)), "it has made room");
    }

    #[tokio::test]
    async fn an_exchange_that_ends_without_an_outcome_makes_room_and_says_so() {
        let single_flight = SingleFlight::new(1);
        let Start::Lead(flight, coming) = begin(&single_flight, 7) else { panic!("nothing is under way") };
        drop(flight);
        assert_eq!(coming.outcome().await, None);
        let Start::Lead(flight, coming) = begin(&single_flight, 7) else { panic!("it has made room") };
        single_flight.run(async move {
            let _held = flight;
            std::future::pending().await
        });
        drop(single_flight);
        assert_eq!(coming.outcome().await, None, "whoever owns the exchanges ends them");
    }
}
