//! LMCache: chains of its own over chunks (256 tokens unless configured), one inside the engine,
//! one in its server.
//!
//! Neither LoRA nor salt enter these hashes; media do through the placeholder tokens, see
//! [`media_tokens`].

mod engine;
mod server;

pub use engine::{ChunkHash, EngineAlgo, EngineHasher, EngineProfile, Release};
pub use server::{ServerAlgo, ServerHasher};

use sha2::{Digest as _, Sha256};

/// LMCache's chunk size unless `LMCACHE_CHUNK_SIZE` says otherwise.
pub const CHUNK_TOKENS: usize = 256;

/// Tokens that LMCache puts in the place of a media item's placeholders before it hashes: 31-bit
/// numbers drawn from the item's identifier, without end.
pub fn media_tokens(identifier: &str) -> impl Iterator<Item = u32> + use<> {
    let seed: [u8; 32] = Sha256::digest(identifier).into();
    (0_u64..).flat_map(move |counter| {
        let mut hasher = Sha256::new_with_prefix(seed);
        hasher.update(counter.to_be_bytes());
        let drawn: [u8; 32] = hasher.finalize().into();
        let (words, _) = drawn.as_chunks::<4>();
        let words: [u32; 8] =
            std::array::from_fn(|index| words.get(index).map_or(0, |w| u32::from_be_bytes(*w)));
        words.map(|word| word & i32::MAX.cast_unsigned())
    })
}
