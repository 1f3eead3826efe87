//! A hasher for keys that are digests, or parts of them: one multiplication.

use std::hash::{BuildHasherDefault, Hasher};

/// For a map whose keys are uniform already, mostly; the multiplication helps those that are not. No guard against keys that somebody
/// chose: digests can't be chosen.
pub type BuildSpread = BuildHasherDefault<Spread>;

/// The hasher.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        /// 2^64 divided by the golden ratio, odd.
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(self.0.rotate_left(8) ^ value) * u128::from(FACTOR);
        #[expect(clippy::cast_possible_truncation, reason = "both halves are folded into one")]
        let folded = (product >> 64) as u64 ^ product as u64;
        self.0 = folded;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher, Hash};

    use super::*;

    /// A map takes a slot by the low bits and tells the slots' keys apart by the top seven.
    fn differ(keys: impl Iterator<Item = impl Hash>) -> (usize, usize) {
        let hashes: Vec<u64> = keys.map(|key| BuildSpread::default().hash_one(key)).collect();
        let of = |part: fn(u64) -> u64| hashes.iter().map(|&hash| part(hash)).collect::<HashSet<u64>>().len();
        (of(|hash| hash & 0xffff), of(|hash| hash >> 57))
    }

    #[test]
    fn keys_that_count_up_or_differ_at_the_top_alone_are_spread() {
        // Of 4096 keys in 65 536 slots some 3 970 are alone by chance.
        for (slots, tags) in [
            differ(0..4096u64),
            differ((0..4096u64).map(|n| n << 52)),
            differ((0..4096u32).map(|n| (n, 7u64))),
            differ((0..4096u64).map(|n| (1u32, n << 32))),
        ] {
            assert!(slots > 3_000 && tags == 128, "{slots} slots, {tags} tags");
        }
    }
}
