//! Letting requests in: so many at a time, so many waiting, in the order of their arrival.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{Error, Kind};
use crate::obs::Meters;

/// The gate.
#[derive(Debug)]
pub struct Gate {
    seats: Arc<Semaphore>,
    waiting: AtomicUsize,
    inside: Arc<AtomicUsize>,
    queue: usize,
    patience: Duration,
    meters: Arc<Meters>,
}

/// The right to be served; given back when dropped, which is when the last byte of the answer is out.
#[derive(Debug)]
pub struct Pass {
    _permit: OwnedSemaphorePermit,
    inside: Arc<AtomicUsize>,
    meters: Arc<Meters>,
}

/// One more in the queue, until dropped.
struct Waiting<'a>(&'a Gate);

impl Gate {
    /// Lets `inflight` in; of the others `queue` wait, at most for `patience`.
    pub fn new(inflight: usize, queue: usize, patience: Duration, meters: Arc<Meters>) -> Gate {
        let seats = Arc::new(Semaphore::new(inflight.clamp(1, Semaphore::MAX_PERMITS)));
        Gate { seats, waiting: AtomicUsize::new(0), inside: Arc::default(), queue, patience, meters }
    }

    /// Requests inside.
    pub fn inside(&self) -> usize {
        self.inside.load(Ordering::Relaxed)
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// `Overloaded` when the queue is full or the wait too long.
    pub async fn enter(&self) -> Result<Pass, Error> {
        if let Ok(permit) = self.seats.clone().try_acquire_owned() {
            return Ok(self.pass(permit));
        }
        let _place = self.wait_in_line()?;
        // Nobody closes the semaphore, so the inner error stands for a wait without end as well.
        match tokio::time::timeout(self.patience, self.seats.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(self.pass(permit)),
            _ => Err(Error::new(
                Kind::Overloaded,
                "the gateway is at its limit of requests and the wait was too long",
            )),
        }
    }

    fn wait_in_line(&self) -> Result<Waiting<'_>, Error> {
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        self.meters.queued.increment(1.0);
        let place = Waiting(self);
        if before >= self.queue {
            return Err(Error::new(
                Kind::Overloaded,
                "the gateway is at its limit of requests and its queue is full",
            ));
        }
        Ok(place)
    }

    fn pass(&self, permit: OwnedSemaphorePermit) -> Pass {
        self.inside.fetch_add(1, Ordering::Relaxed);
        self.meters.inflight.increment(1.0);
        Pass { _permit: permit, inside: self.inside.clone(), meters: self.meters.clone() }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        self.0.meters.queued.decrement(1.0);
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.inside.fetch_sub(1, Ordering::Relaxed);
        self.meters.inflight.decrement(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(inflight: usize, queue: usize) -> Gate {
        Gate::new(inflight, queue, Duration::from_millis(50), Arc::default())
    }

    #[tokio::test(start_paused = true)]
    async fn the_full_gate_queues_and_the_full_queue_refuses() {
        let gate = Arc::new(gate(1, 1));
        let first = gate.enter().await.unwrap();
        let (waiting, refused) = tokio::join!(gate.enter(), gate.enter());
        assert_eq!(refused.unwrap_err().kind(), Kind::Overloaded);
        assert_eq!(waiting.unwrap_err().kind(), Kind::Overloaded, "its patience ended");
        assert_eq!(gate.inside(), 1);
        drop(first);
        assert_eq!(gate.inside(), 0);
        assert!(gate.enter().await.is_ok());
        assert_eq!(gate.waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_let_in_when_somebody_leaves() {
        let gate = Arc::new(gate(1, 1));
        let first = gate.enter().await.unwrap();
        let leave = async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            drop(first);
        };
        let (second, ()) = tokio::join!(gate.enter(), leave);
        assert!(second.is_ok());
    }
}
