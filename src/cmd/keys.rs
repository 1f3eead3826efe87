//! The command `pd-proxy keys`: what a prompt's tokens, block hashes and pool keys are, computed as
//! the gateway does.
//!
//! Prefillers are asked for what the configuration leaves out only if some are named: without them
//! it works offline.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::cli::{KeysArgs, KeysFormat};
use crate::cmd::keys_report::{Hashed, Listing, ListingError, Spelling};
use crate::codec::json::{JsonError, Object, ScanLimits};
use crate::config::{Config, Loaded, Origin, Tokens};
use crate::dialect::Api;
use crate::endpoint::Endpoint;
use crate::kvhash::BlockHash;
use crate::naming_config::{self, FilesError, Published, Trouble};
use crate::prompt::{Exactness, PrefixCache, Prompt, PromptSource, Prompter, Reason, Rules};
use crate::tls::{ClientError, EngineTls};
use crate::tokenization::{
    Asker, BlockNaming, ComparedEngine, Difference, EngineLimits, EngineTokenizer, Prompts, Source,
    TopicsSeen, Trust, Verdict, compare, exchange, facts,
};

/// Longest text that is read from a file, bytes: a body of the default limit.
const MAX_INPUT_BYTES: u64 = 64 << 20;

/// The report, ready to be printed.
#[derive(Debug)]
pub struct Report {
    listing: Listing,
    format: KeysFormat,
    /// The tokens' maker was compared with an engine.
    proven: bool,
    /// Remark about the tokens that is printed beside them.
    remark: Option<String>,
}

/// Reasons for which there is nothing to print.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// None or several of the three ways to give a prompt.
    #[error("give the prompt once: --prompt TEXT, --messages JSON or --tokens 1,2,3")]
    OnePrompt,
    /// A file named by `@path`.
    #[error("{flag} @{path}: {why}")]
    File {
        /// Name of the flag.
        flag: &'static str,
        /// Path of the file.
        path: String,
        /// Cause of the error.
        why: std::io::Error,
    },
    /// A text that is no JSON, or not of the right kind.
    #[error("{flag}: {why}")]
    Json {
        /// Name of the flag.
        flag: &'static str,
        /// Fault of its value.
        why: String,
    },
    /// A path that is none of an API.
    #[error("--path {path}: expected one of {}", Api::ALL.map(Api::path).join(", "))]
    Path {
        /// Path that was given.
        path: String,
    },
    /// A request that can't be read.
    #[error("--messages: {0}")]
    Body(#[from] JsonError),
    /// The model's files.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The way in which blocks are named can't be known.
    #[error("{trouble}{}", unreachable(.away))]
    Names {
        /// Fault of the configuration or of the engines' facts.
        trouble: Box<Trouble>,
        /// Engines that could not be asked, and why.
        away: Vec<String>,
    },
    /// Hashes and keys that don't belong together.
    #[error(transparent)]
    Listing(#[from] ListingError),
    /// The HTTP client.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// A request to compute for.
struct Request {
    api: Api,
    body: Object,
}

/// Computes what the arguments ask for.
///
/// # Errors
/// [`KeysError`] names the flag or key at fault. A prompt that can't be known is not an error: the
/// report says why.
pub async fn run(args: &KeysArgs, loaded: &Loaded) -> Result<Report, KeysError> {
    let config = &loaded.config;
    let request = request(args)?;
    let asker = asker(config)?;
    let engines = match loaded.origins.of("fleet.prefill") {
        Origin::Default => Vec::new(),
        _ => config.prefill_endpoints(),
    };
    let (published, away) = published(&asker, &engines).await;
    let naming = naming_config::naming(config, &published)
        .map_err(|trouble| KeysError::Names { trouble: Box::new(trouble), away })?;
    let prompts = prompts(config, asker.clone())?;
    if published.iter().any(|p| p.facts.encodes_chats_itself()) {
        prompts.set_chats_encoded_elsewhere(true);
    }
    set_rules(&prompts, &published, TopicsSeen::default());
    let (proven, remark) = match PromptSource::read(request.api, &request.body) {
        Ok(PromptSource::TokenIds(_)) => (true, None),
        _ => proof(&asker, &published, &prompts).await,
    };
    let prompt = prompts.prompt(request.api, &request.body, engines.first().cloned()).await;
    let text = |key| request.body.get(key).and_then(|v| v.as_str().map(std::borrow::Cow::into_owned));
    let salt = text("cache_salt");
    let named = naming.prompt_hashes(&prompt, text("model").as_deref(), salt.as_deref());
    let (prompt, hashes) = match named {
        Ok(hashes) => (prompt, hashes),
        Err(reason) => (Prompt { exactness: Exactness::Inexact(reason), tokens: Arc::default() }, Vec::new()),
    };
    // Beside a prompt that can't be known for another reason there is nothing to remark.
    let told = !prompt.tokens.is_empty() || prompt.reason() == Some(Reason::Refuted);
    let remark = remark.filter(|_| told);
    let listing = listing(&naming, &prompt, &hashes, salt.as_deref().unwrap_or(""))?;
    Ok(Report { listing, format: args.format, proven, remark })
}

/// Takes over the rules that the engines share, as far as `seen` shows them.
fn set_rules(prompts: &Prompts, published: &[Published], seen: TopicsSeen) {
    let rules = published.iter().map(|engine| engine.facts.rules().after(seen));
    prompts.set_rules(rules.reduce(Rules::shared_with).unwrap_or(Rules::ANY_EDITION));
}

/// Compares our tokens with those of the first engine, if one is named; else they are taken on
/// trust.
async fn proof(asker: &Asker, published: &[Published], prompts: &Prompts) -> (bool, Option<String>) {
    let (engine, prompter) = match (published.first(), prompts.local()) {
        (_, None) => return (true, None),
        (Some(engine), Some(prompter)) => (engine, prompter),
        (None, Some(_)) => {
            prompts.set_trust(Trust::Proven);
            return (false, Some("not compared with an engine: --prefill names one".to_owned()));
        }
    };
    let model = engine.facts.models.first().map(|model| model.id.as_str());
    let compared = ComparedEngine { engine: &engine.engine, model, rules: engine.facts.rules().compared() };
    let parity = compare(asker, compared, prompter, prompts.today()).await;
    set_rules(prompts, published, parity.topics);
    let trust = |differs| if differs { Trust::Refuted } else { Trust::Proven };
    let difference =
        |of: fn(&Difference) -> bool| matches!(&parity.verdict, Verdict::Different(it) if of(it));
    prompts.set_trusts(trust(difference(|it| !it.is_chat)), trust(difference(|_| true)));
    match parity.verdict {
        Verdict::Same => (true, None),
        Verdict::Different(difference) => (false, Some(difference.to_string())),
        Verdict::Untested => (false, Some("there was nothing to compare with the engine".to_owned())),
        Verdict::Unknown(why) => (false, Some(format!("not compared with the engine: {why}"))),
    }
}

impl Report {
    /// True if the tokens, and so everything else, are the engines'.
    pub fn exact(&self) -> bool {
        self.listing.exact()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.format {
            KeysFormat::Text => {
                self.listing.fmt(f)?;
                self.remark.as_ref().map_or(Ok(()), |remark| writeln!(f, "({remark})"))
            }
            KeysFormat::Json => {
                let mut json = self.listing.json();
                json["proven"] = Value::Bool(self.proven);
                writeln!(f, "{json}")
            }
        }
    }
}

fn listing(
    naming: &BlockNaming,
    prompt: &Prompt,
    hashes: &[BlockHash],
    salt: &str,
) -> Result<Listing, ListingError> {
    let hashed = Hashed {
        exactness: prompt.exactness,
        tokens: &prompt.tokens,
        hashes,
        block_tokens: naming.hasher.block_tokens(),
    };
    let spelling = naming.keys.as_ref().map(|profile| Spelling { profile, salt, tags: "" });
    Listing::new(&hashed, spelling.as_ref())
}

/// A client for the engines' control routes.
pub(crate) fn asker(config: &Config) -> Result<Asker, ClientError> {
    let limit = Duration::from_millis(config.timeout.connect_ms);
    let client = EngineTls::new(&config.engine_tls())?.http().connect_timeout(limit).build()?;
    let bearer = config.engine.api_key.as_ref().map(|key| format!("Bearer {}", key.expose()));
    Ok(Asker {
        client,
        // A key that no header can hold was refused with the configuration.
        authorization: bearer.and_then(|text| text.parse().ok()),
        time: exchange::ASK_TIME,
        answer_bytes: exchange::ANSWER_BYTES,
    })
}

/// Asks engines for the facts that decide on block names; returns them, and a line for each engine
/// that could not be asked.
pub(crate) async fn published(asker: &Asker, engines: &[Endpoint]) -> (Vec<Published>, Vec<String>) {
    let authorization = asker.authorization.as_ref();
    let asked = engines.iter().map(|e| facts::fetch(&asker.client, e, authorization, asker.time));
    let mut published = Vec::new();
    let mut away = Vec::new();
    for (engine, answer) in engines.iter().zip(join_all(asked).await) {
        match answer {
            Ok(facts) => published.push(Published { engine: engine.clone(), facts }),
            Err(error) => away.push(error.to_string()),
        }
    }
    (published, away)
}

/// The tokenizer: the configured one, or the model's files where those are named and nothing is
/// configured.
fn prompts(config: &Config, asker: Asker) -> Result<Prompts, KeysError> {
    let local = config.prompt.tokens != Tokens::Engine && config.prompt.model_path.is_some();
    let source = match config.prompt.tokens {
        Tokens::Engine => {
            let limits = EngineLimits { budget: asker.time, ..EngineLimits::default() };
            Source::Engine(EngineTokenizer::new(asker, limits, 0))
        }
        _ if local => Source::Local(Arc::new(naming_config::prompter(config, 0)?.prompter)),
        _ => Source::Local(Arc::new(Prompter::new(None, None, PrefixCache::off()))),
    };
    Ok(Prompts::new(source, config.prompt.utc_offset_s()).with_efforts(config.prompt.efforts()))
}

fn request(args: &KeysArgs) -> Result<Request, KeysError> {
    let (api, body) = match (&args.prompt, &args.messages, &args.tokens) {
        (Some(text), None, None) => (Api::Completions, json!({"prompt": given("--prompt", text)?})),
        (None, Some(text), None) => {
            let text = given("--messages", text)?;
            let api = args.path.as_deref().map(at_path).transpose()?;
            match parse("--messages", &text)? {
                messages @ Value::Array(_) => (Api::Chat, json!({"messages": messages})),
                // The client's own bytes count, not what a parser makes of them.
                Value::Object(_) => return whole(text, api),
                _ => return Err(wrong("--messages", "expected a list of messages, or a whole request")),
            }
        }
        (None, None, Some(text)) => {
            let text = given("--tokens", text)?;
            let list = format!("[{}]", text.trim().trim_start_matches('[').trim_end_matches(']'));
            let ids: Vec<u32> = serde_json::from_str(&list)
                .map_err(|_| wrong("--tokens", "expected token ids with commas between them, as in 1,2,3"))?;
            (Api::Completions, json!({"prompt": ids}))
        }
        _ => return Err(KeysError::OnePrompt),
    };
    let mut body = body;
    if let (Some(salt), Some(members)) = (&args.cache_salt, body.as_object_mut()) {
        members.insert("cache_salt".to_owned(), Value::from(salt.as_str()));
    }
    Ok(Request { api, body: scan(body.to_string())? })
}

fn whole(text: String, api: Option<Api>) -> Result<Request, KeysError> {
    let body = scan(text)?;
    Ok(Request { api: api.unwrap_or_else(|| Api::of_body(&body)), body })
}

fn at_path(path: &str) -> Result<Api, KeysError> {
    Api::at(path).ok_or_else(|| KeysError::Path { path: path.to_owned() })
}

fn scan(text: String) -> Result<Object, KeysError> {
    Ok(Object::scan(Bytes::from(text), ScanLimits::default())?)
}

fn parse(flag: &'static str, text: &str) -> Result<Value, KeysError> {
    serde_json::from_str(text).map_err(|why| wrong(flag, &why.to_string()))
}

fn wrong(flag: &'static str, why: &str) -> KeysError {
    KeysError::Json { flag, why: why.to_owned() }
}

/// The text itself, or what is in the file after `@`.
fn given(flag: &'static str, text: &str) -> Result<String, KeysError> {
    let Some(path) = text.strip_prefix('@') else { return Ok(text.to_owned()) };
    let read = std::fs::metadata(path).and_then(|meta| {
        if meta.len() > MAX_INPUT_BYTES {
            return Err(std::io::Error::other(format!("it is longer than {MAX_INPUT_BYTES} bytes")));
        }
        std::fs::read_to_string(path)
    });
    read.map_err(|why| KeysError::File { flag, path: path.to_owned(), why })
}

fn unreachable(away: &[String]) -> String {
    away.iter().map(|why| format!("\n{why}")).collect()
}
