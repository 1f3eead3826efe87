//! Texts for a trace's prompts: the same block id gives the same text, so that equal prefixes are
//! equal texts.
//!
//! The number of tokens of a text depends on the engine's tokenizer, which is not asked: each word
//! is taken for one token, which it is for common short English words in vocabularies of today's
//! size. Lengths are right within some percent.

use crate::replay::TraceRequest;
use crate::replay::random::{Random, mix};
use crate::replay::trace::BLOCK_TOKENS;

/// Common words, each one token with its space before it.
const WORDS: [&str; 64] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "was", "on", "are", "as", "with", "they",
    "at", "be", "this", "have", "from", "or", "one", "had", "by", "word", "but", "not", "what", "all",
    "were", "we", "when", "your", "can", "said", "there", "use", "an", "each", "which", "she", "do", "how",
    "their", "if", "will", "up", "other", "about", "out", "many", "then", "them", "these", "so", "some",
    "her", "would", "make", "like", "him", "into", "time", "has",
];

/// The text of a request's prompt, about as many tokens long as the trace says.
pub(super) fn text(request: &TraceRequest) -> String {
    let mut left = request.prompt_tokens;
    // About five bytes a word.
    let mut text = String::with_capacity(left as usize * 5);
    let mut add = |id: u64, words: u32| {
        let mut random = Random::new(mix(id));
        for _ in 0..words {
            text.push(' ');
            text.push_str(WORDS[(random.word() % WORDS.len() as u64) as usize]);
        }
    };
    for id in &request.hash_ids {
        let words = left.min(BLOCK_TOKENS);
        add(*id, words);
        left -= words;
    }
    // A trace may leave out the id of the partial block: nobody else has it.
    add(mix(request.timestamp_ms.to_bits()), left);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::trace::parse;

    #[test]
    fn equal_blocks_are_equal_texts_and_lengths_are_the_trace_s() {
        let line = |tokens: u32, ids: &str| {
            format!(r#"{{"timestamp": 0, "input_length": {tokens}, "output_length": 1, "hash_ids": {ids}}}"#)
        };
        let trace = [line(1100, "[0, 7, 9]"), line(1030, "[0, 8]"), line(512, "[0]")].join("\n");
        let texts: Vec<String> = parse(&trace, 9).unwrap().iter().map(text).collect();
        let words = |text: &str| text.split_whitespace().count();
        assert_eq!(texts.iter().map(|text| words(text)).collect::<Vec<_>>(), [1100, 1030, 512]);
        assert!(texts[0].starts_with(&texts[2]) && texts[1].starts_with(&texts[2]));
        assert!(!texts[0].starts_with(&texts[1][..texts[2].len() + 20]));
    }
}
