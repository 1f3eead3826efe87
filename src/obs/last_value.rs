//! The last value of a kind, shown to operators: Prometheus keeps counts, not values.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// The last value, if there was any.
#[derive(Debug)]
pub struct LastValue<T>(Mutex<Option<TimedValue<T>>>);

/// A value and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedValue<T> {
    /// Value that was recorded.
    pub what: T,
    /// Wall-clock time of the recording.
    pub at: SystemTime,
}

impl<T> Default for LastValue<T> {
    fn default() -> LastValue<T> {
        LastValue(Mutex::new(None))
    }
}

impl<T: Copy> LastValue<T> {
    /// Records a value at the present time.
    pub fn set(&self, what: T) {
        let moment = TimedValue { what, at: SystemTime::now() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(moment);
    }

    /// The last value.
    pub fn get(&self) -> Option<TimedValue<T>> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_is_kept_alone() {
        let last = LastValue::default();
        assert_eq!(last.get(), None);
        last.set("a");
        last.set("b");
        assert_eq!(last.get().map(|moment| moment.what), Some("b"));
    }
}
