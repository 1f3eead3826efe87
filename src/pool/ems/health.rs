//! Decides when to ask a server, as the EMS connector judges its pool: three good checks to come
//! back, and none comes back while it changes its mind. The module is pure.
//!
//! It is stricter than the breaker before all pools: that one protects our requests, this one the
//! engine, whose scheduler waits after every question of ours.

/// Good checks in a row to come back.
const GOOD_CHECKS: u32 = 3;
/// So many changes of state within [`WINDOW_MS`] keep it out.
const CHANGES: usize = 3;
/// Window of [`CHANGES`], in ms.
const WINDOW_MS: u64 = 60_000;
/// Time between checks, in ms.
const CHECK_MS: u64 = 1000;
/// The longest between checks; it doubles with every bad one.
const CHECK_MAX_MS: u64 = 16_000;

/// The state of one server. Times are milliseconds of any clock that does not go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    up: bool,
    good_checks: u32,
    check_every_ms: u64,
    next_check_ms: u64,
    /// Time at which it changed its state last, newest first.
    changed_ms: [Option<u64>; CHANGES],
}

/// Outcomes of a question or a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Answered, and the answer can be true.
    Good,
    /// Not answered, not understood, or the answer can't be true.
    Bad,
}

/// Actions that are allowed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedAction {
    /// Send a question.
    Ask,
    /// The smallest question, whose answer is known.
    Check,
    /// Send nothing at all.
    Rest,
}

/// Changes by an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing that anyone has to hear of.
    None,
    /// It is asked no more, only checked.
    Down,
    /// It is asked again.
    Up,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            up: true,
            good_checks: 0,
            check_every_ms: CHECK_MS,
            next_check_ms: 0,
            changed_ms: [None; CHANGES],
        }
    }
}

impl Health {
    /// The action that is allowed at `now_ms`.
    pub fn turn(&self, now_ms: u64) -> AllowedAction {
        match self.up {
            true => AllowedAction::Ask,
            false if now_ms >= self.next_check_ms => AllowedAction::Check,
            false => AllowedAction::Rest,
        }
    }

    /// Something ended at `now_ms`.
    pub fn step(&mut self, now_ms: u64, event: Event) -> Change {
        match (self.up, event) {
            (true, Event::Good) => Change::None,
            (true, Event::Bad) => {
                (self.good_checks, self.check_every_ms) = (0, CHECK_MS);
                self.turn_to(false, now_ms);
                Change::Down
            }
            (false, Event::Bad) => {
                self.good_checks = 0;
                self.check_every_ms = (2 * self.check_every_ms).min(CHECK_MAX_MS);
                self.check_after(now_ms);
                Change::None
            }
            (false, Event::Good) => {
                self.good_checks = self.good_checks.saturating_add(1);
                self.check_every_ms = CHECK_MS;
                self.check_after(now_ms);
                if self.good_checks < GOOD_CHECKS || self.flaps(now_ms) {
                    return Change::None;
                }
                self.turn_to(true, now_ms);
                Change::Up
            }
        }
    }

    fn turn_to(&mut self, up: bool, now_ms: u64) {
        self.up = up;
        self.changed_ms.rotate_right(1);
        self.changed_ms[0] = Some(now_ms);
        self.check_after(now_ms);
    }

    fn check_after(&mut self, now_ms: u64) {
        self.next_check_ms = now_ms.saturating_add(self.check_every_ms);
    }

    fn flaps(&self, now_ms: u64) -> bool {
        self.changed_ms.iter().all(|when| when.is_some_and(|when| now_ms.saturating_sub(when) < WINDOW_MS))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Checks whenever it is allowed, all good, until it is up; gives the time.
    fn recover(health: &mut Health, mut now_ms: u64) -> u64 {
        while health.turn(now_ms) != AllowedAction::Ask {
            if health.turn(now_ms) == AllowedAction::Check {
                health.step(now_ms, Event::Good);
            }
            now_ms += 100;
        }
        now_ms - 100
    }

    #[test]
    fn one_bad_answer_stops_questions_and_three_good_checks_resume_them() {
        let mut health = Health::default();
        assert_eq!((health.step(5, Event::Good), health.step(10, Event::Bad)), (Change::None, Change::Down));
        assert_eq!(
            [10, 1009, 1010].map(|now_ms| health.turn(now_ms)),
            [AllowedAction::Rest, AllowedAction::Rest, AllowedAction::Check]
        );
        assert_eq!(health.step(1010, Event::Good), Change::None);
        assert_eq!((health.turn(2009), health.turn(2010)), (AllowedAction::Rest, AllowedAction::Check));
        assert_eq!(health.step(2010, Event::Good), Change::None);
        assert_eq!((health.step(3010, Event::Good), health.turn(3010)), (Change::Up, AllowedAction::Ask));
    }

    #[test]
    fn a_bad_check_begins_anew_and_the_next_is_later() {
        let mut health = Health::default();
        health.step(0, Event::Bad);
        let (mut now_ms, mut waits) = (0, Vec::new());
        for _ in 0..6 {
            let before_ms = now_ms;
            while health.turn(now_ms) == AllowedAction::Rest {
                now_ms += 1;
            }
            waits.push(now_ms - before_ms);
            health.step(now_ms, Event::Bad);
        }
        assert_eq!(waits, [1000, 2000, 4000, 8000, 16_000, 16_000]);
        health.step(now_ms, Event::Good);
        health.step(now_ms, Event::Good);
        health.step(now_ms, Event::Bad);
        assert_eq!([health.step(now_ms, Event::Good), health.step(now_ms, Event::Good)], [Change::None; 2]);
        assert_eq!(health.step(now_ms, Event::Good), Change::Up);
    }

    #[test]
    fn pool_stays_out_after_three_changes_within_a_minute() {
        let mut health = Health::default();
        health.step(0, Event::Bad);
        let back_ms = recover(&mut health, 0);
        assert_eq!(back_ms, 3000);
        health.step(4000, Event::Bad);
        // Changes at 0, 3000 and 4000: the first leaves the window at 60 000.
        assert_eq!(recover(&mut health, 4000), 60_000);
        health.step(200_000, Event::Bad);
        assert_eq!(recover(&mut health, 200_000), 203_000, "long ago does not count");
    }

    proptest! {
        #[test]
        fn no_return_is_within_a_minute_of_the_third_change_before_it(events in vec((0..2_000_u64, any::<bool>()), 0..400)) {
            let (mut health, mut now_ms, mut changes) = (Health::default(), 0, Vec::new());
            for (wait_ms, good) in events {
                now_ms += wait_ms;
                if health.turn(now_ms) != AllowedAction::Rest
                    && health.step(now_ms, if good { Event::Good } else { Event::Bad }) != Change::None
                {
                    changes.push(now_ms);
                }
            }
            // The first change is a fall, so every other one is a return.
            for back in (3..changes.len()).step_by(2) {
                prop_assert!(changes[back] - changes[back - 3] >= WINDOW_MS);
            }
        }
    }
}
