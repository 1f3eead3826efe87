//! KV that decoders keep for the next turns of conversations, as far as it was not used. An offer
//! is found by the beginning of a prompt, handed out once, and bounded in number, tokens and time.
//! Time is an argument: milliseconds of any clock that does not go back.

use std::collections::{BTreeMap, HashMap};

use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use bytes::Bytes;

use crate::codec::json::Object;
use crate::dialect::returned::Returned;

/// Most that is remembered.
const MOST: usize = 4096;
/// And most tokens of all, 4 bytes each.
const MOST_TOKENS: usize = 8 << 20;

/// Facts other than tokens that tell KV apart: the model or adapter, and the salt, as the client
/// spells them.
pub type Context = [Option<Bytes>; 2];

/// All that is on offer; `O` is who keeps it.
#[derive(Debug)]
pub struct Offers<O> {
    entries: BTreeMap<u64, Entry<O>>,
    by_start: HashMap<u64, SmallVec<[u64; 1]>>,
    tokens: usize,
    next: u64,
}

/// KV that a decoder keeps, as it comes in.
#[derive(Debug)]
pub struct KeptKv<O> {
    /// Parameters that the decoder returned, and the tokens that they are of.
    pub returned: Returned,
    /// Facts other than tokens that tell it apart.
    pub context: Context,
    /// Tokens of a block, by which prompts are compared with it.
    pub block_tokens: usize,
    /// The decoder that keeps it.
    pub owner: O,
    /// Time at which the decoder drops it, ms.
    pub until_ms: u64,
}

/// A prompt for which KV is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Tokens of the prompt.
    pub tokens: &'a [u32],
    /// Facts other than tokens that must be the same.
    pub context: &'a Context,
    /// Tokens of a block, which must be the same.
    pub block_tokens: usize,
}

#[derive(Debug)]
struct Entry<O> {
    kept: KeptKv<O>,
    start: u64,
}

/// Parameters for a prefiller, and the number of tokens that they spare it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The value of `kv_transfer_params`.
    pub params: Bytes,
    /// Tokens that it can read instead of computing them.
    pub tokens: usize,
}

/// The model and the salt of a body.
pub fn context(body: &Object) -> Context {
    ["model", "cache_salt"].map(|key| body.get(key).map(|value| value.to_bytes()))
}

impl<O> Default for Offers<O> {
    fn default() -> Self {
        Offers { entries: BTreeMap::new(), by_start: HashMap::new(), tokens: 0, next: 0 }
    }
}

impl<O> Offers<O> {
    /// Remembers KV that a decoder keeps; returns how many others had to go for it.
    pub fn keep(&mut self, kept: KeptKv<O>, now_ms: u64) -> usize {
        let starts = starts(kept.returned.prompt(), kept.block_tokens);
        let tokens = kept.returned.tokens().len();
        let Some(start) = starts.last().copied().filter(|_| tokens <= MOST_TOKENS) else {
            return 1;
        };
        let id = self.next;
        self.next += 1;
        self.tokens += tokens;
        self.by_start.entry(start).or_default().push(id);
        self.entries.insert(id, Entry { kept, start });
        self.bound(now_ms)
    }

    /// The best offer for a prompt, which is on offer no more. Those that `good` says no to are
    /// dropped on the way.
    pub fn take(&mut self, wanted: Wanted<'_>, now_ms: u64, good: impl Fn(&O) -> bool) -> Option<Offer> {
        let Wanted { tokens: prompt, context, block_tokens } = wanted;
        if self.entries.is_empty() {
            return None;
        }
        let starts = starts(prompt, block_tokens);
        let ids: Vec<u64> =
            starts.iter().filter_map(|start| self.by_start.get(start)).flatten().copied().collect();
        let mut best: Option<(usize, u64)> = None;
        for id in ids {
            let Some(Entry { kept, .. }) = self.entries.get(&id) else { continue };
            if kept.until_ms <= now_ms || !good(&kept.owner) {
                self.remove(id);
                continue;
            }
            let same = kept.context == *context && kept.block_tokens == block_tokens;
            let blocks = if same { kept.returned.blocks_of(prompt, block_tokens) } else { 0 };
            // Of two alike the newer, which is kept longer.
            if blocks > 0 && best.is_none_or(|(most, _)| blocks >= most) {
                best = Some((blocks, id));
            }
        }
        let (blocks, id) = best?;
        let entry = self.remove(id)?;
        let params = entry.kept.returned.offer(blocks, block_tokens)?;
        Some(Offer { params, tokens: blocks * block_tokens })
    }

    /// Drops what `gone` keeps, or all.
    pub fn forget(&mut self, gone: impl Fn(&O) -> bool) {
        let ids: Vec<u64> =
            self.entries.iter().filter(|(_, entry)| gone(&entry.kept.owner)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| drop(self.remove(id)));
    }

    /// Number of offers that are kept.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn bound(&mut self, now_ms: u64) -> usize {
        let before = self.entries.len();
        // The oldest first; with one time for all they are the first to end.
        while let Some((&id, entry)) = self.entries.first_key_value() {
            let fits = self.entries.len() <= MOST && self.tokens <= MOST_TOKENS;
            if fits && entry.kept.until_ms > now_ms {
                break;
            }
            self.remove(id);
        }
        before - self.entries.len()
    }

    fn remove(&mut self, id: u64) -> Option<Entry<O>> {
        let entry = self.entries.remove(&id)?;
        self.tokens -= entry.kept.returned.tokens().len();
        if let Some(ids) = self.by_start.get_mut(&entry.start) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_start.remove(&entry.start);
            }
        }
        Some(entry)
    }
}

/// Names of the beginnings of a prompt, one for each whole block. They only find; tokens are
/// compared in the end.
fn starts(tokens: &[u32], block_tokens: usize) -> Vec<u64> {
    let mut bytes = Vec::with_capacity(4 * block_tokens);
    let mut last = 0;
    let blocks = tokens.chunks_exact(block_tokens.max(1));
    let name = |block: &[u32]| {
        bytes.clear();
        bytes.extend(block.iter().flat_map(|token| token.to_le_bytes()));
        last = xxh3_64_with_seed(&bytes, last);
        last
    };
    blocks.map(name).collect()
}

#[cfg(test)]
mod tests;
