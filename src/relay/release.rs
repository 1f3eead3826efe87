//! Hand-offs that lost their request.
//!
//! Once a prefiller has computed a prompt, its blocks stay pinned until a decoder fetches them or
//! the lease ends (vLLM
//! 0.32 with NIXL: 30 s; with Mooncake: 480 s). A client that leaves in that moment would strand
//! them. So the hand-off is a [`HandoffGuard`]: dropped before a decoder had it, it is queued, and
//! a decoder is asked for one token with it.
//!
//! The blocks are pinned some milliseconds before the prefiller's answer reaches us, and a hang-up
//! in between strands them just as well. So a prefill leg is `DetachedPrefill`: dropped, it goes on
//! in the queue for a grace time.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::dialect;
use crate::fleet::{
    InstanceId, Need, Outcome, PendingDecode, PendingDecodes, Reservation, Role, RoleOutlook,
};
use crate::obs::{Handoff, Meters};
use crate::relay::Relay;
use crate::relay::ask::Ask;
use crate::relay::concurrent_decode::Ended;
use crate::relay::failure::{Failure, FailureKind, Large};
use crate::relay::pause;
use crate::relay::refusals::{fetched_or_told, is_busy, late_status};
use crate::relay::whole_answer::{Reading, SizeLimit, read, whole};
use crate::upstream::Written;
use crate::util::boot_clock::BootInstant;
use crate::util::rng;

mod guard;

pub use guard::HandoffGuard;
use guard::lease;

/// Releases that run at the same time: each is a request more for decoders that may be busy.
const AT_ONCE: usize = 128;

/// One attempt at a release takes no longer, so that a decoder that hangs does not hold up the
/// others.
const RELEASE_TIME: Duration = Duration::from_secs(10);

/// An answer to a release is read up to this size: it has one token.
const ANSWER_BYTES: usize = 64 << 10;

/// Answers that are no success, and no word of a decoder that is busy, after which a hand-off is
/// left to expire: decoders are of one kind, and another one will most likely say the same.
const REFUSALS: usize = 2;

/// The first pause after an attempt at a release that came to nothing; it doubles.
const PAUSE: Duration = Duration::from_millis(50);

/// The longest such pause: a lease of 30 s has room for some attempts, and one of 480 s does not
/// cost thousands.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// While no decoder takes requests, one release tries in turn at this pace whether one is back:
/// nothing is computed for that.
const TRIAL_PAUSE: Duration = Duration::from_millis(200);

/// Bytes of request bodies that hand-offs in the queue may keep in memory. They wait for as long as
/// their lease when no decoder is there.
const HELD_BYTES: usize = 256 << 20;

/// The way into the queue of what is to be released.
#[derive(Clone, Debug)]
pub struct ReleaseQueue {
    queue: mpsc::Sender<AbandonedHandoff>,
    open: Arc<AtomicUsize>,
    /// Bytes of bodies that hand-offs in the queue keep.
    held: Arc<AtomicUsize>,
    capacity: usize,
    meters: Arc<Meters>,
    pending_decodes: PendingDecodes,
}

/// A prefill leg under way. Dropped before its end, it is handed to the queue.
pub(super) struct DetachedPrefill {
    leg: Option<PrefillLeg>,
    written: Written,
    grace: Duration,
    releases: ReleaseQueue,
}

/// Legs that go on without their request.
pub(super) type Legs = Pin<Box<dyn Future<Output = ()> + Send>>;

type PrefillLeg = Pin<Box<dyn Future<Output = Result<Ended, Failure>> + Send>>;

/// Obligation that lost its request.
pub struct AbandonedHandoff {
    left: Left,
    /// Counts it as open until it is dropped.
    _open: Open,
    /// A decoder is to fetch it.
    _pending_decode: PendingDecode,
}

enum Left {
    /// A prefill that may finish until then, and then leaves a hand-off.
    Prefill(PrefillLeg, Instant),
    /// Legs that had better end; they know how long that may take.
    Legs(Legs),
    /// A hand-off to be released.
    Handoff(Lost),
}

struct Lost {
    ask: Arc<Ask>,
    handoff: Bytes,
    prefiller: InstanceId,
    born: BootInstant,
    /// The prefiller may have let go of it.
    late: bool,
}

impl Lost {
    /// True if its lease is over. `configured`: the lease of one that tells none.
    fn is_over(&self, configured: Duration) -> bool {
        self.born.elapsed() >= lease(&self.handoff, configured)
    }
}

/// Share of the queue's limits that an orphan takes.
struct Open {
    open: Arc<AtomicUsize>,
    held: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Permits for releases at the same time.
struct ReleasePermits {
    /// Attempts while some decoder takes requests.
    places: Semaphore,
    /// Attempts while none does.
    trial: Semaphore,
}

/// Outcomes of one attempt at a release.
enum Attempt {
    /// A decoder has fetched it, or told the prefiller to let go.
    Done,
    /// A decoder may have it, and failed: nobody else is to be given it.
    Unknown,
    /// A decoder has turned it away, unread or not.
    Refused,
    /// No decoder has seen it.
    Unseen,
}

impl ReleaseQueue {
    /// Room for `capacity` orphans; those beyond it are left to their lease, and counted.
    pub fn new(
        capacity: usize,
        meters: &Arc<Meters>,
        pending_decodes: &PendingDecodes,
    ) -> (ReleaseQueue, mpsc::Receiver<AbandonedHandoff>) {
        let capacity = capacity.max(1);
        let (queue, orphans) = mpsc::channel(capacity);
        let (meters, pending_decodes) = (meters.clone(), pending_decodes.clone());
        let (open, held) = (Arc::default(), Arc::default());
        (ReleaseQueue { queue, open, held, capacity, meters, pending_decodes }, orphans)
    }

    /// True if anything waits to be released, or is being released.
    pub fn pending(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// Lets legs go on that lost their request; hung up on at once where there is no room.
    pub(super) fn finish(&self, legs: Legs) {
        self.submit(Left::Legs(legs));
    }

    fn submit(&self, left: Left) {
        let is_handoff = matches!(left, Left::Handoff(_));
        let bytes = match &left {
            Left::Handoff(lost) => lost.ask.body.bytes().len(),
            Left::Prefill(..) | Left::Legs(_) => 0,
        };
        let before = self.open.fetch_add(1, Ordering::Relaxed);
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let open = Open { open: self.open.clone(), held: self.held.clone(), bytes };
        let orphan = AbandonedHandoff { left, _open: open, _pending_decode: self.pending_decodes.one() };
        // One of whatever size has room.
        let has_room = before < self.capacity && (held <= HELD_BYTES || held == bytes);
        let taken = has_room && self.queue.try_send(orphan).is_ok();
        if is_handoff && !taken {
            self.meters.handoff(Handoff::Expired);
        }
    }
}

impl DetachedPrefill {
    /// `written` tells whether the prefiller may have the request; `grace` is what it gets after a
    /// hang-up.
    pub(super) fn new(
        leg: PrefillLeg,
        written: Written,
        grace: Duration,
        releases: ReleaseQueue,
    ) -> DetachedPrefill {
        DetachedPrefill { leg: Some(leg), written, grace, releases }
    }
}

impl Future for DetachedPrefill {
    type Output = Result<Ended, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Taken out while it runs: a leg that panics is not polled again.
        let Some(mut leg) = self.leg.take() else {
            return Poll::Pending;
        };
        let end = leg.as_mut().poll(cx);
        if end.is_pending() {
            self.leg = Some(leg);
        }
        end
    }
}

impl Drop for DetachedPrefill {
    fn drop(&mut self) {
        if let Some(leg) = self.leg.take().filter(|_| self.written.get()) {
            self.releases.submit(Left::Prefill(leg, Instant::now() + self.grace));
        }
    }
}

impl Relay {
    /// Takes care of orphans until it is aborted. There are at most as many as the queue's
    /// capacity.
    pub async fn release_orphans(self: Arc<Self>, mut orphans: mpsc::Receiver<AbandonedHandoff>) {
        let turns = Arc::new(ReleasePermits { places: Semaphore::new(AT_ONCE), trial: Semaphore::new(1) });
        let mut running = JoinSet::new();
        while let Some(orphan) = orphans.recv().await {
            while running.try_join_next().is_some() {}
            let (relay, turns) = (self.clone(), turns.clone());
            running.spawn(async move { relay.release(orphan, &turns).await });
        }
    }

    /// True if there may be a decoder that a hand-off can be released on.
    pub fn may_release(&self) -> bool {
        !matches!(self.fleet.outlook(Role::Decode), RoleOutlook::Resting | RoleOutlook::Empty)
    }

    async fn release(&self, orphan: AbandonedHandoff, turns: &ReleasePermits) {
        let AbandonedHandoff { left, _open, _pending_decode } = orphan;
        match left {
            Left::Prefill(leg, until) => {
                // Its guard, if it comes to one, is dropped here and so queued as a hand-off of its
                // own.
                let _ = tokio::time::timeout_at(until, leg).await;
            }
            Left::Legs(legs) => legs.await,
            Left::Handoff(lost) => {
                let end = lost.born.after(lease(&lost.handoff, self.settings.now().lease));
                // Not even begun when the lease is over: what is fetched then may be another
                // prompt's.
                let done = Instant::now() < end
                    && tokio::time::timeout_at(end, self.fetch(&lost, turns)).await.unwrap_or(false);
                self.meters.handoff(if done { Handoff::Released } else { Handoff::Expired });
            }
        }
    }

    /// Has a decoder fetch a hand-off: tries until one has, on any that lives, and to be stopped
    /// when the lease is over. False if no decoder is to be given it any more.
    async fn fetch(&self, lost: &Lost, turns: &ReleasePermits) -> bool {
        let (mut refused, mut late, mut made) = (Vec::new(), lost.late, 0);
        loop {
            let is_trial = !self.may_release();
            let turn =
                if is_trial { self.trial_turn(turns).await } else { turns.places.acquire().await.ok() };
            if is_trial && self.may_release() {
                continue;
            }
            // Timers stand still while the host is suspended, and the lease does not.
            if lost.is_over(self.settings.now().lease) {
                return false;
            }
            let attempt = self.fetch_on_one(lost, late, &mut refused).await;
            match attempt {
                Attempt::Done => return true,
                Attempt::Unknown => return false,
                // It may have told all the same, and the blocks be another prompt's by now.
                Attempt::Refused => late = true,
                Attempt::Unseen => {}
            }
            if refused.len() >= REFUSALS {
                return false;
            }
            if is_trial {
                // With the turn in hand: that is the pace.
                tokio::time::sleep(TRIAL_PAUSE).await;
                continue;
            }
            drop(turn);
            made += 1;
            tokio::time::sleep(pause::jittered(PAUSE, PAUSE_MAX, made, rng::random())).await;
        }
    }

    /// Waits for the turn to find out whether a decoder is back. None = one is, as others have
    /// found out.
    async fn trial_turn<'a>(&self, turns: &'a ReleasePermits) -> Option<SemaphorePermit<'a>> {
        let vacancy = self.fleet.vacancy(Role::Decode);
        loop {
            let mut changed = pin!(vacancy.changed().notified());
            changed.as_mut().enable();
            match self.fleet.outlook(Role::Decode) {
                RoleOutlook::Resting => {}
                // Nobody could be tried.
                RoleOutlook::Empty => {
                    changed.await;
                    continue;
                }
                RoleOutlook::Open | RoleOutlook::Crowded | RoleOutlook::Leaving => return None,
            }
            tokio::select! {
                turn = turns.trial.acquire() => return turn.ok(),
                () = changed => {}
            }
        }
    }

    /// One attempt, on the decoder that suits best of those that have not refused it.
    async fn fetch_on_one(&self, lost: &Lost, late: bool, refused: &mut Vec<InstanceId>) -> Attempt {
        let dialect = self.speech.now().dialect;
        let tokens = lost.ask.shape.prompt_tokens;
        let mut tried = self.fleet.avoided_consumers(lost.prefiller);
        tried.extend(self.fleet.lacking_model(Role::Decode, lost.ask.shape.model.as_deref()));
        tried.extend_from_slice(refused);
        let need = Need { tokens, tried: &tried, random: rng::random(), under_way: true, ..Need::default() };
        let Some(reservation) = self.fleet.pick(Role::Decode, need) else { return Attempt::Unseen };
        let (written, salt) = (Written::default(), late.then(rng::random));
        let sent = self.fetch_once(lost, &reservation, salt, &written);
        match tokio::time::timeout(RELEASE_TIME, sent).await {
            Ok(Ok(status)) if fetched_or_told(dialect, status) => {
                if status.is_success() {
                    self.fleet.report(reservation.instance(), Outcome::Served);
                }
                Attempt::Done
            }
            Ok(Ok(StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS)) => Attempt::Refused,
            Ok(Ok(_)) => {
                refused.push(reservation.instance().id());
                Attempt::Refused
            }
            Ok(Err(e)) if e.answered() => Attempt::Done,
            // It lives, and may have fetched or not.
            Ok(Err(e)) if e.accepted || e.why == FailureKind::BadReply => {
                refused.push(reservation.instance().id());
                Attempt::Refused
            }
            // It may have fetched, or died of it.
            _ if written.get() => Attempt::Unknown,
            Ok(Err(e)) if e.why == FailureKind::Connect => {
                self.fleet.report(reservation.instance(), Outcome::Unreachable);
                Attempt::Unseen
            }
            _ => Attempt::Unseen,
        }
    }

    /// One token on one decoder; the status of its answer, which is read to its end.
    async fn fetch_once(
        &self,
        lost: &Lost,
        reservation: &Reservation,
        salt: Option<u64>,
        written: &Written,
    ) -> Result<StatusCode, Failure> {
        let edit = dialect::release_edit(lost.ask.api, &lost.ask.body, &lost.handoff, salt);
        let leg = lost.ask.leg(reservation, &edit);
        let answer = self.send(leg, &lost.ask.headers, written).await?;
        if !answer.status().is_success() {
            return Ok(answer.status());
        }
        let limit = SizeLimit { bytes: ANSWER_BYTES, exceeded: Large::Answer };
        match read(lost.ask.api, whole(answer, limit).await?.into_body())? {
            Reading::Answer(_) => Ok(StatusCode::OK),
            Reading::Refusal(refusal) => match late_status(&refusal) {
                status if is_busy(status) => Ok(status),
                status => {
                    let why = FailureKind::Refused(status);
                    Err(Failure { accepted: true, ..Failure::new(why, true, "refused under a 200") })
                }
            },
        }
    }
}

#[cfg(test)]
mod tests;
