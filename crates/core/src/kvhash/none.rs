//! Place where a chain begins: vLLM's `NONE_HASH`, made from `PYTHONHASHSEED`.

use super::{Algo, BlockHash, ProfileError, VllmVersion};

/// Text that is hashed from 0.29 on when `PYTHONHASHSEED` is unset.
const UNSET_TEXT: &str = "vllm-none-hash";

/// `PYTHONHASHSEED` of the engine processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seed {
    /// A seed that is set. It is hashed as a text: `0` and `00` differ, and `random` is a constant.
    Text(Box<str>),
    /// No seed is set.
    Unset,
    /// Unset, and these are the bytes that the one engine process drew.
    Drawn([u8; 32]),
}

/// The parent of the first block.
pub(super) fn none_hash(version: VllmVersion, algo: Algo, seed: &Seed) -> Result<BlockHash, ProfileError> {
    let of_text = |text: &str| algo.digest(&algo.format().of_text(text));
    match seed {
        Seed::Text(text) => Ok(of_text(text)),
        Seed::Unset | Seed::Drawn(_) if version.has_constant_start() && !algo.is_xxhash() => {
            Ok(of_text(UNSET_TEXT))
        }
        Seed::Unset if version.has_constant_start() => Err(ProfileError::SeedUnsetXxhash),
        Seed::Unset => Err(ProfileError::SeedUnset(version)),
        Seed::Drawn(bytes) if version.has_constant_start() => {
            Ok(of_text(&BlockHash::from(*bytes).to_string()))
        }
        Seed::Drawn(bytes) => Ok(BlockHash::from(*bytes)),
    }
}
