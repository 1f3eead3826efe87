//! Planned events by time; those of the same time in the order in which they were planned.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::Seconds;

/// Queue of planned events.
#[derive(Debug)]
pub struct Events<E> {
    heap: BinaryHeap<Planned<E>>,
    count: u64,
}

#[derive(Debug)]
struct Planned<E> {
    at_s: Seconds,
    nth: u64,
    event: E,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), count: 0 }
    }
}

impl<E> Events<E> {
    /// Plans an event.
    pub fn plan(&mut self, at_s: Seconds, event: E) {
        self.count += 1;
        self.heap.push(Planned { at_s, nth: self.count, event });
    }

    /// Takes the next event and its time.
    pub fn pop(&mut self) -> Option<(Seconds, E)> {
        self.heap.pop().map(|planned| (planned.at_s, planned.event))
    }
}

impl<E> Ord for Planned<E> {
    /// The heap's greatest is the one that comes first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at_s.total_cmp(&self.at_s).then(other.nth.cmp(&self.nth))
    }
}

impl<E> PartialOrd for Planned<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Planned<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Planned<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_comes_first_and_ties_keep_their_order() {
        let mut events = Events::default();
        for (at, event) in [(2.0, 'c'), (1.0, 'a'), (2.0, 'd'), (1.5, 'b')] {
            events.plan(at, event);
        }
        let order: String = std::iter::from_fn(|| events.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, "abcd");
    }
}
