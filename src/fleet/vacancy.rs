//! Vacancies of one role: whether any member could take a request now, without a look at each.
//!
//! The counts are made anew whenever a member comes, leaves, or its breaker opens or closes, and
//! are read once per request. What the answer means for a request is decided in `relay/vacancy.rs`.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

/// The pause after a trial that failed is this part of `health.rest_ms`, and doubles with each
/// further one: nobody else is there.
const TRIAL_PAUSE_PART: u64 = 10;
/// The longest pause between two trials, in ms: service is back within a second of the engine.
const TRIAL_PAUSE_MAX_MS: u64 = 1_000;
/// The longest pause after a look that found nobody, in ms: a refused connection costs next to
/// nothing.
const LOOK_PAUSE_MAX_MS: u64 = 100;
/// A trial that has not ended after this time, in ms, is not waited for: another one may begin.
const TRIAL_MS: u64 = 10_000;

/// The begin of a fleet's clock, in ms: 0 stands for a role that has a member.
const BEGIN_MS: u64 = 1;

/// State of a role for a request that would need a member of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleOutlook {
    /// Some member takes requests.
    Open,
    /// Members take requests, and all of them said a moment ago that they are busy.
    Crowded,
    /// There are members, and each one's breaker is open or half-open.
    Resting,
    /// All members drain: they finish what is under way, and get nothing new.
    Leaving,
    /// There is no member.
    Empty,
}

/// Counts of one role's members, and those who wait for a change of them.
#[derive(Debug)]
pub struct Vacancy {
    /// Members, those that drain included.
    members: AtomicUsize,
    /// Members that don't drain.
    serving: AtomicUsize,
    /// Members that don't drain and whose breaker is closed.
    accepting: AtomicUsize,
    /// All accepting members are busy; requests stand in line until one has room.
    crowded: AtomicBool,
    /// Time at which the last serving member left, in ms of the fleet's clock, or at which the
    /// fleet began without one; 0 = one serves.
    emptied_ms: AtomicU64,
    /// Told of every change of the counts.
    changed: Notify,
    /// Held by the request at the head of the line.
    line: Arc<Semaphore>,
    /// Requests in line, the one at its head included.
    waiting: AtomicUsize,
    /// Requests that wait for the first member of the role.
    awaiting: AtomicUsize,
    /// Requests that left the line and have no member yet.
    bound: Arc<AtomicUsize>,
    trial: Arc<Mutex<Pace>>,
}

/// Pace at which requests may find out if a resting role is back.
#[derive(Debug)]
struct Pace {
    /// A trial is under way until then, in ms; 0 = none is.
    until_ms: u64,
    next_ms: u64,
    /// After the next trial that fails.
    pause_ms: u64,
    /// After the first one.
    first_pause_ms: u64,
}

/// The right to be the one request that finds out whether a resting role is back. Given back when
/// dropped.
#[derive(Debug)]
pub struct Trial {
    pace: Arc<Mutex<Pace>>,
    /// By which a later trial is told from this one.
    until_ms: u64,
    begun_ms: u64,
    begun: Instant,
}

/// A request that left the line and has no member yet, until it is dropped.
#[derive(Debug)]
pub struct Bound(Arc<AtomicUsize>);

/// A request that waits, in line or for the first member, until it is dropped.
#[derive(Debug)]
pub struct QueuedRequest<'a>(&'a AtomicUsize);

impl Pace {
    fn new(first_pause_ms: u64) -> Pace {
        Pace { until_ms: 0, next_ms: 0, pause_ms: first_pause_ms, first_pause_ms }
    }
}

/// Counts of a role's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) members: usize,
    pub(super) serving: usize,
    pub(super) accepting: usize,
}

impl Vacancy {
    /// A role without members, whose members rest for `rest_ms` when they fail.
    pub(super) fn new(rest_ms: u64) -> Vacancy {
        Vacancy {
            members: AtomicUsize::new(0),
            serving: AtomicUsize::new(0),
            accepting: AtomicUsize::new(0),
            crowded: AtomicBool::new(false),
            emptied_ms: AtomicU64::new(BEGIN_MS),
            changed: Notify::new(),
            line: Arc::new(Semaphore::new(1)),
            waiting: AtomicUsize::new(0),
            awaiting: AtomicUsize::new(0),
            bound: Arc::default(),
            trial: Arc::new(Mutex::new(Pace::new(rest_ms / TRIAL_PAUSE_PART))),
        }
    }

    /// True if a request need not look any closer. The one question of the hot path.
    pub fn is_open(&self) -> bool {
        self.accepting.load(Ordering::Relaxed) > 0 && !self.crowded.load(Ordering::Relaxed)
    }

    /// State of the role.
    pub fn outlook(&self) -> RoleOutlook {
        if self.accepting.load(Ordering::Relaxed) > 0 {
            return if self.crowded.load(Ordering::Relaxed) {
                RoleOutlook::Crowded
            } else {
                RoleOutlook::Open
            };
        }
        if self.serving.load(Ordering::Relaxed) > 0 {
            return RoleOutlook::Resting;
        }
        if self.members.load(Ordering::Relaxed) > 0 { RoleOutlook::Leaving } else { RoleOutlook::Empty }
    }

    /// For how many ms the role has been without a serving member, from the begin of the fleet on;
    /// `None` if one serves.
    pub fn empty_ms(&self, now_ms: u64) -> Option<u64> {
        let emptied_ms = self.emptied_ms.load(Ordering::Relaxed);
        (emptied_ms > 0).then(|| now_ms.saturating_sub(emptied_ms))
    }

    /// Told of every change of the counts. To be enabled before the outlook is read.
    pub fn changed(&self) -> &Notify {
        &self.changed
    }

    /// Place where crowded requests stand in line: one permit, for the head of it.
    pub fn line(&self) -> &Arc<Semaphore> {
        &self.line
    }

    /// Begins a trial, if none is under way and the pause after the last one is over.
    pub fn begin_trial(&self, now_ms: u64) -> Option<Trial> {
        let mut pace = lock(&self.trial);
        if now_ms < pace.until_ms || now_ms < pace.next_ms {
            return None;
        }
        pace.until_ms = now_ms.saturating_add(TRIAL_MS);
        let (pace, until_ms) = (self.trial.clone(), pace.until_ms);
        Some(Trial { pace, until_ms, begun_ms: now_ms, begun: Instant::now() })
    }

    /// Takes over a new count. Returns how the role stood before and stands now.
    pub(super) fn set(&self, counts: Counts, now_ms: u64) -> (RoleOutlook, RoleOutlook) {
        let before = self.outlook();
        let served = self.serving.swap(counts.serving, Ordering::Relaxed);
        self.members.store(counts.members, Ordering::Relaxed);
        self.accepting.store(counts.accepting, Ordering::Relaxed);
        if counts.serving > 0 {
            self.emptied_ms.store(0, Ordering::Relaxed);
        } else if served > 0 {
            self.emptied_ms.store(now_ms.max(BEGIN_MS), Ordering::Relaxed);
        }
        if counts.accepting > 0 {
            // The next outage is looked into at once.
            let mut pace = lock(&self.trial);
            *pace = Pace::new(pace.first_pause_ms);
        }
        self.changed.notify_waiters();
        (before, self.outlook())
    }

    /// All members are busy, or no longer. True if that is new.
    pub(super) fn crowd(&self, crowded: bool) -> bool {
        let was = self.crowded.swap(crowded, Ordering::Relaxed);
        if was && !crowded {
            self.changed.notify_waiters();
        }
        was != crowded
    }

    /// Counts a request into the line.
    pub fn wait(&self) -> QueuedRequest<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        QueuedRequest(&self.waiting)
    }

    /// Requests in line.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Counts a request that waits for the first member of the role.
    pub fn await_member(&self) -> QueuedRequest<'_> {
        self.awaiting.fetch_add(1, Ordering::Relaxed);
        QueuedRequest(&self.awaiting)
    }

    /// Requests that wait for the first member of the role.
    pub fn awaiting(&self) -> usize {
        self.awaiting.load(Ordering::Relaxed)
    }

    /// Requests that left the line and have no member yet.
    pub(super) fn bound(&self) -> usize {
        self.bound.load(Ordering::Relaxed)
    }

    /// Counts a request out of the line.
    pub(super) fn bind(&self) -> Bound {
        self.bound.fetch_add(1, Ordering::Relaxed);
        Bound(self.bound.clone())
    }
}

impl Trial {
    /// Gives the right back after a look that found nobody: the next one need not wait long.
    pub fn found_nobody(self) {
        let now_ms = self.now_ms();
        let mut pace = lock(&self.pace);
        let next_ms = now_ms.saturating_add((2 * pace.first_pause_ms).min(LOOK_PAUSE_MAX_MS));
        if pace.until_ms == self.until_ms {
            (pace.until_ms, pace.next_ms) = (0, next_ms);
        }
        drop(pace);
    }

    /// Gives the right back unused.
    pub fn forgo(self) {
        let mut pace = lock(&self.pace);
        if pace.until_ms == self.until_ms {
            pace.until_ms = 0;
        }
        drop(pace);
    }

    fn now_ms(&self) -> u64 {
        let took_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.begun_ms.saturating_add(took_ms)
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let now_ms = self.now_ms();
        let mut pace = lock(&self.pace);
        // One that went well has reset the pace, and one that took too long is another's by now.
        if pace.until_ms == self.until_ms {
            pace.until_ms = 0;
            pace.next_ms = now_ms.saturating_add(pace.pause_ms);
            pace.pause_ms = (pace.pause_ms * 2).min(TRIAL_PAUSE_MAX_MS);
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock(pace: &Mutex<Pace>) -> MutexGuard<'_, Pace> {
    pace.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(members: usize, serving: usize, accepting: usize) -> Counts {
        Counts { members, serving, accepting }
    }

    #[test]
    fn outlook_follows_the_counts() {
        let vacancy = Vacancy::new(500);
        assert_eq!((vacancy.outlook(), vacancy.is_open()), (RoleOutlook::Empty, false));
        for (count, outlook) in [
            (counts(2, 2, 1), RoleOutlook::Open),
            (counts(2, 2, 0), RoleOutlook::Resting),
            (counts(2, 0, 0), RoleOutlook::Leaving),
            (counts(0, 0, 0), RoleOutlook::Empty),
        ] {
            assert_eq!(vacancy.set(count, 7).1, outlook);
            assert_eq!(vacancy.is_open(), outlook == RoleOutlook::Open);
        }
        vacancy.set(counts(1, 1, 1), 8);
        assert!(vacancy.crowd(true) && !vacancy.crowd(true) && !vacancy.is_open());
        assert_eq!(vacancy.outlook(), RoleOutlook::Crowded);
    }

    #[test]
    fn role_remembers_since_when_it_is_empty() {
        let vacancy = Vacancy::new(500);
        assert_eq!(vacancy.empty_ms(5), Some(4), "since the fleet began");
        vacancy.set(counts(1, 1, 0), 10);
        assert_eq!(vacancy.empty_ms(20), None);
        vacancy.set(counts(1, 0, 0), 30);
        vacancy.set(counts(0, 0, 0), 40);
        assert_eq!(vacancy.empty_ms(50), Some(20), "since the last one drains");
    }

    #[tokio::test(start_paused = true)]
    async fn trials_come_one_at_a_time_and_farther_and_farther_apart() {
        let vacancy = Vacancy::new(500);
        vacancy.set(counts(1, 1, 0), 1);
        let mut at_ms = 1_000;
        for pause_ms in [50, 100, 200, 400, 800, 1_000, 1_000] {
            let trial = vacancy.begin_trial(at_ms);
            assert!(trial.is_some() && vacancy.begin_trial(at_ms).is_none(), "{pause_ms}");
            drop(trial);
            assert!(vacancy.begin_trial(at_ms + pause_ms - 1).is_none(), "{pause_ms}");
            at_ms += pause_ms;
        }
        vacancy.set(counts(1, 1, 1), at_ms);
        vacancy.set(counts(1, 1, 0), at_ms);
        assert!(vacancy.begin_trial(at_ms).is_some(), "another outage");
    }

    #[tokio::test(start_paused = true)]
    async fn trial_that_hangs_is_not_waited_for_and_ends_nothing_of_the_next() {
        let vacancy = Vacancy::new(500);
        let hung = vacancy.begin_trial(1).unwrap();
        assert!(vacancy.begin_trial(TRIAL_MS).is_none());
        let _next = vacancy.begin_trial(TRIAL_MS + 1).unwrap();
        drop(hung);
        assert!(vacancy.begin_trial(TRIAL_MS + 2).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn look_that_found_nobody_and_trial_that_was_not_used_cost_little_time() {
        let vacancy = Vacancy::new(500);
        vacancy.begin_trial(1).unwrap().forgo();
        vacancy.begin_trial(1).unwrap().found_nobody();
        assert!(vacancy.begin_trial(LOOK_PAUSE_MAX_MS).is_none());
        assert!(vacancy.begin_trial(1 + LOOK_PAUSE_MAX_MS).is_some());
    }
}
