//! Work that many want done and one does.

use std::sync::atomic::{AtomicBool, Ordering};

/// Turns of those who want the same work done: one does it for all who come meanwhile, so that they
/// neither wait for it nor repeat it.
#[derive(Debug, Default)]
pub(super) struct Turns {
    wanted: AtomicBool,
    taken: AtomicBool,
}

/// A turn that ends, however the work ends.
struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Turns {
    /// Has the work done at least once from now on: here, unless somebody does it, who then does it
    /// once more.
    pub(super) fn take(&self, mut work: impl FnMut()) {
        self.wanted.store(true, Ordering::SeqCst);
        // Who comes after the last look of the one whose turn it is finds the turn free.
        while self.wanted.load(Ordering::SeqCst) && !self.taken.swap(true, Ordering::SeqCst) {
            let _turn = Turn(&self.taken);
            while self.wanted.swap(false, Ordering::SeqCst) {
                work();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn work_wanted_while_it_is_done_is_done_once_more() {
        let (turns, mut done) = (Turns::default(), 0);
        turns.take(|| {
            done += 1;
            if done < 3 {
                turns.take(|| panic!("somebody does it already"));
            }
        });
        assert_eq!(done, 3);
    }

    #[test]
    fn work_is_done_after_everybody_wanted_it() {
        let (turns, wanted, seen) = (Turns::default(), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        wanted.fetch_add(1, Ordering::SeqCst);
                        turns.take(|| {
                            seen.fetch_max(wanted.load(Ordering::SeqCst), Ordering::SeqCst);
                        });
                    }
                });
            }
        });
        assert_eq!((wanted.into_inner(), seen.into_inner()), (4_000, 4_000));
    }

    #[test]
    fn work_that_panics_ends_its_turn() {
        let turns = Turns::default();
        let panicked = std::panic::catch_unwind(|| turns.take(|| panic!("oh")));
        assert!(panicked.is_err());
        let mut done = 0;
        turns.take(|| done += 1);
        assert_eq!(done, 1);
    }
}
