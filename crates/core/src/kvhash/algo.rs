//! Digests and what makes them.

use std::fmt;

use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_128;

use super::encode::Format;

/// Longest block hash: SHA-256.
const MAX_BYTES: usize = 32;

/// Algorithms of vLLM's `--prefix-caching-hash-algo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algo {
    /// `sha256`: SHA-256 of a pickle, which is vLLM's default.
    Sha256,
    /// `sha256_cbor`: SHA-256 of canonical CBOR.
    Sha256Cbor,
    /// `xxhash`: XXH3-128 of a pickle.
    Xxhash,
    /// `xxhash_cbor`: XXH3-128 of canonical CBOR.
    XxhashCbor,
}

/// Hash of a block: 32 bytes of SHA-256 or BLAKE3, 16 of XXH3-128 or MD5, or 8 of a number (EMS,
/// LMCache in the engine; big-endian). Displays as lower-case hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash {
    /// Zeros behind the hash.
    bytes: [u8; MAX_BYTES],
    len: u8,
}

impl Algo {
    /// All of them, in the order of vLLM's help.
    pub const ALL: [Self; 4] = [Self::Sha256, Self::Sha256Cbor, Self::Xxhash, Self::XxhashCbor];

    /// The name that vLLM's flag takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha256Cbor => "sha256_cbor",
            Self::Xxhash => "xxhash",
            Self::XxhashCbor => "xxhash_cbor",
        }
    }

    /// By the name that vLLM's flag takes.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algo| algo.name() == name)
    }

    /// True if this is one of the XXH3 kind.
    pub fn is_xxhash(self) -> bool {
        matches!(self, Self::Xxhash | Self::XxhashCbor)
    }

    pub(super) fn format(self) -> Format {
        match self {
            Self::Sha256 | Self::Xxhash => Format::Pickle,
            Self::Sha256Cbor | Self::XxhashCbor => Format::Cbor,
        }
    }

    pub(super) fn digest(self, bytes: &[u8]) -> BlockHash {
        if self.is_xxhash() {
            BlockHash::from(xxh3_128(bytes).to_be_bytes())
        } else {
            BlockHash::from(<[u8; 32]>::from(Sha256::digest(bytes)))
        }
    }
}

impl AsRef<[u8]> for BlockHash {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl BlockHash {
    /// Of up to 32 bytes, such as a parent in a KV event. None for more.
    pub fn from_slice(hash: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_BYTES];
        bytes.get_mut(..hash.len())?.copy_from_slice(hash);
        Some(Self { bytes, len: u8::try_from(hash.len()).ok()? })
    }

    /// Bytes of the hash.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Number that vLLM's KV events carry for this block: the last 8 bytes as a big-endian number.
    pub fn event_u64(&self) -> u64 {
        self.as_bytes().last_chunk().map_or(0, |tail| u64::from_be_bytes(*tail))
    }

    /// The first 8 bytes as a big-endian number: what LMCache keeps of a digest.
    pub fn leading_u64(&self) -> u64 {
        self.as_bytes().first_chunk().map_or(0, |head| u64::from_be_bytes(*head))
    }
}

impl From<[u8; 32]> for BlockHash {
    fn from(bytes: [u8; 32]) -> Self {
        Self { bytes, len: 32 }
    }
}

impl From<[u8; 16]> for BlockHash {
    fn from(hash: [u8; 16]) -> Self {
        let mut bytes = [0; MAX_BYTES];
        bytes[..16].copy_from_slice(&hash);
        Self { bytes, len: 16 }
    }
}

impl From<[u8; 8]> for BlockHash {
    fn from(hash: [u8; 8]) -> Self {
        let mut bytes = [0; MAX_BYTES];
        bytes[..8].copy_from_slice(&hash);
        Self { bytes, len: 8 }
    }
}

impl fmt::Display for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut hex = [0; 2 * MAX_BYTES];
        let (pairs, _) = hex.as_chunks_mut::<2>();
        for (pair, byte) in pairs.iter_mut().zip(self.as_bytes()) {
            *pair = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
        }
        f.write_str(std::str::from_utf8(&hex[..2 * usize::from(self.len)]).unwrap_or_default())
    }
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockHash({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_the_tail_and_lmcache_the_head() {
        let hash = BlockHash::from(std::array::from_fn::<u8, 32, _>(|index| u8::try_from(index).unwrap()));
        assert_eq!(hash.event_u64(), 0x1819_1a1b_1c1d_1e1f);
        assert_eq!(hash.leading_u64(), 0x0001_0203_0405_0607);
        assert_eq!(hash.to_string(), "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
        assert_eq!(BlockHash::from_slice(&[0; 33]), None);
        assert_eq!(BlockHash::from_slice(&[1, 2]).unwrap().event_u64(), 0);
    }

    #[test]
    fn names_are_those_of_the_flag() {
        assert_eq!(Algo::ALL.map(|algo| Algo::from_name(algo.name())), Algo::ALL.map(Some));
        assert_eq!(Algo::from_name("builtin"), None);
    }
}
