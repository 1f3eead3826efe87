//! SplitMix64: pseudo-random numbers of one word of state. They are not fit for secrets.

/// 2^64 divided by the golden ratio, odd: the step from one state to the next.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finaliser: a bijection whose output bits each depend on all input bits.
#[must_use]
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
