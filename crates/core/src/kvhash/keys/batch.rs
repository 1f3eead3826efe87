//! Many keys in one buffer.

use super::refuse::KeyError;

/// Most keys of one batch.
pub const MAX_BATCH_KEYS: usize = 1 << 18;
/// Most bytes of all keys of one batch.
pub const MAX_BATCH_BYTES: usize = 64 << 20;

/// Keys back to back in one growing buffer, each with the token its block starts at. Clearing keeps
/// the buffers, so a batch that is used again allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct KeyBatch {
    text: String,
    /// Per key: where it ends in `text`, in bytes, and the first token of its block.
    ends: Vec<(u32, u32)>,
    /// End of the last block, in tokens.
    end_tokens: u32,
    /// Hits are multiples of this many tokens; 0 until a key is added.
    align_tokens: u32,
    pub(super) scratch: Scratch,
}

/// Buffers that live as long as the batch.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    pub(super) hex: String,
    pub(super) hash: Vec<u8>,
}

impl KeyBatch {
    /// Forgets the keys and keeps the buffers.
    pub fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
        self.end_tokens = 0;
        self.align_tokens = 0;
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of all keys.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// The n-th key.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = self.ends.get(index)?.0;
        let start = index.checked_sub(1).and_then(|i| self.ends.get(i)).map_or(0, |e| e.0);
        self.text.get(start as usize..end as usize)
    }

    /// The first token of the n-th key's block.
    #[must_use]
    pub fn start_tokens(&self, index: usize) -> Option<u32> {
        self.ends.get(index).map(|(_, start)| *start)
    }

    /// All keys, in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|i| self.get(i))
    }

    /// Tokens a prompt hits when `present` tells for each key, in order, whether the pool has it.
    /// That is everything before the first block that lacks one of its keys, in whole alignment
    /// units. Keys without an answer count as absent.
    #[must_use]
    pub fn hit_tokens(&self, present: impl IntoIterator<Item = bool>) -> u32 {
        let mut answers = present.into_iter();
        let missing = self.ends.iter().filter(|_| !answers.next().unwrap_or(false)).map(|(_, start)| *start);
        self.hit_before(missing.min())
    }

    /// Tokens a prompt hits when the first block that lacks a key starts at `missing_tokens`;
    /// `None`: no block does.
    #[must_use]
    pub fn hit_before(&self, missing_tokens: Option<u32>) -> u32 {
        let hit = missing_tokens.unwrap_or(self.end_tokens).min(self.end_tokens);
        hit - hit.checked_rem(self.align_tokens).unwrap_or(0)
    }

    /// Adds a key as it is.
    ///
    /// # Errors
    /// [`KeyError::BatchFull`]; the batch then stays as it was.
    pub fn push(&mut self, start_tokens: u32, key: &str) -> Result<(), KeyError> {
        self.add(start_tokens, |text, _| text.push_str(key))
    }

    /// End of the last block, in tokens.
    pub(super) fn end_tokens(&self) -> u32 {
        self.end_tokens
    }

    pub(super) fn covers(&mut self, end_tokens: u32, align_tokens: u32) {
        self.end_tokens = self.end_tokens.max(end_tokens);
        self.align_tokens = align_tokens;
    }

    /// Adds the key that `write` appends to the buffer; `write` also sees the whole text before it.
    pub(super) fn add(
        &mut self,
        start_tokens: u32,
        write: impl FnOnce(&mut String, &Scratch),
    ) -> Result<(), KeyError> {
        let before = self.text.len();
        if self.ends.len() >= MAX_BATCH_KEYS {
            return Err(KeyError::BatchFull);
        }
        write(&mut self.text, &self.scratch);
        match u32::try_from(self.text.len()) {
            Ok(end) if self.text.len() <= MAX_BATCH_BYTES => {
                self.ends.push((end, start_tokens));
                Ok(())
            }
            _ => {
                self.text.truncate(before);
                Err(KeyError::BatchFull)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> KeyBatch {
        let mut batch = KeyBatch::default();
        for (start, key) in [(0, "a0"), (16, "a16"), (0, "b0"), (32, "b32")] {
            batch.add(start, |text, _| text.push_str(key)).unwrap();
        }
        batch.covers(64, 32);
        batch
    }

    #[test]
    fn keys_come_back_as_they_went_in() {
        let mut batch = batch();
        assert_eq!(batch.iter().collect::<Vec<_>>(), ["a0", "a16", "b0", "b32"]);
        assert_eq!((batch.len(), batch.bytes(), batch.get(4)), (4, 10, None));
        assert_eq!(
            [0, 1, 2, 3, 4].map(|i| batch.start_tokens(i)),
            [Some(0), Some(16), Some(0), Some(32), None]
        );
        batch.clear();
        assert!(batch.is_empty() && batch.hit_tokens([true]) == 0);
    }

    #[test]
    fn a_hit_ends_before_the_first_block_that_lacks_a_key() {
        let batch = batch();
        assert_eq!(batch.hit_tokens([true; 4]), 64);
        assert_eq!(batch.hit_tokens([true, true, true, false]), 32);
        assert_eq!(batch.hit_tokens([true, false, true, true]), 0, "16 tokens are less than one unit");
        assert_eq!(batch.hit_tokens([true, true, true]), 32, "no answer is no presence");
        assert_eq!(batch.hit_tokens([]), 0);
    }

    #[test]
    fn a_full_batch_says_so_and_keeps_what_it_has() {
        let mut batch = batch();
        let long = "x".repeat(MAX_BATCH_BYTES);
        assert_eq!(batch.add(0, |text, _| text.push_str(&long)), Err(KeyError::BatchFull));
        assert_eq!((batch.len(), batch.bytes()), (4, 10));
    }
}
