//! Those who wait, in the order in which they will be looked at.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::route::job::{Job, LaneId, Seconds};
use crate::route::popular::SharedPrefixes;

/// A place in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Someone who waits.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) ticket: Ticket,
    pub(super) job: Arc<Job>,
    pub(super) since_s: Seconds,
    /// Lanes on which it failed.
    pub(super) tried: SmallVec<[LaneId; 4]>,
    pub(super) shared_prefixes: SharedPrefixes,
    pub(super) seen: HeldByLanes,
    /// Among many lanes: the one where it is planned.
    pub(super) place: Option<LaneId>,
}

/// A request's turn: the order of the line, equals by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    key: u64,
    pub(super) ticket: Ticket,
}

impl Turn {
    pub(super) fn new(key: Seconds, ticket: Ticket) -> Turn {
        Turn { key: ordered(key), ticket }
    }
}

/// Tokens of a job's prompt that each lane holds, as of some time.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldByLanes {
    /// Leading tokens in each lane's own memory, by lane, as believed.
    pub(super) own_tokens: Vec<u32>,
    /// And as those told that tell.
    pub(super) told_tokens: Vec<Option<u32>>,
    /// The same of many lanes: those that told of some, by lane.
    pub(super) told_some: SmallVec<[HeldByLane; 2]>,
    pub(super) told_s: Option<Seconds>,
    /// Of the residents.
    pub(super) version: Option<u64>,
}

/// Leading tokens of a prompt that one lane told of.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldByLane {
    pub(super) lane: LaneId,
    pub(super) tokens: u32,
}

/// Of many lanes that told, those are kept that hold most.
const MOST_TOLD: usize = 32;

impl HeldByLanes {
    /// Takes over what lanes told: of few of each, of many only of those that hold something.
    pub(super) fn take(&mut self, told: &[Option<u32>], is_few: bool, now: Seconds) {
        self.told_s = Some(now);
        if is_few {
            self.told_tokens.clear();
            self.told_tokens.extend_from_slice(told);
            return;
        }
        let some = (0u16..).zip(told).filter_map(|(lane, tokens)| Some((LaneId(lane), (*tokens)?)));
        self.told_some = some
            .filter(|(_, tokens)| *tokens > 0)
            .map(|(lane, tokens)| HeldByLane { lane, tokens })
            .collect();
        if self.told_some.len() > MOST_TOLD {
            self.told_some.sort_unstable_by_key(|it| Reverse(it.tokens));
            self.told_some.truncate(MOST_TOLD);
            self.told_some.sort_unstable_by_key(|it| it.lane);
        }
    }

    /// Tokens that one of many lanes told of.
    pub(super) fn told_by(&self, lane: LaneId) -> Option<u32> {
        let found = self.told_some.binary_search_by_key(&lane, |it| it.lane);
        found.ok().and_then(|at| self.told_some.get(at)).map(|it| it.tokens)
    }

    /// Tokens that a lane told, if it tells.
    pub(super) fn held_tokens(&self, lane: usize) -> Option<u32> {
        self.told_tokens.get(lane).copied().flatten()
    }
}

/// Ordered by key, equals by arrival.
#[derive(Debug, Default)]
pub(super) struct Line {
    order: BTreeMap<Turn, Waiting>,
    keys: HashMap<Ticket, u64>,
}

impl Line {
    pub(super) fn join(&mut self, key: Seconds, waiting: Waiting) -> Turn {
        let turn = Turn::new(key, waiting.ticket);
        self.keys.insert(turn.ticket, turn.key);
        self.order.insert(turn, waiting);
        turn
    }

    pub(super) fn get(&self, turn: Turn) -> Option<&Waiting> {
        self.order.get(&turn)
    }

    pub(super) fn get_mut(&mut self, turn: Turn) -> Option<&mut Waiting> {
        self.order.get_mut(&turn)
    }

    /// Its turn, if it waits.
    pub(super) fn turn(&self, ticket: Ticket) -> Option<Turn> {
        self.keys.get(&ticket).map(|key| Turn { key: *key, ticket })
    }

    /// The first one behind `turn`, or at all.
    pub(super) fn next(&self, turn: Option<Turn>) -> Option<Turn> {
        let behind = turn.map_or(Bound::Unbounded, Bound::Excluded);
        self.order.range((behind, Bound::Unbounded)).next().map(|(turn, _)| *turn)
    }

    /// Nobody has a place any more, and nobody was asked.
    pub(super) fn forget_places(&mut self) {
        for waiting in self.order.values_mut() {
            (waiting.place, waiting.seen) = Default::default();
        }
    }

    pub(super) fn turns(&self) -> impl Iterator<Item = Turn> {
        self.order.keys().copied()
    }

    pub(super) fn leave(&mut self, ticket: Ticket) -> Option<Waiting> {
        let key = self.keys.remove(&ticket)?;
        self.order.remove(&Turn { key, ticket })
    }

    pub(super) fn first(&mut self, count: usize) -> impl Iterator<Item = &mut Waiting> {
        self.order.values_mut().take(count)
    }

    pub(super) fn front(&self, count: usize) -> impl Iterator<Item = &Waiting> {
        self.order.values().take(count)
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Number of requests before it.
    pub(super) fn position(&self, ticket: Ticket) -> Option<usize> {
        Some(self.order.range(..self.turn(ticket)?).count())
    }
}

/// Bits that compare as the number does.
pub(super) fn ordered(key: Seconds) -> u64 {
    let bits = key.to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(ticket: u64) -> Waiting {
        Waiting {
            ticket: Ticket(ticket),
            job: Arc::default(),
            since_s: 0.0,
            tried: SmallVec::new(),
            shared_prefixes: SharedPrefixes::new(),
            seen: HeldByLanes::default(),
            place: None,
        }
    }

    #[test]
    fn the_order_is_that_of_the_keys_and_leaving_is_final() {
        let mut line = Line::default();
        for (ticket, key) in [(1, 2.5), (2, -1.0), (3, 0.0), (4, 2.5), (5, -7.0), (6, 1e9)] {
            line.join(key, waiting(ticket));
        }
        let order = |line: &mut Line| line.first(9).map(|it| it.ticket.0).collect::<Vec<_>>();
        assert_eq!(order(&mut line), [5, 2, 3, 1, 4, 6]);
        assert_eq!(line.position(Ticket(4)), Some(4));
        assert!(line.leave(Ticket(3)).is_some());
        assert!(line.leave(Ticket(3)).is_none());
        assert_eq!(order(&mut line), [5, 2, 1, 4, 6]);
        assert_eq!(line.first(2).count(), 2);
    }
}
