//! Chats that engines render by code of their own, as vLLM 0.32 and 0.33 do.
//!
//! vLLM chooses the code by `--tokenizer-mode`, which follows from the model's architecture unless
//! it is set (`ModelConfig`), and gpt-oss's by the model type. One module here is one such code.
//! Releases before 0.32 were not compared, so that their chats are not known. The files in `texts`
//! are fixed parts of a format, byte for byte as the model knows them; those of DeepSeek are from
//! its own encodings (MIT).

mod deepseek;
mod deepseek_turns;
mod deepseek_v32;
mod deepseek_v4;
mod deepseek_v41;
mod dsml;
mod dumps;
mod harmony;
mod mistral;
mod mistral_chat;
mod mistral_settings;
mod typescript;

use serde_json::Value;

pub(super) use dumps::{dumps, dumps_ascii};
pub use mistral::{MistralFormat, MistralVersion};
pub use mistral_settings::MistralEfforts;

use super::Reason;
use super::chat::Chat;
use super::convert::Origin;
use super::renderer::{ChatRenderer, Moment, Rendered, ShownBy};
use super::rules::{Edition, Editions};
use super::topics::{Topic, Topics};

/// Code that renders a model's chats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatEncoding {
    /// The code of DeepSeek V3.2.
    DeepseekV32,
    /// The code of DeepSeek V4.
    DeepseekV4,
    /// The code of DeepSeek V4.1.
    DeepseekV41,
    /// Harmony, of gpt-oss.
    Harmony,
    /// The format of Mistral's models, by the version of their tokenizer.
    Mistral(MistralFormat),
}

/// The way in which a model's chats are rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatForm {
    /// By its chat template.
    Template,
    /// By code that is followed here.
    Encoding(ChatEncoding),
    /// By code that is not followed here.
    Unknown,
}

/// Architectures whose chats vLLM renders by code, and that code.
const ARCHITECTURES: [(&str, ChatForm); 9] = [
    ("DeepseekV32ForCausalLM", ChatForm::Encoding(ChatEncoding::DeepseekV32)),
    ("DeepseekV4ForCausalLM", ChatForm::Encoding(ChatEncoding::DeepseekV4)),
    ("DeepseekV4ForConditionalGeneration", ChatForm::Encoding(ChatEncoding::DeepseekV4)),
    ("DeepseekV41ForCausalLM", ChatForm::Encoding(ChatEncoding::DeepseekV41)),
    // Their code is in the model's own files, or was not compared.
    ("KimiK3ForConditionalGeneration", ChatForm::Unknown),
    ("MoonshotKimiaForCausalLM", ChatForm::Unknown),
    ("InklingForCausalLM", ChatForm::Unknown),
    ("InklingForConditionalGeneration", ChatForm::Unknown),
    ("Alpamayo2Super", ChatForm::Unknown),
];

impl ChatForm {
    /// The form of a model's chats by its `config.json`; that of no file is a template.
    pub fn of_model(config: &Value) -> Self {
        if config.get("model_type").is_some_and(|kind| kind == "gpt_oss") {
            return Self::Encoding(ChatEncoding::Harmony);
        }
        // vLLM takes the first that it knows; a model names one.
        let named = config.get("architectures").and_then(Value::as_array);
        let first = named.and_then(|names| names.first()?.as_str());
        let found = ARCHITECTURES.iter().find(|(name, _)| Some(*name) == first);
        found.map_or(Self::Template, |(_, form)| *form)
    }
}

impl ChatRenderer for ChatEncoding {
    fn render(&self, chat: Chat, moment: Moment<'_>) -> Result<Rendered, Reason> {
        // How engines render that by code was not compared.
        if chat.origin == Origin::Responses {
            return Err(Reason::Encoder);
        }
        match self {
            Self::DeepseekV32 => deepseek_v32::render(chat, moment).map(Rendered::Text),
            Self::DeepseekV4 => deepseek_v4::render(chat, moment).map(Rendered::Text),
            Self::DeepseekV41 => deepseek_v41::render(chat, moment).map(Rendered::Text),
            Self::Mistral(format) => mistral::render(*format, chat, moment),
            Self::Harmony => harmony::render(chat, moment).map(Rendered::Pieces),
        }
    }

    fn needs(&self) -> Topics {
        Topics::NONE.with(Topic::Encoding)
    }

    fn shown_by(&self, chat: &Chat, editions: Editions) -> ShownBy {
        match self {
            Self::DeepseekV32 | Self::DeepseekV4 => ShownBy::Tokenize,
            // What they read of a message is not there any more when `/tokenize` renders it.
            Self::DeepseekV41 | Self::Mistral(_) if chat.has_calls() => ShownBy::Render,
            Self::DeepseekV41 | Self::Mistral(_) => ShownBy::Tokenize,
            // `/tokenize` knows no effort, and 0.32's renders by a template.
            Self::Harmony if chat.asked_effort().is_some() => ShownBy::Render,
            Self::Harmony if editions == Editions::One(Edition::Of33) => ShownBy::Either,
            Self::Harmony => ShownBy::Render,
        }
    }

    fn is_of_every_edition(&self) -> bool {
        !matches!(self, Self::DeepseekV41)
    }

    fn refuses_inline_system(&self) -> Option<bool> {
        match self {
            // Engines look at the template of the model's files, which is not read.
            Self::Harmony => None,
            // There is no template to try.
            _ => Some(true),
        }
    }
}
