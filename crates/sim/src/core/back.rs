//! Blocks that a decoder keeps for the next turn, and what a prefiller makes of those that it has
//! read.

use super::{BlockIds, Core, Fingerprint, JobId, Prompt, text};

/// The order to keep a decoder's blocks for the next turn.
pub struct KeptBack<'a> {
    /// Name under which they are kept.
    pub request_id: &'a str,
    /// Time for which they are kept, in µs.
    pub lease_us: u64,
}

impl Core {
    /// Keeps all blocks of job `id` for the next turn. Returns their ids, one more than are full
    /// perhaps, as the engine takes a block before it has a token for it.
    pub fn keep_back(&mut self, now_us: u64, id: JobId, kept: &KeptBack<'_>) -> BlockIds {
        let KeptBack { request_id, lease_us } = *kept;
        let Some(job) = self.jobs.get(&id) else { return Vec::new() };
        let ids = job.blocks.clone();
        self.blocks.hold(&ids);
        self.pins.add(request_id.to_owned(), ids.clone(), now_us.saturating_add(lease_us));
        ids
    }

    /// Puts the blocks of an answer that has ended into the cache, once; engines do so with each
    /// that is full. `tokens`: of the prompt and the answer, as far as they were computed.
    pub fn cache_answer(&mut self, id: JobId, tokens: &[u32]) {
        let Some(job) = self.jobs.get(&id) else { return };
        let prints = text::block_prints(tokens, self.block_tokens);
        let whole = tokens.len() / self.block_tokens;
        // Those of the prompt are there.
        let first = job.prompt.tokens.len() / self.block_tokens;
        for (place, (&block, &print)) in job.blocks.iter().zip(&prints).enumerate().skip(first) {
            let key = (place < whole).then(|| Fingerprint(print).with(job.prompt.salt).0);
            self.blocks.fill(block, print, key);
        }
    }

    /// Number of leading whole blocks of a prompt that the cache has.
    #[must_use]
    pub fn cached(&self, keys: &[u64]) -> usize {
        self.blocks.hits(keys)
    }

    /// Puts what another engine's blocks hold into the cache, as these blocks of a prompt; false if
    /// there are none free.
    pub fn adopt(&mut self, keys: &[u64], contents: &[u64]) -> bool {
        let Some(ids) = self.blocks.take(&[], contents.len()) else { return false };
        for ((&id, &print), &key) in ids.iter().zip(contents).zip(keys) {
            self.blocks.fill(id, print, Some(key));
        }
        self.blocks.release(&ids);
        true
    }

    /// True if the store has blocks of a prompt that this decoder would load and can't.
    #[must_use]
    pub fn fails_to_load(&self, prompt: &Prompt) -> bool {
        let Some(pool) = self.pool.as_ref().filter(|_| !self.fills_pool && !prompt.remote) else {
            return false;
        };
        let keys = self.keys(&prompt.tokens, prompt.salt);
        pool.has_spoiled(keys.get(self.cached(&keys)..).unwrap_or_default())
    }

    /// The keys of a prompt's whole blocks.
    #[must_use]
    pub fn keys(&self, tokens: &[u32], salt: u64) -> Vec<u64> {
        let prints = text::block_prints(tokens, self.block_tokens);
        prints
            .iter()
            .take(tokens.len() / self.block_tokens)
            .map(|&print| Fingerprint(print).with(salt).0)
            .collect()
    }
}
