//! Place where a request's prompt stands in its body.

use std::borrow::Cow;
use std::sync::Arc;

use super::chat::Chat;
use super::{Reason, convert};
use crate::codec::json::{Object, Value};
use crate::dialect::Api;

/// Most token ids read from one body; beyond any context window.
const MAX_TOKEN_IDS: usize = 16 << 20;

/// A prompt as the client spelled it.
#[derive(Debug)]
pub enum PromptSource {
    /// A conversation for a chat template.
    Messages(Box<Chat>),
    /// A text to tokenise.
    Text {
        /// Text of the source.
        text: String,
        /// True if the tokenizer's own marks (such as a begin-of-sequence token) are added.
        add_special_tokens: bool,
    },
    /// Token ids, used as they are.
    TokenIds(Arc<[u32]>),
}

impl PromptSource {
    /// Reads the members of vLLM 0.32's request types (`ChatCompletionRequest`,
    /// `CompletionRequest`, `GenerateRequest`, `AnthropicMessagesRequest`, `ResponsesRequest`) that
    /// decide on the prompt.
    ///
    /// # Errors
    /// The [`Reason`] that makes the prompt unknowable here; a body that the engine will refuse is
    /// [`Reason::Shape`].
    pub fn read(api: Api, body: &Object) -> Result<Self, Reason> {
        match api {
            Api::Chat => Chat::read(body).map(|chat| Self::Messages(Box::new(chat))),
            Api::Completions => completion(body),
            Api::Generate => generate(body),
            Api::Responses | Api::Messages => {
                convert::read(api, body).map(|chat| Self::Messages(Box::new(chat)))
            }
        }
    }
}

fn completion(body: &Object) -> Result<PromptSource, Reason> {
    if present(body, "prompt_embeds").is_some() {
        return Err(Reason::Embeds);
    }
    // vLLM refuses a suffix, even an empty one; what takes it builds another prompt from the two.
    if present(body, "suffix").is_some() {
        return Err(Reason::Shape);
    }
    let prompt = present(body, "prompt").ok_or(Reason::Shape)?;
    let add_special_tokens = flag(body, "add_special_tokens", true)?;
    let text = |text: Cow<'_, str>| PromptSource::Text { text: text.into_owned(), add_special_tokens };
    if prompt.is_string() {
        return prompt.as_str().map(text).ok_or(Reason::Json);
    }
    let first = prompt.first_element().ok_or(Reason::Shape)?;
    if !(first.is_string() || first.is_array()) {
        return token_ids(&prompt).map(PromptSource::TokenIds);
    }
    match prompt.array_len_capped(2) {
        Some(1) if first.is_string() => first.as_str().map(text).ok_or(Reason::Json),
        Some(1) => token_ids(&first).map(PromptSource::TokenIds),
        Some(_) => Err(Reason::Batch),
        None => Err(Reason::Shape),
    }
}

fn generate(body: &Object) -> Result<PromptSource, Reason> {
    if present(body, "features").is_some() {
        return Err(Reason::Media);
    }
    token_ids(&present(body, "token_ids").ok_or(Reason::Shape)?).map(PromptSource::TokenIds)
}

fn token_ids(value: &Value<'_>) -> Result<Arc<[u32]>, Reason> {
    // A token id and its comma take two bytes at least.
    if value.raw().len() / 2 > MAX_TOKEN_IDS {
        return Err(Reason::TooLong);
    }
    let ids: Vec<u32> = serde_json::from_slice(value.raw()).map_err(|_| Reason::Shape)?;
    if ids.is_empty() { Err(Reason::Shape) } else { Ok(ids.into()) }
}

/// A member that is there and not null.
pub(super) fn present<'a>(body: &'a Object, key: &str) -> Option<Value<'a>> {
    body.get(key).filter(|value| !value.is_null())
}

/// A boolean member. The engine takes more spellings (`"yes"`, `1`); they are too rare to follow.
pub(super) fn flag(body: &Object, key: &str, default: bool) -> Result<bool, Reason> {
    body.get(key).map_or(Ok(default), |value| value.as_bool().ok_or(Reason::Shape))
}

/// Tokens beyond which a prompt is cut (`truncate_prompt_tokens`); `None` if it is not.
///
/// # Errors
/// [`Reason::Truncation`] where the engine cuts by its own limits.
pub fn most_tokens(body: &Object) -> Result<Option<usize>, Reason> {
    let Some(most) = present(body, "truncate_prompt_tokens") else { return Ok(None) };
    let most = most.as_u64().filter(|most| *most > 0).and_then(|most| usize::try_from(most).ok());
    most.map(Some).ok_or(Reason::Truncation)
}
