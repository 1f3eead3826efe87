//! Random numbers for jitter and random choices. They are not fit for secrets.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

use super::splitmix::{STEP, mix};

thread_local! {
    static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0u8));
}

/// Seeds the numbers of this thread: from here on they are those that follow from `seed`, so that
/// what was seen once can be seen again.
pub fn seed(seed: u64) {
    STATE.set(seed);
}

/// A random number, good enough for jitter and random choices.
pub fn random() -> u64 {
    STATE.with(|state| {
        let next = state.get().wrapping_add(STEP);
        state.set(next);
        mix(next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ_and_follow_from_a_seed() {
        let draw = || (0..100).map(|_| random()).collect::<Vec<_>>();
        let drawn: std::collections::HashSet<_> = draw().into_iter().collect();
        assert_eq!(drawn.len(), 100);
        seed(7);
        let first = draw();
        seed(7);
        assert_eq!(draw(), first);
    }
}
