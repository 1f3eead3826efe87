//! The `tekken.json` of Mistral's models, as the library mistral-common reads it.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::rank_tokenizer::{RankParts, TextRules};
use super::ranks::{MAX_RANKS, Ranks};
use super::{RankTokenizer, TokenizerError};

/// Token in front of a prompt.
const BEGIN: &str = "<s>";

/// Special tokens of the files that name none, which are those of the first releases.
const UNNAMED: [&str; 20] = [
    "<unk>",
    BEGIN,
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// The parts of the file that decide on tokens.
#[derive(Deserialize)]
struct File {
    config: Config,
    vocab: Vec<Entry>,
    #[serde(default)]
    special_tokens: Option<Vec<Special>>,
}

/// Its member `config`.
#[derive(Deserialize)]
struct Config {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

/// A token that is no special one.
#[derive(Deserialize)]
struct Entry {
    rank: usize,
    token_bytes: String,
}

/// A special token.
#[derive(Deserialize)]
struct Special {
    rank: usize,
    token_str: String,
}

impl RankTokenizer {
    /// Reads the text of a `tekken.json`. Special tokens in texts are text: the library takes none
    /// for a token but those that it writes itself.
    ///
    /// # Errors
    /// The member that is missing, malformed, or at odds with another.
    pub fn from_tekken(text: &str) -> Result<Self, TokenizerError> {
        let file: File = serde_json::from_str(text).map_err(|why| TokenizerError(why.to_string()))?;
        let File { config, vocab, special_tokens } = file;
        let special_count = config.default_num_special_tokens;
        let base = config.default_vocab_size.checked_sub(special_count);
        let base = base.filter(|base| *base <= vocab.len().min(MAX_RANKS));
        let (Some(base), Ok(offset)) = (base, u32::try_from(special_count)) else {
            let (size, known) = (config.default_vocab_size, vocab.len());
            return Err(TokenizerError(format!(
                "config.default_vocab_size is {size}, with {special_count} special tokens and {known} in vocab"
            )));
        };
        if let Some(at) = vocab.iter().enumerate().position(|(at, entry)| entry.rank != at) {
            return Err(TokenizerError(format!("vocab[{at}].rank is another number")));
        }
        let special = special(special_tokens, special_count)?;
        let begin = special.get(BEGIN).copied();
        Self::new(RankParts {
            ranks: Ranks::in_order(vocab.iter().take(base).map(|entry| entry.token_bytes.as_str()))?,
            offset,
            pattern: config.pattern,
            special,
            rules: TextRules { begin, ..TextRules::default() },
        })
    }
}

/// Special tokens by their texts: those of the file, then fillers up to `count`.
fn special(named: Option<Vec<Special>>, count: usize) -> Result<BTreeMap<String, u32>, TokenizerError> {
    let named = named.map_or_else(
        || UNNAMED.iter().enumerate().map(|(rank, token)| (rank, (*token).to_owned())).collect(),
        |named| named.into_iter().map(|token| (token.rank, token.token_str)).collect::<Vec<_>>(),
    );
    if named.len() > count || count > MAX_RANKS {
        let most = count.min(MAX_RANKS);
        return Err(TokenizerError(format!(
            "special_tokens has {} entries, at most {most} fit",
            named.len()
        )));
    }
    let fillers = (named.len()..count).map(|rank| (rank, format!("<SPECIAL_{rank}>")));
    let mut special = BTreeMap::new();
    for (rank, token) in named.into_iter().chain(fillers) {
        let id = u32::try_from(rank).ok().filter(|_| rank < count);
        let Some(id) = id else {
            return Err(TokenizerError(format!("special_tokens: {token:?} has the rank {rank} of {count}")));
        };
        if special.insert(token, id).is_some() {
            return Err(TokenizerError(format!("special_tokens: the token of rank {rank} occurs twice")));
        }
    }
    Ok(special)
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::Tokenize;
    use super::*;

    fn file() -> Value {
        let bytes = (0..=u8::MAX).map(|byte| vec![byte]).chain([b"he".to_vec(), b"cut".to_vec()]);
        let entry = |(rank, token): (usize, Vec<u8>)| json!({"rank": rank, "token_bytes": STANDARD.encode(token), "token_str": null});
        json!({
            "config": {"pattern": r"\p{L}+|\s+(?!\S)|\s+|.", "default_vocab_size": 267, "default_num_special_tokens": 10,
                "num_vocab_tokens": 258, "version": "v7"},
            "vocab": bytes.enumerate().map(entry).collect::<Vec<_>>(),
            "special_tokens": [{"rank": 0, "token_str": "<unk>", "is_control": true}, {"rank": 1, "token_str": "<s>", "is_control": true}],
        })
    }

    fn ids(tokenizer: &RankTokenizer, text: &str, add_special_tokens: bool) -> Vec<u32> {
        let mut out = Vec::new();
        tokenizer.encode_into(text, add_special_tokens, &mut out).unwrap();
        out
    }

    #[test]
    fn tekken_file_has_its_special_tokens_in_front() {
        let tokenizer = RankTokenizer::from_tekken(&file().to_string()).unwrap();
        assert_eq!(ids(&tokenizer, "he", true), [1, 266]);
        // The vocabulary is cut to the size that the file names; special tokens in texts are text.
        assert_eq!(ids(&tokenizer, "cut", false).len(), 3);
        assert_eq!(ids(&tokenizer, "<s>", false).len(), 3);
        assert_eq!((tokenizer.token_id("<s>"), tokenizer.token_id("<SPECIAL_9>")), (Some(1), Some(9)));
        assert!(tokenizer.added_tokens().is_empty());
    }

    #[test]
    fn tekken_file_without_special_tokens_has_those_of_the_first_releases() {
        let mut file = file();
        file["special_tokens"] = Value::Null;
        file["config"]["default_num_special_tokens"] = json!(20);
        file["config"]["default_vocab_size"] = json!(277);
        let tokenizer = RankTokenizer::from_tekken(&file.to_string()).unwrap();
        assert_eq!((tokenizer.token_id("[/INST]"), tokenizer.base_tokens()), (Some(4), 257));
    }

    #[test]
    fn tekken_file_at_odds_with_itself_is_refused() {
        for (place, value, says) in [
            ("/config/default_vocab_size", json!(9), "config.default_vocab_size is 9"),
            ("/config/default_vocab_size", json!(269), "config.default_vocab_size is 269"),
            ("/config/default_num_special_tokens", json!(1), "default_vocab_size is 267"),
            ("/config/pattern", json!("("), "its pattern"),
            ("/vocab/7/rank", json!(8), "vocab[7].rank"),
            ("/vocab/256/token_bytes", json!("!"), "the token of rank 256"),
            ("/vocab/256/token_bytes", json!("AA=="), "the token of rank 256: its token has the rank 0, too"),
            ("/special_tokens/1/rank", json!(10), "has the rank 10 of 10"),
            ("/special_tokens/1/token_str", json!("<unk>"), "occurs twice"),
        ] {
            let mut file = file();
            *file.pointer_mut(place).unwrap() = value;
            let error = RankTokenizer::from_tekken(&file.to_string()).err().unwrap().to_string();
            assert!(error.contains(says), "{place}: {error}");
        }
    }

    proptest! {
        #[test]
        fn tekken_file_of_any_text_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = RankTokenizer::from_tekken(&text);
        }
    }
}
