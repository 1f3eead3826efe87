//! Letting requests in: so many at a time, so many waiting, in turn between keys.

mod line;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::auth::{Caller, HeldPlace};
use crate::error::{Error, Kind};
use crate::obs::Meters;
use crate::route::estimate;
use line::{Entered, Full, Line, Terms, Ticket};

/// The admission gate.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Inner>);

/// Limits of the gate.
#[derive(Clone, Copy, Debug)]
pub struct GateLimits {
    /// Number of requests inside.
    pub inflight: usize,
    /// Of these, those of one key, where keys are asked for.
    pub inflight_per_key: usize,
    /// Number of requests that wait.
    pub queue: usize,
    /// Of these, those of one key, where keys are asked for.
    pub queue_per_key: usize,
    /// Longest time that one may wait.
    pub patience: Duration,
    /// True if keys are asked for. If not, the line is one caller's.
    pub keys: bool,
}

#[derive(Debug)]
struct Inner {
    line: Mutex<Line<oneshot::Sender<Pass>>>,
    limits: GateLimits,
    meters: Arc<Meters>,
}

/// The right to be served; given back when dropped, which is when the last byte of the answer is
/// out.
#[derive(Debug)]
pub struct Pass {
    gate: Arc<Inner>,
    flow: Arc<str>,
    /// Tokens that it was charged.
    charged: u64,
    /// Tokens that it took in the end.
    took: Option<u64>,
    /// Place of its key, once it was told that it is in.
    place: Option<HeldPlace>,
}

/// One more in the line, until dropped.
struct Waiting {
    gate: Arc<Inner>,
    flow: Arc<str>,
    ticket: Ticket,
}

impl Gate {
    /// A gate with nobody in it.
    pub fn new(limits: GateLimits, meters: Arc<Meters>) -> Gate {
        let line = Mutex::new(Line::new(limits.inflight.max(1), limits.queue));
        Gate(Arc::new(Inner { line, limits, meters }))
    }

    /// Number of requests inside.
    pub fn inside(&self) -> usize {
        self.0.lock().inside()
    }

    /// Requests that wait to be let in.
    pub fn waiting(&self) -> usize {
        self.0.lock().waiting()
    }

    /// Turns away a request that would not be let in now and could not wait, before anything of its
    /// body is read.
    ///
    /// # Errors
    /// Those of [`Gate::enter`], but for that of a wait.
    pub fn check(&self, caller: &Caller) -> Result<(), Error> {
        if !caller.has_place() {
            return Err(self.0.refuse_place());
        }
        let full = self.0.lock().full(&self.terms(caller, 0));
        full.map_or(Ok(()), |full| Err(self.0.refuse(full)))
    }

    fn terms(&self, caller: &Caller, prompt_tokens: u64) -> Terms {
        let limits = &self.0.limits;
        Terms {
            flow: caller.name.clone(),
            weight: caller.grants.priority.weight(),
            share: if limits.keys { limits.inflight_per_key } else { limits.inflight },
            waiting: if limits.keys { limits.queue_per_key } else { limits.queue },
            cost_tokens: prompt_tokens + estimate::output_tokens(None),
        }
    }

    /// Waits for a place. `prompt_tokens` is the estimated length of the prompt, by which it is
    /// charged until more is known.
    ///
    /// # Errors
    /// `Overloaded` when the queue is full or the wait too long, `RateLimited` when the caller has
    /// as many inside as it may.
    pub async fn enter(&self, caller: &Caller, prompt_tokens: u64) -> Result<Pass, Error> {
        let (inner, terms) = (&self.0, self.terms(caller, prompt_tokens));
        let place = caller.take_place().ok_or_else(|| inner.refuse_place())?;
        let mut told = None;
        let entered = inner.lock().enter(&terms, || {
            let (tell, hear) = oneshot::channel();
            told = Some(hear);
            tell
        });
        let (ticket, told) = match (entered, told) {
            (Entered::In, _) => return Ok(Inner::pass(inner, terms.flow, terms.cost_tokens).of(place)),
            (Entered::Refused(full), _) => return Err(inner.refuse(full)),
            (Entered::Waits(ticket), Some(told)) => (ticket, told),
            (Entered::Waits(_), None) => return Err(inner.refuse(Full::Line)),
        };
        inner.meters.queued.increment(1.0);
        let _place = Waiting { gate: inner.clone(), flow: terms.flow.clone(), ticket };
        // Whoever could tell is kept in the line, so the inner error stands for a wait without end
        // as well.
        match tokio::time::timeout(inner.limits.patience, told).await {
            Ok(Ok(pass)) => Ok(pass.of(place)),
            _ => {
                inner.meters.turned_away("queue_wait");
                let message = "the gateway is at its limit of requests and the wait was too long";
                Err(Error::new(Kind::Overloaded, message))
            }
        }
    }
}

impl Inner {
    fn pass(gate: &Arc<Inner>, flow: Arc<str>, charged: u64) -> Pass {
        gate.meters.inflight.increment(1.0);
        Pass { gate: gate.clone(), flow, charged, took: None, place: None }
    }

    fn refuse(&self, full: Full) -> Error {
        let (kind, reason, message) = match full {
            Full::Line => (
                Kind::Overloaded,
                "queue_full",
                "the gateway is at its limit of requests and its queue is full",
            ),
            Full::Share => (
                Kind::Overloaded,
                "queue_share",
                "the gateway is at its limit of requests and this key's share of its queue is full",
            ),
        };
        self.meters.turned_away(reason);
        Error::new(kind, message)
    }

    /// The refusal of a key that has no place.
    fn refuse_place(&self) -> Error {
        self.meters.turned_away("key_inflight");
        Error::new(Kind::RateLimited, "this key has as many requests under way as it may")
    }

    /// Lets in whoever can be.
    fn pump(self: &Arc<Inner>) {
        loop {
            let Some((flow, charged, tell)) = self.lock().next() else { return };
            // Who left in this very moment gives its pass back right here, outside the lock.
            if let Err(mut pass) = tell.send(Inner::pass(self, flow, charged)) {
                pass.took(0);
            }
        }
    }

    /// A panic elsewhere leaves the line usable.
    fn lock(&self) -> MutexGuard<'_, Line<oneshot::Sender<Pass>>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass {
    fn of(mut self, place: HeldPlace) -> Pass {
        self.place = Some(place);
        self
    }

    /// The request took so many tokens, prompt and output.
    pub fn took(&mut self, tokens: u64) {
        self.took = Some(tokens);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.gate.lock().cancel(&self.flow, self.ticket);
        self.gate.meters.queued.decrement(1.0);
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let took = self.took.unwrap_or(self.charged);
        self.gate.lock().leave(&self.flow, self.charged, took);
        self.gate.meters.inflight.decrement(1.0);
        self.gate.pump();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{ANYONE, Callers, Digest, Grants, file::Entry};

    fn gate(inflight: usize, queue: usize, queue_per_key: usize) -> Gate {
        let patience = Duration::from_millis(50);
        let (inflight_per_key, keys) = (inflight.div_ceil(2), queue_per_key < queue);
        let limits = GateLimits { inflight, inflight_per_key, queue, queue_per_key, patience, keys };
        Gate::new(limits, Arc::default())
    }

    fn caller(name: &str, requests_inflight: Option<usize>) -> Arc<Caller> {
        let grants = Grants { requests_inflight, ..Grants::default() };
        let digest = Digest::of(name.as_bytes());
        Callers::of(vec![Entry { name: name.into(), digest, grants }]).of_key(name.as_bytes()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_full_gate_queues_and_the_full_queue_refuses() {
        let (gate, anyone) = (gate(1, 1, 1), caller(ANYONE, None));
        let first = gate.enter(&anyone, 0).await.unwrap();
        let (waiting, refused) = tokio::join!(gate.enter(&anyone, 0), gate.enter(&anyone, 0));
        assert_eq!(refused.unwrap_err().kind(), Kind::Overloaded);
        assert_eq!(waiting.unwrap_err().kind(), Kind::Overloaded, "its patience ended");
        assert_eq!(gate.inside(), 1);
        drop(first);
        assert_eq!(gate.inside(), 0);
        assert!(gate.enter(&anyone, 0).await.is_ok());
        assert_eq!(gate.0.lock().waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_request_is_admitted_when_one_leaves() {
        let (gate, anyone) = (gate(1, 1, 1), caller(ANYONE, None));
        let first = gate.enter(&anyone, 0).await.unwrap();
        let leave = async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            drop(first);
        };
        let (second, ()) = tokio::join!(gate.enter(&anyone, 0), leave);
        assert!(second.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_loud_key_keeps_nobody_out() {
        let (gate, loud, quiet) = (gate(1, 8, 4), caller("loud", None), caller("quiet", None));
        let first = gate.enter(&loud, 0).await.unwrap();
        let mut order = Vec::new();
        let (told, mut hear) = tokio::sync::mpsc::channel(8);
        let one = async |caller: &Caller| {
            if let Ok(_pass) = gate.enter(caller, 100).await {
                told.send(caller.name.to_string()).await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let louds = async { futures_util::future::join_all((0..6).map(|_| one(&loud))).await };
        let later = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tokio::join!(one(&quiet), async { drop(first) });
        };
        tokio::join!(louds, later);
        while let Ok(name) = hear.try_recv() {
            order.push(name);
        }
        assert_eq!(order.len(), 5, "two found their share of the line full");
        assert!(order[..2].contains(&"quiet".to_owned()), "{order:?}");
        assert_eq!((gate.inside(), gate.0.lock().waiting()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_dropped_at_any_point_leaves_nothing() {
        let (gate, anyone) = (gate(1, 4, 4), caller(ANYONE, None));
        for moment in 0..20 {
            let first = gate.enter(&anyone, 0).await.unwrap();
            let wait = tokio::time::timeout(Duration::from_millis(moment), gate.enter(&anyone, 0));
            let leave = async {
                tokio::time::sleep(Duration::from_millis(10)).await;
                drop(first);
            };
            let (waited, ()) = tokio::join!(wait, leave);
            drop(waited);
            assert_eq!((gate.inside(), gate.0.lock().waiting()), (0, 0), "left after {moment} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_has_as_many_inside_as_it_may() {
        let (gate, single) = (gate(9, 9, 4), caller("single", Some(1)));
        let first = gate.enter(&single, 0).await.unwrap();
        assert_eq!(gate.enter(&single, 0).await.unwrap_err().kind(), Kind::RateLimited);
        drop(first);
        assert!(gate.enter(&single, 0).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn one_key_does_not_take_all_places() {
        let (gate, loud, quiet) = (gate(4, 8, 4), caller("loud", None), caller("quiet", None));
        let mut louds = [gate.enter(&loud, 0).await.unwrap(), gate.enter(&loud, 0).await.unwrap()];
        assert_eq!(gate.enter(&loud, 0).await.unwrap_err().kind(), Kind::Overloaded, "it waited in vain");
        let waits = async { gate.enter(&loud, 0).await.map(drop) };
        let others = async {
            let _pass = gate.enter(&quiet, 0).await.unwrap();
            assert_eq!((gate.inside(), gate.waiting()), (3, 1));
            louds[0].took(0);
            drop(louds);
        };
        let (waited, ()) = tokio::join!(waits, others);
        assert!(waited.is_ok(), "it is let in when one of its own leaves");
    }

    #[tokio::test(start_paused = true)]
    async fn certain_refusal_precedes_the_body() {
        let (gate, single) = (gate(9, 9, 4), caller("single", Some(1)));
        assert!(gate.check(&single).is_ok());
        let _first = gate.enter(&single, 0).await.unwrap();
        assert_eq!(gate.check(&single).unwrap_err().kind(), Kind::RateLimited);
    }
}
