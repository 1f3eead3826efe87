//! A KV store shared by engines of one process: whole blocks by chained hash, least recently used
//! first out.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Told what a store gains and loses, so that another can show the same under other names. It must
/// not call the store.
pub trait Mirror: fmt::Debug + Send + Sync {
    /// The whole blocks of a prompt are stored now, one under each of `keys`; `salt` is 0 for a
    /// prompt without one.
    fn stored(&self, prompt: &[u32], salt: u64, keys: &[u64]);

    /// A block is not stored any more.
    fn dropped(&self, key: u64);
}

/// The store behind [`super::Connector::Pool`]. Keys are chained block hashes (salt and tokens),
/// values block content.
#[derive(Debug)]
pub struct Pool {
    inner: Mutex<Inner>,
    capacity_blocks: usize,
    mirror: Option<Arc<dyn Mirror>>,
}

#[derive(Debug, Default)]
struct Inner {
    by_key: HashMap<u64, Entry>,
    by_age: BTreeMap<u64, u64>,
    /// Keys of blocks that decoders can't load.
    spoiled: HashSet<u64>,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    print: u64,
    stamp: u64,
}

/// A computed prompt on its way to the store.
#[derive(Debug)]
pub struct ToStore {
    /// Tokens of the prompt.
    pub tokens: Arc<[u32]>,
    /// The hash of its salt.
    pub salt: u64,
    /// The keys of its whole blocks.
    pub keys: Vec<u64>,
    /// The content of its blocks.
    pub prints: Vec<u64>,
}

/// A block as the store has it.
#[derive(Clone, Copy, Debug)]
pub struct PoolBlock {
    /// Key of the block.
    pub key: u64,
    /// Fingerprint of the content.
    pub print: u64,
}

impl ToStore {
    /// Puts it there.
    pub fn store(&self, pool: &Pool) {
        pool.store_prompt(&self.tokens, self.salt, &self.keys, &self.prints);
    }
}

impl Pool {
    /// A store of at most `capacity_blocks` blocks. One of none keeps nothing for any time.
    #[must_use]
    pub fn new(capacity_blocks: usize) -> Pool {
        Pool { inner: Mutex::default(), capacity_blocks, mirror: None }
    }

    /// Creates a store that reports every change to `mirror`.
    #[must_use]
    pub fn mirrored(self, mirror: Arc<dyn Mirror>) -> Pool {
        Pool { mirror: Some(mirror), ..self }
    }

    /// Blocks held now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().by_key.len()
    }

    /// True if nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets all blocks.
    pub fn clear(&self) {
        let mut inner = self.lock();
        let gone = std::mem::take(&mut *inner);
        gone.by_key.into_keys().for_each(|key| self.lost(key));
    }

    /// Contents of the leading blocks of `keys` that are held and can be loaded; they become the
    /// most recently used.
    #[must_use]
    pub fn leading(&self, keys: &[u64]) -> Vec<u64> {
        let mut inner = self.lock();
        let mut found = Vec::new();
        for &key in keys {
            let entry = inner.by_key.get(&key).filter(|_| !inner.spoiled.contains(&key));
            let Some(print) = entry.map(|entry| entry.print) else { break };
            inner.put(key, print);
            found.push(print);
        }
        found
    }

    /// Stores blocks, dropping the oldest ones beyond the capacity.
    pub fn store(&self, blocks: impl IntoIterator<Item = PoolBlock>) {
        if self.capacity_blocks == 0 {
            return;
        }
        let mut inner = self.lock();
        self.put(&mut inner, blocks);
    }

    /// Stores the blocks of a prompt: as [`Pool::store`], and the mirror hears of the prompt.
    pub fn store_prompt(&self, prompt: &[u32], salt: u64, keys: &[u64], prints: &[u64]) {
        if self.capacity_blocks == 0 {
            return;
        }
        let mut inner = self.lock();
        if let Some(mirror) = &self.mirror {
            mirror.stored(prompt, salt, keys);
        }
        self.put(&mut inner, keys.iter().zip(prints).map(|(&key, &print)| PoolBlock { key, print }));
    }

    /// Makes these blocks such that no decoder can load them, until they are stored anew.
    pub fn spoil(&self, keys: &[u64]) {
        self.lock().spoiled.extend(keys);
    }

    /// True if some block of these can't be loaded.
    #[must_use]
    pub fn has_spoiled(&self, keys: &[u64]) -> bool {
        let inner = self.lock();
        keys.iter().any(|key| inner.spoiled.contains(key))
    }

    fn put(&self, inner: &mut Inner, blocks: impl IntoIterator<Item = PoolBlock>) {
        for PoolBlock { key, print } in blocks {
            inner.put(key, print);
            inner.spoiled.remove(&key);
            if inner.by_key.len() > self.capacity_blocks
                && let Some((_, oldest)) = inner.by_age.pop_first()
            {
                inner.by_key.remove(&oldest);
                inner.spoiled.remove(&oldest);
                self.lost(oldest);
            }
        }
    }

    fn lost(&self, key: u64) {
        if let Some(mirror) = &self.mirror {
            mirror.dropped(key);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn put(&mut self, key: u64, print: u64) {
        self.clock += 1;
        let stamp = self.clock;
        if let Some(old) = self.by_key.insert(key, Entry { print, stamp }) {
            self.by_age.remove(&old.stamp);
        }
        self.by_age.insert(stamp, key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct RecordedPrompts(Mutex<(Vec<u32>, Vec<u64>)>);

    impl Mirror for RecordedPrompts {
        fn stored(&self, prompt: &[u32], _salt: u64, keys: &[u64]) {
            let mut seen = self.0.lock().unwrap();
            seen.0.extend(prompt);
            seen.1.extend(keys);
        }

        fn dropped(&self, key: u64) {
            self.0.lock().unwrap().1.retain(|held| *held != key);
        }
    }

    #[test]
    fn a_mirror_shows_what_is_held() {
        let seen = Arc::new(RecordedPrompts::default());
        let pool = Pool::new(3).mirrored(seen.clone());
        pool.store_prompt(&[7, 8, 9], 0, &[1, 2], &[10, 20]);
        pool.store_prompt(&[7, 7], 0, &[3, 4], &[30, 40]);
        assert_eq!(*seen.0.lock().unwrap(), (vec![7, 8, 9, 7, 7], vec![2, 3, 4]));
        pool.clear();
        assert!(seen.0.lock().unwrap().1.is_empty());
    }

    fn block(key: u64) -> PoolBlock {
        PoolBlock { key, print: 10 * key }
    }

    #[test]
    fn spoiled_blocks_are_found_by_nobody_until_they_are_stored_anew() {
        let pool = Pool::new(3);
        pool.store([block(1), block(2)]);
        pool.spoil(&[2]);
        assert_eq!(pool.leading(&[1, 2]), [10]);
        assert!(pool.has_spoiled(&[1, 2]) && !pool.has_spoiled(&[1]));
        pool.store([block(2)]);
        assert_eq!(pool.leading(&[1, 2]), [10, 20]);
        assert!(!pool.has_spoiled(&[1, 2]));
    }

    #[test]
    fn leading_blocks_only_and_oldest_out() {
        let pool = Pool::new(3);
        pool.store([block(1), block(2), block(3)]);
        assert_eq!(pool.leading(&[1, 2, 9, 3]), [10, 20]);
        pool.store([block(4)]);
        assert_eq!(pool.len(), 3);
        assert!(pool.leading(&[3]).is_empty(), "3 was the least recently used");
        assert_eq!(pool.leading(&[1]), [10]);
        pool.clear();
        assert!(pool.is_empty());
    }
}
