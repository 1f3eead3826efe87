//! Counts the copies of a block that an engine has in its HBM, for each KV cache group.
//!
//! vLLM does not merge equal blocks. Two requests that compute the same prefix beside each other
//! leave two copies under one hash, and a prompt whose last block is full computes that block anew
//! each time. `BlockPool` tells of each copy by a `BlockStored`, and by a `BlockRemoved` when that
//! copy is evicted (`cache_full_blocks`, `_maybe_evict_cached_block`, the same from 0.11 to 0.33).
//! So a removal says that one copy is gone, and not that the block is.
//!
//! One thing is told without a copy: the blocks that a request found cached, where it asked for
//! that itself (`kv_cache_report_mode` `full`, since 0.28). It looks like a copy and counts as one.

/// Most copies of a block in one group. Those beyond are forgotten, so that the block is forgotten
/// early, never late.
#[cfg(test)]
pub(super) const MOST: u8 = 8;

/// A number for each group, from 0 to 8. All are kept side by side: bit `g` of each byte is of
/// group `g`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Copies {
    /// Nonzero if there is one.
    any: u8,
    /// Those beyond the first, in binary, the lowest bits first.
    more: [u8; 3],
}

impl Copies {
    /// Groups that have one, a bit each.
    pub(super) fn groups(self) -> u8 {
        self.any
    }

    /// One more in each of these groups.
    pub(super) fn add(&mut self, groups: u8) {
        let full = self.more.iter().fold(u8::MAX, |full, bits| full & bits);
        let mut carry = groups & self.any & !full;
        self.any |= groups;
        for bits in &mut self.more {
            (*bits, carry) = (*bits ^ carry, *bits & carry);
        }
    }

    /// One less in each of these groups that has any.
    pub(super) fn remove(&mut self, groups: u8) {
        let several = self.more.iter().fold(0, |several, bits| several | bits);
        self.any &= several | !groups;
        let mut borrow = groups & several;
        for bits in &mut self.more {
            (*bits, borrow) = (*bits ^ borrow, !*bits & borrow);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn eight_counters_in_four_bytes(steps in prop::collection::vec((any::<u8>(), any::<u8>()), 0..60)) {
            let (mut copies, mut counts) = (Copies::default(), [0_u8; 8]);
            for (groups, kind) in steps {
                // Most steps add, so that counters come to their end.
                let adds = kind < 160;
                if adds { copies.add(groups) } else { copies.remove(groups) }
                for (group, count) in counts.iter_mut().enumerate() {
                    if groups & 1 << group != 0 {
                        *count = if adds { (*count + 1).min(MOST) } else { count.saturating_sub(1) };
                    }
                }
                let bit = |group: usize| u8::from(counts[group] > 0) << group;
                prop_assert_eq!(copies.groups(), (0..8).map(bit).sum::<u8>());
            }
            for left in (0..MOST).rev() {
                copies.remove(u8::MAX);
                let bit = |group: usize| u8::from(counts[group] > MOST - left) << group;
                prop_assert_eq!(copies.groups(), (0..8).map(bit).sum::<u8>());
            }
        }
    }
}
