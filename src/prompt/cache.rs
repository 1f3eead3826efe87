//! Ids of prefixes that were tokenised before: the next turn of a conversation pays for the new
//! turn only.
//!
//! A text is cut only after a special token, where the tokenizer starts afresh, so the two halves'
//! ids are the whole's. Keys are 128-bit hashes of the prefix. A prompt's last few cuts are stored,
//! for the last of them is often in a generation prompt that the next turn does not repeat.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xxhash_rust::xxh3::Xxh3;

use super::special::Finder;
use super::tokenizer::{Tokenize, TokenizerError};

/// Cuts stored per prompt.
const CUTS_KEPT: usize = 3;

/// Bounds of a [`PrefixCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Texts shorter than this are not worth a look-up.
    pub min_text_bytes: usize,
    /// Most token ids held (4 bytes each); 0 turns the cache off.
    pub tokens: usize,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self { min_text_bytes: 4 << 10, tokens: 16 << 20 }
    }
}

/// Counters of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Look-ups that found a prefix.
    pub hits: u64,
    /// Look-ups that found none.
    pub misses: u64,
    /// Token ids held now.
    pub tokens: usize,
}

/// Ids by prefix, least recently used out first.
pub struct PrefixCache {
    limits: CacheLimits,
    /// `None`: this tokenizer's texts can't be cut.
    finder: Option<Finder>,
    /// Of the hash, so that nobody outside can construct two prefixes with one key.
    seed: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Prefix hash to the prompt that has it and how many of its ids are the prefix's.
    prefixes: HashMap<u128, Prefix>,
    prompts: HashMap<u64, Stored>,
    /// Prompts by when they were last used.
    order: BTreeMap<u64, u64>,
    clock: u64,
    stats: CacheStats,
}

#[derive(Clone, Copy)]
struct Prefix {
    prompt: u64,
    len_tokens: usize,
}

struct Stored {
    tokens: Arc<[u32]>,
    used: u64,
    keys: Vec<u128>,
}

/// A place to cut at: the special token before it, and the hash of all up to it.
struct Cut {
    token_start: usize,
    end: usize,
    key: u128,
}

/// A prefix of a prompt, and the ids that it has.
struct PrefixLength {
    key: u128,
    len_tokens: usize,
}

/// The ids of a text's beginning.
#[derive(Debug, Default)]
pub(super) struct Beginning {
    pub(super) tokens: Vec<u32>,
    /// Byte of the text at which it ends.
    pub(super) end: usize,
}

impl PrefixCache {
    /// A cache for the texts of one tokenizer; `seed` should be random.
    pub fn new(tokenizer: &dyn Tokenize, limits: CacheLimits, seed: u64) -> Self {
        Self { limits, finder: Finder::new(tokenizer.added_tokens()), seed, state: Mutex::default() }
    }

    /// A cache that holds nothing.
    pub fn off() -> Self {
        let limits = CacheLimits { min_text_bytes: usize::MAX, tokens: 0 };
        Self { limits, finder: None, seed: 0, state: Mutex::default() }
    }

    /// Counters so far.
    pub fn stats(&self) -> CacheStats {
        self.lock().stats
    }

    /// True if exactly these byte ranges of `text` are added tokens, and each of them cuts.
    pub(super) fn finds(&self, text: &str, specials: &[Range<usize>]) -> bool {
        self.finder.as_ref().is_some_and(|finder| finder.finds_only_cuts(text, specials))
    }

    /// The ids of `text`, without framing tokens.
    ///
    /// # Errors
    /// The tokenizer's own.
    pub fn encode(&self, tokenizer: &dyn Tokenize, text: &str) -> Result<Arc<[u32]>, TokenizerError> {
        let mut tokens = Vec::new();
        let is_kept = self.limits.tokens > 0 && text.len() >= self.limits.min_text_bytes;
        let Some(finder) = self.finder.as_ref().filter(|_| is_kept) else {
            tokenizer.encode_into(text, false, &mut tokens)?;
            return Ok(tokens.into());
        };
        let cuts = self.hashed(finder, text);
        let known = self.find(&cuts, &mut tokens);
        // Piece by piece to the last cuts, to learn how many ids lie before each.
        let first_kept = cuts.len().saturating_sub(CUTS_KEPT).max(known.map_or(0, |at| at + 1));
        let mut start = known.and_then(|at| cuts.get(at)).map_or(0, |cut| cut.token_start);
        let mut kept = Vec::with_capacity(CUTS_KEPT);
        for cut in cuts.get(first_kept..).unwrap_or_default() {
            encode_piece(tokenizer, piece(text, start, cut.end), &mut tokens)?;
            kept.push(PrefixLength { key: cut.key, len_tokens: tokens.len() });
            start = cut.token_start;
        }
        encode_piece(tokenizer, piece(text, start, text.len()), &mut tokens)?;
        let tokens: Arc<[u32]> = tokens.into();
        if !kept.is_empty() && tokens.len() <= self.limits.tokens {
            self.lock().store(Arc::clone(&tokens), &kept, self.limits.tokens);
        }
        Ok(tokens)
    }

    /// The last place in the first `most_bytes` bytes of `text` at which its ids can be cut in two:
    /// the ids before it don't depend on what is after it. 0 if there is none.
    pub(super) fn last_cut(&self, text: &str, most_bytes: usize) -> usize {
        let cuts = self.finder.iter().flat_map(|finder| finder.cuts(text));
        let places = cuts.flat_map(|(token_start, end)| [token_start, end]);
        places.filter(|place| *place <= most_bytes).max().unwrap_or(0)
    }

    /// The ids of `text` up to the last place to cut at before what the tokenizer refuses.
    pub(super) fn encode_beginning(&self, tokenizer: &dyn Tokenize, text: &str) -> Beginning {
        let mut known = Beginning::default();
        let (mut start, mut ids) = (0, Vec::new());
        for (token_start, end) in self.finder.iter().flat_map(|finder| finder.cuts(text)) {
            ids.clear();
            if tokenizer.encode_into(piece(text, start, end), false, &mut ids).is_err() {
                break;
            }
            known.tokens.pop();
            known.tokens.append(&mut ids);
            (start, known.end) = (token_start, end);
        }
        known
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hashed(&self, finder: &Finder, text: &str) -> Vec<Cut> {
        let mut hash = Xxh3::with_seed(self.seed);
        let mut from = 0;
        let cut = |(token_start, end): (usize, usize)| {
            hash.update(&text.as_bytes()[from..end]);
            from = end;
            Cut { token_start, end, key: hash.digest128() }
        };
        finder.cuts(text).into_iter().map(cut).collect()
    }

    /// Copies the ids of the longest known prefix to `tokens`; which cut it ends at.
    fn find(&self, cuts: &[Cut], tokens: &mut Vec<u32>) -> Option<usize> {
        let mut state = self.lock();
        let found =
            cuts.iter().enumerate().rev().find_map(|(at, cut)| Some((at, *state.prefixes.get(&cut.key)?)));
        let Some((at, prefix)) = found else {
            state.stats.misses += 1;
            return None;
        };
        state.stats.hits += 1;
        let stored = state.touch(prefix.prompt)?;
        drop(state);
        tokens.extend_from_slice(stored.get(..prefix.len_tokens)?);
        Some(at)
    }
}

/// From one cut's special token to the next cut; both are ends of tokens, so they are character
/// boundaries.
fn piece(text: &str, start: usize, end: usize) -> &str {
    text.get(start..end).unwrap_or_default()
}

/// Appends the ids of a piece. All but a text's first piece begin with the special token before
/// them, whose id is there already. So no piece stands at the beginning of a text, which some
/// tokenizers treat in a way of its own.
fn encode_piece(tokenizer: &dyn Tokenize, piece: &str, tokens: &mut Vec<u32>) -> Result<(), TokenizerError> {
    tokens.pop();
    tokenizer.encode_into(piece, false, tokens)
}

impl State {
    /// Marks a prompt as just used.
    fn touch(&mut self, prompt: u64) -> Option<Arc<[u32]>> {
        self.clock += 1;
        let stored = self.prompts.get_mut(&prompt)?;
        self.order.remove(&stored.used);
        stored.used = self.clock;
        self.order.insert(self.clock, prompt);
        Some(Arc::clone(&stored.tokens))
    }

    fn store(&mut self, tokens: Arc<[u32]>, kept: &[PrefixLength], limit_tokens: usize) {
        self.clock += 1;
        let prompt = self.clock;
        self.stats.tokens += tokens.len();
        for PrefixLength { key, len_tokens } in kept {
            self.prefixes.insert(*key, Prefix { prompt, len_tokens: *len_tokens });
        }
        let keys = kept.iter().map(|prefix| prefix.key).collect();
        self.prompts.insert(prompt, Stored { tokens, used: self.clock, keys });
        self.order.insert(self.clock, prompt);
        while self.stats.tokens > limit_tokens {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            self.forget(oldest);
        }
    }

    fn forget(&mut self, prompt: u64) {
        let Some(stored) = self.prompts.remove(&prompt) else { return };
        self.stats.tokens -= stored.tokens.len();
        for key in stored.keys {
            // A later prompt may have the prefix too.
            if self.prefixes.get(&key).is_some_and(|prefix| prefix.prompt == prompt) {
                self.prefixes.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::special::AddedToken;
    use super::*;

    /// One id per byte, `<s>` is 1000, and a text's first byte counts double, as with tokenizers
    /// that put a blank before it; counts the bytes it was given.
    #[derive(Default)]
    struct Bytewise(AtomicUsize);

    impl Tokenize for Bytewise {
        fn encode_into(&self, text: &str, _: bool, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
            self.0.fetch_add(text.len(), Ordering::Relaxed);
            for (at, part) in text.split("<s>").enumerate() {
                out.extend((at > 0).then_some(1000));
                let first = if at == 0 { 2 } else { 1 };
                out.extend(
                    part.bytes().enumerate().map(|(i, b)| u32::from(b) * if i == 0 { first } else { 1 }),
                );
            }
            Ok(())
        }

        fn added_tokens(&self) -> Vec<AddedToken> {
            vec![AddedToken { content: "<s>".to_owned(), cuts: true }]
        }
    }

    fn cache(tokens: usize) -> (PrefixCache, Bytewise) {
        let tokenizer = Bytewise::default();
        (PrefixCache::new(&tokenizer, CacheLimits { min_text_bytes: 0, tokens }, 1), tokenizer)
    }

    /// The ids, which must be those of the whole text, and how many bytes were tokenised for them.
    fn cost(cache: &PrefixCache, tokenizer: &Bytewise, text: &str) -> usize {
        let before = tokenizer.0.load(Ordering::Relaxed);
        let tokens = cache.encode(tokenizer, text).unwrap();
        let cost = tokenizer.0.load(Ordering::Relaxed) - before;
        let mut whole = Vec::new();
        tokenizer.encode_into(text, false, &mut whole).unwrap();
        assert_eq!(tokens[..], whole[..], "{text}");
        cost
    }

    #[test]
    fn a_second_turn_pays_for_itself_alone() {
        let (cache, tokenizer) = cache(1 << 20);
        let first = format!("<s>{}<s>question<s>", "long ".repeat(1000));
        assert!(cost(&cache, &tokenizer, &first) > 5000);
        let second = format!("{first}answer<s>another<s>");
        assert!(cost(&cache, &tokenizer, &second) < 40);
        assert!(cost(&cache, &tokenizer, &second) < 10, "the same again");
        let other = first.replacen("long", "lang", 1);
        assert!(cost(&cache, &tokenizer, &other) > 5000, "another text with the same end");
        // The last one shares the first special token.
        assert_eq!((cache.stats().hits, cache.stats().misses), (3, 1));
    }

    #[test]
    fn a_generation_prompt_that_is_not_repeated_still_hits() {
        let (cache, tokenizer) = cache(1 << 20);
        let common = format!("<s>{}<s>", "long ".repeat(100));
        cost(&cache, &tokenizer, &format!("{common}<s>think"));
        assert!(cost(&cache, &tokenizer, &format!("{common}answer<s>")) < 20);
    }

    #[test]
    fn texts_without_cuts_are_not_kept() {
        let (cache, tokenizer) = cache(1 << 20);
        for text in ["", "plain", "plain"] {
            assert_eq!(cost(&cache, &tokenizer, text), text.len());
        }
        assert_eq!(cache.stats().tokens, 0);
    }

    #[test]
    fn the_least_recently_used_goes_first_and_the_bound_holds() {
        let (cache, tokenizer) = cache(1000);
        let text = |name: char| format!("<s>{}<s>", name.to_string().repeat(400));
        let free = |name| cost(&cache, &tokenizer, &text(name)) < 10;
        assert!(!free('a') && !free('b') && free('a'));
        assert!(!free('c'));
        assert!(free('a') && free('c') && !free('b'));
        assert!(cache.stats().tokens <= 1000);
        assert!(!free('x') && cache.lock().prefixes.len() <= 6);
        let huge = format!("<s>{}<s>", "h".repeat(2000));
        cost(&cache, &tokenizer, &huge);
        assert!(cost(&cache, &tokenizer, &huge) > 2000, "too large to keep");
    }
}
