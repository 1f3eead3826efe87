//! A long prompt, with the hasher of its blocks and the profile of its keys.

use pd_proxy::kvhash::keys::{KeyConfig, KeyProfile, KvShape, Preset};
use pd_proxy::kvhash::{Algo, BlockHasher, HashProfile, Seed, VllmVersion};

/// Tokens of a long context.
pub(crate) const PROMPT_TOKENS: usize = 32 << 10;
/// Ids of a vocabulary of usual size, without order.
const VOCABULARY: u64 = 151_936;

/// Number of keys of a prompt.
pub(crate) const KEYS: u32 = 1_000;

/// Token ids of the long prompt.
pub(crate) fn prompt() -> Vec<u32> {
    let ids = (1..=PROMPT_TOKENS as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) % VOCABULARY);
    ids.filter_map(|id| u32::try_from(id).ok()).collect()
}

/// Hasher that hashes as vLLM 0.32 does.
pub(crate) fn hasher(algo: Algo, block_tokens: usize) -> Option<BlockHasher> {
    let version = VllmVersion::new(0, 32, 0);
    let profile =
        HashProfile { version, algo, seed: Seed::Text("0".into()), block_tokens, lookahead_tokens: 0 };
    BlockHasher::new(&profile).ok()
}

/// Profile by which the keys of a store are spelled.
pub(crate) fn key_profile(preset: &str, ranks: u32) -> Option<KeyProfile> {
    let shape = KvShape { tp: ranks, kv_heads: ranks, ..KvShape::default() };
    KeyProfile::new(&KeyConfig::new(Preset::named(preset).ok()?, "/models/Qwen3-32B", shape)).ok()
}
