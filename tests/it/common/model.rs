//! A model's files, and simulated engines that tokenise by them.

use std::path::Path;
use std::sync::Arc;

use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::config::Config;
use pd_proxy::dialect::Api;
use pd_proxy::naming_config;
use pd_proxy::prompt::{ChatTemplate, Exactness, Local, PrefixCache, Prompter, TemplateFiles, Today};
use pd_proxy::sim::Tokenizing;
use serde_json::Value;
use tempfile::TempDir;

/// A file of `tests/golden`.
pub fn golden(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The `tokenizer_config.json` that goes with a template.
fn tokenizer_config(template: &str) -> String {
    let chats: Value = serde_json::from_str(&golden("chat.json")).unwrap();
    chats["families"][template]["config"].to_string()
}

/// A prompter that renders and tokenises as the model with this template does.
pub fn prompter(template: &str) -> Prompter {
    let source = golden(&format!("templates/{template}.jinja"));
    let config = tokenizer_config(template);
    let files =
        TemplateFiles { tokenizer_config: Some(&config), chat_template: Some(&source), content_format: None };
    let tokenizer = Local::from_json(&golden("tokenizer.json")).unwrap();
    Prompter::new(Some(ChatTemplate::new(files).unwrap()), Some(Arc::new(tokenizer)), PrefixCache::off())
}

/// A model's directory, as `--model-path` takes it.
pub fn directory(template: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("tokenizer.json", golden("tokenizer.json")),
        ("tokenizer_config.json", tokenizer_config(template)),
        ("chat_template.jinja", golden(&format!("templates/{template}.jinja"))),
    ] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

/// The directory of a model of Kimi's form: a rank file of tiktoken, special tokens in
/// `tokenizer_config.json`, a template.
pub fn kimi() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, from) in [
        ("tiktoken.model", "tokenizers/kimi/tiktoken.model"),
        ("tokenizer_config.json", "tokenizers/kimi/tokenizer_config.json"),
        ("chat_template.jinja", "templates/kimi_k2.jinja"),
    ] {
        std::fs::write(dir.path().join(name), golden(from)).unwrap();
    }
    dir
}

/// A prompter of a model's directory.
pub fn prompter_of(folder: &Path) -> Prompter {
    let mut config = Config::default();
    config.prompt.model_path = Some(folder.display().to_string());
    naming_config::prompter(&config, 1).unwrap_or_else(|error| panic!("{error}")).prompter
}

/// `/tokenize` is asked with documents as a variable of the template, which is to an engine the
/// same as a member.
fn with_documents(body: &[u8]) -> Vec<u8> {
    let mut whole: Value = serde_json::from_slice(body).unwrap_or_default();
    let variables = whole.get_mut("chat_template_kwargs").and_then(Value::as_object_mut);
    match variables.and_then(|variables| variables.shift_remove("documents")) {
        Some(documents) => {
            whole["documents"] = documents;
            whole.to_string().into()
        }
        None => body.to_vec(),
    }
}

/// An engine's `/tokenize` and `/render`, by this template, after `change`.
pub fn tokenizing(template: &str, today: Today, change: fn(&mut [u32])) -> Tokenizing {
    tokenizing_by(prompter(template), today, change)
}

/// The same by any prompter.
pub fn tokenizing_by(prompter: Prompter, today: Today, change: fn(&mut [u32])) -> Tokenizing {
    Tokenizing(Arc::new(move |body: &[u8]| {
        let body = Object::scan(with_documents(body).into(), ScanLimits::default()).ok()?;
        let api = if body.contains("messages") { Api::Chat } else { Api::Completions };
        let prompt = prompter.prompt(api, &body, today);
        let mut tokens = prompt.tokens.to_vec();
        match prompt.exactness {
            Exactness::Exact => {}
            // What an image is to a model for images.
            Exactness::Prefix { .. } => tokens.extend([0; 16]),
            Exactness::Inexact(_) => return None,
        }
        change(&mut tokens);
        Some(tokens)
    }))
}
