//! Place where a pool alone carries the KV: whether all of the prompt is there before a decoder is
//! asked to load it.
//!
//! Engines store beside their work: a prefiller may have answered when its last blocks are still on
//! their way to the pool, and a decoder that looks too early computes what it does not find. So the
//! pool is asked, and asked again, for a while. Nothing hangs on the answer but time: the decoder
//! is asked in any case.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::pool::{Lookup, Verdict};
use crate::relay::Relay;
use crate::relay::ask::Ask;
use crate::relay::lookup::{Finder, PoolQuery};

/// The first pause between two questions; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// The longest pause between two questions.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// Questions about one prompt: with these pauses, of half a minute.
const QUESTIONS: u32 = 300;
/// Questions in a row that may go unanswered by a pool that is slow, or has too many open.
const UNANSWERED: u32 = 2;

/// Waits in a row that may be in vain: from then on nobody waits, but for one in [`LOOK_EVERY`]
/// that looks whether it still is so. Under wrong names nothing ever comes. That prefillers find
/// nothing in the pool says less: they may be set up to store only.
const IN_VAIN: u32 = 20;
const LOOK_EVERY: u32 = 64;

/// Decides if waiting is worth it.
#[derive(Debug, Default)]
pub struct StoreWaitPolicy {
    /// Waits in vain since the last that was not, and from [`IN_VAIN`] on those that were spared as
    /// well.
    in_vain: AtomicU32,
}

/// Ends of the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The whole prompt was there at once.
    There,
    /// It was there after a while.
    Waited,
    /// Something was missing when the time was over.
    GaveUp,
    /// The pool gave no answer.
    NoAnswer,
}

impl Stored {
    /// All of them.
    pub const ALL: [Stored; 4] = [Stored::There, Stored::Waited, Stored::GaveUp, Stored::NoAnswer];

    /// The value of the metric label `outcome`.
    pub fn name(self) -> &'static str {
        match self {
            Stored::There => "there",
            Stored::Waited => "waited",
            Stored::GaveUp => "gave_up",
            Stored::NoAnswer => "no_answer",
        }
    }
}

impl StoreWaitPolicy {
    /// True if the next one waits.
    fn waits(&self) -> bool {
        if self.in_vain.load(Relaxed) < IN_VAIN {
            return true;
        }
        let spared = self.in_vain.fetch_add(1, Relaxed);
        if spared >= IN_VAIN + LOOK_EVERY {
            self.in_vain.store(IN_VAIN, Relaxed);
        }
        spared >= IN_VAIN + LOOK_EVERY
    }

    /// A wait ended.
    fn learn(&self, end: Stored) {
        match end {
            Stored::There | Stored::Waited => self.in_vain.store(0, Relaxed),
            Stored::GaveUp if self.in_vain.load(Relaxed) < IN_VAIN => {
                self.in_vain.fetch_add(1, Relaxed);
            }
            Stored::GaveUp | Stored::NoAnswer => {}
        }
    }
}

impl Relay {
    /// Waits until the pool has the prompt that a prefiller has just answered for, as long as is
    /// configured, and at most half of what is left of the request's time. Not at all where that
    /// was in vain so often that it always will be.
    pub(super) async fn wait_until_stored(&self, ask: &Ask) {
        let settings = self.settings.now();
        let (Some(finder), Some(asked)) = (&self.finder, &ask.asked) else { return };
        if !finder.store_wait.waits() {
            return;
        }
        let began = Instant::now();
        let left = (ask.arrived + settings.total).saturating_duration_since(began);
        let stored = stored(finder, asked, began + settings.pool_wait.min(left / 2)).await;
        finder.store_wait.learn(stored);
        self.meters.pool_waited(stored.name(), began.elapsed());
    }
}

/// Asks until the pool has all, or has no answer, or it is `end`.
async fn stored(finder: &Finder, asked: &PoolQuery, end: Instant) -> Stored {
    let (mut pause, mut unanswered) = (FIRST_PAUSE, 0);
    for question in 0..QUESTIONS {
        let answer = tokio::time::timeout_at(end, finder.ask_anew(asked)).await;
        match answer.ok().flatten() {
            Some(Lookup { presence, verdict: Verdict::Answered | Verdict::Partial }) => {
                if presence.whole {
                    return if question == 0 { Stored::There } else { Stored::Waited };
                }
                unanswered = 0;
            }
            Some(Lookup { verdict: Verdict::TimedOut | Verdict::Busy, .. }) if unanswered < UNANSWERED => {
                unanswered += 1;
            }
            None if Instant::now() >= end => return Stored::GaveUp,
            _ => return Stored::NoAnswer,
        }
        if Instant::now() + pause >= end {
            // The last look is worth more at the end than before it.
            pause = end.saturating_duration_since(Instant::now());
            if pause.is_zero() {
                break;
            }
        }
        sleep_until(Instant::now() + pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Stored::GaveUp
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_vain_waits_make_lookups_rare() {
        let patience = StoreWaitPolicy::default();
        for _ in 0..IN_VAIN {
            assert!(patience.waits());
            patience.learn(Stored::NoAnswer);
            patience.learn(Stored::GaveUp);
        }
        for _ in 0..2 {
            let spared = (0..LOOK_EVERY).filter(|_| !patience.waits()).count();
            assert_eq!(spared, LOOK_EVERY as usize);
            assert!(patience.waits(), "one looks");
            patience.learn(Stored::GaveUp);
        }
        patience.learn(Stored::Waited);
        assert!((0..IN_VAIN).all(|_| patience.waits()), "it comes after all");
    }
}
