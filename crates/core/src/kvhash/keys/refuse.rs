//! Cases in which no key can be given, with the reason: a wrong key looks like an empty pool, so it
//! is better to say so at start-up.

use thiserror::Error;

use super::groups::GroupError;
use super::template::TemplateError;

/// Most keys one block may have (ranks x layers x groups).
pub const MAX_KEYS_PER_BLOCK: usize = 16_384;

/// Reasons why a profile is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The template can't be read.
    #[error("key template: {0}")]
    Template(#[from] TemplateError),
    /// No preset has this name.
    #[error("there is no key preset `{0}`")]
    UnknownPreset(String),
    /// Not a version number.
    #[error("`{0}` is not a version")]
    UnreadableVersion(String),
    /// The keys of this version are not known.
    #[error("the keys of {connector} {version} are not known; give a template or use a preset by name")]
    UnseenVersion {
        /// Name of the connector.
        connector: &'static str,
        /// Version, as it was asked for.
        version: String,
    },
    /// The store's key format is not public.
    #[error("the key format of {0} is not public: sample its keys and give a template")]
    UnpublishedFormat(&'static str),
    /// The version has no such layout of layers.
    #[error("preset {preset} has no {layout} keys")]
    NoSuchLayout {
        /// Name of the preset.
        preset: &'static str,
        /// Name of the layout.
        layout: &'static str,
    },
    /// A size that must be at least 1.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// The model leaves nothing to write.
    #[error("the model's last path component is empty")]
    EmptyModel,
    /// Layer-wise AscendStore: the scheduler does not strip the slash, the workers do.
    #[error("layer-wise AscendStore looks up an empty model name when --model ends in `/`")]
    TrailingSlash,
    /// `pp_rank` is computed as (rank // tp) % pp, which mixes up stages and context-parallel
    /// ranks.
    #[error("AscendStore of this version writes wrong pp_rank values when pcp and pp are both above 1")]
    PcpWithPp,
    /// Ranks that can't be split like this.
    #[error("tp {tp} and {what} {size} do not divide each other")]
    Uneven {
        /// Size of tensor parallelism.
        tp: u32,
        /// Quantity that does not divide evenly.
        what: &'static str,
        /// Size of that quantity.
        size: u32,
    },
    /// TP mismatch needs ordinary attention.
    #[error("a peer with another tp is not supported with {0}")]
    PeerTp(&'static str),
    /// The heads can't be split for both sides.
    #[error("{kv_heads} KV heads can't be split over {tp} ranks of the larger side")]
    PeerTpHeads {
        /// KV heads of the model.
        kv_heads: u32,
        /// The larger tp.
        tp: u32,
    },
    /// A setting of a later version.
    #[error("{setting} does not exist in {preset}")]
    NotInThisVersion {
        /// Name of the setting.
        setting: &'static str,
        /// Name of the preset.
        preset: &'static str,
    },
    /// A shared store without its namespace.
    #[error("a store tp needs the store's namespace (`@store_tp:…`)")]
    NamespaceMissing,
    /// The connector has one group only.
    #[error("{0} with several KV-cache groups has other keys, which are not supported")]
    Hybrid(&'static str),
    /// A group can't be built from the hashes.
    #[error("group {group}: {error}")]
    Group {
        /// Index of the group.
        group: usize,
        /// Description of the fault.
        error: GroupError,
    },
    /// MemCache checks the length.
    #[error("keys of {bytes} bytes: MemCache takes at most 256")]
    MemCacheKeyTooLong {
        /// The longest key.
        bytes: usize,
    },
    /// The hash of None is an address before Python 3.12.
    #[error("LMCache 0.3.x with builtin hashes is not reproducible on Python before 3.12")]
    UnreproducibleHash,
    /// The world is a byte.
    #[error("LMCache MP packs the world size in 8 bits, {0} does not fit")]
    WorldTooLarge(u32),
    /// LMCache MP decorates the model name with DCP.
    #[error("LMCache MP decorates the model name when dcp is above 1; give a template")]
    DecoratedModel,
    /// The hash does not fit the template.
    #[error("the template needs hashes of {wanted} bytes, not {got}")]
    HashBytes {
        /// Demand of the forms.
        wanted: &'static str,
        /// Value of the profile.
        got: usize,
    },
    /// A file store without a directory.
    #[error("the template names `root` and there is no directory")]
    NoRoot,
    /// More than [`MAX_KEYS_PER_BLOCK`].
    #[error("{0} keys per block, at most {MAX_KEYS_PER_BLOCK} are supported")]
    TooManyKeys(usize),
}

/// Reasons why a key could not be added to a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// The batch is at one of its limits.
    #[error("the batch of keys is full")]
    BatchFull,
    /// A hash of another length than the profile's.
    #[error("a hash of {got} bytes where {wanted} are expected")]
    HashBytes {
        /// Bytes of the profile's hashes.
        wanted: usize,
        /// Number of bytes given.
        got: usize,
    },
    /// Fewer hashes than the prompt has blocks.
    #[error("{got} hashes for {wanted} blocks")]
    TooFewHashes {
        /// Blocks of the prompt.
        wanted: usize,
        /// Number of hashes given.
        got: usize,
    },
}
