//! Work of the role in seconds, for those who decide on the number of prefillers.

use super::PrefillScheduler;
use crate::route::job::Seconds;
use crate::route::saturation::WorkSum;

/// Predicted work of all prefillers together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Workload {
    /// Work that was given to prefillers since the start, or refused for want of time.
    pub offered: WorkSum,
    /// Seconds of those that wait in the line.
    pub waiting_s: Seconds,
    /// Mean seconds of a request.
    pub mean_s: Seconds,
    /// Seconds of what waits on prefillers, after the piece of work that each is at.
    pub queued_s: Seconds,
    /// Seconds of all that prefillers have still to do for us.
    pub booked_s: Seconds,
}

impl PrefillScheduler {
    /// Work of all prefillers. It takes a look at each lane.
    #[must_use]
    pub fn workload(&self, now: Seconds) -> Workload {
        let lanes = || self.lanes.iter().flatten();
        Workload {
            offered: self.offered,
            waiting_s: self.line.len() as f64 * self.mean_prefill_s,
            mean_s: self.mean_prefill_s,
            queued_s: lanes().map(|lane| lane.queued_s()).sum(),
            booked_s: lanes().map(|lane| lane.booked_left_s(now)).sum(),
        }
    }

    /// Counts the predicted seconds of a request that was refused since they would come too late:
    /// more prefillers would have had them to do.
    pub fn note_refused(&mut self, seconds: Seconds) {
        self.offered.add(seconds);
    }
}
