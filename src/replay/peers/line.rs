//! A line in a gateway whose prefillers have at most so many requests: for formulas of others that
//! hold requests back, in an order of theirs.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::aged_srpt::{self, Waiter};
use super::smg_queue;
use crate::replay::Seconds;
use crate::route::{Job, LaneId};

/// Kinds of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    /// First come, first served ([`smg_queue`]).
    Fifo,
    /// By the work that is left, with ageing ([`aged_srpt`]).
    AgedSrpt,
}

/// Requests that wait, and the load of the prefillers.
#[derive(Debug)]
pub struct Line {
    kind: LineKind,
    waiting: Vec<Waiting>,
    /// Requests that each prefiller has; none where it is gone.
    lanes: Vec<Option<u32>>,
    booked: HashMap<u64, LaneId>,
    /// Tickets of the line by those of who decides.
    tickets: HashMap<u64, u64>,
    count: u64,
}

/// A request that waits.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// Ticket that it has in the line.
    pub ticket: u64,
    /// Facts by which it is ordered.
    pub waiter: Waiter,
    /// Facts of the request.
    pub job: Arc<Job>,
    /// Prefiller on which it failed.
    pub failed: Option<LaneId>,
}

impl Line {
    /// An empty line before this number of prefillers.
    #[must_use]
    pub fn new(kind: LineKind, lanes: u16) -> Line {
        Line {
            kind,
            waiting: Vec::new(),
            lanes: vec![Some(0); usize::from(lanes)],
            booked: HashMap::new(),
            tickets: HashMap::new(),
            count: 0,
        }
    }

    /// Takes a request in; returns its ticket.
    pub fn enter(&mut self, waiter: Waiter, job: Arc<Job>, failed: Option<LaneId>) -> u64 {
        self.count += 1;
        self.waiting.push(Waiting { ticket: self.count, waiter, job, failed });
        self.count
    }

    /// Takes the next one out, if a prefiller has room for it.
    pub fn leave(&mut self, now: Seconds) -> Option<Waiting> {
        let most = match self.kind {
            LineKind::Fifo => smg_queue::IN_FLIGHT,
            LineKind::AgedSrpt => aged_srpt::IN_FLIGHT,
        };
        if !self.lanes.iter().flatten().any(|requests| *requests < most) {
            return None;
        }
        let order = |one: &Waiting, other: &Waiting| -> Ordering {
            match self.kind {
                LineKind::Fifo => one.waiter.since_s.total_cmp(&other.waiter.since_s),
                LineKind::AgedSrpt => aged_srpt::order(now, &one.waiter, &other.waiter),
            }
            .then(one.ticket.cmp(&other.ticket))
        };
        let numbered = self.waiting.iter().enumerate();
        let (at, _) = numbered.min_by(|(_, one), (_, other)| order(one, other))?;
        Some(self.waiting.swap_remove(at))
    }

    /// The one of that ticket has another one where prefillers are chosen.
    pub fn rename(&mut self, ticket: u64, inner: u64) {
        self.tickets.insert(inner, ticket);
    }

    /// A request goes to a prefiller; returns its ticket in the line.
    pub fn sent(&mut self, inner: u64, booking: u64, lane: LaneId) -> u64 {
        if let Some(Some(requests)) = self.lanes.get_mut(usize::from(lane.0)) {
            *requests += 1;
        }
        self.booked.insert(booking, lane);
        self.tickets.remove(&inner).unwrap_or(inner)
    }

    /// A prefill ended.
    pub fn done(&mut self, booking: u64) {
        let lane = self.booked.remove(&booking);
        if let Some(Some(requests)) = lane.and_then(|lane| self.lanes.get_mut(usize::from(lane.0))) {
            *requests = requests.saturating_sub(1);
        }
    }

    /// A prefiller is gone.
    pub fn close(&mut self, lane: LaneId) {
        if let Some(requests) = self.lanes.get_mut(usize::from(lane.0)) {
            *requests = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(kind: LineKind) -> Line {
        let mut line = Line::new(kind, 2);
        for (since_s, prompt_tokens) in [(0.0, 9_000), (1.0, 100), (2.0, 5_000)] {
            let waiter = Waiter { since_s, prompt_tokens, held_tokens: 0 };
            line.enter(waiter, Arc::new(Job::default()), None);
        }
        line
    }

    #[test]
    fn lines_have_their_order() {
        let order = |kind| {
            let mut line = line(kind);
            std::iter::from_fn(|| line.leave(3.0)).map(|it| it.ticket).collect::<Vec<_>>()
        };
        assert_eq!(order(LineKind::Fifo), [1, 2, 3]);
        assert_eq!(order(LineKind::AgedSrpt), [2, 3, 1]);
    }

    #[test]
    fn nobody_leaves_until_there_is_room() {
        let mut line = line(LineKind::Fifo);
        for booking in 0..4 {
            line.rename(10 + booking, booking);
            assert_eq!(line.sent(booking, booking, LaneId((booking % 2) as u16)), 10 + booking);
        }
        assert!(line.leave(3.0).is_none(), "two have two each");
        line.done(1);
        assert_eq!(line.leave(3.0).map(|it| it.ticket), Some(1));
        line.close(LaneId(1));
        assert!(line.leave(3.0).is_none(), "the other one is gone");
    }
}
