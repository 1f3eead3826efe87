//! A prompt before its question is formed. Hashing it and writing its keys costs time in proportion
//! to its length, so that is done only when a pool is asked.

use std::fmt;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::{PoolError, Question};

/// Makes a prompt's question.
pub type Form = Box<dyn FnOnce() -> Result<Question, PoolError> + Send>;

/// Tokens that are hashed at once: 4 KiB.
const AT_ONCE_TOKENS: usize = 1024;

/// A prompt to ask about.
pub struct Inquiry {
    /// Its token ids.
    pub tokens: Arc<[u32]>,
    /// Other values that its blocks' names depend on: the model or adapter, and the cache salt.
    pub context: [Option<String>; 2],
    /// Forming takes a millisecond and more: it is done beside the runtime.
    pub aside: bool,
    /// Called once, or never when the answer is known or nobody is to be asked.
    pub form: Form,
}

impl Inquiry {
    /// About a question that is formed already; nothing but its tokens tells it from others.
    #[must_use]
    pub fn formed(question: Question) -> Self {
        let tokens = question.tokens.clone();
        Self { tokens, context: [None, None], aside: false, form: Box::new(|| Ok(question)) }
    }

    /// The same for equal tokens and contexts. Nobody who does not know `seed` can construct two
    /// others with one.
    #[must_use]
    pub fn identity(&self, seed: u64) -> u128 {
        let mut hasher = Xxh3::with_seed(seed);
        let mut bytes = [0; 4 * AT_ONCE_TOKENS];
        for tokens in self.tokens.chunks(AT_ONCE_TOKENS) {
            let (words, _) = bytes.as_chunks_mut::<4>();
            words.iter_mut().zip(tokens).for_each(|(word, token)| *word = token.to_le_bytes());
            hasher.update(bytes.get(..4 * tokens.len()).unwrap_or_default());
        }
        for text in &self.context {
            // A length before each, so that no two pairs are spelled alike.
            let len = text.as_ref().map_or(u64::MAX, |text| text.len() as u64);
            hasher.update(&len.to_le_bytes());
            hasher.update(text.as_deref().unwrap_or_default().as_bytes());
        }
        hasher.digest128()
    }
}

impl fmt::Debug for Inquiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inquiry")
            .field("tokens", &self.tokens.len())
            .field("aside", &self.aside)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inquiry_key_covers_all_that_names_depend_on() {
        let inquiry = |tokens: &[u32], model: Option<&str>, salt: Option<&str>| Inquiry {
            context: [model, salt].map(|text| text.map(str::to_owned)),
            ..Inquiry::formed(Question { tokens: tokens.into(), ..Question::default() })
        };
        let long: Vec<u32> = (0..3000).collect();
        let mut other = long.clone();
        other[2999] = 0;
        let all = [
            inquiry(&long, None, None),
            inquiry(&other, None, None),
            inquiry(&long[..2999], None, None),
            inquiry(&long, Some("m"), None),
            inquiry(&long, None, Some("m")),
            inquiry(&long, Some(""), None),
            inquiry(&long, Some("ab"), Some("c")),
            inquiry(&long, Some("a"), Some("bc")),
        ];
        let ids: std::collections::HashSet<u128> = all.iter().map(|one| one.identity(1)).collect();
        assert_eq!(ids.len(), all.len());
        assert!(ids.contains(&inquiry(&long, Some("m"), None).identity(1)));
        assert!(!ids.contains(&all[0].identity(2)), "another process, other numbers");
    }
}
