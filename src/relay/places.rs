//! Limits on how many requests either side has at a time. They refuse; the lines are elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many at a time.
#[derive(Clone, Debug)]
pub struct Places {
    taken: Arc<AtomicUsize>,
    most: usize,
}

/// One of them; given back when dropped.
#[derive(Debug)]
pub struct ConcurrencyPermit(Arc<AtomicUsize>);

impl Places {
    /// As many as `most`; 0 = any number.
    pub fn new(most: usize) -> Places {
        Places { taken: Arc::default(), most: if most == 0 { usize::MAX } else { most } }
    }

    /// One, if there is one.
    pub fn take(&self) -> Option<ConcurrencyPermit> {
        let more = |taken| (taken < self.most).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(ConcurrencyPermit(self.taken.clone()))
    }
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_places_and_each_comes_back() {
        let places = Places::new(2);
        let (first, second) = (places.take().unwrap(), places.take().unwrap());
        assert!(places.take().is_none());
        drop(first);
        let third = places.take();
        assert!(third.is_some() && places.take().is_none());
        drop((second, third));
        assert_eq!(places.taken.load(Ordering::Relaxed), 0);
        let any = Places::new(0);
        assert!((0..1_000).map(|_| any.take()).all(|place| place.is_some()));
    }
}
