//! Ends of prefills, and what is learned of them.

use super::{Booking, PrefillScheduler, TELLING_S, large};
use crate::route::job::{LaneId, Seconds};

/// Ways in which a prefill ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Its blocks are there now, and its engine has reported this.
    Computed(Reported),
    /// Its blocks are there, nobody knows since when: nothing is learned of the time.
    Unseen,
    /// It failed: whatever it computed, nothing is learned of it.
    Failed,
}

/// An engine's report about a prompt that it has computed, as far as it gives one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Of these, found in a cache.
    pub cached_tokens: Option<u64>,
    /// The prompt's length in the measure of estimates, where its own estimate was of media and is
    /// corrected by the engine's count.
    pub estimate_tokens: Option<u32>,
}

impl PrefillScheduler {
    /// A prefill ended. Nothing happens for a booking that is gone with its lane.
    pub fn done(&mut self, now: Seconds, booking: Booking, done: Done) {
        let Some(lane_id) = self.bookings.remove(&booking.0) else { return };
        let Some(lane) = self.lanes.get_mut(usize::from(lane_id.0)).and_then(Option::as_mut) else { return };
        let Some((mut booked, began_s)) = lane.finish(booking.0, now) else { return };
        if let Some(large) = &mut self.large {
            large.touch(lane_id);
        }
        if !matches!(done, Done::Computed(_)) {
            lane.forget_together();
        }
        if done == Done::Failed {
            self.residents.forget(lane_id, booked.job.chain(), booked.stamp);
            return;
        }
        let of_class = self.classes.iter_mut().find(|(class, _)| *class == lane.spec.class);
        if let (Done::Computed(Reported { estimate_tokens: Some(tokens), .. }), Some((_, learner))) =
            (done, &of_class)
        {
            booked.correct(tokens, &learner.costs());
        }
        if let Done::Computed(reported) = done
            && let Some(together) = lane.computed(&booked, began_s, now, booked.came_true(reported))
        {
            let class_s = lane.judge(&together);
            if let Some((_, learner)) = of_class {
                learner.learn(together.work, class_s);
            }
        }
        // Who tells what it holds: our own belief is needed for the time until it does.
        if lane.tells && self.beliefs.named && booked.job.named {
            self.fading.push_back((now + TELLING_S, lane_id, booked.job, booked.stamp));
        }
        self.center(lane_id);
    }

    /// Slownesses of a class are kept around one, as only their product with the class's costs is
    /// observed. Of many lanes not after each observation: each moves the mean by little.
    fn center(&mut self, lane: LaneId) {
        self.uncentered += 1;
        if self.uncentered * large::FEW_LANES < self.lanes.len() {
            return;
        }
        self.uncentered = 0;
        let lane = self.lanes.get(usize::from(lane.0)).and_then(Option::as_ref);
        let Some(class) = lane.map(|lane| lane.spec.class) else { return };
        let of_class = || self.lanes.iter().flatten().filter(|lane| lane.spec.class == class);
        let count = of_class().count().max(1) as f64;
        let mean = of_class().map(|lane| lane.measured_slowness().ln()).sum::<f64>() / count;
        let factor = (-mean).exp();
        for lane in self.lanes.iter_mut().flatten().filter(|lane| lane.spec.class == class) {
            lane.scale_slowness(factor);
        }
    }
}
