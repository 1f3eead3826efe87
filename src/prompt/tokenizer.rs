//! Text to token ids: the trait, and the local tokenizer that reads a `tokenizer.json`.

use std::collections::BTreeSet;

use serde::Deserialize;
use tokenizers::pipeline::{EncodeOptions, Override, PipelineTokenizer};

use super::special::AddedToken;

/// Reason why a tokenizer can't be loaded, or failed on a text.
#[derive(Debug, thiserror::Error)]
#[error("tokenizer: {0}")]
pub struct TokenizerError(String);

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

    /// The tokens that are found in the raw text before anything else, all of them; empty if their
    /// places can't be told without tokenising.
    fn added_tokens(&self) -> Vec<AddedToken>;
}

/// The tokenizer of a `tokenizer.json`.
pub struct Local {
    pipeline: PipelineTokenizer,
    added: Vec<AddedToken>,
}

/// The parts of a `tokenizer.json` that say where special tokens are.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<FileToken>,
}

/// One of its `added_tokens`.
#[derive(Deserialize)]
struct FileToken {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

impl Local {
    /// Reads the text of a `tokenizer.json` of any version.
    ///
    /// # Errors
    /// It is malformed, or uses a model or step that this build can't do.
    pub fn from_json(text: &str) -> Result<Self, TokenizerError> {
        let file: File = serde_json::from_str(text).map_err(|e| TokenizerError(e.to_string()))?;
        let canonical = tokenizers::canonicalize_str(text).map_err(|e| TokenizerError(e.to_string()))?;
        let pipeline = tokenizers::from_json(&canonical).map_err(|e| TokenizerError(e.to_string()))?;
        Ok(Self { pipeline, added: raw_tokens(&file.added_tokens) })
    }
}

/// A token is found in the raw text unless it is `normalized`; it cuts the text if it takes nothing
/// of what is around it. A `single_word` token is found or not by what is around it, so with one of
/// them nothing is certain.
fn raw_tokens(tokens: &[FileToken]) -> Vec<AddedToken> {
    if tokens.iter().any(|token| token.single_word) {
        return Vec::new();
    }
    let normalized: BTreeSet<&str> =
        tokens.iter().filter(|token| token.normalized).map(|token| token.content.as_str()).collect();
    let raw = tokens.iter().filter(|token| !token.normalized);
    raw.map(|token| AddedToken {
        content: token.content.clone(),
        cuts: token.special && !token.lstrip && !token.rstrip && !normalized.contains(token.content.as_str()),
    })
    .collect()
}

/// No padding and no truncation: the file's own settings of these are the engine's business.
fn options(add_special_tokens: bool) -> EncodeOptions {
    EncodeOptions {
        add_special_tokens,
        encode_special_tokens: false,
        padding: Override::Off,
        truncation: Override::Off,
    }
}

impl Tokenize for Local {
    fn encode_into(
        &self,
        text: &str,
        add_special_tokens: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 8);
        let encoded = self.pipeline.encode_into(text, &options(add_special_tokens), &mut ids);
        encoded.map_err(|e| TokenizerError(e.to_string()))?;
        out.extend(ids.into_iter().map(u32::from));
        Ok(())
    }

    fn added_tokens(&self) -> Vec<AddedToken> {
        self.added.clone()
    }
}
