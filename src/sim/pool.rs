//! A KV store shared by engines of one process: whole blocks by chained hash, least recently used first out.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

/// The store behind [`super::Connector::Pool`]. Keys are chained block hashes (salt and tokens), values block content.
#[derive(Debug)]
pub struct Pool {
    inner: Mutex<Inner>,
    capacity_blocks: usize,
}

#[derive(Debug, Default)]
struct Inner {
    by_key: HashMap<u64, Entry>,
    by_age: BTreeMap<u64, u64>,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    print: u64,
    stamp: u64,
}

impl Pool {
    /// A store of at most `capacity_blocks` blocks.
    #[must_use]
    pub fn new(capacity_blocks: usize) -> Pool {
        Pool { inner: Mutex::default(), capacity_blocks: capacity_blocks.max(1) }
    }

    /// Blocks held now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().by_key.len()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything.
    pub fn clear(&self) {
        *self.lock() = Inner::default();
    }

    /// Contents of the leading blocks of `keys` that are held; they become the most recently used.
    #[must_use]
    pub fn leading(&self, keys: &[u64]) -> Vec<u64> {
        let mut inner = self.lock();
        let mut found = Vec::new();
        for &key in keys {
            let Some(print) = inner.by_key.get(&key).map(|entry| entry.print) else { break };
            inner.put(key, print);
            found.push(print);
        }
        found
    }

    /// Stores `(key, content)` pairs, dropping the oldest blocks beyond the capacity.
    pub fn store(&self, blocks: impl IntoIterator<Item = (u64, u64)>) {
        let mut inner = self.lock();
        for (key, print) in blocks {
            inner.put(key, print);
            if inner.by_key.len() > self.capacity_blocks
                && let Some((_, oldest)) = inner.by_age.pop_first()
            {
                inner.by_key.remove(&oldest);
            }
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

    #[test]
    fn leading_blocks_only_and_oldest_out() {
        let pool = Pool::new(3);
        pool.store([(1, 10), (2, 20), (3, 30)]);
        assert_eq!(pool.leading(&[1, 2, 9, 3]), [10, 20]);
        pool.store([(4, 40)]);
        assert_eq!(pool.len(), 3);
        assert!(pool.leading(&[3]).is_empty(), "3 was the least recently used");
        assert_eq!(pool.leading(&[1]), [10]);
        pool.clear();
        assert!(pool.is_empty());
    }
}
