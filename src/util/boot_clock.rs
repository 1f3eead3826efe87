//! Moments on a clock that goes on while the host is suspended. Engines elsewhere count their
//! leases meanwhile, and `CLOCK_MONOTONIC`, which [`Instant`] reads, does not.

use std::time::Duration;

use tokio::time::Instant;

/// A moment on that clock. It counts the runtime's time, so that tests in virtual time hold for it,
/// and beside it the time for which the host was suspended.
#[derive(Clone, Copy, Debug)]
pub struct BootInstant {
    at: Instant,
    /// Time for which the host had been suspended by then, since it was booted.
    suspended: Duration,
}

impl BootInstant {
    /// The moment of the call.
    pub fn now() -> BootInstant {
        BootInstant { at: Instant::now(), suspended: suspended() }
    }

    /// Time since then.
    pub fn elapsed(&self) -> Duration {
        self.elapsed_at(BootInstant::now())
    }

    /// The moment so long after it, on the runtime's clock, if the host is not suspended from now
    /// on.
    pub fn after(&self, time: Duration) -> Instant {
        let slept = suspended().saturating_sub(self.suspended);
        // What was over before it began is over now.
        self.at + time.saturating_sub(slept)
    }

    fn elapsed_at(&self, now: BootInstant) -> Duration {
        now.at.saturating_duration_since(self.at) + now.suspended.saturating_sub(self.suspended)
    }

    /// A moment so much earlier, for tests.
    #[cfg(test)]
    pub fn earlier(self, time: Duration) -> BootInstant {
        BootInstant { at: self.at.checked_sub(time).unwrap_or(self.at), ..self }
    }
}

/// Time for which the host has been suspended since it was booted, with an error of microseconds.
#[cfg(target_os = "linux")]
fn suspended() -> Duration {
    use rustix::time::{ClockId, clock_gettime};

    let read = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    // Read in this order, what passes between both is not taken for a suspension.
    let booted = read(ClockId::Boottime);
    booted.saturating_sub(read(ClockId::Monotonic))
}

/// Not known of other systems: there a suspended host's leases count as fresh.
#[cfg(not(target_os = "linux"))]
fn suspended() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_awake_and_asleep_counts() {
        let then = BootInstant::now();
        tokio::time::advance(Duration::from_secs(5)).await;
        let second = Duration::from_secs(1);
        assert!(then.elapsed().abs_diff(5 * second) < second, "{:?}", then.elapsed());
        let now = BootInstant { suspended: then.suspended + 3 * second, ..BootInstant::now() };
        assert_eq!(then.elapsed_at(now), 8 * second);
        // A clock that went backwards takes nothing away.
        let now = BootInstant { suspended: Duration::ZERO, ..now };
        assert_eq!(then.elapsed_at(now), 5 * second);
        assert!(then.after(7 * second) > Instant::now() && then.after(4 * second) < Instant::now());
    }
}
