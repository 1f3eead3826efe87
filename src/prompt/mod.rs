//! From a request's body to the token ids that the engine will see, as vLLM 0.32 and 0.33 compute
//! them.
//!
//! Pure CPU work: `source` reads the body, `template` renders a conversation as transformers does,
//! `tokenizer` turns text into ids, and `cache` remembers the ids of prefixes. A prompt that can't
//! be computed to the last token yields a [`Reason`]; nothing here guesses, and no input makes it
//! panic or run for ever.

mod allowance;
mod cache;
mod chat;
mod continued;
mod convert;
mod detect;
mod encoding;
mod exactness;
mod jinja;
mod json;
mod kept;
mod markup;
mod media;
mod message;
mod parts;
mod prefix;
mod python;
mod pyvalue;
mod renderer;
mod rules;
mod source;
mod special;
mod strftime;
mod template;
mod tojson;
mod tokenizer;
mod topics;
mod walk;

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::codec::json::Object;
use crate::dialect::Api;

pub use allowance::Stop;
pub use cache::{CacheLimits, CacheStats, PrefixCache};
pub use chat::Chat;
pub use convert::{OpenChoices, Origin};
pub use encoding::{ChatEncoding, ChatForm, MistralEfforts, MistralFormat, MistralVersion};
pub use exactness::{Exactness, Prompt};
pub use renderer::{ChatRenderer, Moment, Piece, Rendered, ShownBy};
pub use rules::{Edition, Editions, EffortMap, Rules, SharedRules};
pub use source::{PromptSource, most_tokens};
pub use special::AddedToken;
pub use strftime::Today;
pub use template::{ChatTemplate, ContentFormat, MAX_TEMPLATE_BYTES, TemplateError, TemplateFiles};
pub use tokenizer::{
    KimiFiles, Local, MAX_RANKS, MAX_TOKEN_BYTES, RankTokenizer, Tokenize, TokenizerError, ToolsForm, kimi,
    kimi_variables, names_qwen, qwen,
};
pub use topics::{Topic, Topics};

/// Longest text that is tokenised here, in bytes; a longer one is [`Reason::TooLong`].
pub const MAX_TEXT_BYTES: usize = 64 << 20;

/// Reasons why a prompt's tokens are not known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// A part of the prompt that the engine alone has (an earlier response that it keeps), or a
    /// request that its `/tokenize` does not take (responses, messages).
    Api,
    /// Images, audio, video or files.
    Media,
    /// The prompt is given as embeddings.
    Embeds,
    /// Several prompts in one request.
    Batch,
    /// `truncate_prompt_tokens` is set: the engine cuts by its own limits.
    Truncation,
    /// A part of the body has a shape that the engine refuses, or that we don't know.
    Shape,
    /// A value that Python's JSON reader takes and ours doesn't, or a number whose Python spelling
    /// is in doubt.
    Json,
    /// The client brought its own chat template.
    ClientTemplate,
    /// A `chat_template_kwargs` member that changes more than the template's variables.
    TemplateKwargs,
    /// There is no chat template (for this kind of request).
    NoTemplate,
    /// The template uses a construct that we don't render as Jinja2 does, or failed on this
    /// conversation.
    Template,
    /// The template refused the conversation (`raise_exception`); so will the engine.
    Rejected,
    /// The rendering took more steps or bytes than is sane.
    Limit,
    /// The text is longer than [`MAX_TEXT_BYTES`].
    TooLong,
    /// The template prints the date, and the engines' is not known, or is about to change.
    Date,
    /// Engines encode this model's chats by code of their own, not followed here (Kimi K3).
    Encoder,
    /// The tokenizer failed on the text.
    Tokenizer,
    /// There is no tokenizer.
    NoTokenizer,
    /// `tool_choice` or `response_format`: it depends on the engine whether they change the prompt,
    /// and its `/tokenize` takes neither.
    Constraint,
    /// The engine that was asked for the tokens did not answer in time.
    EngineSlow,
    /// Too many questions for tokens are open.
    EngineBusy,
    /// The engine refused to tokenise the prompt.
    EngineRefused,
    /// The engine could not be reached, hung up, or answered what is no answer.
    EngineUnreachable,
    /// No engine has confirmed yet that it makes the same tokens.
    Unproven,
    /// An engine makes other tokens of the canary requests.
    Refuted,
    /// The model or adapter named is not among those that engines list, or its hash is known to
    /// them alone.
    Model,
    /// It uses what releases of vLLM treat differently, and an engine's is none whose treatment is
    /// followed here.
    Release,
    /// The tokens are known, but not yet how the engines name their blocks.
    Unnamed,
}

impl Reason {
    /// All of them, for tables.
    pub const ALL: [Reason; 28] = [
        Reason::Api,
        Reason::Media,
        Reason::Embeds,
        Reason::Batch,
        Reason::Truncation,
        Reason::Shape,
        Reason::Json,
        Reason::ClientTemplate,
        Reason::TemplateKwargs,
        Reason::NoTemplate,
        Reason::Template,
        Reason::Rejected,
        Reason::Limit,
        Reason::TooLong,
        Reason::Date,
        Reason::Encoder,
        Reason::Tokenizer,
        Reason::NoTokenizer,
        Reason::Constraint,
        Reason::EngineSlow,
        Reason::EngineBusy,
        Reason::EngineRefused,
        Reason::EngineUnreachable,
        Reason::Unproven,
        Reason::Refuted,
        Reason::Model,
        Reason::Release,
        Reason::Unnamed,
    ];

    /// A short stable name for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Api => "api",
            Reason::Media => "media",
            Reason::Embeds => "embeds",
            Reason::Batch => "batch",
            Reason::Truncation => "truncation",
            Reason::Shape => "shape",
            Reason::Json => "json",
            Reason::ClientTemplate => "client_template",
            Reason::TemplateKwargs => "template_kwargs",
            Reason::NoTemplate => "no_template",
            Reason::Template => "template",
            Reason::Rejected => "rejected",
            Reason::Limit => "limit",
            Reason::TooLong => "too_long",
            Reason::Date => "date",
            Reason::Encoder => "encoder",
            Reason::Tokenizer => "tokenizer",
            Reason::NoTokenizer => "no_tokenizer",
            Reason::Constraint => "constraint",
            Reason::EngineSlow => "engine_slow",
            Reason::EngineBusy => "engine_busy",
            Reason::EngineRefused => "engine_refused",
            Reason::EngineUnreachable => "engine_unreachable",
            Reason::Unproven => "unproven",
            Reason::Refuted => "refuted",
            Reason::Model => "model",
            Reason::Release => "release",
            Reason::Unnamed => "unnamed",
        }
    }
}

/// Facts of the engines and of the moment for which a prompt is made.
struct Context<'a> {
    today: Option<Today>,
    rules: Rules,
    stop: &'a Stop,
}

/// Tokenizer and template of one model; shared by all requests.
pub struct Prompter {
    renderer: Option<Box<dyn ChatRenderer>>,
    tokenizer: Option<Arc<dyn Tokenize>>,
    cache: PrefixCache,
    /// Variables of the template that requests don't set.
    defaults: Map<String, Value>,
    /// The efforts that engines from 0.33 on put in place of others.
    efforts: EffortMap,
    /// Reason why no chat is exact, whatever it says.
    no_chats: Option<Reason>,
    /// The form in which the template gets tools.
    tools: ToolsForm,
    rules: SharedRules,
}

impl Prompter {
    /// Without a tokenizer only prompts of token ids are exact; without a template, no chat is.
    pub fn new(
        template: Option<ChatTemplate>,
        tokenizer: Option<Arc<dyn Tokenize>>,
        cache: PrefixCache,
    ) -> Self {
        Self {
            renderer: template.map(|template| -> Box<dyn ChatRenderer> { Box::new(template) }),
            tokenizer,
            cache,
            defaults: Map::new(),
            efforts: EffortMap::new(),
            no_chats: None,
            tools: ToolsForm::Given,
            rules: SharedRules::new(Rules::ANY_EDITION),
        }
    }

    /// For a model whose chats are rendered by code, whatever its template.
    #[must_use]
    pub fn with_encoding(mut self, encoding: ChatEncoding) -> Self {
        self.renderer = Some(Box::new(encoding));
        self
    }

    /// With variables for the template where requests don't set them: the engines'
    /// `--default-chat-template-kwargs`.
    #[must_use]
    pub fn with_defaults(mut self, defaults: Map<String, Value>) -> Self {
        self.defaults = defaults;
        self
    }

    /// With the engines' `--reasoning-effort-map`, which releases before 0.33 don't have.
    #[must_use]
    pub fn with_efforts(mut self, efforts: EffortMap) -> Self {
        self.efforts = efforts;
        self
    }

    /// The engines' `--reasoning-effort-map`.
    pub fn efforts(&self) -> &EffortMap {
        &self.efforts
    }

    /// For a model whose own code hands tools to its template in this form.
    #[must_use]
    pub fn with_tools(mut self, form: ToolsForm) -> Self {
        self.tools = form;
        self
    }

    /// For a model whose chats are not known here, for a reason that lies in the model.
    #[must_use]
    pub fn without_chats(mut self, why: Reason) -> Self {
        self.no_chats = Some(why);
        self
    }

    /// Topics that an engine must read as it is done here for any chat to be exact.
    pub fn needs(&self) -> Topics {
        self.renderer.as_ref().map_or(Topics::NONE, |renderer| renderer.needs())
    }

    /// Routes of an engine of these editions that show its prompt of a chat.
    pub fn shown_by(&self, chat: &Chat, editions: Editions) -> ShownBy {
        self.renderer.as_ref().map_or(ShownBy::Tokenize, |renderer| renderer.shown_by(chat, editions))
    }

    /// From now on no chat is exact that depends on more than these rules, which all engines share;
    /// until then all are taken to be theirs.
    pub fn set_rules(&self, rules: Rules) {
        self.rules.set(rules);
    }

    /// The prompt of a request; `today` is what the engine's calendar shows, `None` if that is not
    /// known.
    pub fn prompt(&self, api: Api, body: &Object, today: impl Into<Option<Today>>) -> Prompt {
        self.prompt_until(api, body, today.into(), &Stop::default())
    }

    /// As [`prompt`](Self::prompt), but when it is told to stop before it is done it comes to
    /// [`Reason::Limit`].
    pub fn prompt_until(&self, api: Api, body: &Object, today: Option<Today>, stop: &Stop) -> Prompt {
        let context = Context { today, rules: self.rules.now(), stop };
        self.read(api, body, &context).unwrap_or_else(Prompt::unknown)
    }

    /// As [`prompt`](Self::prompt), for engines of these rules.
    pub fn prompt_under(&self, rules: Rules, api: Api, body: &Object, today: Option<Today>) -> Prompt {
        let context = Context { today, rules, stop: &Stop::default() };
        self.read(api, body, &context).unwrap_or_else(Prompt::unknown)
    }

    /// The tokens that the tokenizer finds in raw text before anything else; empty if it has none,
    /// or none certain.
    pub fn added_tokens(&self) -> Vec<AddedToken> {
        self.tokenizer.as_ref().map_or_else(Vec::new, |tokenizer| tokenizer.added_tokens())
    }

    /// Counters of the prefix cache.
    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }

    fn read(&self, api: Api, body: &Object, context: &Context<'_>) -> Result<Prompt, Reason> {
        let most_tokens = most_tokens(body)?;
        let prompt = match PromptSource::read(api, body)? {
            PromptSource::TokenIds(ids) => Prompt::exact(ids),
            PromptSource::Text { text, add_special_tokens } => self.text(&text, add_special_tokens)?,
            PromptSource::Messages(chat) => self.chat(*chat, context)?,
        };
        // A prompt that is longer loses its beginning.
        let may_be_cut = most_tokens.is_some_and(|most| !prompt.is_exact() || prompt.tokens.len() > most);
        if may_be_cut { Err(Reason::Truncation) } else { Ok(prompt) }
    }

    fn chat(&self, mut chat: Chat, context: &Context<'_>) -> Result<Prompt, Reason> {
        // Before the work of rendering.
        self.tokenizer.as_ref().ok_or(Reason::NoTokenizer)?;
        self.no_chats.map_or(Ok(()), Err)?;
        if !context.rules.topics.covers(chat.needs().or(self.needs())) {
            return Err(if chat.has_media() { Reason::Media } else { Reason::Release });
        }
        match self.tools {
            ToolsForm::Given => {}
            ToolsForm::Sorted => chat.sort_tools(),
            ToolsForm::Other if chat.has_tools() => return Err(Reason::Template),
            ToolsForm::Other => {}
        }
        chat.complete(&self.defaults);
        self.settle(&mut chat, context)?;
        match chat.may_lack_tools {
            true => self.with_or_without_tools(&chat, context),
            false => self.complete_chat(chat, context),
        }
    }

    /// The prompt of a chat whose variables are complete.
    fn complete_chat(&self, chat: Chat, context: &Context<'_>) -> Result<Prompt, Reason> {
        if chat.has_media() {
            return self.before_items(&chat, context);
        }
        let add_special_tokens = chat.add_special_tokens;
        let rendered = self.render(chat, context)?;
        if context.stop.is_told() {
            return Err(Reason::Limit);
        }
        match rendered {
            Rendered::Text(text) => self.text(&text, add_special_tokens),
            Rendered::Pieces(pieces) => self.encode_pieces(&pieces).map(Prompt::exact),
            Rendered::Beginning { .. } => Err(Reason::Media),
        }
    }

    fn text(&self, text: &str, add_special_tokens: bool) -> Result<Prompt, Reason> {
        match self.encode(text, add_special_tokens) {
            Err(Reason::Tokenizer) if !(add_special_tokens && self.frames_texts()) => {
                self.before_refusal(text, text.len())
            }
            tokens => tokens.map(Prompt::exact),
        }
    }

    /// The prompt of a chat: where engines are of two editions, the one that both make.
    fn render(&self, chat: Chat, context: &Context<'_>) -> Result<Rendered, Reason> {
        let renderer = self.renderer.as_ref().ok_or(Reason::NoTemplate)?;
        let render = |mut chat: Chat, edition| {
            if edition == Edition::Of33 {
                chat.map_effort(&self.efforts);
            }
            renderer.render(chat, Moment { edition, today: context.today, stop: context.stop })
        };
        match context.rules.editions {
            Editions::One(edition) => render(chat, edition),
            Editions::Both if !chat.is_mapped(&self.efforts) && renderer.is_of_every_edition() => {
                render(chat, Edition::Of33)
            }
            Editions::Both => {
                let older = render(chat.clone(), Edition::Of32)?;
                let newer = render(chat, Edition::Of33)?;
                if older == newer { Ok(newer) } else { Err(Reason::Release) }
            }
        }
    }

    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Arc<[u32]>, Reason> {
        let tokenizer = self.tokenizer.as_deref().ok_or(Reason::NoTokenizer)?;
        if text.len() > MAX_TEXT_BYTES {
            return Err(Reason::TooLong);
        }
        if !add_special_tokens || adds_none(tokenizer) {
            return self.cache.encode(tokenizer, text).map_err(|_| Reason::Tokenizer);
        }
        let mut tokens = Vec::new();
        tokenizer.encode_into(text, true, &mut tokens).map_err(|_| Reason::Tokenizer)?;
        Ok(tokens.into())
    }

    /// The tokens of pieces. Where the tokenizer finds the same special tokens in the whole text,
    /// that is tokenised at once, and with the cache.
    fn encode_pieces(&self, pieces: &[Piece]) -> Result<Arc<[u32]>, Reason> {
        let tokenizer = self.tokenizer.as_deref().ok_or(Reason::NoTokenizer)?;
        let joined = renderer::joined(pieces);
        if joined.text.len() > MAX_TEXT_BYTES {
            return Err(Reason::TooLong);
        }
        if joined.is_separable && self.cache.finds(&joined.text, &joined.specials) {
            return self.cache.encode(tokenizer, &joined.text).map_err(|_| Reason::Tokenizer);
        }
        let mut tokens = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Plain(text) => {
                    tokenizer.encode_plain_into(text, &mut tokens).map_err(|_| Reason::Tokenizer)?;
                }
                Piece::Special(token) => tokens.push(tokenizer.token_id(token).ok_or(Reason::Tokenizer)?),
            }
        }
        Ok(tokens.into())
    }
}

/// True if the tokenizer has no marks of its own to put around a text.
fn adds_none(tokenizer: &dyn Tokenize) -> bool {
    let mut tokens = Vec::new();
    tokenizer.encode_into("", true, &mut tokens).is_ok() && tokens.is_empty()
}

#[cfg(test)]
mod tests;
