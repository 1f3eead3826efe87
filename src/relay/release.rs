//! Hand-offs that lost their request.
//!
//! Once a prefiller has computed a prompt, its blocks stay pinned until a decoder fetches them or the lease ends (vLLM
//! 0.32 with NIXL: 30 s; with Mooncake: 480 s). A client that leaves in that moment would strand them. So the hand-off is
//! a [`Duty`]: dropped before a decoder had it, it is queued, and a decoder is asked for one token with it.
//!
//! The blocks are pinned some milliseconds before the prefiller's answer reaches us, and a hang-up in between strands
//! them just as well. So a prefill leg is `Unfinished`: dropped, it goes on in the queue for a grace time.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::dialect::kv_transfer::{self, Prefilled};
use crate::dialect::usage::Usage;
use crate::fleet::{Need, Role, Seat};
use crate::obs::{Handoff, Meters};
use crate::relay::Relay;
use crate::relay::ask::Ask;
use crate::relay::legs::{Failure, PrefillEnd};
use crate::relay::pause;
use crate::upstream::{Leg, Written};

/// A hand-off is used within this share of its lease: the decoder still needs time to fetch.
const LEASE_SHARE: f64 = 0.8;

/// Releases that run at the same time.
const AT_ONCE: usize = 128;

/// Decoders that are asked before a hand-off is left to expire.
const ATTEMPTS: usize = 2;

/// What a prefiller keeps for us, and the obligation to free it.
#[derive(Debug)]
pub struct Duty {
    ask: Arc<Ask>,
    handoff: Option<Bytes>,
    usage: Usage,
    /// Keeps the held tokens on the prefiller's account.
    _seat: Seat,
    born: Instant,
    /// Of the decode request that has the hand-off.
    written: Option<Written>,
    state: State,
    releases: Releases,
}

/// Who has the hand-off.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// We, or a decode request that is on its way.
    Open,
    /// A decoder has fetched the KV, or told the prefiller that it will not.
    Settled,
    /// A decoder failed with it: nobody knows.
    Lost,
}

/// The way into the queue of hand-offs to release.
#[derive(Clone, Debug)]
pub struct Releases {
    queue: mpsc::Sender<Orphan>,
    open: Arc<AtomicUsize>,
    meters: Arc<Meters>,
}

/// A prefill leg under way. Dropped before its end, it is handed to the queue.
pub(super) struct Unfinished {
    leg: Option<PrefillLeg>,
    releases: Releases,
}

type PrefillLeg = Pin<Box<dyn Future<Output = Result<PrefillEnd, Failure>> + Send>>;

/// What lost its request.
pub struct Orphan(Left);

enum Left {
    /// A prefill that may finish, and then leaves a hand-off.
    Prefill(PrefillLeg),
    /// A hand-off.
    Handoff { ask: Arc<Ask>, handoff: Bytes, born: Instant },
}

impl Releases {
    /// A queue for `capacity` hand-offs; those beyond it are left to their lease, and counted.
    pub fn new(capacity: usize, meters: Arc<Meters>) -> (Releases, mpsc::Receiver<Orphan>) {
        let (queue, orphans) = mpsc::channel(capacity.max(1));
        (Releases { queue, open: Arc::default(), meters }, orphans)
    }

    /// Whether hand-offs wait to be released, or are being released.
    pub fn pending(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    fn submit(&self, left: Left) {
        let handoff = matches!(left, Left::Handoff { .. });
        self.open.fetch_add(1, Ordering::Relaxed);
        if self.queue.try_send(Orphan(left)).is_err() {
            self.settled(handoff.then_some(Handoff::Expired));
        }
    }

    fn settled(&self, outcome: Option<Handoff>) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        outcome.into_iter().for_each(|o| self.meters.handoff(o));
    }
}

impl Duty {
    /// Takes over what a prefiller has just promised.
    pub fn new(ask: Arc<Ask>, reply: Prefilled, seat: Seat, releases: Releases) -> Duty {
        let Prefilled { handoff, usage } = reply;
        Duty {
            ask,
            handoff,
            usage,
            _seat: seat,
            born: Instant::now(),
            written: None,
            state: State::Open,
            releases,
        }
    }

    /// The prefiller's token counts.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Whether the hand-off is too old to be used.
    pub fn stale(&self, lease: Duration) -> bool {
        self.handoff.is_some() && self.born.elapsed() >= lease.mul_f64(LEASE_SHARE)
    }

    /// Gives the hand-off to a decode request, whose progress `written` tells.
    pub fn give(&mut self, written: &Written) -> Option<&Bytes> {
        self.written = Some(written.clone());
        self.handoff.as_ref()
    }

    /// A decoder has answered: it has fetched the KV, or refused and told the prefiller so.
    pub fn used(&mut self) {
        self.state = State::Settled;
    }

    /// A decoder that had the whole request failed. It may have fetched the KV or not, and it may have died of this
    /// very hand-off: no other decoder gets it.
    pub fn lost(&mut self) {
        self.state = State::Lost;
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        let Some(handoff) = self.handoff.take() else {
            return;
        };
        let written = self.written.as_ref().is_some_and(Written::get);
        match self.state {
            State::Settled => self.releases.meters.handoff(Handoff::Used),
            State::Lost => self.releases.meters.handoff(Handoff::Expired),
            // The client left while a decoder had the request: hung up on, it frees both sides.
            State::Open if written => self.releases.meters.handoff(Handoff::Used),
            State::Open => {
                self.releases.submit(Left::Handoff { ask: self.ask.clone(), handoff, born: self.born })
            }
        }
    }
}

impl Unfinished {
    pub(super) fn new(leg: PrefillLeg, releases: Releases) -> Unfinished {
        Unfinished { leg: Some(leg), releases }
    }
}

impl Future for Unfinished {
    type Output = Result<PrefillEnd, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(leg) = &mut self.leg else {
            return Poll::Pending;
        };
        let end = ready!(leg.as_mut().poll(cx));
        self.leg = None;
        Poll::Ready(end)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(leg) = self.leg.take() {
            self.releases.submit(Left::Prefill(leg));
        }
    }
}

impl Relay {
    /// Takes care of orphans, a few at a time, until it is dropped.
    pub async fn release_orphans(self: Arc<Self>, mut orphans: mpsc::Receiver<Orphan>) {
        let mut running = JoinSet::new();
        while let Some(Orphan(left)) = orphans.recv().await {
            while running.try_join_next().is_some() {}
            if running.len() >= AT_ONCE {
                running.join_next().await;
            }
            let relay = self.clone();
            running.spawn(async move { relay.release(left).await });
        }
        running.join_all().await;
    }

    async fn release(&self, left: Left) {
        let outcome = match left {
            Left::Prefill(leg) => {
                // Its duty, if it comes to one, is dropped here and so queued as a hand-off of its own.
                let _ = tokio::time::timeout(self.settings.abandon_grace, leg).await;
                None
            }
            Left::Handoff { ask, handoff, born } => Some(self.fetch(&ask, &handoff, born).await),
        };
        self.releases.settled(outcome);
    }

    async fn fetch(&self, ask: &Ask, handoff: &Bytes, born: Instant) -> Handoff {
        let mut tried = Vec::new();
        for _ in 0..ATTEMPTS {
            let left = self.settings.lease.saturating_sub(born.elapsed());
            let need = Need { tokens: ask.shape.prompt_tokens, tried: &tried, random: pause::random() };
            let Some(seat) = self.fleet.pick(Role::Decode, need).filter(|_| !left.is_zero()) else {
                break;
            };
            tried.push(seat.instance().id());
            let written = Written::default();
            let fetched = tokio::time::timeout(left, self.fetch_once(ask, handoff, &seat, &written)).await;
            if matches!(fetched, Ok(true)) {
                return Handoff::Released;
            }
            if written.get() {
                break;
            }
        }
        Handoff::Expired
    }

    /// One token on one decoder; whatever it answers, it has fetched the KV or told the prefiller to let go.
    async fn fetch_once(&self, ask: &Ask, handoff: &Bytes, seat: &Seat, written: &Written) -> bool {
        let edit = kv_transfer::release_edit(ask.api, &ask.body, handoff);
        let leg = Leg {
            instance: seat.instance(),
            method: http::Method::POST,
            target: &ask.target,
            headers: ask.headers.clone(),
            body: ask.body.splice(&edit),
        };
        match self.upstream.send(leg, written).await {
            Ok(response) => response.status().is_success() || response.status().is_client_error(),
            Err(_) => false,
        }
    }
}
