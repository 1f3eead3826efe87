//! A prefiller's cache hits, as reported and as predicted: sums since it became a member.

use std::sync::atomic::{AtomicU64, Ordering};

/// The sums of one prefiller.
#[derive(Debug, Default)]
pub struct Hits {
    prompt: AtomicU64,
    predicted: AtomicU64,
    cached: AtomicU64,
}

/// Tokens of prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitTokens {
    /// All of them.
    pub prompt: u64,
    /// Of these, what it was expected to have in its caches or to fetch from a pool.
    pub predicted: u64,
    /// Tokens that it reported as cached. An engine that reports nothing adds none.
    pub cached: u64,
}

impl Hits {
    /// It has computed a prompt.
    pub fn add(&self, tokens: HitTokens) {
        self.prompt.fetch_add(tokens.prompt, Ordering::Relaxed);
        self.predicted.fetch_add(tokens.predicted, Ordering::Relaxed);
        self.cached.fetch_add(tokens.cached, Ordering::Relaxed);
    }

    /// The sums so far.
    pub fn tokens(&self) -> HitTokens {
        HitTokens {
            prompt: self.prompt.load(Ordering::Relaxed),
            predicted: self.predicted.load(Ordering::Relaxed),
            cached: self.cached.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_add_up() {
        let hits = Hits::default();
        hits.add(HitTokens { prompt: 10, predicted: 8, cached: 4 });
        hits.add(HitTokens { prompt: 5, predicted: 0, cached: 1 });
        assert_eq!(hits.tokens(), HitTokens { prompt: 15, predicted: 8, cached: 5 });
    }
}
