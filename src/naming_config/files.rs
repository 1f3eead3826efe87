//! The model's files → what renders and tokenises its prompts.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::chat_files;
use crate::config::{Config, ContentFormat, regular_file};
use crate::prompt::{
    self, CacheLimits, ChatForm, ChatTemplate, PrefixCache, Prompter, Reason, TemplateError, TemplateFiles,
    TokenizerError,
};

use super::tokenizer_files::{TokenizerForm, load_tokenizer};

/// Longest of the model's files, bytes: the largest tokenizers known take a sixth of it.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Reasons why a model's files can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// No directory is named.
    #[error("prompt.model_path is not set: it names the directory with the model's tokenizer")]
    NoPath,
    /// A file is not there, or can't be read.
    #[error("{key}: {}: {why}", .path.display())]
    Unreadable {
        /// The key that leads to it.
        key: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Reason why not.
        why: io::Error,
    },
    /// The tokenizer is of a kind that is not done here.
    #[error("prompt.model_path: {}: {why}; with prompt.tokens = \"engine\" an engine tokenises", .path.display())]
    Tokenizer {
        /// Path of the file.
        path: PathBuf,
        /// Reason why not.
        why: TokenizerError,
    },
    /// The template that was asked for can't be used.
    #[error("prompt.chat_template: {}: {why}", .path.display())]
    Template {
        /// Path of the file.
        path: PathBuf,
        /// Reason why not.
        why: TemplateError,
    },
}

/// Renderer and tokenizer of a model's files.
pub struct LocalPrompter {
    /// Renders and tokenises.
    pub prompter: Prompter,
    /// Reason why no chat is rendered here, if none is.
    pub without: Option<TemplateError>,
    /// Form of the tokenizer's files.
    pub form: TokenizerForm,
}

/// Loads tokenizer and template from `prompt.model_path`. A model without a template, or with one
/// that can't be rendered exactly, is fine: its chats are then not rendered here, and the result
/// says why.
///
/// # Errors
/// [`FilesError`] names the file.
pub fn prompter(config: &Config, seed: u64) -> Result<LocalPrompter, FilesError> {
    let dir = PathBuf::from(config.prompt.model_path.as_ref().ok_or(FilesError::NoPath)?);
    let loaded = load_tokenizer(&dir)?;
    let (template, without) = match template(config, &dir)? {
        FoundTemplate::Compiled(template) => (Some(*template), None),
        FoundTemplate::Unusable(why) => (None, Some(why)),
    };
    let limits = CacheLimits { tokens: config.limit.prompt_cache_tokens, ..CacheLimits::default() };
    // What the engines are told wins over what the model's own code says.
    let mut variables = loaded.variables;
    variables.extend(config.prompt.template_defaults());
    let cache = PrefixCache::new(&*loaded.tokenizer, limits, seed);
    let prompter = Prompter::new(template, Some(loaded.tokenizer), cache)
        .with_tools(loaded.tools)
        .with_defaults(variables)
        .with_efforts(config.prompt.efforts());
    let (prompter, without) = match chat_files::form(&dir)? {
        ChatForm::Template => (prompter, without),
        // The engines' code looks at no template.
        ChatForm::Encoding(encoding) => (prompter.with_encoding(encoding), None),
        ChatForm::Unknown => (prompter.without_chats(Reason::Encoder), without),
    };
    Ok(LocalPrompter { prompter, without, form: loaded.form })
}

/// The chat template of a model.
enum FoundTemplate {
    Compiled(Box<ChatTemplate>),
    /// There is none, or none that can be rendered exactly.
    Unusable(TemplateError),
}

/// Loads the chat template. One that was asked for by name must do.
fn template(config: &Config, dir: &Path) -> Result<FoundTemplate, FilesError> {
    let tokenizer_config = optional(&dir.join("tokenizer_config.json"))?;
    let chosen = config.prompt.chat_template.as_ref().map(PathBuf::from);
    let chat_template = match &chosen {
        Some(path) => Some(read("prompt.chat_template", path)?),
        None => optional(&dir.join("chat_template.jinja"))?,
    };
    let content_format = match config.prompt.content_format {
        ContentFormat::Auto => None,
        ContentFormat::String => Some(prompt::ContentFormat::String),
        ContentFormat::Openai => Some(prompt::ContentFormat::OpenAi),
    };
    let compiled = ChatTemplate::new(TemplateFiles {
        tokenizer_config: tokenizer_config.as_deref(),
        chat_template: chat_template.as_deref(),
        content_format,
    });
    match (compiled, chosen) {
        (Err(why), Some(path)) => Err(FilesError::Template { path, why }),
        (Err(why), None) => Ok(FoundTemplate::Unusable(why)),
        (Ok(template), _) => Ok(FoundTemplate::Compiled(Box::new(template))),
    }
}

/// The text of a file that need not be there.
pub(super) fn optional(path: &Path) -> Result<Option<String>, FilesError> {
    match read("prompt.model_path", path) {
        Err(FilesError::Unreadable { why, .. }) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// The text of a file, within [`MAX_FILE_BYTES`].
pub(super) fn read(key: &'static str, path: &Path) -> Result<String, FilesError> {
    let bytes = read_bytes(key, path)?;
    let unreadable = |_| {
        let why = io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8");
        FilesError::Unreadable { key, path: path.to_owned(), why }
    };
    String::from_utf8(bytes).map_err(unreadable)
}

/// The bytes of a file, within [`MAX_FILE_BYTES`].
pub(super) fn read_bytes(key: &'static str, path: &Path) -> Result<Vec<u8>, FilesError> {
    let bytes = regular_file(path).and_then(|meta| {
        if meta.len() > MAX_FILE_BYTES {
            return Err(io::Error::other(format!("it is longer than {MAX_FILE_BYTES} bytes")));
        }
        fs::read(path)
    });
    bytes.map_err(|why| FilesError::Unreadable { key, path: path.to_owned(), why })
}
