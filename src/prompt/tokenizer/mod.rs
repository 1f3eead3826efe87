//! Text to token ids: the trait, and the tokenizers behind it by the form of a model's files.
//!
//! `json` reads a `tokenizer.json`, and `pieces` cuts its texts where the library can't;
//! `rank_tokenizer` does what the library tiktoken does, for the rank files of `tiktoken_files` and
//! for the `tekken.json` of Mistral. All of them read bytes that the caller has opened. A panic of
//! the library is an error here (`panics`).

mod json;
mod largest_id;
mod merge;
mod panics;
mod pieces;
mod rank_tokenizer;
mod ranks;
mod special_tokens;
mod splitter;
mod tekken;
mod tiktoken_files;
mod unsettled;

pub use json::Local;
pub use rank_tokenizer::RankTokenizer;
pub use ranks::{MAX_RANKS, MAX_TOKEN_BYTES};
pub use tiktoken_files::{KimiFiles, ToolsForm, kimi, kimi_variables, names_qwen, qwen};

use super::special::AddedToken;

/// Reason why a tokenizer can't be loaded, or failed on a text.
#[derive(Debug, thiserror::Error)]
#[error("tokenizer: {0}")]
pub struct TokenizerError(String);

impl TokenizerError {
    fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }

    /// For files whose form is recognised and not read.
    pub fn foreign(why: &str) -> Self {
        Self::new(why)
    }
}

/// Text to token ids as one model does it.
pub trait Tokenize: Send + Sync {
    /// Appends the ids of `text` to `out`. Special tokens in the text become their ids; those that
    /// frame a whole prompt (begin of sequence…) are added if asked for.
    ///
    /// # Errors
    /// The text can't be tokenised; `out` is then of no use.
    fn encode_into(
        &self,
        text: &str,
        add_special_tokens: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError>;

    /// Appends the ids of `text` to `out`, in which what looks like a special token is text like
    /// any other. Nothing is added in front or behind.
    ///
    /// # Errors
    /// The text can't be tokenised so; `out` is then of no use.
    fn encode_plain_into(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let _ = (text, out);
        Err(TokenizerError::new("this tokenizer can't take special tokens for text"))
    }

    /// The id of a special or added token by its text; `None` if there is no such token.
    fn token_id(&self, token: &str) -> Option<u32> {
        let _ = token;
        None
    }

    /// The tokens that are found in the raw text before anything else, all of them; empty if their
    /// places can't be told without tokenising.
    fn added_tokens(&self) -> Vec<AddedToken>;
}
