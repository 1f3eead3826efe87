//! Place where a text's special tokens stand: the only places at which a tokenisation can be cut in
//! two.

use std::ops::Range;

use memchr::memchr_iter;

/// One token that the tokenizer finds in the raw text before anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedToken {
    /// Text of the token.
    pub content: String,
    /// True if the text behind it is tokenised as if it stood alone.
    pub cuts: bool,
}

/// Finds added tokens: leftmost first, the longest of those that start there.
#[derive(Clone, Debug, Default)]
pub(super) struct Finder {
    trie: Trie<bool>,
    first_bytes: Vec<u8>,
}

/// The tokens by their bytes, each with a fact about it: some models have thousands, most of which
/// begin alike, and every `<` of a text may begin one.
#[derive(Clone, Debug)]
pub(super) struct Trie<T>(Vec<Node<T>>);

/// A token with a fact about it.
pub(super) struct KnownToken<'a, T> {
    pub(super) token: &'a str,
    pub(super) fact: T,
}

/// Tokens that are known after some first bytes.
#[derive(Clone, Debug)]
struct Node<T> {
    /// They are a token, and the fact about it.
    token: Option<T>,
    /// Place where it goes on, by the next byte, in order.
    next: Vec<(u8, usize)>,
}

/// More first bytes than this and the search would be slower than it is worth.
const MAX_FIRST_BYTES: usize = 8;

impl Finder {
    /// `None` if no text can be cut, or only at a high price.
    pub(super) fn new(mut tokens: Vec<AddedToken>) -> Option<Self> {
        tokens.retain(|token| !token.content.is_empty());
        let mut first_bytes: Vec<u8> =
            tokens.iter().filter_map(|token| token.content.bytes().next()).collect();
        first_bytes.sort_unstable();
        first_bytes.dedup();
        let useful = tokens.iter().any(|token| token.cuts) && first_bytes.len() <= MAX_FIRST_BYTES;
        useful.then(|| {
            let facts = tokens.iter().map(|token| KnownToken { token: &token.content, fact: token.cuts });
            Self { trie: Trie::new(facts), first_bytes }
        })
    }

    /// The byte ranges of the tokens at whose end the text can be cut, in order.
    pub(super) fn cuts(&self, text: &str) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        self.each(text, |range, cuts| {
            if cuts {
                found.push((range.start, range.end));
            }
        });
        found
    }

    /// True if the tokens of the text are these, and the text can be cut at each of them.
    pub(super) fn finds_only_cuts(&self, text: &str, expected: &[Range<usize>]) -> bool {
        let mut expected = expected.iter();
        let mut all = true;
        self.each(text, |range, cuts| all &= cuts && expected.next() == Some(&range));
        all && expected.next().is_none()
    }

    /// Calls `token` for each token of the text, with its byte range and whether it cuts.
    fn each(&self, text: &str, mut token: impl FnMut(Range<usize>, bool)) {
        let bytes = text.as_bytes();
        let mut starts: Vec<usize> =
            self.first_bytes.iter().flat_map(|first| memchr_iter(*first, bytes)).collect();
        if self.first_bytes.len() > 1 {
            starts.sort_unstable();
        }
        let mut from = 0;
        for start in starts {
            if start < from {
                continue;
            }
            if let Some((len, cuts)) = self.trie.longest(&bytes[start..]) {
                from = start + len;
                token(start..from, cuts);
            }
        }
    }
}

impl<T> Node<T> {
    fn empty() -> Self {
        Self { token: None, next: Vec::new() }
    }
}

impl<T> Default for Trie<T> {
    fn default() -> Self {
        Self(vec![Node::empty()])
    }
}

impl<T: Copy> Trie<T> {
    /// Of equal tokens the first counts.
    pub(super) fn new<'a>(tokens: impl Iterator<Item = KnownToken<'a, T>>) -> Self {
        let mut nodes = Self::default().0;
        for KnownToken { token, fact } in tokens {
            let mut at = 0;
            for byte in token.bytes() {
                let known = nodes[at].next.binary_search_by_key(&byte, |(byte, _)| *byte);
                at = match known {
                    Ok(place) => nodes[at].next[place].1,
                    Err(place) => {
                        let new = nodes.len();
                        nodes[at].next.insert(place, (byte, new));
                        nodes.push(Node::empty());
                        new
                    }
                };
            }
            nodes[at].token.get_or_insert(fact);
        }
        Self(nodes)
    }

    /// The longest token that `rest` begins with: its length in bytes, and the fact about it.
    pub(super) fn longest(&self, rest: &[u8]) -> Option<(usize, T)> {
        let (mut node, mut longest) = (self.0.first()?, None);
        for (at, byte) in rest.iter().enumerate() {
            let Ok(place) = node.next.binary_search_by_key(byte, |(byte, _)| *byte) else { break };
            node = &self.0[node.next[place].1];
            longest = node.token.map(|fact| (at + 1, fact)).or(longest);
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn token(content: &str, cuts: bool) -> AddedToken {
        AddedToken { content: content.to_owned(), cuts }
    }

    #[test]
    fn the_longest_token_wins_and_tokens_do_not_overlap() {
        let finder =
            Finder::new(vec![token("<a>", true), token("<a><b>", false), token("[x]", true)]).unwrap();
        assert_eq!(finder.cuts("<a>1<a><b>[x]<a"), [(0, 3), (10, 13)]);
        assert!(!finder.finds_only_cuts("<a>1<a><b>[x]<a", &[0..3, 10..13]), "one does not cut");
        assert!(finder.finds_only_cuts("<a>1[x]<a", &[0..3, 4..7]));
        assert!(!finder.finds_only_cuts("<a>1[x]<a", std::slice::from_ref(&(0..3))));
        assert!(!finder.finds_only_cuts("<a>1", &[0..3, 4..7]));
        assert!(Finder::new(vec![token("<a>", false)]).is_none());
    }

    /// As models with reserved tokens have them.
    #[test]
    fn thousands_of_tokens_begin_alike() {
        let reserved = (0..6_242).map(|n| token(&format!("<|reserved_{n}|>"), true)).collect();
        let finder = Finder::new(reserved).unwrap();
        let text = format!("{}<|reserved_6241|>", "<".repeat(250 << 10));
        assert_eq!(finder.cuts(&text), [(250 << 10, text.len())]);
    }

    proptest! {
        #[test]
        fn found_tokens_equal_a_naive_search(
            tokens in vec(("[<a|é]{1,4}", any::<bool>()), 1..8),
            text in "[<a|éb]{0,24}",
        ) {
            let mut tokens: Vec<AddedToken> = tokens.iter().map(|(text, cuts)| token(text, *cuts)).collect();
            let Some(finder) = Finder::new(tokens.clone()) else { return Ok(()) };
            tokens.sort_by_key(|token| std::cmp::Reverse(token.content.len()));
            let (mut expect, mut at) = (Vec::new(), 0);
            while at < text.len() {
                let here = tokens.iter().find(|token| text.as_bytes()[at..].starts_with(token.content.as_bytes()));
                expect.extend(here.filter(|token| token.cuts).map(|token| (at, at + token.content.len())));
                at += here.map_or(1, |token| token.content.len());
            }
            prop_assert_eq!(finder.cuts(&text), expect);
        }
    }
}
