//! The end of what a client has been sent, as tokens and as text.
//!
//! An engine that parses an answer may hold back text that its tokens have: what could become the
//! mark of a call of a tool (parsers of vLLM 0.32 that run for every chat), the first bytes of a
//! character, of several tokens at once the last. Whoever goes on behind those tokens would lose
//! it. So text and tokens are compared, by a tokenizer that holds nothing back.

use std::collections::VecDeque;

/// Tokens that are compared: marks are shorter, and behind reasoning or the mark of its end there
/// are soon so many.
const TOKENS: usize = 32;

/// A character's bytes, or the space in front that some tokenizers leave out: by so much the text
/// may be longer.
const MORE_BYTES: usize = 4;

/// The last events, with so many tokens at least.
#[derive(Debug, Default)]
pub(super) struct Tail {
    text: String,
    /// Tokens, and bytes of the text, of each event.
    events: VecDeque<(usize, usize)>,
    tokens: usize,
}

/// Evidence that no text is held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The last tokens.
    pub ids: Vec<u32>,
    /// The text that the client has of them.
    pub text: String,
}

impl Tail {
    /// An event with so many tokens and this text of the answer.
    pub(super) fn push(&mut self, tokens: usize, text: &str) {
        // Tokens without text at the beginning are marks, as of the end of reasoning.
        if self.events.is_empty() && text.is_empty() {
            return;
        }
        self.text.push_str(text);
        self.events.push_back((tokens, text.len()));
        self.tokens += tokens;
        while let Some((first, bytes)) =
            self.events.front().copied().filter(|(first, _)| self.tokens - first >= TOKENS)
        {
            self.events.pop_front();
            self.tokens -= first;
            self.text.drain(..bytes);
        }
    }

    /// Its text was none of the answer.
    pub(super) fn clear(&mut self) {
        *self = Tail::default();
    }

    /// Evidence that is needed for `generated`, which ends with these events' tokens; `None` where
    /// nothing is known.
    pub(super) fn proof(&self, generated: &[u32]) -> Option<Proof> {
        let ids = generated.len().checked_sub(self.tokens).map(|from| generated[from..].to_vec());
        Some(Proof { ids: ids.filter(|ids| !ids.is_empty())?, text: self.text.clone() })
    }
}

impl Proof {
    /// True if the client has all of the text that a tokenizer makes of the ids. Of one character
    /// over and over nobody can tell.
    pub fn holds(&self, decoded: &str) -> bool {
        // The rest of a character whose first bytes came before.
        let (decoded, text) =
            (tidied(decoded.trim_start_matches(char::REPLACEMENT_CHARACTER)), tidied(&self.text));
        let more_bytes = text.len().checked_sub(decoded.len());
        let differs = self.ids.len() == 1 || decoded.chars().any(|c| !decoded.starts_with(c));
        differs && text.ends_with(&decoded) && more_bytes.is_some_and(|more| more <= MORE_BYTES)
    }
}

/// Without the spaces that a tokenizer may leave out of a whole text, and not of one that comes
/// token by token (`clean_up_tokenization_spaces` of transformers).
fn tidied(text: &str) -> String {
    const SPACED: [(&str, &str); 10] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    SPACED.iter().fold(text.to_owned(), |text, (spaced, tidy)| text.replace(spaced, tidy))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(events: &[(usize, &str)]) -> Proof {
        let mut tail = Tail::default();
        events.iter().for_each(|(tokens, text)| tail.push(*tokens, text));
        let generated: Vec<u32> = (0..100).collect();
        tail.proof(&generated).unwrap()
    }

    #[test]
    fn the_last_tokens_and_their_text_are_kept() {
        let mut events = vec![(1, "a"), (3, "bcd"), (0, "")];
        events.extend([(1, "x"); 31]);
        let proof = tail(&events);
        assert_eq!((proof.ids.len(), proof.text.len()), (34, 34));
        events.push((1, "y"));
        let proof = tail(&events);
        assert_eq!((proof.ids[0], proof.ids.len(), &proof.text[30..]), (68, 32, "xy"));
        assert_eq!(Tail::default().proof(&[1, 2]), None);
    }

    #[test]
    fn text_that_is_held_back_shows() {
        let proof = tail(&[(1, "say"), (1, " "), (1, "b"), (1, ">")]);
        assert!(proof.holds("say b>") && tail(&[(1, " say"), (1, "\u{e9}!")]).holds("say\u{e9}!"));
        assert!(
            tail(&[(1, "\u{1f600}"), (1, " a")]).holds("\u{fffd}\u{fffd} a"),
            "its first bytes came before"
        );
        assert!(tail(&[(1, "a"), (1, " ,"), (1, " b"), (1, " 's")]).holds("a, b's"));
        for held in ["say b></", "say b>\u{fffd}", "say <b></", "b", ""] {
            assert!(!proof.holds(held), "{held}");
        }
        assert!(!tail(&[(1, "<"), (1, "<"), (1, "<")]).holds("<<<"), "one of them may be held");
    }
}
