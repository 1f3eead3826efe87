//! Where a text's special tokens stand: the only places at which a tokenisation can be cut in two.

use memchr::memchr_iter;

/// One token that the tokenizer finds in the raw text before anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedToken {
    /// Its text.
    pub content: String,
    /// Whether the text behind it is tokenised as if it stood alone.
    pub cuts: bool,
}

/// Finds added tokens: leftmost first, the longest of those that start there.
#[derive(Clone, Debug, Default)]
pub(super) struct Finder {
    /// Longest first.
    tokens: Vec<AddedToken>,
    first_bytes: Vec<u8>,
}

/// More first bytes than this and the search would be slower than it is worth.
const MAX_FIRST_BYTES: usize = 8;

impl Finder {
    /// `None` if no text can be cut, or only at a high price.
    pub(super) fn new(mut tokens: Vec<AddedToken>) -> Option<Self> {
        tokens.retain(|token| !token.content.is_empty());
        tokens.sort_by_key(|token| std::cmp::Reverse(token.content.len()));
        let mut first_bytes: Vec<u8> =
            tokens.iter().filter_map(|token| token.content.bytes().next()).collect();
        first_bytes.sort_unstable();
        first_bytes.dedup();
        let useful = tokens.iter().any(|token| token.cuts) && first_bytes.len() <= MAX_FIRST_BYTES;
        useful.then_some(Self { tokens, first_bytes })
    }

    /// The byte ranges of the tokens at whose end the text can be cut, in order.
    pub(super) fn cuts(&self, text: &str) -> Vec<(usize, usize)> {
        let bytes = text.as_bytes();
        let mut starts: Vec<usize> =
            self.first_bytes.iter().flat_map(|first| memchr_iter(*first, bytes)).collect();
        if self.first_bytes.len() > 1 {
            starts.sort_unstable();
        }
        let mut found = Vec::new();
        let mut from = 0;
        for start in starts {
            if start < from {
                continue;
            }
            let here = self.tokens.iter().find(|token| bytes[start..].starts_with(token.content.as_bytes()));
            if let Some(token) = here {
                from = start + token.content.len();
                if token.cuts {
                    found.push((start, from));
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_token_wins_and_tokens_do_not_overlap() {
        let token = |content: &str, cuts| AddedToken { content: content.to_owned(), cuts };
        let finder =
            Finder::new(vec![token("<a>", true), token("<a><b>", false), token("[x]", true)]).unwrap();
        assert_eq!(finder.cuts("<a>1<a><b>[x]<a"), [(0, 3), (10, 13)]);
        assert!(Finder::new(vec![token("<a>", false)]).is_none());
    }
}
