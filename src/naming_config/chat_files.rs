//! The model's files → the way in which engines render its chats.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::files::{FilesError, optional};
use crate::prompt::{ChatEncoding, ChatForm, MistralFormat, MistralVersion};

/// The part of a `tekken.json` that says how chats are written.
#[derive(Deserialize)]
struct Tekken {
    config: TekkenConfig,
    #[serde(default)]
    model_settings_builder: Option<Value>,
}

impl Tekken {
    fn format(&self) -> Option<MistralFormat> {
        let version = MistralVersion::named(&self.config.version)?;
        MistralFormat::new(version, self.model_settings_builder.as_ref())
    }
}

#[derive(Deserialize)]
struct TekkenConfig {
    version: String,
}

/// The way in which engines render this model's chats, by what vLLM looks at: the model's
/// architecture and type, and whether mistral-common's tokenizer is there. An engine that was told
/// otherwise (`--tokenizer-mode`) shows it in the comparison.
///
/// # Errors
/// [`FilesError`] names the file.
pub(super) fn form(dir: &Path) -> Result<ChatForm, FilesError> {
    let config = optional(&dir.join("config.json"))?.unwrap_or_default();
    let form = ChatForm::of_model(&serde_json::from_str(&config).unwrap_or_default());
    let tekken = match form {
        ChatForm::Template => optional(&dir.join("tekken.json"))?,
        ChatForm::Encoding(_) | ChatForm::Unknown => None,
    };
    let Some(tekken) = tekken else { return Ok(form) };
    let format = serde_json::from_str::<Tekken>(&tekken).ok().and_then(|tekken| tekken.format());
    Ok(format.map_or(ChatForm::Unknown, |format| ChatForm::Encoding(ChatEncoding::Mistral(format))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn is(files: &[(&str, &str)], expect: ChatForm) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        assert_eq!(form(dir.path()).unwrap(), expect, "{files:?}");
    }

    #[test]
    fn form_of_chats_follows_from_the_models_files() {
        let tekken = |version: &str| format!(r#"{{"config":{{"version":"{version}"}},"vocab":[1]}}"#);
        let mistral = |version, settings: Option<Value>| {
            let format = MistralFormat::new(version, settings.as_ref()).unwrap();
            ChatForm::Encoding(ChatEncoding::Mistral(format))
        };
        is(&[], ChatForm::Template);
        is(&[("config.json", r#"{"architectures":["Qwen3ForCausalLM"]}"#)], ChatForm::Template);
        let gpt_oss = r#"{"model_type":"gpt_oss"}"#;
        is(&[("config.json", gpt_oss)], ChatForm::Encoding(ChatEncoding::Harmony));
        is(&[("tekken.json", &tekken("v13"))], mistral(MistralVersion::V13, None));
        let settings = r#"{"reasoning_effort":{"type":"enum","default":"none","values":["none","high"]}}"#;
        let with =
            |version| tekken(version).replacen('{', &format!(r#"{{"model_settings_builder":{settings},"#), 1);
        let read = serde_json::from_str(settings).unwrap();
        is(&[("tekken.json", &with("v15"))], mistral(MistralVersion::V15, Some(read)));
        // mistral-common refuses these two, and the last version is none.
        is(&[("tekken.json", &tekken("v15"))], ChatForm::Unknown);
        is(&[("tekken.json", &with("v13"))], ChatForm::Unknown);
        is(&[("tekken.json", &with("v17"))], ChatForm::Unknown);
        is(&[("tekken.json", "{}")], ChatForm::Unknown);
    }

    #[test]
    fn a_file_without_an_end_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("config.json")).unwrap();
        let why = form(dir.path()).unwrap_err().to_string();
        assert!(why.contains("config.json: it is no regular file"), "{why}");
    }
}
