//! Order of the line: the time by which a request is put back from its arrival. Nobody who comes
//! later than that passes it, so nobody starves.
//!
//! Each request is put back by a few times its own work, so that short ones go first. One that is
//! due sooner is put back by its slack only: the time until it has to begin, so that its first
//! token is there when it is due. The order by slack alone would serve those first that are late
//! already, and have long prompts before short ones that are due at the same time: in the replay
//! fewer first tokens come in time by it.

use super::PrefillScheduler;
use crate::route::job::Seconds;

/// Part of a request's own work by which it is put back however long it is.
const OWN_SHARE: f64 = 0.5;

impl PrefillScheduler {
    /// Seconds by which a request is put back that makes `own_s` of work and whose first token is
    /// due within `slo_s` of its arrival. An objective that can't be kept counts for nothing.
    pub(super) fn put_back_s(&self, own_s: Seconds, slo_s: Option<Seconds>) -> Seconds {
        let settings = &self.settings;
        let most_s = OWN_SHARE * own_s + settings.aging_means * self.mean_prefill_s;
        let by_work_s = (settings.aging * own_s).min(most_s).min(settings.most_put_back_s);
        let slack_s = slo_s.map(|slo_s| slo_s - own_s).filter(|slack_s| *slack_s >= 0.0);
        slack_s.map_or(by_work_s, |slack_s| by_work_s.min(slack_s))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::{LaneSpec, MOST_PUT_BACK_S, SchedulerSettings};
    use super::*;
    use crate::route::job::{Job, LaneId};

    /// A scheduler whose requests make so much work on average.
    fn scheduler(mean_prefill_s: Seconds) -> PrefillScheduler {
        PrefillScheduler { mean_prefill_s, ..PrefillScheduler::new(SchedulerSettings::default()) }
    }

    #[test]
    fn long_prompts_are_put_back_by_less_for_each_second_than_short_ones() {
        let put_back = |own_s| scheduler(0.25).put_back_s(own_s, None);
        assert_eq!([0.0, 0.125, 0.5, 1.0].map(put_back), [0.0, 0.5, 1.0, 1.25]);
        assert_eq!(put_back(1_000.0), MOST_PUT_BACK_S);
    }

    #[test]
    fn request_that_is_due_sooner_is_put_back_by_its_slack() {
        let put_back = |slo_s| scheduler(1.0).put_back_s(0.5, slo_s);
        let due = [None, Some(9.0), Some(1.5), Some(0.5), Some(0.4)].map(put_back);
        assert_eq!(due, [2.0, 2.0, 1.0, 0.0, 2.0], "one that can't be kept counts for nothing");
    }

    #[test]
    fn request_that_is_due_soon_goes_before_those_that_came_earlier() {
        let mut board = PrefillScheduler::new(SchedulerSettings::default());
        board.open(LaneId(0), LaneSpec { class: 0, cache_tokens: 0, identity: 0 });
        let mut arrive = |now, prompt_tokens, ttft_slo_s| {
            let job = Arc::new(Job { prompt_tokens, ttft_slo_s, ..Job::default() });
            board.arrive(now, job)
        };
        arrive(0.0, 10_000, None);
        let (long, short) = (arrive(0.0, 10_000, None), arrive(0.1, 1_000, None));
        let soon = arrive(0.2, 10_000, Some(1.2));
        let places = [soon, short, long].map(|ticket| board.position(ticket));
        assert_eq!(places, [Some(1), Some(0), Some(3)]);
    }

    proptest! {
        /// For any work and objective: nobody who comes 30 s later passes it, it is never put back
        /// by more than without an objective, and one that is due later never goes before another
        /// one with as much work.
        #[test]
        fn nobody_starves_and_objectives_only_hurry(
            mean_s in 0.0f64..100.0, own_s in 0.0f64..5_000.0, slo_s in 0.0f64..5_000.0, later_s in 0.0f64..100.0,
        ) {
            let scheduler = scheduler(mean_s);
            let put_back_s = scheduler.put_back_s(own_s, Some(slo_s));
            prop_assert!((0.0..=MOST_PUT_BACK_S).contains(&put_back_s));
            prop_assert!(put_back_s <= scheduler.put_back_s(own_s, None));
            prop_assert!(slo_s < own_s || put_back_s <= scheduler.put_back_s(own_s, Some(slo_s + later_s)));
        }
    }
}
