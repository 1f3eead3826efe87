//! Work of the last minute: copies of what a role has been given, and what came since the oldest.
//!
//! Streams are no work that comes: what counts is the places that they take, while they take them.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::route::saturation::WorkSum;

/// The time that is looked back on: some hundred prompts of a busy engine, and shorter than what an
/// engine takes to start.
const SPAN: Duration = Duration::from_secs(60);
/// Least time between two copies, which bounds their number to 13.
const APART: Duration = Duration::from_secs(5);
/// A load is at least that of so long: soon after the start a few pieces say nothing.
const LEAST_SPAN: Duration = Duration::from_secs(10);

/// Copies of the last minute.
#[derive(Debug, Default)]
pub(super) struct LoadWindow(Mutex<VecDeque<Copied>>);

/// Work of a role at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RoleWork {
    /// Work that engines were given since the start.
    pub(super) offered: WorkSum,
    /// Seconds of what waits for an engine.
    pub(super) waiting_s: f64,
    /// Seconds of what waits on engines.
    pub(super) queued_s: f64,
}

#[derive(Clone, Copy, Debug)]
struct Copied {
    at: Duration,
    work: RoleWork,
}

/// Places of decoders that streams took in the last minute.
#[derive(Debug, Default)]
pub(super) struct PlaceWindow {
    taken: Mutex<PlacesTaken>,
    copies: LoadWindow,
}

#[derive(Clone, Copy, Debug, Default)]
struct PlacesTaken {
    /// Sum of places times the seconds for which they were taken.
    sum: WorkSum,
    /// Time of the last look.
    at: Duration,
}

impl PlaceWindow {
    /// Adds the places that were taken since the last look, as many as are now.
    pub(super) fn note(&self, at: Duration, places: f64) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let over_s = at.saturating_sub(taken.at).as_secs_f64();
        taken.sum.add(places * over_s);
        taken.at = at;
        self.copies.note(at, RoleWork { offered: taken.sum, ..RoleWork::default() });
    }

    /// Places that were taken in the mean of the last minute.
    pub(super) fn mean(&self, at: Duration) -> f64 {
        let taken = *self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        self.copies.recent(at, RoleWork { offered: taken.sum, ..RoleWork::default() }).busy
    }
}

/// Work that came to a role lately.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RecentWork {
    /// Pieces of work that came since the oldest copy.
    pub(super) came: WorkSum,
    /// Seconds of work per second that were to be done since: what came, and what waited on
    /// engines before.
    pub(super) busy: f64,
}

impl LoadWindow {
    /// Copies the work at a time since the start, if the last copy is old enough.
    pub(super) fn note(&self, at: Duration, work: RoleWork) {
        let mut copies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if copies.back().is_some_and(|last| at < last.at + APART) {
            return;
        }
        // The oldest is the last of those that are too old: the others are less than all of SPAN.
        while copies.get(1).is_some_and(|second| second.at + SPAN <= at) {
            copies.pop_front();
        }
        copies.push_back(Copied { at, work });
    }

    /// Work that came since the oldest copy.
    pub(super) fn recent(&self, at: Duration, work: RoleWork) -> RecentWork {
        let copies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let then = copies.front().copied().unwrap_or(Copied { at, work });
        let came = work.offered.since(then.work.offered);
        let over_s = at.saturating_sub(then.at).max(LEAST_SPAN).as_secs_f64();
        RecentWork { came, busy: (came.seconds + work.waiting_s + then.work.queued_s) / over_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Pieces of half a second each.
    fn work(pieces: u32) -> RoleWork {
        let mut work = RoleWork::default();
        (0..pieces).for_each(|_| work.offered.add(0.5));
        work
    }

    #[test]
    fn load_is_that_of_the_last_minute() {
        let window = LoadWindow::default();
        // Two pieces per second for two minutes, then none.
        (0..=60).for_each(|tick| window.note(s(2 * tick), work(u32::try_from(4 * tick).unwrap())));
        let RecentWork { came, busy } = window.recent(s(120), work(240));
        assert!((busy - 1.0).abs() < 0.01, "{busy}");
        assert!((115.0..=131.0).contains(&came.pieces), "{came:?}");
        (61..=75).for_each(|tick| window.note(s(2 * tick), work(240)));
        let half = window.recent(s(150), work(240)).busy;
        assert!((0.4..0.6).contains(&half), "{half}");
        (76..=100).for_each(|tick| window.note(s(2 * tick), work(240)));
        assert_eq!(window.recent(s(200), work(240)).busy, 0.0);
        assert!(window.0.lock().unwrap().len() <= 14);
    }

    #[test]
    fn places_are_those_of_the_last_minute_whenever_one_looks() {
        let window = PlaceWindow::default();
        let mut at = 0;
        // Four places for two minutes, by looks of one to five seconds, then none for half of one.
        for look in 0..40 {
            at += 1 + look % 5;
            window.note(s(at), 4.0);
        }
        assert!((window.mean(s(at)) - 4.0).abs() < 1e-9, "{}", window.mean(s(at)));
        (1..=15).for_each(|look| window.note(s(at + 2 * look), 0.0));
        let half = window.mean(s(at + 30));
        assert!((1.9..2.4).contains(&half), "{half}");
        (16..=35).for_each(|look| window.note(s(at + 2 * look), 0.0));
        assert_eq!(window.mean(s(at + 70)), 0.0);
    }

    #[test]
    fn work_that_waits_is_load_wherever_it_waits() {
        let window = LoadWindow::default();
        window.note(s(0), RoleWork { queued_s: 30.0, ..work(10) });
        let now = RoleWork { waiting_s: 12.0, ..work(10) };
        assert_eq!(window.recent(s(60), now).busy, (30.0 + 12.0) / 60.0);
    }

    #[test]
    fn first_seconds_say_little() {
        let window = LoadWindow::default();
        assert_eq!(window.recent(s(1), work(100)).busy, 0.0, "nothing was copied yet");
        window.note(s(0), work(0));
        assert_eq!(window.recent(s(1), work(4)).busy, 0.2, "as if it were ten seconds");
    }
}
