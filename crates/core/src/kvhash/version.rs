//! Changes of vLLM's block hashes, by release.

use std::fmt;
use std::str::FromStr;

use super::{ProfileError, Release};

/// A release of vLLM; suffixes such as `rc1` or `.dev3+g1234` are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VllmVersion {
    major: u16,
    minor: u16,
    patch: u16,
}

/// Parts of a request that enter its block hashes besides tokens, and their spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Era {
    /// 0.10.2 and 0.11.0: LoRA by its number, prompt embeddings left out.
    LoraNumber,
    /// 0.11.1 to 0.16: LoRA by its name, prompt embeddings as raw bytes.
    RawEmbeds,
    /// 0.17 and 0.18: prompt embeddings as their SHA-256.
    HashedEmbeds,
    /// 0.19 to 0.30: media with their offset in the block.
    MediaOffsets,
    /// 0.31 and later: each is a tuple with a tag in front; LoRA also by its path.
    Tagged,
}

/// Rules by which a KV cache group names its blocks when they are several hash blocks long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupRule {
    /// By the hashes of all its hash blocks, one behind the other: vLLM up to 0.23.
    Concat,
    /// By the last of them: vLLM from 0.24.
    Last,
}

/// Settings that decide on the hash block of an engine with one KV cache group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockShape {
    /// Engine's setting `--block-size`.
    pub block_size_tokens: u32,
    /// Decode context parallel size.
    pub dcp: u32,
    /// Prefill context parallel size.
    pub pcp: u32,
}

impl VllmVersion {
    /// The oldest whose hashes are known.
    pub const OLDEST: Self = Self::new(0, 10, 2);

    /// Of its three numbers.
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self { major, minor, patch }
    }

    /// The rules for extra keys. Versions after the newest known (0.33) count as it.
    pub fn era(self) -> Era {
        match (self.major, self.minor, self.patch) {
            (0, ..=10, _) | (0, 11, 0) => Era::LoraNumber,
            (0, 11..=16, _) => Era::RawEmbeds,
            (0, 17..=18, _) => Era::HashedEmbeds,
            (0, 19..=30, _) => Era::MediaOffsets,
            _ => Era::Tagged,
        }
    }

    /// True if `--prefix-caching-hash-algo` has `xxhash` and `xxhash_cbor`.
    pub fn has_xxhash(self) -> bool {
        self >= Self::new(0, 13, 0)
    }

    /// True if SHA-256 chains begin with a constant when `PYTHONHASHSEED` is unset.
    pub fn has_constant_start(self) -> bool {
        self >= Self::new(0, 29, 0)
    }

    /// True if hashes may cover tokens behind their block.
    pub fn has_lookahead(self) -> bool {
        self >= Self::new(0, 33, 0)
    }

    /// True if two releases hash alike in every respect: a fleet may be upgraded from one to the
    /// other bit by bit. Lookahead counts for none, since engines with a connector hash without it.
    pub fn hashes_like(self, other: Self) -> bool {
        let shape = BlockShape { block_size_tokens: 2, dcp: 3, pcp: 5 };
        let rules = |version: Self| {
            let features = (version.has_xxhash(), version.has_constant_start());
            let block = version.hash_block_tokens(shape).map_err(|_| ());
            (version.era(), features, version.group_rule(), block)
        };
        rules(self) == rules(other)
    }

    /// Rule by which coarser groups name their blocks.
    pub fn group_rule(self) -> GroupRule {
        if self >= Self::new(0, 24, 0) { GroupRule::Last } else { GroupRule::Concat }
    }

    /// Tokens per hash block of an engine with one KV cache group. (In 0.33, a group whose KV is
    /// not sharded over decode context parallelism has `dcp` 1.)
    pub fn hash_block_tokens(self, shape: BlockShape) -> Result<u32, ProfileError> {
        if shape.block_size_tokens == 0 {
            return Err(ProfileError::BlockSizeZero);
        }
        if shape.dcp == 0 || shape.pcp == 0 {
            return Err(ProfileError::ParallelSizeZero);
        }
        let (dcp, pcp) = match (self.major, self.minor, self.patch) {
            (0, ..=10, _) | (0, 11, 0) => (1, 1),
            (0, 11, _) => (shape.dcp, 1),
            (0, 25, _) if shape.pcp > 1 => return Err(ProfileError::PcpUnknown(self)),
            (0, 12..=24, _) => (shape.dcp, shape.pcp),
            _ => (shape.dcp, 1),
        };
        Ok(shape.block_size_tokens.saturating_mul(dcp).saturating_mul(pcp))
    }
}

impl FromStr for VllmVersion {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, ProfileError> {
        let release = Release::parse(text).ok_or_else(|| ProfileError::NotAVersion(text.into()))?;
        let [major, minor, patch] = release.numbers();
        let version = Self::new(major, minor, patch);
        if version < Self::OLDEST { Err(ProfileError::VersionTooOld(version)) } else { Ok(version) }
    }
}

impl fmt::Display for VllmVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> VllmVersion {
        text.parse().unwrap()
    }

    #[test]
    fn a_version_is_its_release_without_suffixes() {
        assert_eq!(version("0.19.1rc1"), VllmVersion::new(0, 19, 1));
        assert_eq!(version("0.27.1.dev12+g123abc"), VllmVersion::new(0, 27, 1));
        assert!(matches!("dev".parse::<VllmVersion>(), Err(ProfileError::NotAVersion(_))));
        assert!(matches!("0.10.1".parse::<VllmVersion>(), Err(ProfileError::VersionTooOld(_))));
    }

    #[test]
    fn eras_change_where_vllm_changed() {
        let eras = [
            "0.10.2", "0.11.0", "0.11.1", "0.16.0", "0.17.0", "0.18.0", "0.19.0", "0.30.2", "0.31.0", "1.0.0",
        ];
        let eras = eras.map(|text| version(text).era());
        assert!(eras.is_sorted());
        assert_eq!(eras[1..=2], [Era::LoraNumber, Era::RawEmbeds]);
        assert_eq!(eras[3..=4], [Era::RawEmbeds, Era::HashedEmbeds]);
        assert_eq!(eras[5..=6], [Era::HashedEmbeds, Era::MediaOffsets]);
        assert_eq!(eras[7..=8], [Era::MediaOffsets, Era::Tagged]);
    }

    #[test]
    fn releases_hash_alike_until_one_changes_a_rule() {
        let alike = |one: &str, other: &str| version(one).hashes_like(version(other));
        for (one, other) in
            [("0.30.0", "0.30.1"), ("0.31.0", "0.32.4"), ("0.14.0", "0.16.2"), ("0.32.0", "0.33.0")]
        {
            assert!(alike(one, other) && alike(other, one), "{one} {other}");
        }
        let changes =
            [("0.30.2", "0.31.0"), ("0.28.0", "0.29.0"), ("0.23.0", "0.24.0"), ("0.12.0", "0.13.0")];
        for (one, other) in changes {
            assert!(!alike(one, other), "{one} {other}");
        }
    }

    #[test]
    fn context_parallelism_multiplies_the_block_as_the_release_does() {
        let shape = BlockShape { block_size_tokens: 128, dcp: 2, pcp: 3 };
        let of = |text| version(text).hash_block_tokens(shape);
        assert_eq!(
            ["0.11.0", "0.11.2", "0.12.0", "0.24.0", "0.26.0"].map(of),
            [128, 256, 768, 768, 256].map(Ok)
        );
        assert_eq!(of("0.25.0"), Err(ProfileError::PcpUnknown(version("0.25.0"))));
        assert_eq!(version("0.25.0").hash_block_tokens(BlockShape { pcp: 1, ..shape }), Ok(256));
        let nothing = BlockShape { pcp: 0, ..shape };
        assert_eq!(version("0.26.0").hash_block_tokens(nothing), Err(ProfileError::ParallelSizeZero));
    }
}
