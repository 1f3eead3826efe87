//! UCM's file stores: which of several storage backends holds a block.

/// Seed of libstdc++'s `std::hash` for bytes.
const SEED: u64 = 0xc70f_6907;
const MUL: u64 = 0xc6a4_a793_5bd1_e995;

/// `std::hash<std::string_view>` of 64-bit libstdc++: MurmurHash64A with a tail read as a
/// little-endian number.
#[must_use]
pub fn std_hash(bytes: &[u8]) -> u64 {
    let mut hash = SEED ^ (bytes.len() as u64).wrapping_mul(MUL);
    let (words, tail) = bytes.as_chunks::<8>();
    for word in words {
        hash = (hash ^ mix(u64::from_le_bytes(*word).wrapping_mul(MUL)).wrapping_mul(MUL)).wrapping_mul(MUL);
    }
    if !tail.is_empty() {
        let number = tail.iter().rev().fold(0, |n, byte| (n << 8) | u64::from(*byte));
        hash = (hash ^ number).wrapping_mul(MUL);
    }
    mix(mix(hash).wrapping_mul(MUL))
}

fn mix(value: u64) -> u64 {
    value ^ (value >> 47)
}

/// Index of the storage backend, of `count`, that holds the block with this id (16 bytes).
#[must_use]
pub fn backend_of(id: &[u8], count: usize) -> usize {
    let index = std_hash(id).checked_rem(count as u64).unwrap_or(0);
    usize::try_from(index).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_backend_holds_everything() {
        assert_eq!([backend_of(&[1; 16], 1), backend_of(&[2; 16], 1), backend_of(&[3; 16], 0)], [0; 3]);
    }

    #[test]
    fn the_tail_counts() {
        assert_ne!(std_hash(b"12345678a"), std_hash(b"12345678b"));
        assert_ne!(std_hash(b"12345678"), std_hash(b"12345678\0"));
    }
}
