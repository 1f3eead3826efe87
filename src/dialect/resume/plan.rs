//! Decides from a request if its stream could be continued exactly.

use super::aborted_answer::AbortSign;
use crate::codec::json::{Object, Value};
use crate::dialect::shape::asks_for;
use crate::dialect::{Api, guard};

/// Requests with larger bodies are not continued: the first event repeats the prompt, and it is
/// held until it is complete. A million tokens of text are 4 MiB.
pub(in crate::dialect) const BODY_BYTES: usize = 4 << 20;

/// Members that a continuation has as the request has them: they say how tokens are chosen, or by
/// whom and for whom.
pub(super) const KEPT: [&str; 26] = [
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "length_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "allowed_token_ids",
    "seed",
    "ignore_eos",
    "stop_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "logprobs",
    "return_tokens_as_token_ids",
    "user",
    "priority",
    "cache_salt",
    "stream",
    "stream_options",
    "service_tier",
    "safety_identifier",
];

/// Members that have done their part when the prompt is known, or that a continuation states anew.
const DONE_WITH: [&str; 28] = [
    "messages",
    "prompt",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "add_generation_prompt",
    "add_special_tokens",
    "continue_final_message",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "top_logprobs",
    "response_format",
    "return_token_ids",
    "request_id",
    "store",
    "metadata",
    "prompt_cache_key",
    "stop",
    "n",
    "best_of",
    "use_beam_search",
    "echo",
    "include_reasoning",
];

/// Members of structured output, in the names of several versions.
const STRUCTURED: [&str; 3] = ["structured_outputs", "guided_decoding_backend", "structural_tag"];

/// Reasons why a stream can't be continued exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The request asks for several choices.
    Choices,
    /// A search over several answers.
    Beam,
    /// The state of a grammar is not in the tokens' text alone.
    Structured,
    /// The parser of tools has a state.
    Tools,
    /// The answer's reasoning has not ended.
    Reasoning,
    /// Text that may become a stop string is held back by the engine.
    Stop,
    /// It counts what was generated, apart from the prompt.
    Penalty,
    /// The state of the random numbers is the decoder's.
    Seed,
    /// The answer repeats the prompt.
    Echo,
    /// The prompt is not one list of tokens.
    Prompt,
    /// A chat's log probabilities, which completions write otherwise.
    Logprobs,
    /// A member of the request that is not known here, or a number of tokens that is not spelled as
    /// one.
    Member,
    /// The request is very large.
    Size,
    /// The decoder did not tell token ids.
    NoIds,
    /// Too many ids are kept already.
    Memory,
    /// Text was incomplete for too long, or may be so behind several tokens at once.
    HeldText,
    /// Special tokens came in a chat that goes on, which its parser shows or not.
    SpecialTokens,
    /// An event could not be read.
    Unreadable,
}

/// Facts of a request that decide on continuations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The stream that the client reads.
    pub api: Api,
    /// `Ok` if the answer can be continued once it has begun, else the reason against it.
    pub exact: Result<(), Reason>,
    /// The client reads token ids itself.
    pub wants_ids: bool,
    /// The client reads a usage event at the end.
    pub include_usage: bool,
    /// Sign by which a decoder gives the answer up.
    pub given_up: AbortSign,
}

impl Reason {
    /// The value of the metric label `reason`.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Choices => "choices",
            Reason::Beam => "beam",
            Reason::Structured => "structured",
            Reason::Tools => "tools",
            Reason::Reasoning => "reasoning",
            Reason::Stop => "stop",
            Reason::Penalty => "penalty",
            Reason::Seed => "seed",
            Reason::Echo => "echo",
            Reason::Prompt => "prompt",
            Reason::Logprobs => "logprobs",
            Reason::Member => "member",
            Reason::Size => "size",
            Reason::NoIds => "no_ids",
            Reason::Memory => "memory",
            Reason::HeldText => "held_text",
            Reason::SpecialTokens => "special_tokens",
            Reason::Unreadable => "unreadable",
        }
    }
}

impl Plan {
    /// The plan for a streamed chat or completion; `None` for everything else. `bypass`: the prompt
    /// is of a kind that only one engine can answer ([`crate::dialect::Bypass`]).
    pub fn of(api: Api, body: &Object, bypass: bool) -> Option<Plan> {
        let streamed = body.get("stream").and_then(|v| v.as_bool()) == Some(true);
        if !streamed || !matches!(api, Api::Chat | Api::Completions) {
            return None;
        }
        let options = body.get("stream_options").and_then(|v| v.object().ok());
        Some(Plan {
            api,
            exact: exact(api, body, bypass),
            wants_ids: asks_for(body, "return_token_ids"),
            include_usage: options.is_some_and(|o| asks_for(&o, "include_usage")),
            given_up: AbortSign::of(api, body),
        })
    }

    /// True if the stream is that of one answer, so that it can be followed at all.
    pub fn one_answer(&self) -> bool {
        !matches!(self.exact, Err(Reason::Choices | Reason::Beam | Reason::Prompt | Reason::Echo))
    }
}

/// Most bytes by which a stream's first event is longer that repeats the prompt in numbers, for a
/// body of `body_bytes`.
pub fn prompt_ids_bytes(body_bytes: usize) -> usize {
    8 * body_bytes.min(BODY_BYTES)
}

fn exact(api: Api, body: &Object, bypass: bool) -> Result<(), Reason> {
    // Those first that rule out to follow the stream at all.
    for key in ["n", "best_of"] {
        deny(given(body, key).is_some_and(|n| n.as_u64() != Some(1)), Reason::Choices)?;
    }
    deny(given(body, "use_beam_search").is_some_and(|v| v.as_bool() != Some(false)), Reason::Beam)?;
    deny(given(body, "echo").is_some_and(|v| v.as_bool() != Some(false)), Reason::Echo)?;
    deny(bypass, Reason::Prompt)?;
    deny(body.bytes().len() > BODY_BYTES, Reason::Size)?;
    body.members().filter(|(_, value)| !value.is_null()).try_for_each(|(key, value)| member(&key, &value))?;
    let greedy = given(body, "temperature").is_some_and(|v| is_zero(&v));
    deny(given(body, "seed").is_some() && !greedy, Reason::Seed)?;
    if api == Api::Chat {
        deny(given(body, "logprobs").is_some_and(|v| v.as_bool() != Some(false)), Reason::Logprobs)?;
        deny(!only_text(body), Reason::Prompt)?;
        // The end's own token would be text where special tokens are shown.
        deny(asks_for(body, "include_stop_str_in_output"), Reason::SpecialTokens)?;
        let uses_tools = given(body, "tools").is_some_and(|v| v.first_element().is_some());
        let none = given(body, "tool_choice").is_some_and(|v| v.raw() == b"\"none\"");
        deny(uses_tools && !none, Reason::Tools)?;
    }
    Ok(())
}

/// Refusal by one member, which is not null.
fn member(key: &str, value: &Value<'_>) -> Result<(), Reason> {
    deny(key.starts_with("guided_") || STRUCTURED.contains(&key), Reason::Structured)?;
    match key {
        "response_format" => {
            let kind = value.object().ok().and_then(|o| Some(o.get("type")?.raw() == b"\"text\""));
            deny(kind != Some(true), Reason::Structured)
        }
        "stop" => deny(!value.is_array() || value.first_element().is_some(), Reason::Stop),
        "presence_penalty" | "frequency_penalty" => deny(!is_zero(value), Reason::Penalty),
        // What is left of it must be known; engines take more for a number, as "9" and 9.0.
        "max_tokens" | "max_completion_tokens" | "min_tokens" => {
            deny(value.as_u64().is_none(), Reason::Member)
        }
        "include_reasoning" => deny(value.as_bool() != Some(true), Reason::Reasoning),
        _ if guard::drops(key) => Ok(()),
        _ => deny(!KEPT.contains(&key) && !DONE_WITH.contains(&key), Reason::Member),
    }
}

fn deny(denied: bool, reason: Reason) -> Result<(), Reason> {
    if denied { Err(reason) } else { Ok(()) }
}

fn given<'a>(body: &'a Object, key: &str) -> Option<Value<'a>> {
    body.get(key).filter(|value| !value.is_null())
}

fn is_zero(value: &Value<'_>) -> bool {
    std::str::from_utf8(value.raw()).is_ok_and(|text| text.parse::<f64>() == Ok(0.0))
}

/// True if all messages are text: of anything else the tokens hold only the place.
fn only_text(body: &Object) -> bool {
    let is_text = |part: Value<'_>| {
        part.is_string()
            || part.object().ok().and_then(|p| Some(p.get("type")?.raw() == b"\"text\"")) == Some(true)
    };
    let messages = body.get("messages");
    messages.into_iter().flat_map(|list| list.elements()).all(|message| {
        let Ok(message) = message.object() else { return false };
        given(&message, "content")
            .is_none_or(|content| content.is_string() || content.elements().all(is_text))
    })
}
