//! Number of requests that an engine takes at a time, learned from its saying that it is busy
//! (vLLM's `--max-num-queued-reqs` answers 503, other engines and proxies 429). Pure: the time is
//! an argument.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// An engine that said so counts as busy for this time, in ms, unless it has taken something since.
const BUSY_MS: u64 = 1_000;
/// So long, in ms, it is believed to take no more than it had when it said so.
const FULL_MS: u64 = 5_000;
/// The pause until a request is sent to a busy engine all the same, in ms; it doubles with each
/// further refusal.
const PAUSE_MS: u64 = 100;
/// It is doubled so many times at most: to 3.2 s. Each such request costs the other side its part,
/// and what an engine takes is a setting of it (`--max-num-queued-reqs`).
const MAX_LEVEL: u32 = 5;
/// The longest pause, in ms, of an engine that refuses all requests: what it takes may be back at
/// any time, and nothing of ours that ends there would tell.
const MAX_IDLE_PAUSE_MS: u64 = 1_000;
/// A request beyond those that an engine takes is refused within this time, in ms, or is taken.
const REFUSAL_MS: u64 = 250;

/// Answer of an engine that has too much to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyAnswer {
    /// Time for which it wants to be spared (`Retry-After`).
    pub spare: Option<Duration>,
    /// It is over a limit of requests (429), and not without room (503).
    pub is_limit: bool,
}

impl BusyAnswer {
    /// The answer of two engines as one: the shorter time where both say one.
    pub fn or(self, other: BusyAnswer) -> BusyAnswer {
        let spare = self.spare.zip(other.spare).map(|(one, other)| one.min(other));
        BusyAnswer { spare, is_limit: self.is_limit && other.is_limit }
    }
}

/// Believed capacity of one engine. Nothing is known until it says that it is busy.
#[derive(Debug)]
pub struct Capacity {
    /// Time at which it last said that it is busy, in ms; 0 = not since it was last free.
    busy_ms: AtomicU64,
    /// Time at which it last took a request after that, in ms.
    taken_ms: AtomicU64,
    /// Requests of ours that it had when it said so: as many as it takes. `u32::MAX` = not known.
    most: AtomicU32,
    /// Since when it has more than that, in ms; 0 = it has not.
    over_ms: AtomicU64,
    /// Refusals in a row.
    level: AtomicU32,
    /// Time until which it wants to be spared, in ms; 0 = it named none.
    spare_until_ms: AtomicU64,
    /// It said last that it is over a limit.
    is_limit: AtomicBool,
}

impl Default for Capacity {
    fn default() -> Capacity {
        Capacity {
            busy_ms: AtomicU64::new(0),
            taken_ms: AtomicU64::new(0),
            most: AtomicU32::new(u32::MAX),
            over_ms: AtomicU64::new(0),
            level: AtomicU32::new(0),
            spare_until_ms: AtomicU64::new(0),
            is_limit: AtomicBool::new(false),
        }
    }
}

impl Capacity {
    /// It refused a request since it is busy, and has `running` others of ours.
    pub fn refused(&self, now_ms: u64, running: u32) {
        let before_ms = self.busy_ms.swap(now_ms.max(1), Ordering::Relaxed);
        self.over_ms.store(0, Ordering::Relaxed);
        let again = before_ms > 0 && now_ms.saturating_sub(before_ms) < PAUSE_MS;
        match again {
            // Several that were sent together: the last of them sees how many it kept.
            true => drop(self.most.fetch_min(running, Ordering::Relaxed)),
            false => {
                self.most.store(running, Ordering::Relaxed);
                let level = self.level.load(Ordering::Relaxed);
                let level = if before_ms == 0 { 0 } else { (level + 1).min(MAX_LEVEL) };
                self.level.store(level, Ordering::Relaxed);
            }
        }
    }

    /// It refused a request with this answer.
    pub fn answered(&self, now_ms: u64, BusyAnswer { spare, is_limit }: BusyAnswer) {
        let ms = |spare: Duration| u64::try_from(spare.as_millis()).unwrap_or(u64::MAX);
        let until_ms = spare.map_or(0, |spare| now_ms.saturating_add(ms(spare)));
        self.spare_until_ms.store(until_ms, Ordering::Relaxed);
        self.is_limit.store(is_limit, Ordering::Relaxed);
    }

    /// The last such answer, with what is left of its time; `None` where it has taken something
    /// since, or where it is too long ago to tell anything.
    pub fn busy_answer(&self, now_ms: u64) -> Option<BusyAnswer> {
        let busy_ms = self.busy_ms.load(Ordering::Relaxed);
        if busy_ms == 0 || busy_ms <= self.taken_ms.load(Ordering::Relaxed) {
            return None;
        }
        let left_ms = self.spare_until_ms.load(Ordering::Relaxed).saturating_sub(now_ms);
        let spare = (left_ms > 0).then(|| Duration::from_millis(left_ms));
        let is_fresh = now_ms.saturating_sub(busy_ms) < FULL_MS;
        let is_limit = self.is_limit.load(Ordering::Relaxed);
        (spare.is_some() || is_fresh).then_some(BusyAnswer { spare, is_limit })
    }

    /// It took a request, and has `running` of ours with it.
    pub fn took(&self, now_ms: u64, running: u32) {
        let busy_ms = self.busy_ms.load(Ordering::Relaxed);
        if busy_ms == 0 {
            return;
        }
        self.taken_ms.store(now_ms.max(1), Ordering::Relaxed);
        let most = self.most.load(Ordering::Relaxed);
        if running <= most {
            self.over_ms.store(0, Ordering::Relaxed);
            return;
        }
        // Others of those that are running may be refused yet: only a while in which none was says
        // that it takes more. Each that it takes from then on may bring one more.
        let over_ms = match self.over_ms.load(Ordering::Relaxed) {
            0 => now_ms,
            over_ms => over_ms,
        };
        self.over_ms.store(over_ms, Ordering::Relaxed);
        let calm = now_ms.saturating_sub(busy_ms) >= BUSY_MS;
        let is_taken = now_ms.saturating_sub(over_ms) >= REFUSAL_MS;
        if is_taken && (calm || running == most.saturating_add(1)) {
            self.most.store(running.saturating_add(u32::from(calm)), Ordering::Relaxed);
            self.level.store(0, Ordering::Relaxed);
        }
    }

    /// True if it said a moment ago that it is busy, and has taken nothing since.
    pub fn is_busy(&self, now_ms: u64) -> bool {
        let busy_ms = self.busy_ms.load(Ordering::Relaxed);
        busy_ms > self.taken_ms.load(Ordering::Relaxed) && now_ms.saturating_sub(busy_ms) < BUSY_MS
    }

    /// True if it has said nothing of being busy for a while: for twice the pause in which it is
    /// asked for more at the least. What was learned is forgotten then, and learned anew at the
    /// price of a prefill for each refusal.
    pub fn is_calm(&self, now_ms: u64) -> bool {
        let pause_ms = PAUSE_MS << self.level.load(Ordering::Relaxed).min(MAX_LEVEL);
        let passed_ms = now_ms.saturating_sub(self.busy_ms.load(Ordering::Relaxed));
        passed_ms >= BUSY_MS.max(pause_ms.saturating_mul(2))
    }

    /// True if it has `running` requests of ours, and takes no more, as it said a while ago.
    pub fn is_full(&self, now_ms: u64, running: u32) -> bool {
        let passed_ms = now_ms.saturating_sub(self.busy_ms.load(Ordering::Relaxed));
        // One that takes nothing at all may not be what it was, and is asked now and then.
        let believed_ms = |most| if most == 0 { BUSY_MS } else { FULL_MS };
        self.most().is_some_and(|most| running >= most && passed_ms < believed_ms(most))
    }

    /// Requests of ours that it takes; `None` if that is not known.
    pub fn most(&self) -> Option<u32> {
        let most = self.most.load(Ordering::Relaxed);
        (most < u32::MAX).then_some(most)
    }

    /// From when on, in ms, one request more than it takes may find out whether it takes more by
    /// now.
    pub fn next_ms(&self) -> u64 {
        let pause_ms = PAUSE_MS << self.level.load(Ordering::Relaxed).min(MAX_LEVEL);
        let pause_ms = if self.most() == Some(0) { pause_ms.min(MAX_IDLE_PAUSE_MS) } else { pause_ms };
        self.busy_ms.load(Ordering::Relaxed).saturating_add(pause_ms)
    }

    /// Forgets what was learned.
    pub fn forget(&self) {
        self.busy_ms.store(0, Ordering::Relaxed);
        self.taken_ms.store(0, Ordering::Relaxed);
        self.most.store(u32::MAX, Ordering::Relaxed);
        self.over_ms.store(0, Ordering::Relaxed);
        self.level.store(0, Ordering::Relaxed);
        self.answered(0, BusyAnswer::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_teach_how_many_it_takes_and_what_it_takes_teaches_more() {
        let capacity = Capacity::default();
        capacity.took(1, 50);
        assert_eq!((capacity.most(), capacity.is_busy(1)), (None, false));
        capacity.refused(10, 5);
        capacity.refused(11, 4);
        assert_eq!((capacity.most(), capacity.is_busy(12), capacity.next_ms()), (Some(4), true, 111));
        capacity.took(13, 4);
        assert_eq!((capacity.most(), capacity.is_busy(13)), (Some(4), false));
        capacity.took(200, 5);
        assert_eq!(capacity.most(), Some(4), "the fifth may be refused yet");
        capacity.refused(202, 4);
        capacity.took(300, 5);
        capacity.took(460, 5);
        assert_eq!(capacity.most(), Some(4), "the one before was refused");
        capacity.took(550, 5);
        assert_eq!(capacity.most(), Some(5), "and no more, since it was busy a moment ago");
        capacity.took(551, 9);
        capacity.took(900, 9);
        assert_eq!(capacity.most(), Some(5), "those that it has not answered yet may be refused");
        capacity.took(2_000, 6);
        assert_eq!(capacity.most(), Some(7));
        capacity.forget();
        assert_eq!((capacity.most(), capacity.is_calm(2_000)), (None, true));
    }

    #[test]
    fn busy_answer_counts_until_its_time_is_over_or_something_is_taken() {
        let (capacity, of_ms) = (Capacity::default(), Duration::from_millis);
        let limit = |ms| BusyAnswer { spare: Some(of_ms(ms)), is_limit: true };
        assert_eq!(capacity.busy_answer(1), None);
        capacity.refused(1_000, 0);
        capacity.answered(1_000, limit(9_000));
        assert_eq!(capacity.busy_answer(3_000), Some(limit(7_000)));
        assert_eq!(capacity.busy_answer(9_999), Some(limit(1)));
        assert_eq!(capacity.busy_answer(10_000), None);
        let full = BusyAnswer::default();
        capacity.refused(10_000, 0);
        capacity.answered(10_000, full);
        assert_eq!(
            (capacity.busy_answer(10_000 + FULL_MS - 1), capacity.busy_answer(10_000 + FULL_MS)),
            (Some(full), None)
        );
        capacity.refused(20_000, 0);
        capacity.answered(20_000, limit(9_000));
        capacity.took(20_001, 1);
        assert_eq!(capacity.busy_answer(20_002), None);
        assert_eq!(limit(9).or(limit(7)), limit(7));
        assert_eq!(limit(9).or(full), full, "one that names no time may have room at any");
    }

    #[test]
    fn pauses_double_with_refusals_that_follow_each_other() {
        let capacity = Capacity::default();
        let mut at_ms = 1;
        for pause_ms in [100, 200, 400, 800, 1_600, 3_200, 3_200] {
            capacity.refused(at_ms, 1);
            assert_eq!(capacity.next_ms() - at_ms, pause_ms);
            at_ms += pause_ms;
        }
        capacity.refused(at_ms, 0);
        assert!(capacity.is_busy(at_ms) && !capacity.is_busy(at_ms + BUSY_MS));
        assert!(!capacity.is_calm(at_ms + 6_399) && capacity.is_calm(at_ms + 6_400));
        assert_eq!(capacity.next_ms() - at_ms, MAX_IDLE_PAUSE_MS, "it takes nothing at all");
    }
}
