//! Tokens that an engine gave before, by the question: bounded, least recently used out first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Answers by the hash of their question.
#[derive(Debug)]
pub(super) struct Answers {
    max_entries: usize,
    max_tokens: usize,
    entries: HashMap<u128, Entry>,
    /// Questions by when they were last asked.
    order: BTreeMap<u64, u128>,
    clock: u64,
    held_tokens: usize,
}

#[derive(Debug)]
struct Entry {
    tokens: Arc<[u32]>,
    used: u64,
}

impl Answers {
    pub(super) fn new(max_entries: usize, max_tokens: usize) -> Self {
        Self {
            max_entries,
            max_tokens,
            entries: HashMap::new(),
            order: BTreeMap::new(),
            clock: 0,
            held_tokens: 0,
        }
    }

    pub(super) fn get(&mut self, key: u128) -> Option<Arc<[u32]>> {
        let entry = self.entries.get_mut(&key)?;
        self.clock += 1;
        self.order.remove(&entry.used);
        self.order.insert(self.clock, key);
        entry.used = self.clock;
        Some(entry.tokens.clone())
    }

    /// Keeps an answer, unless it alone is too large.
    pub(super) fn put(&mut self, key: u128, tokens: Arc<[u32]>) {
        if tokens.len() > self.max_tokens || self.max_entries == 0 {
            return;
        }
        self.clock += 1;
        self.held_tokens += tokens.len();
        self.order.insert(self.clock, key);
        if let Some(old) = self.entries.insert(key, Entry { tokens, used: self.clock }) {
            self.order.remove(&old.used);
            self.held_tokens -= old.tokens.len();
        }
        while self.entries.len() > self.max_entries || self.held_tokens > self.max_tokens {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            if let Some(gone) = self.entries.remove(&oldest) {
                self.held_tokens -= gone.tokens.len();
            }
        }
    }

    pub(super) fn held_tokens(&self) -> usize {
        self.held_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(count: usize) -> Arc<[u32]> {
        vec![7; count].into()
    }

    fn keys(answers: &Answers) -> Vec<u128> {
        assert_eq!(answers.entries.len(), answers.order.len());
        assert_eq!(answers.held_tokens(), answers.entries.values().map(|e| e.tokens.len()).sum::<usize>());
        answers.order.values().copied().collect()
    }

    #[test]
    fn least_recently_used_answer_is_evicted_first() {
        let mut answers = Answers::new(3, 100);
        for key in 1..=3 {
            answers.put(key, tokens(10));
        }
        assert_eq!(answers.get(1), Some(tokens(10)));
        answers.put(4, tokens(10));
        assert_eq!(keys(&answers), [3, 1, 4]);
        answers.put(5, tokens(85));
        assert_eq!(keys(&answers), [4, 5]);
        assert_eq!(answers.get(3), None);
    }

    #[test]
    fn one_answer_never_empties_the_cache_in_vain_and_a_repeated_one_counts_once() {
        let mut answers = Answers::new(3, 100);
        answers.put(1, tokens(60));
        answers.put(2, tokens(101));
        answers.put(1, tokens(70));
        assert_eq!(keys(&answers), [1]);
        let mut off = Answers::new(0, 100);
        off.put(1, tokens(1));
        assert!(keys(&off).is_empty());
    }
}
