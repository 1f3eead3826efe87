//! The tokenizer of a model's directory, whichever of the known forms its files have.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use serde_json::{Map, Value};

use super::files::{FilesError, optional, read, read_bytes};
use crate::prompt::{self, KimiFiles, Local, RankTokenizer, Tokenize, TokenizerError, ToolsForm};

/// Key that leads to a model's directory.
const MODEL_PATH: &str = "prompt.model_path";
/// Most files of a directory that are looked at for the names of some.
const MAX_FILES: usize = 4096;

/// A model's tokenizer, and what its files say beside it.
pub struct LoadedTokenizer {
    /// Tokenizer of the model.
    pub tokenizer: Arc<dyn Tokenize>,
    /// Form of its files.
    pub form: TokenizerForm,
    /// File that it was read from.
    pub path: PathBuf,
    /// The form in which the model's own code hands tools to its chat template.
    pub tools: ToolsForm,
    /// Variables that the model's own code hands to its chat template.
    pub variables: Map<String, Value>,
}

/// Forms of a tokenizer's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenizerForm {
    /// The file `tokenizer.json`, by far the most frequent.
    Json,
    /// The `tekken.json` of Mistral's models.
    Tekken,
    /// `tiktoken.model` with the code of Kimi's models.
    Kimi,
    /// A `*.tiktoken` with the code of Qwen's first models.
    Qwen,
}

impl TokenizerForm {
    /// A short stable name for the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "tokenizer.json",
            Self::Tekken => "tekken",
            Self::Kimi => "tiktoken of Kimi's form",
            Self::Qwen => "tiktoken of Qwen's form",
        }
    }
}

/// Loads the tokenizer of a model's directory as vLLM would choose it: `tekken.json` where the
/// weights are Mistral's own, or nothing else is there, before `tokenizer.json`, and that before a
/// rank file.
///
/// # Errors
/// There is no file of a known form, or it can't be read.
pub fn load_tokenizer(folder: &Path) -> Result<LoadedTokenizer, FilesError> {
    let (json, tekken) = (folder.join("tokenizer.json"), folder.join("tekken.json"));
    let names = names(folder);
    if tekken.exists() && (!json.exists() || names.iter().any(|name| is_mistral_weights(name))) {
        let tokenizer = RankTokenizer::from_tekken(&read(MODEL_PATH, &tekken)?);
        return loaded(tokenizer, TokenizerForm::Tekken, tekken);
    }
    if json.exists() {
        return loaded(Local::from_json(&read(MODEL_PATH, &json)?), TokenizerForm::Json, json);
    }
    let ranks = folder.join("tiktoken.model");
    if ranks.exists() {
        return kimi(folder, ranks);
    }
    let config = optional(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let ranks = names.iter().find(|name| name.ends_with(".tiktoken"));
    if let Some(ranks) = ranks.map(|name| folder.join(name)) {
        if !prompt::names_qwen(&config) {
            let why = TokenizerError::foreign("tokenizer_config.json names another class than QWenTokenizer");
            return Err(FilesError::Tokenizer { path: ranks, why });
        }
        return loaded(prompt::qwen(&read_bytes(MODEL_PATH, &ranks)?), TokenizerForm::Qwen, ranks);
    }
    let pieces =
        names.iter().find(|name| name.as_str() == "tokenizer.model" || name.starts_with("tokenizer.model.v"));
    if let Some(name) = pieces {
        let why = TokenizerError::foreign("SentencePiece's own file is not read here, its tokenizer.json is");
        return Err(FilesError::Tokenizer { path: folder.join(name), why });
    }
    // Nothing is there: the error names the file that most models have.
    read(MODEL_PATH, &json).and(Err(FilesError::Unreadable {
        key: MODEL_PATH,
        path: json,
        why: io::Error::from(io::ErrorKind::NotFound),
    }))
}

fn kimi(folder: &Path, path: PathBuf) -> Result<LoadedTokenizer, FilesError> {
    let ranks = read_bytes(MODEL_PATH, &path)?;
    let config = read(MODEL_PATH, &folder.join("tokenizer_config.json"))?;
    let class = optional(&folder.join("tokenization_kimi.py"))?;
    let files = KimiFiles { ranks: &ranks, config: &config, class: class.as_deref() };
    let mut loaded = loaded(prompt::kimi(files), TokenizerForm::Kimi, path)?;
    loaded.tools = ToolsForm::of_kimi(class.as_deref());
    loaded.variables = prompt::kimi_variables(class.as_deref());
    Ok(loaded)
}

fn loaded<T: Tokenize + 'static>(
    tokenizer: Result<T, TokenizerError>,
    form: TokenizerForm,
    path: PathBuf,
) -> Result<LoadedTokenizer, FilesError> {
    match tokenizer {
        Ok(tokenizer) => Ok(LoadedTokenizer {
            tokenizer: Arc::new(tokenizer),
            form,
            path,
            tools: ToolsForm::Given,
            variables: Map::new(),
        }),
        Err(why) => Err(FilesError::Tokenizer { path, why }),
    }
}

/// Names of the files of a directory, sorted; none of one that can't be read, which the reading of
/// its files says.
fn names(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_FILES);
    let mut names: Vec<String> = files.filter_map(|file| file.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// True of the weights that make vLLM take Mistral's own tokenizer.
fn is_mistral_weights(name: &str) -> bool {
    name.starts_with("consolidated") && name.ends_with(".safetensors")
}
