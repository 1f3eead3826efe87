//! A request body, checked in the order vLLM checks it.

use std::iter;
use std::sync::Arc;

use serde_json::Value;

use super::chat;
use super::chat_ids;
use super::fail::ApiFailure;
use super::handoff::Handoff;
use super::spec::EngineSpec;
use super::{text, tokens};

/// The endpoint that a body is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// OpenAI's route `/v1/completions`.
    Completions,
    /// OpenAI's route `/v1/chat/completions`.
    Chat,
    /// OpenAI's route `/v1/responses`.
    Responses,
    /// Anthropic's route `/v1/messages`.
    Messages,
}

/// A generation request.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Endpoint as it was given.
    pub api: Api,
    /// One or more prompts, as tokens.
    pub prompts: Vec<Arc<[u32]>>,
    /// Hash of `cache_salt`; 0 without one.
    pub salt: u64,
    /// Output tokens per choice, at least 1.
    pub max_tokens: usize,
    /// An answer does not end by itself before it has more than so many (vLLM: `min_tokens`;
    /// `ignore_eos` = all there may be).
    pub min_tokens: usize,
    /// Choices per prompt, at least 1.
    pub n: usize,
    /// Answer as server-sent events.
    pub stream: bool,
    /// A usage event at the end of a stream.
    pub include_usage: bool,
    /// Usage in every event of a stream.
    pub continuous_usage: bool,
    /// The prompt precedes the answer (completions).
    pub echo: bool,
    /// Alternatives per token to report; None = no log probabilities at all.
    pub logprobs: Option<usize>,
    /// Report token ids.
    pub return_token_ids: bool,
    /// Special tokens of the answer have no text.
    pub skip_special_tokens: bool,
    /// Strings that stop it.
    pub stop: Vec<String>,
    /// The stop string stays in the text.
    pub include_stop: bool,
    /// The function that `tool_choice` names.
    pub tool: Option<String>,
    /// Request of its `kv_transfer_params`.
    pub handoff: Handoff,
}

/// Output tokens when a completion does not say (vLLM's default).
const COMPLETION_TOKENS: usize = 16;
/// Output tokens when a chat does not say, or a completion says null; a real engine would go on to
/// the end of its context.
const CHAT_TOKENS: usize = 128;
/// Choices a body may ask for.
const MAX_CHOICES: i64 = 128;
/// Prompts a body may hold.
const MAX_PROMPTS: usize = 1024;

impl Ask {
    /// Checks `body`; `handoff` is what its `kv_transfer_params` say, already read.
    pub fn parse(api: Api, body: &Value, handoff: Handoff, spec: &EngineSpec) -> Result<Ask, ApiFailure> {
        let mut prompts = prompts(api, body, spec)?;
        let stream = flag(body, "stream");
        let options = body.get("stream_options").filter(|options| !options.is_null());
        if options.is_some() && !stream {
            let message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)";
            return Err(ApiFailure::bad_param("stream_options", message));
        }
        check_seed(body)?;
        check_temperature(body)?;
        let longest = spec.context_tokens();
        let max_tokens = max_tokens(api, body, spec)?;
        if cuts_to_fit(api, body) {
            prompts.iter_mut().for_each(|prompt| cut(prompt, longest.saturating_sub(max_tokens)));
        }
        let prompt_tokens = prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0);
        check_context(prompt_tokens, longest)?;
        let option = |name| options.is_some_and(|options| flag(options, name));
        Ok(Ask {
            api,
            prompts,
            salt: body.get("cache_salt").and_then(Value::as_str).map_or(0, text::string_print),
            max_tokens: max_tokens.min(longest.saturating_sub(prompt_tokens).max(1)),
            min_tokens: min_tokens(body),
            n: choices(body)?,
            stream,
            include_usage: option("include_usage"),
            continuous_usage: option("include_usage") && option("continuous_usage_stats"),
            echo: flag(body, "echo"),
            logprobs: logprobs(api, body),
            return_token_ids: flag(body, "return_token_ids"),
            skip_special_tokens: skips_special_tokens(api, body, spec),
            stop: stop_strings(body),
            include_stop: flag(body, "include_stop_str_in_output"),
            tool: body.pointer("/tool_choice/function/name").and_then(Value::as_str).map(str::to_owned),
            handoff,
        })
    }
}

fn min_tokens(body: &Value) -> usize {
    if flag(body, "ignore_eos") {
        return usize::MAX;
    }
    body.get("min_tokens").and_then(Value::as_u64).and_then(|least| usize::try_from(least).ok()).unwrap_or(0)
}

fn flag(body: &Value, name: &str) -> bool {
    body.get(name).and_then(Value::as_bool).unwrap_or(false)
}

/// An integer member; null counts as absent.
fn integer(body: &Value, name: &str) -> Result<Option<i64>, ApiFailure> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_i64().map(Some).ok_or_else(|| {
            let input = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let message = "Input should be a valid integer, unable to parse string as an integer";
            ApiFailure::schema("int_parsing", &format!("body.{name}"), message, &input)
        }),
    }
}

fn prompts(api: Api, body: &Value, spec: &EngineSpec) -> Result<Vec<Arc<[u32]>>, ApiFailure> {
    if api != Api::Completions
        && let Some(ids) = chat_ids::reused(body, spec)?
    {
        return Ok(vec![ids.into()]);
    }
    let text = match api {
        Api::Completions => return completion_prompts(body),
        Api::Chat | Api::Messages => chat::render(body)?,
        Api::Responses => {
            let input = body.get("input");
            let user = match input {
                Some(Value::Array(items)) => {
                    items.iter().map(|item| chat::content_text(item.get("content"))).collect()
                }
                Some(_) => chat::content_text(input),
                None => {
                    return Err(ApiFailure::schema(
                        "missing",
                        "body.input",
                        "Field required",
                        &chat::dict_of(body),
                    ));
                }
            };
            format!("<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n")
        }
    };
    let mut all = tokens::encode(&text);
    if spec.image_tokens > 0 {
        // After the text, wherever they are: each has its own tokens, and that is what counts.
        let images = chat::image_urls(body).map(tokens::of_image);
        images.for_each(|token| all.extend(iter::repeat_n(token, spec.image_tokens)));
    }
    Ok(vec![all.into()])
}

fn completion_prompts(body: &Value) -> Result<Vec<Arc<[u32]>>, ApiFailure> {
    let missing = || {
        let message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)";
        ApiFailure::bad_param("prompt", message)
    };
    let found = match body.get("prompt") {
        Some(Value::String(text)) => vec![tokens::encode(text)],
        Some(list @ Value::Array(items)) => match items.first() {
            Some(Value::Number(_)) => vec![token_list(list)?],
            _ => items
                .iter()
                .take(MAX_PROMPTS)
                .map(|item| item.as_str().map_or_else(|| token_list(item), |text| Ok(tokens::encode(text))))
                .collect::<Result<_, _>>()?,
        },
        _ => return Err(missing()),
    };
    if found.is_empty() || found.iter().any(Vec::is_empty) {
        return Err(missing());
    }
    Ok(found.into_iter().map(Into::into).collect())
}

fn token_list(list: &Value) -> Result<Vec<u32>, ApiFailure> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let known = |item: &Value| {
        let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
        id.filter(|&id| id < tokens::VOCAB)
            .ok_or_else(|| ApiFailure::bad_request(&format!("Token id {item} is out of vocabulary")))
    };
    items.iter().map(known).collect()
}

/// True if a prompt is to be cut to what the context has beside the answer.
fn cuts_to_fit(api: Api, body: &Value) -> bool {
    match api {
        Api::Responses => body.get("truncation").is_some_and(|how| how != "disabled"),
        _ => body.get("truncate_prompt_tokens").and_then(Value::as_i64) == Some(-1),
    }
}

/// Its end stays, as with most tokenizers.
fn cut(prompt: &mut Arc<[u32]>, most_tokens: usize) {
    if let Some(excess) = prompt.len().checked_sub(most_tokens).filter(|excess| *excess > 0) {
        *prompt = prompt[excess..].into();
    }
}

fn check_seed(body: &Value) -> Result<(), ApiFailure> {
    let most = i64::MAX;
    let Some(seed) = body.get("seed").and_then(Value::as_u64).filter(|&seed| i64::try_from(seed).is_err())
    else {
        return Ok(());
    };
    let found = format!(
        "{{'type': 'less_than_equal', 'loc': 'body.seed', 'msg': 'Input should be less than or equal to {most}', \
         'input': '{seed}', 'ctx': {{'le': {most}}}}}"
    );
    Err(ApiFailure::validation(&[found], "body.seed".into()))
}

fn check_temperature(body: &Value) -> Result<(), ApiFailure> {
    let Some(temperature) = body.get("temperature").and_then(Value::as_f64).filter(|&t| t < 0.0) else {
        return Ok(());
    };
    let message = format!("temperature must be non-negative, got {temperature:?}.");
    Err(ApiFailure::bad_value("temperature", &temperature.into(), &message))
}

fn check_context(prompt_tokens: usize, longest: usize) -> Result<(), ApiFailure> {
    if prompt_tokens < longest {
        return Ok(());
    }
    let least = longest + 1;
    let message = format!(
        "This model's maximum context length is {longest} tokens. However, your prompt contains at least {least} \
         input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the \
         input prompt."
    );
    Err(ApiFailure::bad_value("input_tokens", &least.into(), &message))
}

fn max_tokens(api: Api, body: &Value, spec: &EngineSpec) -> Result<usize, ApiFailure> {
    let (names, default): (&[&str], usize) = match api {
        Api::Completions => (&["max_tokens"], COMPLETION_TOKENS),
        Api::Chat => (&["max_completion_tokens", "max_tokens"], CHAT_TOKENS),
        Api::Responses => (&["max_output_tokens"], CHAT_TOKENS),
        Api::Messages => (&["max_tokens"], CHAT_TOKENS),
    };
    let all_that_fits = api == Api::Completions && body.get("max_tokens").is_some_and(Value::is_null);
    for name in names {
        let Some(asked) = integer(body, name)? else { continue };
        let Some(count) = usize::try_from(asked).ok().filter(|&count| count > 0) else {
            let message = format!("max_tokens must be at least 1, got {asked}.");
            return Err(ApiFailure::bad_value("max_tokens", &asked.into(), &message));
        };
        if count > spec.max_model_len {
            let message = format!(
                "max_tokens={count} cannot be greater than max_model_len={}. Please request fewer output tokens.",
                spec.max_model_len
            );
            return Err(ApiFailure::bad_value("max_tokens", &asked.into(), &message));
        }
        return Ok(count);
    }
    Ok(if all_that_fits { CHAT_TOKENS } else { default })
}

fn choices(body: &Value) -> Result<usize, ApiFailure> {
    let n = integer(body, "n")?.unwrap_or(1);
    usize::try_from(n)
        .ok()
        .filter(|_| (1..=MAX_CHOICES).contains(&n))
        .ok_or_else(|| ApiFailure::bad_value("n", &n.into(), &format!("n must be at least 1, got {n}.")))
}

fn logprobs(api: Api, body: &Value) -> Option<usize> {
    let count = |name| body.get(name).and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok());
    if api == Api::Completions {
        return count("logprobs");
    }
    flag(body, "logprobs").then(|| count("top_logprobs").unwrap_or(0))
}

/// As vLLM decides: a parser shows special tokens, else the request says if they are left out.
fn skips_special_tokens(api: Api, body: &Value, spec: &EngineSpec) -> bool {
    let parsed = api == Api::Chat && spec.parses_chats;
    !parsed && body.get("skip_special_tokens").and_then(Value::as_bool).unwrap_or(true)
}

fn stop_strings(body: &Value) -> Vec<String> {
    let found: Vec<String> = match body.get("stop").or_else(|| body.get("stop_sequences")) {
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(stops)) => stops.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    found.into_iter().filter(|stop| !stop.is_empty()).collect()
}
