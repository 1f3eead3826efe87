//! Random numbers for jitter and dice. They are not fit for secrets.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

thread_local! {
    static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0u8));
}

/// Seeds the numbers of this thread: from here on they are those that follow from `seed`, so that
/// what was seen once can be seen again.
pub fn seed(seed: u64) {
    STATE.set(seed);
}

/// A random number, good enough for jitter and dice.
pub fn random() -> u64 {
    // splitmix64
    STATE.with(|state| {
        let s = state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        state.set(s);
        let z = (s ^ (s >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
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
