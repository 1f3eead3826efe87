//! The tokenizer of a `tokenizer.json`, by the library that defines the format.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use tokenizers::pipeline::{
    EncodeOptions, Model, Override, PipelineModelScratch, PipelineNormalizer, PipelineToken,
    PipelineTokenizer, Segment, Span, SpecialSegmentIterator, normalize_all,
};

use super::super::special::AddedToken;
use super::largest_id::{LargestId, MAX_ID};
use super::panics::catch_panic;
use super::pieces::Cuts;
use super::unsettled::{check_classes, check_composition};
use super::{Tokenize, TokenizerError};

/// The tokenizer of a `tokenizer.json`.
pub struct Local {
    pipeline: PipelineTokenizer,
    /// Steps that cut texts in place of the library's own.
    cuts: Option<Cuts>,
    /// True if texts get a normal form of Unicode.
    composes: bool,
    /// Buffers of the model between two texts that are cut by `cuts`.
    scratches: Mutex<Vec<PipelineModelScratch>>,
    added: Vec<AddedToken>,
    ids: HashMap<String, u32>,
}

/// The parts of a `tokenizer.json` that say where special tokens are.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<FileToken>,
    #[serde(default)]
    model: FileModel,
}

/// Its member `model`.
#[derive(Default, Deserialize)]
struct FileModel {
    #[serde(default)]
    vocab: LargestId,
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
    /// It is malformed, or uses a model or step that this build can't do, or its library fails.
    pub fn from_json(text: &str) -> Result<Self, TokenizerError> {
        let file: File = serde_json::from_str(text).map_err(refused)?;
        let largest = file.added_tokens.iter().filter_map(|token| token.id).max().map(u64::from);
        let largest = largest.unwrap_or_default().max(file.model.vocab.0);
        if largest > MAX_ID {
            return Err(TokenizerError(format!(
                "it has a token of the id {largest}, at most {MAX_ID} is read"
            )));
        }
        catch_panic(|| Self::of_file(&file, text))
    }

    fn of_file(file: &File, text: &str) -> Result<Self, TokenizerError> {
        let canonical = tokenizers::canonicalize_str(text).map_err(refused)?;
        let pipeline = tokenizers::from_json(&canonical).map_err(refused)?;
        let ids = file.added_tokens.iter().filter_map(|token| Some((token.content.clone(), token.id?)));
        Ok(Self {
            cuts: Cuts::needed(pipeline.get_pre_tokenizer())?,
            composes: pipeline.get_normalizers().iter().any(composes),
            scratches: Mutex::default(),
            pipeline,
            added: raw_tokens(&file.added_tokens),
            ids: ids.collect(),
        })
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

/// True for the normal forms of Unicode and what is built on them.
fn composes(normalizer: &PipelineNormalizer) -> bool {
    use PipelineNormalizer::{Bert, NFC, NFD, NFKC, NFKD, StripAccents};
    matches!(normalizer, NFC(_) | NFD(_) | NFKC(_) | NFKD(_) | Bert(_) | StripAccents(_))
}

impl Local {
    fn encode(&self, text: &str, options: &EncodeOptions, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        check_classes(text)?;
        if self.composes {
            check_composition(text)?;
        }
        let ids = catch_panic(|| {
            let mut ids = Vec::with_capacity(text.len() / 4 + 8);
            match &self.cuts {
                Some(cuts) => self.encode_pieces(cuts, text, options, &mut ids)?,
                None => self.pipeline.encode_into(text, options, &mut ids).map_err(refused)?,
            }
            Ok(ids)
        })?;
        out.extend(ids.into_iter().map(u32::from));
        Ok(())
    }

    /// Does what the library's `encode_into` does, but for the cuts.
    fn encode_pieces(
        &self,
        cuts: &Cuts,
        text: &str,
        options: &EncodeOptions,
        ids: &mut Vec<PipelineToken>,
    ) -> Result<(), TokenizerError> {
        let around = Some(&self.pipeline.get_post_processor().single).filter(|_| options.add_special_tokens);
        ids.extend(around.iter().flat_map(|around| around.prefix.iter()).map(|(id, _)| *id));
        let scratches = || self.scratches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scratch = scratches().pop().unwrap_or_else(|| self.pipeline.get_model().init_scratch());
        let (added, specials_are_text) =
            (self.pipeline.get_added_vocabulary(), options.encode_special_tokens);
        let mut spans: Vec<Span> = Vec::new();
        for segment in SpecialSegmentIterator::new(text, added, false, specials_are_text) {
            let (raw, offset) = match segment {
                Segment::SpecialToken(id) => {
                    ids.push(id.into());
                    continue;
                }
                Segment::Text { text, input_offset } => (text, input_offset),
            };
            let normal = normalize_all(self.pipeline.get_normalizers(), raw, offset).map_err(refused)?;
            for segment in SpecialSegmentIterator::new(&normal, added, true, specials_are_text) {
                match segment {
                    Segment::SpecialToken(id) => ids.push(id.into()),
                    Segment::Text { text, .. } => {
                        cuts.cut(text, &mut spans)?;
                        let model = self.pipeline.get_model();
                        model.tokenize_spans(text, &spans, &mut scratch, ids).map_err(refused)?;
                    }
                }
            }
        }
        scratches().push(scratch);
        ids.extend(around.iter().flat_map(|around| around.suffix.iter()).map(|(id, _)| *id));
        Ok(())
    }
}

fn refused(why: impl std::fmt::Display) -> TokenizerError {
    TokenizerError(why.to_string())
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A file in which every pair of so many bytes is a token.
    fn pairs(bytes: usize) -> Value {
        let chars: Vec<String> =
            ('!'..='~').chain('\u{100}'..'\u{1ff}').take(bytes).map(String::from).collect();
        let mut vocab: serde_json::Map<String, Value> = serde_json::Map::new();
        let mut merges = Vec::new();
        for char in &chars {
            vocab.insert(char.clone(), json!(vocab.len()));
        }
        for left in &chars {
            for right in &chars {
                vocab.insert(format!("{left}{right}"), json!(vocab.len()));
                merges.push(json!([left, right]));
            }
        }
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": null,
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": merges},
        })
    }

    fn ids(file: &Value, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        Local::from_json(&file.to_string()).unwrap().encode_into(text, false, &mut out).unwrap();
        out
    }

    #[test]
    fn file_on_which_the_library_panics_is_refused() {
        let small = pairs(3);
        assert_eq!(ids(&small, "!\"#"), [4, 2]);
        let error = Local::from_json(&pairs(256).to_string()).err().unwrap().to_string();
        assert!(error.contains("its library fails"), "{error}");
    }

    #[test]
    fn file_with_an_id_beyond_all_models_is_refused() {
        let refuses = |place: &str, value: Value| {
            let mut file = pairs(2);
            *file.pointer_mut(place).unwrap() = value;
            let error = Local::from_json(&file.to_string()).err().unwrap().to_string();
            assert!(error.contains("it has a token of the id"), "{error}");
        };
        refuses("/model/vocab/!", json!(MAX_ID + 1));
        refuses("/added_tokens", json!([{"id": u32::MAX, "content": "<a>"}]));
        assert_eq!(ids(&pairs(2), "!!"), [2]);
    }
}
