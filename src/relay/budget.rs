//! The retry budget of the gateway. When engines fail in numbers, retries of all requests, again
//! and again, would be a load that keeps them down. So further attempts and continuations take at
//! most a share of the traffic: of the requests of the last seconds, and of those that are open
//! since before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The window is kept in as many slots.
const SLOTS: usize = 10;
const SLOT: Duration = Duration::from_secs(1);

/// Requests and retries of the last seconds. Pure: time is an argument, and does not run backwards.
#[derive(Clone, Debug)]
pub struct Window {
    /// Retries per request.
    share: f64,
    /// Retries in a window that are allowed at any rate.
    floor: f64,
    slots: [Slot; SLOTS],
    /// The number of the newest slot since the start.
    now: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    asked: u64,
    retried: u64,
    /// Most requests that were open when somebody wanted to try again.
    open: u64,
}

/// The window of a running gateway.
#[derive(Debug)]
pub struct Retries {
    window: Mutex<Window>,
    open: Arc<AtomicU64>,
    began: Instant,
}

/// A request that counts as open until it is dropped.
#[derive(Debug)]
pub struct OpenRequest(Arc<AtomicU64>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Window {
    /// At most `share` retries per request, and `floor_per_s` each second of the window.
    pub fn new(share: f64, floor_per_s: u32) -> Window {
        let floor = f64::from(floor_per_s) * SLOTS as f64;
        Window { share, floor, slots: [Slot::default(); SLOTS], now: 0 }
    }

    /// A request came, at this time since the start.
    pub fn asked(&mut self, at: Duration) {
        self.slot(at).asked += 1;
    }

    /// True if one retry more is within the budget while `open` requests are under way; if so, it
    /// counts as made.
    pub fn allows(&mut self, at: Duration, open: u64) -> bool {
        let slot = self.slot(at);
        slot.open = slot.open.max(open);
        let sum = |of: fn(&Slot) -> u64| self.slots.iter().map(of).sum::<u64>();
        // A loss fails what is open at once: long streams count though they came before the window,
        // and for as long as their retries do. Else a request that comes right after them would
        // have to pay for theirs.
        let open = self.slots.iter().map(|slot| slot.open).max().unwrap_or(open);
        let traffic = sum(|slot| slot.asked).max(open) as f64;
        let allowed = sum(|slot| slot.retried) as f64 + 1.0 <= self.floor.max(self.share * traffic);
        if allowed {
            self.slot(at).retried += 1;
        }
        allowed
    }

    fn slot(&mut self, at: Duration) -> &mut Slot {
        let now = at.as_secs() / SLOT.as_secs();
        let passed = now.saturating_sub(self.now).min(SLOTS as u64);
        for old in 0..passed {
            self.slots[(now - old) as usize % SLOTS] = Slot::default();
        }
        self.now = self.now.max(now);
        &mut self.slots[self.now as usize % SLOTS]
    }
}

impl Retries {
    /// As [`Window::new`], from now on.
    pub fn new(share: f64, floor_per_s: u32) -> Retries {
        let window = Mutex::new(Window::new(share, floor_per_s));
        Retries { window, open: Arc::default(), began: Instant::now() }
    }

    /// A request came; it is open until what is returned is dropped.
    pub fn asked(&self) -> OpenRequest {
        let at = self.began.elapsed();
        self.window.lock().unwrap_or_else(PoisonError::into_inner).asked(at);
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenRequest(self.open.clone())
    }

    /// True if one retry more may be made; if so, it counts as made.
    pub fn allows(&self) -> bool {
        let at = self.began.elapsed();
        let open = self.open.load(Ordering::Relaxed);
        self.window.lock().unwrap_or_else(PoisonError::into_inner).allows(at, open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn granted(window: &mut Window, at: Duration, tries: usize) -> usize {
        (0..tries).filter(|_| window.allows(at, 0)).count()
    }

    #[test]
    fn retries_are_a_share_of_requests_and_a_few_at_any_rate() {
        let mut window = Window::new(0.2, 1);
        assert_eq!(granted(&mut window, S(0), 50), 10, "one a second of the window");
        (0..100).for_each(|_| window.asked(S(1)));
        assert_eq!(granted(&mut window, S(1), 50), 10, "20 in all");
        assert_eq!(granted(&mut window, S(9), 50), 0);
        assert_eq!(granted(&mut window, S(10), 50), 10, "those of the first second are forgotten");
        assert_eq!(granted(&mut window, S(500), 50), 10);
    }

    #[test]
    fn open_requests_count_at_any_age() {
        let mut window = Window::new(0.5, 0);
        assert_eq!((0..100).filter(|_| window.allows(S(60), 80)).count(), 40);
        let retries = Retries::new(1.0, 0);
        let open = [retries.asked(), retries.asked()];
        assert!(retries.allows() && retries.allows() && !retries.allows());
        drop(open);
        assert_eq!(retries.open.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn later_request_does_not_pay_for_a_loss() {
        let mut window = Window::new(1.0, 3);
        assert_eq!(
            (0..100).filter(|_| window.allows(S(60), 200)).count(),
            100,
            "half of the streams were there"
        );
        assert!(window.allows(S(69), 1), "they are over, and one request meets the dead engine");
        assert_eq!((0..500).filter(|_| window.allows(S(69), 1)).count(), 99, "no more than for them");
        assert_eq!(
            (0..500).filter(|_| window.allows(S(70), 1)).count(),
            0,
            "the hundred of the ninth second are in the window"
        );
        assert_eq!((0..500).filter(|_| window.allows(S(80), 1)).count(), 30, "all is forgotten");
    }

    #[test]
    fn zero_budget_allows_no_retry() {
        let mut window = Window::new(0.0, 0);
        (0..100).for_each(|_| window.asked(S(0)));
        assert!(!window.allows(S(0), 100));
    }

    #[test]
    fn a_time_that_was_measured_before_another_and_comes_later_counts_as_now() {
        let mut window = Window::new(0.0, 1);
        assert_eq!(granted(&mut window, S(7), 5), 5);
        assert_eq!(granted(&mut window, S(6), 50), 5);
        assert_eq!(granted(&mut window, S(16), 50), 0);
        assert_eq!(granted(&mut window, S(17), 50), 10);
    }
}
