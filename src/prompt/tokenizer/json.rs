//! The tokenizer of a `tokenizer.json`, by the library that defines the format.

use std::collections::{BTreeSet, HashMap};

use serde::Deserialize;
use tokenizers::pipeline::{EncodeOptions, Override, PipelineTokenizer};

use super::super::special::AddedToken;
use super::{Tokenize, TokenizerError};

/// The tokenizer of a `tokenizer.json`.
pub struct Local {
    pipeline: PipelineTokenizer,
    added: Vec<AddedToken>,
    ids: HashMap<String, u32>,
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
    id: Option<u32>,
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
        let ids = file.added_tokens.iter().filter_map(|token| Some((token.content.clone(), token.id?)));
        Ok(Self { pipeline, added: raw_tokens(&file.added_tokens), ids: ids.collect() })
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
fn options(add_special_tokens: bool, specials_are_text: bool) -> EncodeOptions {
    EncodeOptions {
        add_special_tokens,
        encode_special_tokens: specials_are_text,
        padding: Override::Off,
        truncation: Override::Off,
    }
}

impl Local {
    fn encode(&self, text: &str, options: &EncodeOptions, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 8);
        let encoded = self.pipeline.encode_into(text, options, &mut ids);
        encoded.map_err(|e| TokenizerError(e.to_string()))?;
        out.extend(ids.into_iter().map(u32::from));
        Ok(())
    }
}

impl Tokenize for Local {
    fn encode_into(
        &self,
        text: &str,
        add_special_tokens: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        self.encode(text, &options(add_special_tokens, false), out)
    }

    fn encode_plain_into(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        self.encode(text, &options(false, true), out)
    }

    fn token_id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    fn added_tokens(&self) -> Vec<AddedToken> {
        self.added.clone()
    }
}
