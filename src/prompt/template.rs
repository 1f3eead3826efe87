//! Chat templates, rendered as transformers 5 does (`apply_chat_template` by way of
//! `render_jinja_template`).

use std::io;

use minijinja::machinery::parse;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};
use serde_json::Map;

use super::Reason;
use super::allowance::{ALLOWANCE, Allowance, Stop};
use super::chat::Chat;
use super::continued::{cut_at_tag, tag_final_message};
use super::convert::{Origin, names_first, refuses_inline_system};
use super::detect::{content_format, unknown_construct};
use super::jinja::{NoDate, TODAY, TemplateException, environment, syntax_config, with_generation_tags};
use super::kept::with_paid_variables;
use super::message::{conversation, developers_to_system};
use super::pyvalue::from_json;
use super::renderer::{ChatRenderer, Moment, Rendered, ShownBy};
use super::rules::{Edition, Editions};
use super::strftime::Today;
use super::topics::Topics;

/// Longest template source; the longest known is a tenth of it.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// Instructions that any rendering may take, and more for every byte of the request. A template
/// that loops over the conversation a few times stays far below, one that never ends does not.
const FUEL_BASE: u64 = 200_000;
const FUEL_PER_BYTE: u64 = 16;
/// As much for the text that comes out.
const OUTPUT_BASE_BYTES: usize = 1 << 20;
const OUTPUT_PER_BYTE: usize = 4;

/// The names the environment keeps its templates under.
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";
/// `SPECIAL_TOKENS_ATTRIBUTES` of transformers 5: what a template may name.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Forms in which a template takes a message's content (`--chat-template-content-format`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// As one string.
    String,
    /// As a list of parts.
    OpenAi,
}

/// The texts of a model's directory that make its template.
#[derive(Clone, Copy, Debug, Default)]
pub struct TemplateFiles<'a> {
    /// `tokenizer_config.json`: the special tokens, and the template where there is no file of its
    /// own.
    pub tokenizer_config: Option<&'a str>,
    /// `chat_template.jinja`, or what the engine is given as `--chat-template`; it wins.
    pub chat_template: Option<&'a str>,
    /// Setting of the engine; `None` = detected, as the engine does it.
    pub content_format: Option<ContentFormat>,
}

/// Reasons why a model's template can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// `tokenizer_config.json` is not JSON, or not of the known shape.
    #[error("tokenizer_config.json: {0}")]
    Config(String),
    /// None of the files has a template.
    #[error("the model has no chat template")]
    Missing,
    /// The source is longer than [`MAX_TEMPLATE_BYTES`].
    #[error("the chat template is longer than {MAX_TEMPLATE_BYTES} bytes")]
    TooLong,
    /// The source does not parse.
    #[error("the chat template does not parse: {0}")]
    Syntax(Box<Error>),
    /// The template uses something that may render otherwise here than in Jinja2.
    #[error("the chat template uses {0}, which is not rendered exactly here")]
    Construct(String),
}

/// One template and what its source says.
struct Source {
    name: &'static str,
    /// By 0.32, and by 0.33, which sees more.
    formats: [ContentFormat; 2],
    /// True if it knows the role `developer`.
    developer: bool,
    /// True if `content` occurs at all, without which transformers continues no message.
    content: bool,
    refuses_inline_system: Option<bool>,
}

impl Source {
    fn format(&self, edition: Edition) -> ContentFormat {
        let [of_32, of_33] = self.formats;
        match edition {
            Edition::Of32 => of_32,
            Edition::Of33 => of_33,
        }
    }
}

/// A model's compiled chat template(s).
pub struct ChatTemplate {
    environment: Environment<'static>,
    sources: Vec<Source>,
    special_tokens: Vec<(&'static str, String)>,
}

impl ChatTemplate {
    /// Compiles a model's template.
    ///
    /// # Errors
    /// The first thing that keeps the template from being rendered exactly.
    pub fn new(files: TemplateFiles<'_>) -> Result<Self, TemplateError> {
        let config: Map<String, serde_json::Value> = match files.tokenizer_config {
            Some(text) => serde_json::from_str(text).map_err(|e| TemplateError::Config(e.to_string()))?,
            None => Map::new(),
        };
        let mut this =
            Self { environment: environment(), sources: Vec::new(), special_tokens: special_tokens(&config) };
        match (files.chat_template, config.get("chat_template")) {
            (Some(source), _) => this.add(DEFAULT, source, files.content_format)?,
            (None, Some(serde_json::Value::String(source))) => {
                this.add(DEFAULT, source, files.content_format)?
            }
            (None, Some(serde_json::Value::Array(named))) => {
                for entry in named {
                    let text = |key| entry.get(key).and_then(serde_json::Value::as_str);
                    let name = [DEFAULT, TOOL_USE].into_iter().find(|name| text("name") == Some(name));
                    if let (Some(name), Some(source)) = (name, text("template")) {
                        this.add(name, source, files.content_format)?;
                    }
                }
            }
            _ => {}
        }
        if this.sources.is_empty() { Err(TemplateError::Missing) } else { Ok(this) }
    }

    /// Form of the content that the template takes, as engines of this edition see it.
    pub fn content_format(&self, edition: Edition) -> ContentFormat {
        self.sources.first().map_or(ContentFormat::String, |source| source.format(edition))
    }

    fn add(
        &mut self,
        name: &'static str,
        source: &str,
        format: Option<ContentFormat>,
    ) -> Result<(), TemplateError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(TemplateError::TooLong);
        }
        let text = with_generation_tags(&source.replace("\r\n", "\n").replace('\r', "\n"));
        let syntax = |e| TemplateError::Syntax(Box::new(e));
        let detected = {
            let root = parse(&text, name, syntax_config().map_err(syntax)?).map_err(syntax)?;
            if let Some(construct) = unknown_construct(&text, &root) {
                return Err(TemplateError::Construct(construct));
            }
            [Edition::Of32, Edition::Of33].map(|edition| content_format(&root, edition))
        };
        self.sources.push(Source {
            name,
            formats: format.map_or(detected, |format| [format; 2]),
            developer: text.contains("\"developer\"") || text.contains("'developer'"),
            content: text.contains("content"),
            refuses_inline_system: refuses_inline_system(source),
        });
        let text = with_paid_variables(&text).map_err(syntax)?;
        self.environment.add_template_owned(name, text).map_err(syntax)
    }

    /// The text of a conversation on engines of 0.33; `today` is what the engine's calendar shows,
    /// `None` if that is not known.
    ///
    /// # Errors
    /// The [`Reason`] for which the text is not known.
    pub fn render(&self, chat: Chat, today: impl Into<Option<Today>>) -> Result<String, Reason> {
        self.render_until(chat, Edition::Of33, today.into(), &Stop::default())
    }

    /// As [`render`](Self::render) on engines of any edition, but when it is told to stop before it
    /// is done it comes to [`Reason::Limit`].
    ///
    /// # Errors
    /// Fails as `render` does.
    pub fn render_until(
        &self,
        chat: Chat,
        edition: Edition,
        today: Option<Today>,
        stop: &Stop,
    ) -> Result<String, Reason> {
        let named = |name| self.sources.iter().find(|source| source.name == name);
        let tool_use = chat.tools.as_ref().and_then(|_| named(TOOL_USE));
        let source = tool_use.or_else(|| named(DEFAULT)).ok_or(Reason::NoTemplate)?;
        let mut messages = conversation(chat.messages, source.format(edition), chat.media)?;
        if chat.origin == Origin::Responses {
            names_first(&mut messages);
        }
        if !source.developer && messages.iter().any(|m| m.get("role").is_some_and(|role| role == "developer"))
        {
            messages = developers_to_system(messages);
        }
        let final_text = match (chat.continue_final_message, source.content) {
            (false, _) => None,
            (true, true) => Some(tag_final_message(&mut messages).ok_or(Reason::Shape)?),
            (true, false) => return Err(Reason::Rejected),
        };
        let messages = messages.into_iter().map(serde_json::Value::Object).collect();
        let allowance = Allowance::new(fuel(chat.source_bytes), chat.source_bytes, stop.clone());
        let from_json = |json| from_json(json, &allowance);
        let mut variables: Vec<(String, Value)> = Vec::new();
        variables.extend(
            self.special_tokens.iter().map(|(name, token)| ((*name).to_owned(), token.as_str().into())),
        );
        variables.extend(chat.kwargs.into_iter().map(|(name, json)| (name, from_json(json))));
        let mut set = |name: &str, value| variables.push((name.to_owned(), value));
        set("messages", from_json(messages));
        set("tools", chat.tools.map_or(Value::from(()), |tools| from_json(serde_json::Value::Array(tools))));
        set("documents", from_json(chat.documents));
        set("add_generation_prompt", chat.add_generation_prompt.into());
        set(ALLOWANCE, Value::from_dyn_object(allowance.clone()));
        if let Some(Today { year, month, day }) = today {
            set(TODAY, Value::from(vec![u32::from(year), month.into(), day.into()]));
        }
        let text = self.run(source.name, Value::from_pairs(variables), chat.source_bytes);
        let text = if allowance.spent() { return Err(Reason::Limit) } else { text? };
        match final_text {
            Some(wanted) => cut_at_tag(text, &wanted).ok_or(Reason::Rejected),
            None => Ok(text),
        }
    }

    fn run(&self, name: &str, variables: Value, source_bytes: usize) -> Result<String, Reason> {
        // A copy is a few reference counts; the fuel is of this rendering alone.
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel(source_bytes)));
        let most = OUTPUT_BASE_BYTES.saturating_add(OUTPUT_PER_BYTE.saturating_mul(source_bytes));
        // Most of the body is the conversation, and most of the text that comes out, too.
        let mut out = Capped::new(source_bytes + source_bytes / 8, most);
        let template = environment.get_template(name).map_err(|_| Reason::NoTemplate)?;
        match template.render_captured_to(variables, &mut out) {
            Ok(_) => String::from_utf8(out.bytes).map_err(|_| Reason::Template),
            Err(_) if out.full => Err(Reason::Limit),
            Err(error) => Err(reason_of(&error)),
        }
    }
}

impl ChatRenderer for ChatTemplate {
    fn render(&self, chat: Chat, moment: Moment<'_>) -> Result<Rendered, Reason> {
        self.render_until(chat, moment.edition, moment.today, moment.stop).map(Rendered::Text)
    }

    fn needs(&self) -> Topics {
        Topics::NONE
    }

    fn shown_by(&self, _: &Chat, _: Editions) -> ShownBy {
        ShownBy::Tokenize
    }

    fn is_of_every_edition(&self) -> bool {
        self.sources.iter().all(|source| source.format(Edition::Of32) == source.format(Edition::Of33))
    }

    fn refuses_inline_system(&self) -> Option<bool> {
        let mut of_sources = self.sources.iter().map(|source| source.refuses_inline_system);
        of_sources.try_fold(false, |found, refuses| Some(found || refuses?))
    }
}

/// Limit of a rendering: instructions, and looks at items of lists.
fn fuel(source_bytes: usize) -> u64 {
    FUEL_BASE.saturating_add(FUEL_PER_BYTE.saturating_mul(source_bytes as u64))
}

/// The named special tokens of `tokenizer_config.json`: each a string, or an object with its
/// `content`.
fn special_tokens(config: &Map<String, serde_json::Value>) -> Vec<(&'static str, String)> {
    let text = |name: &str| {
        let token = config.get(name)?;
        token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
    };
    SPECIAL_TOKENS.into_iter().filter_map(|name| Some((name, text(name)?))).collect()
}

fn reason_of(error: &Error) -> Reason {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if error.is::<TemplateException>() {
            return Reason::Rejected;
        }
        if error.is::<NoDate>() {
            return Reason::Date;
        }
        if error.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return Reason::Limit;
        }
        next = error.source();
    }
    Reason::Template
}

/// A writer that takes so much and no more.
struct Capped {
    bytes: Vec<u8>,
    cap_bytes: usize,
    full: bool,
}

impl Capped {
    fn new(expected_bytes: usize, cap_bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(expected_bytes.min(cap_bytes)), cap_bytes, full: false }
    }
}

impl io::Write for Capped {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        self.full |= more.len() > self.cap_bytes.saturating_sub(self.bytes.len());
        if self.full {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
