//! The last of something, for people who look: Prometheus keeps how many, not which.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// The last value, if there was any.
#[derive(Debug)]
pub struct Last<T>(Mutex<Option<Moment<T>>>);

/// A value and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment<T> {
    /// Value that was recorded.
    pub what: T,
    /// Time, by the clock on the wall.
    pub at: SystemTime,
}

impl<T> Default for Last<T> {
    fn default() -> Last<T> {
        Last(Mutex::new(None))
    }
}

impl<T: Copy> Last<T> {
    /// It is now.
    pub fn set(&self, what: T) {
        let moment = Moment { what, at: SystemTime::now() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(moment);
    }

    /// The last value.
    pub fn get(&self) -> Option<Moment<T>> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_is_kept_alone() {
        let last = Last::default();
        assert_eq!(last.get(), None);
        last.set("a");
        last.set("b");
        assert_eq!(last.get().map(|moment| moment.what), Some("b"));
    }
}
