//! Places that requests keep on lanes that are busy.

use crate::route::job::{LaneId, Seconds};
use crate::route::scheduler::line::Turn;

/// Most places on one lane: a request that finds as many is planned again instead, until fewer are
/// left. A change of a lane with so many takes a few microseconds.
const MOST_PLACES: usize = 1024;

/// Places on all lanes, on each in the order of the line.
#[derive(Debug, Default)]
pub(super) struct Places {
    lanes: Vec<LanePlaces>,
}

#[derive(Debug, Default)]
struct LanePlaces {
    places: Vec<Place>,
    planned_s: Seconds,
}

/// A place of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) turn: Turn,
    /// Work of the request there.
    pub(super) work_s: Seconds,
}

impl Places {
    /// Keeps a place; false if there is no room.
    pub(super) fn keep(&mut self, lane: LaneId, place: Place) -> bool {
        let at = usize::from(lane.0);
        if self.lanes.len() <= at {
            self.lanes.resize_with(at + 1, LanePlaces::default);
        }
        let Some(here) = self.lanes.get_mut(at).filter(|here| here.places.len() < MOST_PLACES) else {
            return false;
        };
        let before = here.places.partition_point(|it| it.turn < place.turn);
        here.places.insert(before, place);
        here.planned_s += place.work_s;
        true
    }

    /// Gives a place up.
    pub(super) fn give_up(&mut self, lane: LaneId, turn: Turn) {
        let Some(here) = self.lanes.get_mut(usize::from(lane.0)) else { return };
        let Ok(at) = here.places.binary_search_by_key(&turn, |it| it.turn) else { return };
        let gone = here.places.remove(at);
        // Sums of differences drift.
        here.planned_s = if here.places.is_empty() { 0.0 } else { (here.planned_s - gone.work_s).max(0.0) };
    }

    /// The turns of all that have a place on a lane, which they lose.
    pub(super) fn clear(&mut self, lane: LaneId) -> impl Iterator<Item = Turn> {
        let gone = self.lanes.get_mut(usize::from(lane.0)).map(std::mem::take);
        gone.into_iter().flat_map(|gone| gone.places).map(|place| place.turn)
    }

    /// The first turn on a lane.
    pub(super) fn first(&self, lane: LaneId) -> Option<Turn> {
        Some(self.on(lane)?.places.first()?.turn)
    }

    /// All turns on a lane, in their order.
    pub(super) fn turns(&self, lane: LaneId) -> impl Iterator<Item = Turn> {
        self.on(lane).into_iter().flat_map(|here| &here.places).map(|it| it.turn)
    }

    /// All work that is planned on a lane.
    pub(super) fn planned_s(&self, lane: LaneId) -> Seconds {
        self.on(lane).map_or(0.0, |here| here.planned_s)
    }

    /// Work that is planned on a lane before somebody's turn.
    pub(super) fn before_s(&self, lane: LaneId, turn: Turn) -> Seconds {
        let Some(here) = self.on(lane) else { return 0.0 };
        let at = here.places.partition_point(|it| it.turn < turn);
        let work_s = |places: &[Place]| places.iter().map(|it| it.work_s).sum::<Seconds>();
        let (before, behind) = here.places.split_at(at);
        // The shorter part is summed up: mostly nobody is behind.
        if before.len() < behind.len() { work_s(before) } else { (here.planned_s - work_s(behind)).max(0.0) }
    }

    fn on(&self, lane: LaneId) -> Option<&LanePlaces> {
        self.lanes.get(usize::from(lane.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::scheduler::Ticket;

    fn place(ticket: u64, work_s: Seconds) -> Place {
        Place { turn: Turn::new(ticket as f64, Ticket(ticket)), work_s }
    }

    #[test]
    fn places_stand_in_the_order_of_the_line() {
        let (mut places, lane) = (Places::default(), LaneId(2));
        for (ticket, work_s) in [(5, 1.0), (3, 2.0), (9, 4.0), (4, 8.0)] {
            assert!(places.keep(lane, place(ticket, work_s)));
        }
        let turn = |ticket| place(ticket, 0.0).turn;
        assert_eq!(places.turns(lane).collect::<Vec<_>>(), [3, 4, 5, 9].map(turn));
        assert_eq!(
            [1, 4, 5, 6, 10].map(|ticket| places.before_s(lane, turn(ticket))),
            [0.0, 2.0, 10.0, 11.0, 15.0]
        );
        places.give_up(lane, turn(3));
        places.give_up(lane, turn(7));
        assert_eq!((places.first(lane), places.planned_s(lane)), (Some(turn(4)), 13.0));
        assert_eq!(places.clear(lane).collect::<Vec<_>>(), [4, 5, 9].map(turn));
        assert_eq!((places.first(lane), places.planned_s(lane)), (None, 0.0));
    }

    #[test]
    fn room_on_a_lane_is_bounded() {
        let mut places = Places::default();
        let kept = (0..2_000).filter(|ticket| places.keep(LaneId(0), place(*ticket, 1.0))).count();
        assert_eq!(kept, MOST_PLACES);
    }
}
