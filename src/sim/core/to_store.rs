//! What was computed and is not in the store yet.

use std::sync::Arc;

use crate::sim::pool::Pool;

/// A computed prompt on its way to the store.
#[derive(Debug)]
pub struct ToStore {
    pub(super) tokens: Arc<[u32]>,
    pub(super) salt: u64,
    pub(super) keys: Vec<u64>,
    pub(super) prints: Vec<u64>,
}

impl ToStore {
    /// Puts it there.
    pub fn store(&self, pool: &Pool) {
        pool.store_prompt(&self.tokens, self.salt, &self.keys, &self.prints);
    }
}
