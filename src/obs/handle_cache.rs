//! Counters whose labels are known only at the end of a request. Each is made once for its labels.
//! Finding it again avoids the strings, the hash and the allocations of asking the recorder
//! (`benches/RESULTS.md`).

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{PoisonError, RwLock};

use foldhash::fast::FixedState;

/// Handles by label. It grows by one for each set of labels that occurs, as the recorder itself
/// does. Clients choose no label, so that the hash needs no secret.
#[derive(Debug)]
pub(super) struct HandleCache<K, V>(RwLock<HashMap<K, V, FixedState>>);

impl<K, V> Default for HandleCache<K, V> {
    fn default() -> Self {
        HandleCache(RwLock::default())
    }
}

impl<K: Eq + Hash, V: Clone> HandleCache<K, V> {
    /// The handle of these labels, made by `make` at the first use.
    pub(super) fn get<Q>(&self, labels: &Q, make: impl FnOnce() -> V) -> V
    where
        K: Borrow<Q>,
        Q: ToOwned<Owned = K> + Eq + Hash + ?Sized,
    {
        if let Some(found) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(labels) {
            return found.clone();
        }
        let handle = make();
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(labels.to_owned())
            .or_insert(handle)
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_made_once() {
        let cache: HandleCache<String, u32> = HandleCache::default();
        let mut made = 0;
        for (label, handle) in [("a", 1), ("a", 1), ("b", 2)] {
            let got = cache.get(label, || {
                made += 1;
                made
            });
            assert_eq!(got, handle, "{label}");
        }
        assert_eq!(made, 2);
    }
}
