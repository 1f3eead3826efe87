//! Those who wait, in the order in which they will be looked at.

use std::collections::{BTreeMap, HashMap};
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
}

/// Tokens of a job's prompt that each lane holds, as of some time.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldByLanes {
    /// Leading tokens in each lane's own memory, by lane, as believed.
    pub(super) own_tokens: Vec<u32>,
    /// And as those told that tell.
    pub(super) told_tokens: Vec<Option<u32>>,
    pub(super) told_s: Option<Seconds>,
    /// Of the residents.
    pub(super) version: Option<u64>,
}

impl HeldByLanes {
    /// Tokens that a lane told, if it tells.
    pub(super) fn held_tokens(&self, lane: usize) -> Option<u32> {
        self.told_tokens.get(lane).copied().flatten()
    }
}

/// Ordered by key, equals by arrival.
#[derive(Debug, Default)]
pub(super) struct Line {
    order: BTreeMap<(u64, Ticket), Waiting>,
    keys: HashMap<Ticket, u64>,
}

impl Line {
    pub(super) fn join(&mut self, key: Seconds, waiting: Waiting) {
        let key = ordered(key);
        self.keys.insert(waiting.ticket, key);
        self.order.insert((key, waiting.ticket), waiting);
    }

    pub(super) fn leave(&mut self, ticket: Ticket) -> Option<Waiting> {
        let key = self.keys.remove(&ticket)?;
        self.order.remove(&(key, ticket))
    }

    pub(super) fn first(&mut self, count: usize) -> impl Iterator<Item = &mut Waiting> {
        self.order.values_mut().take(count)
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Number of requests before it.
    pub(super) fn position(&self, ticket: Ticket) -> Option<usize> {
        let key = *self.keys.get(&ticket)?;
        Some(self.order.range(..(key, ticket)).count())
    }
}

/// Bits that compare as the number does.
fn ordered(key: Seconds) -> u64 {
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
