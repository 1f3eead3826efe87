//! Breaker of a pool: it is left alone after failures in a row, for longer each time, and then one
//! question tries it again.

/// Failures in a row that open it.
const FAILURES: u32 = 3;
/// The first rest.
const REST_MS: u64 = 250;
/// The longest: a pool that comes back is noticed within this time.
const REST_MAX_MS: u64 = 15_000;

/// The state of one pool. Times are milliseconds of any clock that does not go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
    failures: u32,
    /// Rests so far without a success in between.
    rests: u32,
    rests_until_ms: u64,
    /// One question is out to see whether it is back.
    probing: bool,
}

/// Changes by a failure or a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing that anyone has to hear of.
    None,
    /// It is left alone for so long, in milliseconds.
    Opened(u64),
    /// It is asked again.
    Closed,
}

impl Breaker {
    /// True if it is left alone, but for the question that tries it.
    pub fn is_open(&self) -> bool {
        self.failures >= FAILURES
    }

    /// True if a question may go out at `now_ms`. After a rest that is one, until it has ended.
    pub fn admit(&mut self, now_ms: u64) -> bool {
        if !self.is_open() {
            return true;
        }
        let admitted = now_ms >= self.rests_until_ms && !self.probing;
        self.probing |= admitted;
        admitted
    }

    /// A question was answered in time.
    pub fn succeeded(&mut self) -> Change {
        let was_open = self.is_open();
        *self = Self::default();
        if was_open { Change::Closed } else { Change::None }
    }

    /// A question failed.
    pub fn failed(&mut self, now_ms: u64) -> Change {
        // Questions that were out when it opened say nothing new.
        if self.is_open() && !self.probing {
            return Change::None;
        }
        self.probing = false;
        self.failures = self.failures.saturating_add(1);
        if !self.is_open() {
            return Change::None;
        }
        let rest_ms = (REST_MS << self.rests.min(16)).min(REST_MAX_MS);
        self.rests += 1;
        self.rests_until_ms = now_ms.saturating_add(rest_ms);
        Change::Opened(rest_ms)
    }

    /// A question ended without saying anything about the pool: nobody waited for it.
    pub fn forgotten(&mut self) {
        self.probing = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(now_ms: u64) -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 0..FAILURES {
            assert!(breaker.admit(now_ms));
            breaker.failed(now_ms);
        }
        breaker
    }

    #[test]
    fn a_few_failures_in_a_row_open_it_and_a_success_in_between_does_not_count() {
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            assert_eq!([breaker.failed(0), breaker.failed(0)], [Change::None; 2]);
            assert_eq!(breaker.succeeded(), Change::None);
        }
        assert!(!open(0).admit(REST_MS - 1));
    }

    #[test]
    fn after_a_rest_one_question_tries_and_its_end_decides() {
        let mut breaker = open(0);
        assert!(breaker.admit(REST_MS));
        assert!(!breaker.admit(REST_MS), "the others wait for the first one's end");
        assert_eq!(breaker.failed(REST_MS), Change::Opened(2 * REST_MS));
        assert!(!breaker.admit(3 * REST_MS - 1) && breaker.admit(3 * REST_MS));
        assert_eq!(breaker.succeeded(), Change::Closed);
        assert!(breaker.admit(3 * REST_MS) && breaker.admit(3 * REST_MS));
    }

    #[test]
    fn rests_grow_to_a_limit_and_stragglers_do_not_prolong_them() {
        let (mut breaker, mut now_ms, mut rests) = (open(0), 0, Vec::new());
        for _ in 0..9 {
            let before_ms = now_ms;
            while !breaker.admit(now_ms) {
                assert_eq!(breaker.failed(now_ms), Change::None);
                now_ms += 10;
            }
            rests.push(now_ms - before_ms);
            breaker.failed(now_ms);
        }
        assert_eq!(rests, [250, 500, 1000, 2000, 4000, 8000, 15_000, 15_000, 15_000]);
    }

    #[test]
    fn a_probe_that_nobody_waited_for_makes_room_for_the_next() {
        let mut breaker = open(0);
        assert!(breaker.admit(REST_MS));
        breaker.forgotten();
        assert!(breaker.admit(REST_MS));
    }
}
