//! Lanes in the order in which they become free.

use std::collections::BTreeSet;

use crate::route::job::{LaneId, Seconds};
use crate::route::scheduler::line::ordered;

/// All lanes that may be chosen, by time. A change of one costs some steps in ordered sets.
#[derive(Debug, Default)]
pub(super) struct LaneOrder {
    /// Those that take something now, or will by the passing of time, by the moment of that.
    opening: BTreeSet<Entry>,
    /// All, by the moment at which each has done what it has and what is planned for it. Those that
    /// are set aside come last.
    freeing: BTreeSet<Entry>,
    /// Those that are set aside, by the end of that.
    aside: BTreeSet<Entry>,
    times: Vec<Option<LaneTimes>>,
    /// By lane, its place in `freeing`: many are looked at to find the best of some.
    ranks_s: Vec<Seconds>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: u64,
    lane: LaneId,
}

/// Moments of one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LaneTimes {
    /// It takes something from then on, if nothing changes. None if only a change leads to that.
    pub(super) opens_s: Option<Seconds>,
    /// It has done what it has, and what is planned for it.
    pub(super) free_s: Seconds,
    /// Nobody's choice until then, unless all are set aside.
    pub(super) aside_until_s: Option<Seconds>,
}

impl Entry {
    fn new(at_s: Seconds, lane: LaneId) -> Entry {
        Entry { at: ordered(at_s), lane }
    }
}

impl LaneTimes {
    /// Place among those that become free.
    fn rank_s(&self) -> Seconds {
        self.aside_until_s.map_or(self.free_s, |_| Seconds::INFINITY)
    }
}

impl LaneOrder {
    /// Takes over a lane's times.
    pub(super) fn put(&mut self, lane: LaneId, times: LaneTimes) {
        let at = usize::from(lane.0);
        if self.times.len() <= at {
            self.times.resize(at + 1, None);
            self.ranks_s.resize(at + 1, Seconds::INFINITY);
        }
        if let Some(rank_s) = self.ranks_s.get_mut(at) {
            *rank_s = times.rank_s();
        }
        let before = self.times.get_mut(at).and_then(|place| place.replace(times));
        let moved = |of: fn(&LaneTimes) -> Option<Seconds>| {
            let (old_s, new_s) = (before.as_ref().and_then(of), of(&times));
            (old_s != new_s)
                .then(|| (old_s.map(|at_s| Entry::new(at_s, lane)), new_s.map(|at_s| Entry::new(at_s, lane))))
        };
        let sets = [
            (&mut self.opening, moved(|it| it.opens_s)),
            (&mut self.freeing, moved(|it| Some(it.rank_s()))),
            (&mut self.aside, moved(|it| it.aside_until_s)),
        ];
        for (set, (old, new)) in sets.into_iter().filter_map(|(set, moved)| Some((set, moved?))) {
            old.map(|old| set.remove(&old));
            set.extend(new);
        }
    }

    /// A lane may not be chosen any more.
    pub(super) fn remove(&mut self, lane: LaneId) {
        let Some(times) = self.times.get_mut(usize::from(lane.0)).and_then(Option::take) else { return };
        self.freeing.remove(&Entry::new(times.rank_s(), lane));
        if let Some(rank_s) = self.ranks_s.get_mut(usize::from(lane.0)) {
            *rank_s = Seconds::INFINITY;
        }
        times.opens_s.map(|at_s| self.opening.remove(&Entry::new(at_s, lane)));
        times.aside_until_s.map(|at_s| self.aside.remove(&Entry::new(at_s, lane)));
    }

    pub(super) fn times(&self, lane: LaneId) -> Option<LaneTimes> {
        self.times.get(usize::from(lane.0)).copied().flatten()
    }

    /// The moment at which a lane has done all that it has, for comparison: never for one that may
    /// not be chosen.
    pub(super) fn rank_s(&self, lane: LaneId) -> Seconds {
        self.ranks_s.get(usize::from(lane.0)).copied().unwrap_or(Seconds::INFINITY)
    }

    pub(super) fn len(&self) -> usize {
        self.freeing.len()
    }

    /// Number of those that are set aside.
    pub(super) fn aside(&self) -> usize {
        self.aside.len()
    }

    /// One that takes something now.
    pub(super) fn open(&self, now: Seconds) -> Option<LaneId> {
        self.opening.first().filter(|first| first.at <= ordered(now)).map(|first| first.lane)
    }

    /// One that need not be set aside any longer.
    pub(super) fn returned(&self, now: Seconds) -> Option<LaneId> {
        self.aside.first().filter(|first| first.at <= ordered(now)).map(|first| first.lane)
    }

    /// The first moment after `now` at which one opens, or returns.
    pub(super) fn next_s(&self, now: Seconds) -> Option<Seconds> {
        let after = Entry { at: ordered(now) + 1, lane: LaneId(0) };
        let next = |set: &BTreeSet<Entry>| set.range(after..).next().map(|entry| entry.lane);
        let opens_s = next(&self.opening).and_then(|lane| self.times(lane)?.opens_s);
        let returns_s = next(&self.aside).and_then(|lane| self.times(lane)?.aside_until_s);
        opens_s.into_iter().chain(returns_s).min_by(f64::total_cmp)
    }

    /// All, the soonest to be free first.
    pub(super) fn soonest(&self) -> impl Iterator<Item = LaneId> {
        self.freeing.iter().map(|entry| entry.lane)
    }

    /// All that are not set aside, the last to be free first.
    pub(super) fn latest(&self) -> impl Iterator<Item = LaneId> {
        let aside = ordered(Seconds::INFINITY);
        self.freeing.iter().rev().filter(move |entry| entry.at < aside).map(|entry| entry.lane)
    }

    /// All that are open or open by time, the first to open first.
    pub(super) fn opening(&self) -> impl Iterator<Item = LaneId> {
        self.opening.iter().map(|entry| entry.lane)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn times(opens_s: f64, free_s: f64) -> LaneTimes {
        LaneTimes { opens_s: Some(opens_s), free_s, aside_until_s: None }
    }

    #[test]
    fn lanes_stand_by_their_times() {
        let mut order = LaneOrder::default();
        order.put(LaneId(3), times(1.0, 5.0));
        order.put(LaneId(1), times(2.0, 4.0));
        order.put(LaneId(2), LaneTimes { opens_s: None, aside_until_s: Some(1.5), free_s: 0.0 });
        assert_eq!(order.soonest().collect::<Vec<_>>(), [LaneId(1), LaneId(3), LaneId(2)]);
        assert_eq!(order.latest().collect::<Vec<_>>(), [LaneId(3), LaneId(1)]);
        assert_eq!((order.open(0.9), order.open(1.0)), (None, Some(LaneId(3))));
        assert_eq!((order.next_s(0.0), order.next_s(1.0), order.next_s(2.0)), (Some(1.0), Some(1.5), None));
        assert_eq!((order.returned(1.4), order.returned(1.5)), (None, Some(LaneId(2))));
        order.remove(LaneId(3));
        order.remove(LaneId(9));
        assert_eq!((order.open(1.0), order.len(), order.aside()), (None, 2, 1));
    }

    proptest! {
        #[test]
        fn sets_agree_with_the_times(
            changes in proptest::collection::vec((0u16..6, 0u8..9, 0u8..9, 0u8..4), 1..80),
        ) {
            let mut order = LaneOrder::default();
            for (lane, opens, free, what) in changes {
                let mut its = times(f64::from(opens), f64::from(free));
                match what {
                    0 => order.remove(LaneId(lane)),
                    1 => { its.opens_s = None; order.put(LaneId(lane), its) }
                    2 => { its.aside_until_s = Some(f64::from(opens)); order.put(LaneId(lane), its) }
                    _ => order.put(LaneId(lane), its),
                }
                let all: Vec<LaneTimes> = order.times.iter().flatten().copied().collect();
                prop_assert_eq!(order.len(), all.len());
                prop_assert_eq!(order.opening.len(), all.iter().filter(|it| it.opens_s.is_some()).count());
                prop_assert_eq!(order.aside(), all.iter().filter(|it| it.aside_until_s.is_some()).count());
                let ranks: Vec<f64> = order.soonest().map(|lane| order.rank_s(lane)).collect();
                prop_assert!(ranks.is_sorted());
            }
        }
    }
}
