//! Python's `hash()` on 64-bit CPython 3.8 and later: integers, tuples (xxHash-like mixing of the
//! items' hashes, `Objects/tupleobject.c`) and strings (SipHash with a key from `PYTHONHASHSEED`,
//! `Python/pyhash.c`).

/// Integers hash to their value modulo this Mersenne prime, `_PyHASH_MODULUS`.
const MODULUS: u128 = (1 << 61) - 1;

const TUPLE_START: u64 = 2_870_177_450_012_600_261;
const TUPLE_LANE: u64 = 14_029_467_366_897_019_727;
const TUPLE_SPREAD: u64 = 11_400_714_785_074_694_791;
const TUPLE_LEN: u64 = TUPLE_START ^ 3_527_539;
/// Hash of a tuple whose mixing ends in -1, which CPython reserves for errors.
const TUPLE_NOT_MINUS_ONE: i64 = 1_546_275_796;

/// `hash(None)` from CPython 3.12 on; before, it is an address.
pub const NONE: i64 = 0xFCA8_6420;

/// `hash()` of a tuple, item by item.
#[derive(Debug, Clone)]
pub struct TupleHasher {
    acc: u64,
    len: u64,
}

/// The variant of SipHash with which a CPython hashes strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StrHash {
    /// SipHash-2-4: CPython up to 3.10.
    Sip24,
    /// SipHash-1-3: CPython 3.11 and later.
    Sip13,
}

/// Key of string hashes, as CPython makes it from `PYTHONHASHSEED`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashSecret {
    k0: u64,
    k1: u64,
}

/// `hash()` of an integer.
pub fn int(value: i128) -> i64 {
    let rest = i64::try_from(value.unsigned_abs() % MODULUS).unwrap_or_default();
    not_minus_one(if value < 0 { -rest } else { rest })
}

/// `hash()` of a string: SipHash over its characters in the narrowest of 1, 2 or 4 bytes that fits
/// all of them.
pub fn text(text: &str, how: StrHash, secret: HashSecret) -> i64 {
    if text.is_empty() {
        return 0;
    }
    let widest = text.chars().map(u32::from).max().unwrap_or_default();
    let width = match widest {
        0..0x100 => 1,
        0x100..0x1_0000 => 2,
        _ => 4,
    };
    let units: Vec<u8> =
        text.chars().flat_map(|c| u32::from(c).to_le_bytes().into_iter().take(width)).collect();
    not_minus_one(siphash(&units, how, secret).cast_signed())
}

fn not_minus_one(hash: i64) -> i64 {
    if hash == -1 { -2 } else { hash }
}

impl HashSecret {
    /// For a numeric `PYTHONHASHSEED`: nothing for 0, else the first 16 bytes of CPython's
    /// generator.
    pub fn from_seed(seed: u32) -> Self {
        if seed == 0 {
            return Self { k0: 0, k1: 0 };
        }
        let mut state = seed;
        let mut word = || {
            (0..8).fold(0, |word, index| {
                state = state.wrapping_mul(214_013).wrapping_add(2_531_011);
                word | u64::from(state >> 16 & 0xFF) << (8 * index)
            })
        };
        let (k0, k1) = (word(), word());
        Self { k0, k1 }
    }

    /// For the text of `PYTHONHASHSEED`: decimal, up to 4294967295. None for anything else,
    /// `random` included.
    pub fn from_env(seed: &str) -> Option<Self> {
        let digits = !seed.is_empty() && seed.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| seed.parse().ok()).flatten().map(Self::from_seed)
    }
}

impl TupleHasher {
    /// Of the empty tuple, so far.
    pub fn new() -> Self {
        Self { acc: TUPLE_START, len: 0 }
    }

    /// Adds an item by its own `hash()`.
    #[inline]
    pub fn lane(&mut self, hash: i64) {
        let acc = self.acc.wrapping_add(hash.cast_unsigned().wrapping_mul(TUPLE_LANE));
        self.acc = acc.rotate_left(31).wrapping_mul(TUPLE_SPREAD);
        self.len += 1;
    }

    /// Adds each token as an integer item: these are below the modulus, so they hash to themselves.
    pub fn tokens(&mut self, tokens: &[u32]) {
        for &token in tokens {
            self.lane(i64::from(token));
        }
    }

    /// The tuple's `hash()`.
    pub fn finish(&self) -> i64 {
        match self.acc.wrapping_add(self.len ^ TUPLE_LEN).cast_signed() {
            -1 => TUPLE_NOT_MINUS_ONE,
            hash => hash,
        }
    }
}

impl Default for TupleHasher {
    fn default() -> Self {
        Self::new()
    }
}

/// SipHash with 64 bits of output (Aumasson and Bernstein, 2012).
fn siphash(bytes: &[u8], how: StrHash, key: HashSecret) -> u64 {
    let (rounds, last_rounds) = match how {
        StrHash::Sip24 => (2, 4),
        StrHash::Sip13 => (1, 3),
    };
    let mut v = [
        key.k0 ^ 0x736f_6d65_7073_6575,
        key.k1 ^ 0x646f_7261_6e64_6f6d,
        key.k0 ^ 0x6c79_6765_6e65_7261,
        key.k1 ^ 0x7465_6462_7974_6573,
    ];
    let mut take = |word: u64| {
        v[3] ^= word;
        (0..rounds).for_each(|_| sip_round(&mut v));
        v[0] ^= word;
    };
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().for_each(|word| take(u64::from_le_bytes(*word)));
    let tail = rest.iter().rev().fold(0, |tail, &byte| tail << 8 | u64::from(byte));
    take((bytes.len() as u64) << 56 | tail);
    v[2] ^= 0xFF;
    (0..last_rounds).for_each(|_| sip_round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_wrap_at_the_modulus_and_never_give_minus_one() {
        let modulus = (1 << 61) - 1;
        assert_eq!([0, 1, -1, -2].map(int), [0, 1, -2, -2]);
        assert_eq!([modulus, modulus + 1, -modulus, -modulus - 1].map(int), [0, 1, 0, -2]);
        assert_eq!(int(i128::from(u64::MAX)), 7);
    }

    #[test]
    fn the_empty_tuple_has_its_constant() {
        assert_eq!(TupleHasher::new().finish(), 5_740_354_900_026_072_187);
    }

    /// The reference vectors of the paper: key 00 01 … 0f, message 00 01 … 0e.
    #[test]
    fn siphash_2_4_agrees_with_its_paper() {
        let key = HashSecret { k0: 0x0706_0504_0302_0100, k1: 0x0f0e_0d0c_0b0a_0908 };
        let message: Vec<u8> = (0..15).collect();
        assert_eq!(siphash(&message, StrHash::Sip24, key), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn a_seed_is_a_decimal_number_of_32_bits() {
        assert_eq!(HashSecret::from_env("00"), Some(HashSecret { k0: 0, k1: 0 }));
        assert_eq!(HashSecret::from_env("4294967295"), Some(HashSecret::from_seed(u32::MAX)));
        for seed in ["", "random", "4294967296", "-1", "+1", " 1"] {
            assert_eq!(HashSecret::from_env(seed), None, "{seed:?}");
        }
    }

    /// CPython 3.11, `PYTHONHASHSEED=0`.
    #[test]
    fn characters_are_hashed_in_the_narrowest_width() {
        let of = |s| text(s, StrHash::Sip13, HashSecret::from_seed(0));
        assert_eq!(of("é"), 6_047_309_291_227_476_195);
        assert_eq!(of("租户"), 1_271_533_004_851_797_221);
        assert_eq!(of("a😀"), -6_970_120_874_385_731_343);
    }
}
