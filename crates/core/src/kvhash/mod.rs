//! Hashes of KV blocks, as engines and their connectors compute them from a prompt's token ids.
//!
//! All are prefix chains: a block's hash covers all tokens before it, so that equal hashes mean
//! equal prompts up to there. [`BlockHasher`] has vLLM's own chain ([`version`] knows what changed
//! when), which AscendStore and the upstream Mooncake store use for their keys. [`ems`], [`ucm`],
//! [`lmcache`] and [`ascend011`] have the chains of connectors that hash by themselves. [`scheme`]
//! has all of them behind one type. Everything was checked against the original code, see
//! `tests/vectors/README.md`. Pure: no sockets, no clock, no randomness.

pub mod ascend011;
pub mod ems;
pub mod keys;
pub mod lmcache;
pub mod release;
pub mod scheme;
pub mod ucm;
pub mod version;

mod algo;
mod chain;
mod encode;
mod extra;
mod group;
mod none;

pub use algo::{Algo, BlockHash};
pub use chain::{BlockHasher, Chain, HashProfile, Known};
pub use extra::{BlockContext, Embeds, Lora, Media};
pub use group::{coarse, with_group_id};
pub use none::Seed;
pub use release::Release;
pub use version::{GroupRule, VllmVersion};

/// Reasons why a hash can't be computed: each names what the operator has to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// Not a version number.
    #[error("`{0}` is not a vLLM version")]
    NotAVersion(Box<str>),
    /// It is older than 0.10.2.
    #[error("block hashes of vLLM {0} are unknown: 0.10.2 is the oldest")]
    VersionTooOld(VllmVersion),
    /// xxhash before 0.13.
    #[error("vLLM {0} has no xxhash: that came with 0.13")]
    NoXxhash(VllmVersion),
    /// Random bytes per engine process.
    #[error(
        "vLLM {0} without PYTHONHASHSEED hashes differently in every process: set it, or use 0.29 with sha256"
    )]
    SeedUnset(VllmVersion),
    /// Random bytes per engine process, still.
    #[error("without PYTHONHASHSEED, xxhash block hashes differ in every engine process: set it")]
    SeedUnsetXxhash,
    /// Python's string hashes need a number.
    #[error("PYTHONHASHSEED must be a decimal number up to 4294967295 for Python's hash()")]
    SeedNotNumeric,
    /// Blocks of nothing.
    #[error("the block size is 0")]
    BlockSizeZero,
    /// Lookahead before 0.33.
    #[error("vLLM {0} has no lookahead hashes: these came with 0.33")]
    NoLookahead(VllmVersion),
    /// Farther than any engine speculates.
    #[error("{0} lookahead tokens are more than any engine speculates")]
    LookaheadTooLong(usize),
    /// `hash(None)` is an address.
    #[error("this LMCache hashes None, which Python before 3.12 does by its address: use sha256_cbor")]
    NoneIsAnAddress,
    /// Rules of vLLM 0.25 were not seen.
    #[error("how vLLM {0} counts prefill context parallelism in its blocks is unknown")]
    PcpUnknown(VllmVersion),
    /// A size of a parallel group is 0.
    #[error("a parallel size is 0")]
    ParallelSizeZero,
    /// A UCM setting its version does not have, or lacks.
    #[error("{0}")]
    Ucm(&'static str),
}
