//! Places of special tokens in a text: the leftmost first, the longest of those that start there.

use std::collections::BTreeMap;

use super::super::special::{KnownToken, Trie};

/// Special tokens by their text.
#[derive(Debug, Default)]
pub(super) struct SpecialTokens {
    trie: Trie<u32>,
    /// Bytes with which one of them begins.
    first: Box<[bool]>,
}

/// A special token in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundToken {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) id: u32,
}

impl SpecialTokens {
    /// Ids by text; empty texts are found nowhere.
    pub(super) fn new(tokens: &BTreeMap<String, u32>) -> Self {
        let tokens = tokens.iter().filter(|(text, _)| !text.is_empty());
        let mut first = vec![false; 256];
        for byte in tokens.clone().filter_map(|(text, _)| text.bytes().next()) {
            first[usize::from(byte)] = true;
        }
        let known = tokens.map(|(token, id)| KnownToken { token, fact: *id });
        Self { trie: Trie::new(known), first: first.into() }
    }

    /// The first token at `from` or after it.
    pub(super) fn find(&self, text: &str, from: usize) -> Option<FoundToken> {
        let bytes = text.as_bytes();
        let begins = |byte: &u8| self.first.get(usize::from(*byte)).copied().unwrap_or(false);
        let mut start = from;
        loop {
            start += bytes.get(start..)?.iter().position(begins)?;
            if let Some((length, id)) = self.trie.longest(bytes.get(start..)?) {
                return Some(FoundToken { start, end: start + length, id });
            }
            start += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_tokens_are_found_leftmost_and_longest() {
        let tokens = [("<a>", 1), ("<a><b>", 2), ("é", 3), ("", 4)];
        let tokens = SpecialTokens::new(&tokens.map(|(text, id)| (text.to_owned(), id)).into());
        let all = |text: &str| {
            let (mut from, mut found) = (0, Vec::new());
            while let Some(token) = tokens.find(text, from) {
                found.push((token.start, token.id));
                from = token.end;
            }
            found
        };
        assert_eq!(all("<<a>é<a><b>è<a"), [(1, 1), (4, 3), (6, 2)]);
        assert_eq!(all(""), []);
        assert_eq!(SpecialTokens::default().find("<a>", 0), None);
    }
}
