//! A value that can be replaced while others read it.

use std::sync::Arc;

use arc_swap::ArcSwap;

/// A value that is read often, and replaced as a whole now and then. Readers never wait, and keep
/// the value that they read.
#[derive(Debug)]
pub struct Live<T>(ArcSwap<T>);

impl<T> Live<T> {
    /// Creates it with a first value.
    pub fn new(value: T) -> Live<T> {
        Live(ArcSwap::from_pointee(value))
    }

    /// The value at this moment.
    pub fn now(&self) -> Arc<T> {
        self.0.load_full()
    }

    /// Replaces the value.
    pub fn set(&self, value: T) {
        self.0.store(Arc::new(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_keep_what_they_read() {
        let live = Live::new(1);
        let before = live.now();
        live.set(2);
        assert_eq!((*before, *live.now()), (1, 2));
    }
}
